//! Checks a finished simulated transfer: its result, its bytes, its counts.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::direct::REFUSALS;
use super::job::{Job, Piece, UNTOUCHED};
use super::memory::{Memory, all_are};
use super::world::{Contents, InjectedFailure, World};
use crate::error::{Error, Result};
use crate::plan::{Direction, Route};
use crate::transfer::{Batch, Outcome};

impl Job {
    /// Compares the reported and actual results with the expected ones. Returns the number of bytes
    /// moved, and the memory if it must never be freed.
    pub(super) fn judge(mut self, world: &mut World) -> (u64, Option<Memory>) {
        assert!(self.state.is_done());
        let result = self.state.wait().0;
        let failures: Vec<InjectedFailure> = world
            .failed
            .extract_if(.., |failure| Arc::ptr_eq(&failure.state, &self.state))
            .collect();
        self.judge_error(world, &failures, result.as_ref().err());
        let results = match (&self.batch, &result) {
            (Some(batch), Ok(outcome)) => {
                Some(self.piece_results(world, &failures, batch, outcome))
            }
            _ => None,
        };
        match (self.direction, self.batch.is_some()) {
            (Direction::Read, false) => self.judge_read(&result),
            (Direction::Read, true) => self.judge_batch(results.as_ref()),
            (Direction::Write, is_batch) => {
                let is_done = |index| match &results {
                    // An empty piece has no result.
                    Some(results) => results.get(&index).is_none_or(Result::is_ok),
                    None => !is_batch && result.is_ok(),
                };
                self.judge_write(&mut world.files, is_done);
            }
        }
        self.look_at_blocks();
        if let Ok(outcome) = &result {
            let came = self.batch.as_ref().is_none_or(|batch| self.all_blocks_arrived(batch));
            assert!(came, "it has ended, and some of its blocks were not reported");
            self.judge_counts(outcome);
            self.judge_ways(world, outcome);
        }
        if let Err(Error::CopyNotOver { .. }) = result {
            return (0, Some(self.memory));
        }
        world.forget(&self.state);
        self.memory.free();
        (result.map_or(0, |outcome| outcome.bytes), None)
    }

    fn judge_error(&mut self, world: &World, failures: &[InjectedFailure], error: Option<&Error>) {
        let faults = &world.faults;
        if let Some(Error::CopyNotOver { .. }) = error {
            assert!(self.on_gpu && faults.of_gpu() > 0.0, "{error:?}");
            return; // it takes precedence over the first error
        }
        if let (Some(first), Some(error)) = (&self.error, error) {
            assert_eq!(*first, format!("{error:?}"), "not the first error is reported");
        }
        match error {
            None => {
                assert!(!self.cancelled, "cancelled, and reported as done");
                let all = self.batch.is_none(); // in a batch each piece has its own result
                assert!(!all || failures.is_empty(), "{failures:?}, and reported as done");
            }
            Some(Error::Cancelled { .. }) => assert!(self.cancelled, "not cancelled by a caller"),
            Some(Error::Device { .. }) => {
                assert!(self.on_gpu && faults.of_gpu() > 0.0, "{error:?}");
            }
            Some(other) if self.batch.is_some() => panic!("it stops a whole batch: {other:?}"),
            Some(Error::EndOfFile { .. } | Error::FileChanged { .. }) => {
                assert!(self.exact, "not all bytes were requested");
            }
            Some(error) => judge_failure(world, failures.iter(), error),
        }
    }

    fn judge_read(&self, result: &Result<Outcome>) {
        let piece = &self.pieces[0];
        let got = match result {
            Ok(outcome) => Some(outcome.bytes),
            Err(Error::EndOfFile { got, .. } | Error::FileChanged { got, .. }) => Some(*got),
            Err(_) => None,
        };
        let whole = got == Some(piece.range.len());
        assert!(got.is_none() || !self.exact || whole == result.is_ok(), "{got:?}: {result:?}");
        piece.judge(got, self.memory.bytes());
    }

    /// The results of the pieces of a batch that was not stopped.
    fn piece_results(
        &self,
        world: &World,
        failures: &[InjectedFailure],
        batch: &Batch,
        outcome: &Outcome,
    ) -> HashMap<usize, Result<u64>> {
        let mut results: HashMap<usize, Result<u64>> = HashMap::new();
        let places: HashMap<usize, ByteRange> =
            batch.strip().items().iter().map(|item| (item.index, item.at)).collect();
        for (index, result) in batch.results() {
            let hits = |failure: &&InjectedFailure| match failure.synced {
                Some(file) => self.pieces[index].file == file,
                None => !failure.wanted.intersect(places[&index]).is_empty(),
            };
            match &result {
                Ok(_) => assert!(!failures.iter().any(|f| hits(&f)), "{index}: {failures:?}"),
                Err(error) => judge_failure(world, failures.iter().filter(hits), error),
            }
            results.insert(index, result);
        }
        let sum: u64 = results.values().flatten().sum();
        assert_eq!(sum, outcome.bytes, "{results:?}");
        assert_eq!(results.len(), places.len());
        results
    }

    /// Checks each piece of a batch read; `results` is `Some` if nothing stopped the batch.
    fn judge_batch(&self, results: Option<&HashMap<usize, Result<u64>>>) {
        let (bytes, mut at) = (self.memory.bytes(), 0);
        for (index, piece) in self.pieces.iter().enumerate() {
            let end = piece.at + usize::try_from(piece.range.len()).expect("a small piece");
            assert!(all_are(&bytes[at..piece.at], UNTOUCHED), "bytes between two pieces");
            let got = results.and_then(|results| match results.get(&index) {
                Some(result) => result.as_ref().ok().copied(),
                None => Some(0),
            });
            piece.judge(got, &bytes[piece.at..end]);
            at = end;
        }
        assert!(all_are(&bytes[at..], UNTOUCHED), "bytes behind the last piece");
    }

    /// `is_done`: whether a piece was reported as written.
    fn judge_write(&self, files: &mut [Contents], is_done: impl Fn(usize) -> bool) {
        let memory = self.memory.bytes();
        for (index, piece) in self.pieces.iter().enumerate() {
            let source = &memory[piece.at..piece.at + piece.bytes.len()];
            assert!(source == piece.bytes, "the source of a write has changed");
            piece.judge_written(&mut files[piece.file], is_done(index));
        }
    }

    fn judge_counts(&self, outcome: &Outcome) {
        if self.direction == Direction::Read && self.pieces.iter().any(Piece::is_cut) {
            return; // bytes after the new end may have been counted
        }
        let by_route: u64 = outcome.routes.iter().map(|share| share.bytes).sum();
        assert_eq!(by_route, outcome.bytes, "bytes by route: {outcome:?}");
        let wanted: usize = self.pieces.iter().map(|piece| piece.bytes.len()).sum();
        if self.batch.is_some() && outcome.bytes < wanted as u64 {
            // Parts of failed pieces may have been done too.
            assert!(self.state.done() >= outcome.bytes, "progress: {outcome:?}");
        } else {
            assert_eq!(self.state.done(), outcome.bytes, "progress: {outcome:?}");
        }
    }
}

impl Piece {
    /// Compares a file's bytes with the previous contents and with the written bytes.
    fn judge_written(&self, file: &mut Contents, is_done: bool) {
        let start = usize::try_from(self.range.start).expect("a small file");
        let end = (start + self.bytes.len()).min(file.bytes.len());
        if is_done {
            let there = file.bytes.get(start..start + self.bytes.len());
            assert!(there.is_none_or(|there| there == self.bytes), "other bytes were written");
            assert!(there.is_some() || self.bytes.is_empty(), "bytes are missing");
        }
        file.expected.resize(file.expected.len().max(end), 0);
        if start < end && file.bytes[start..end] == self.bytes[..end - start] {
            file.expected[start..end].copy_from_slice(&file.bytes[start..end]);
            return;
        }
        for index in start..end {
            let (byte, old) = (file.bytes[index], file.expected[index]);
            let new = self.bytes[index - start];
            assert!(byte == new || byte == old, "byte {index} of the file is neither old nor new");
            file.expected[index] = byte;
        }
    }

    /// Whether some of its bytes may have been missing.
    pub(super) fn is_cut(&self) -> bool {
        self.size_min < self.range.start + self.bytes.len() as u64
    }

    /// `got`: the reported number of bytes; `None`: unknown, but no byte may be wrong.
    pub(super) fn judge(&self, got: Option<u64>, bytes: &[u8]) {
        if let Some(got) = got {
            let (start, most) = (self.range.start, self.bytes.len() as u64);
            let least = self.size_min.clamp(start, start + most) - start;
            assert!((least..=most).contains(&got), "{got} bytes of {least} to {most}");
        }
        if self.racy {
            return; // the guards were checked all the same
        }
        let count = got.map_or(0, |got| usize::try_from(got).expect("a small transfer"));
        let (first, rest) = bytes.split_at(count);
        if first == &self.bytes[..count] && all_are(rest, UNTOUCHED) {
            return;
        }
        for (index, &byte) in bytes.iter().enumerate() {
            let right = self.bytes.get(index).copied();
            let delivered = got.is_some_and(|got| (index as u64) < got);
            let fits = Some(byte) == right
                || (byte == UNTOUCHED && !delivered)
                || (byte == 0 && self.zeros);
            assert!(fits, "byte {index} is {byte:#x} instead of {right:x?} ({got:?} got)");
        }
    }
}

/// Checks that an error matches one of `failures` or another simulated fault.
fn judge_failure<'a>(
    world: &World,
    mut failures: impl Iterator<Item = &'a InjectedFailure>,
    error: &Error,
) {
    match error {
        Error::Io { source, .. } => {
            let known = failures.any(|failure| failure.errno.raw_os_error() == source.0);
            assert!(known, "no fault explains this error: {error:?}");
        }
        Error::NoProgress { .. } => {
            let faults = &world.faults;
            assert!(faults.empty + faults.odd > 0.0, "every op went on: {error:?}");
        }
        Error::RouteUnavailable { route: Route::Direct, .. } => {
            let refused = failures.any(|failure| REFUSALS.contains(&failure.errno));
            assert!(refused, "no port refused: {error:?}");
        }
        other => panic!("an error that nothing here can cause: {other:?}"),
    }
}

//! Many reads or writes of one call: which file each part of their strip belongs to, where its
//! bytes go or come from, and what came of it.
//!
//! To the scheduler such a transfer is one of the strip, cut in windows and segments as a file is.
//! What one of them fails with, or the end of its file, is noted here and stops none of the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::gate::Gate;
use super::op::Op;
use crate::error::{Error, Place};
use crate::file::{Handle, Source};
use crate::lock::Lock;
use crate::plan::{Alignment, Stretch, Strip};
use crate::units::ByteRange;

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Batch {
    strip: Strip,
    /// The files of its stretches, by their sources' numbers.
    files: Vec<Arc<Handle>>,
    /// The queue of each one's drive.
    drives: Vec<usize>,
    /// What O_DIRECT demands of each.
    alignments: Vec<Option<Alignment>>,
    /// For each stretch where its file was found to end, in the strip.
    ends: Box<[AtomicU64]>,
    /// Whether something ended early or went wrong.
    is_partial: AtomicBool,
    /// Whether it moves the caller's host memory without a slot between.
    on_host: bool,
    /// What went wrong, by where its bytes begin; no two have bytes in common.
    failures: Lock<Failures>,
    /// Of files that could not be synced, by their sources' numbers, why not.
    unsynced: Lock<BTreeMap<usize, Error>>,
    /// How far it may be read, where not all of it may.
    gate: Option<Arc<Gate>>,
}

/// Where each one's bytes end, and the error.
type Failures = BTreeMap<u64, (u64, Error)>;

/// The failure that took bytes of a range, if any.
fn failure_in(failures: &Failures, range: ByteRange) -> Option<&Error> {
    let (_, (end, error)) = failures.range(..range.end).next_back()?;
    (*end > range.start).then_some(error)
}

/// Bytes in a slot that go to one place, or come from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scatter {
    /// Where they lie in host memory.
    pub(crate) host: u64,
    /// The other place.
    pub(crate) address: u64,
    pub(crate) len: u64,
}

impl Batch {
    /// For a strip whose sources are `files`, with the queue of each one's drive and what O_DIRECT
    /// demands of those that are read with it, and whose addresses are those of host memory or not.
    pub(crate) fn new(
        strip: Strip,
        files: impl IntoIterator<Item = (Arc<Handle>, usize, Option<Alignment>)>,
        on_host: bool,
    ) -> Self {
        let (mut handles, mut drives, mut alignments) = (Vec::new(), Vec::new(), Vec::new());
        for (file, drive, alignment) in files {
            handles.push(file);
            drives.push(drive);
            alignments.push(alignment);
        }
        let ends = strip.stretches().iter().map(|stretch| AtomicU64::new(stretch.at.end)).collect();
        Self {
            strip,
            files: handles,
            drives,
            alignments,
            ends,
            is_partial: AtomicBool::new(false),
            on_host,
            failures: Lock::default(),
            unsynced: Lock::default(),
            gate: None,
        }
    }

    /// The same, which is read as far as `gate` lets it.
    pub(crate) fn behind(self, gate: Gate) -> Self {
        Self { gate: Some(Arc::new(gate)), ..self }
    }

    /// How far it may be read, where not all of it may.
    pub(crate) fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.as_ref()
    }

    pub(crate) fn strip(&self) -> &Strip {
        &self.strip
    }

    /// The stretch that has the byte at `position`, or the next one.
    ///
    /// # Panics
    /// Behind the last stretch.
    pub(crate) fn stretch_at(&self, position: u64) -> &Stretch {
        &self.strip.stretches()[self.strip.stretch_at(position)]
    }

    /// The file of a stretch.
    pub(crate) fn file_of(&self, stretch: &Stretch) -> &Arc<Handle> {
        &self.files[stretch.source]
    }

    /// The file of the byte at `position`, and what is added to have its offset there.
    pub(crate) fn source_of(&self, position: u64) -> (&Arc<Handle>, i64) {
        let stretch = self.stretch_at(position);
        let shift = stretch.offset.wrapping_sub(stretch.at.start).cast_signed();
        (self.file_of(stretch), shift)
    }

    /// What O_DIRECT demands of the file of the byte at `position`: the strip keeps to the most
    /// that any does, but a request goes on wherever its own file lets it.
    pub(crate) fn alignment_at(&self, position: u64) -> Option<Alignment> {
        self.alignments[self.stretch_at(position).source]
    }

    /// Where the byte at `position` goes or comes from.
    pub(crate) fn address_of(&self, position: u64) -> u64 {
        let first = self.strip.items_in(ByteRange::at(position, 1)).next();
        first.map_or(0, |(_, address)| address + self.shift_at(position))
    }

    /// How much further on than the strip says the byte at `position` goes.
    fn shift_at(&self, position: u64) -> u64 {
        self.gate.as_ref().map_or(0, |gate| gate.shift_at(position))
    }

    /// Whether one request can move all of a range.
    pub(crate) fn is_one(&self, range: ByteRange) -> bool {
        self.parts(range).nth(1).is_none()
    }

    /// Its files on one drive.
    pub(crate) fn files_on(&self, drive: usize) -> Vec<Arc<Handle>> {
        let of = self.files.iter().zip(&self.drives).filter(|(_, other)| **other == drive);
        of.map(|(file, _)| Arc::clone(file)).collect()
    }

    /// Why what was written to a source may not be on its drive.
    pub(crate) fn unsynced(&self, source: usize) -> Option<Error> {
        let unsynced = self.unsynced.lock();
        unsynced.get(&source).cloned()
    }

    /// Notes that what was written to a file may not be on its drive.
    pub(crate) fn fail_sync(&self, file: &Arc<Handle>, error: Error) {
        self.is_partial.store(true, Ordering::Relaxed);
        let mut unsynced = self.unsynced.lock();
        // It may have been opened several times: the kernel tells only one of them.
        let same = |other: &Arc<Handle>| other.identity() == file.identity();
        let sources = (0..).zip(&self.files).filter(|(_, other)| same(other));
        unsynced.extend(sources.map(|(source, _)| (source, error.clone())));
    }

    /// The file of a source.
    pub(crate) fn file(&self, source: usize) -> &Arc<Handle> {
        &self.files[source]
    }

    /// Whether its first byte is not in the page cache, as far as the kernel tells.
    pub(crate) fn begins_cold(&self) -> bool {
        let Some(stretch) = self.strip.stretches().first() else { return false };
        let file = self.file_of(stretch);
        let is_told = matches!(file.residency_source(), Source::Cachestat | Source::Mincore);
        is_told && !file.is_resident(ByteRange::at(stretch.offset, 1))
    }

    /// The bytes of a range in the strip, as an error names them: those of its first stretch.
    pub(crate) fn place(&self, range: ByteRange) -> Place {
        if self.strip.len() == 0 {
            return self.files[0].place(0, 0); // all of it lies behind the ends of its files
        }
        let stretch = self.stretch_at(range.start.min(self.strip.len().saturating_sub(1)));
        let part = stretch.at.intersect(range);
        self.file_of(stretch).place(stretch.offset_of(part.start), part.len())
    }

    /// Notes that a file ends where `position` would be read.
    pub(crate) fn ends_at(&self, position: u64) {
        let stretch = self.strip.stretch_at(position);
        self.is_partial.store(true, Ordering::Relaxed);
        self.ends[stretch].fetch_min(position, Ordering::Relaxed);
    }

    /// Notes that nothing came of what is wanted in a range.
    pub(crate) fn fail(&self, range: ByteRange, error: Error) {
        self.is_partial.store(true, Ordering::Relaxed);
        self.failures.lock().entry(range.start).or_insert((range.end, error));
    }

    /// Cuts a range where its bytes are to be moved one after the other, no part across two
    /// stretches; with the host address of each where that is the caller's.
    pub(crate) fn parts(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Option<u64>)> {
        let to_slot = (!self.on_host).then(|| self.strip.stretches_in(range));
        let to_host = self.on_host.then(|| self.strip.items_in(range));
        let to_slot = to_slot.into_iter().flatten().map(|(_, part)| (part, None));
        let shifted =
            |(part, host): (ByteRange, u64)| (part, Some(host + self.shift_at(part.start)));
        to_slot.chain(to_host.into_iter().flatten().map(shifted))
    }

    /// The same of what is left of an op, with all addresses.
    pub(crate) fn targets(&self, op: &Op) -> impl Iterator<Item = (ByteRange, u64)> {
        let (first, in_slot) = (op.segment.covered.start, op.address);
        self.parts(op.rest())
            .map(move |(part, host)| (part, host.unwrap_or(in_slot + (part.start - first))))
    }

    /// What of a range, which begins at host address `host`, goes where or comes from where, but
    /// for bytes that have not come; neighbours there and here are one.
    pub(crate) fn scattered(&self, range: ByteRange, host: u64) -> Vec<Scatter> {
        let failures = self.failures.lock();
        let mut scattered: Vec<Scatter> = Vec::new();
        for (part, address) in self.strip.items_in(range) {
            let end = part.end.min(self.end_at(self.strip.stretch_at(part.start)));
            if end <= part.start || failure_in(&failures, part).is_some() {
                continue;
            }
            let (host, len) = (host + (part.start - range.start), end - part.start);
            match scattered.last_mut() {
                Some(last)
                    if last.host + last.len == host && last.address + last.len == address =>
                {
                    last.len += len;
                }
                _ => scattered.push(Scatter { host, address, len }),
            }
        }
        scattered
    }

    /// Where the file of a stretch ends, as far as is known.
    fn end_at(&self, stretch: usize) -> u64 {
        self.ends[stretch].load(Ordering::Relaxed)
    }

    /// Whether nothing went wrong and nothing ended early, so that each result is what was wanted.
    /// For transfers that have ended.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_partial.load(Ordering::Relaxed)
    }

    /// What came of each wanted range that has bytes, with its index: bytes, fewer than asked for
    /// only at the end of its file. For transfers that have ended.
    pub(crate) fn results(&self) -> impl Iterator<Item = (usize, Result<u64, Error>)> {
        let failures = self.failures.lock().clone();
        let unsynced = self.unsynced.lock().clone();
        let mut stretch = 0;
        self.strip.items().iter().map(move |item| {
            while self.strip.stretches()[stretch].at.end <= item.at.start {
                stretch += 1;
            }
            let end = item.at.end.min(self.end_at(stretch));
            let source = self.strip.stretches()[stretch].source;
            let failure = failure_in(&failures, item.at).or_else(|| unsynced.get(&source));
            let result = match failure {
                Some(error) => Err(error.clone()),
                None => Ok(end.saturating_sub(item.at.start)),
            };
            (item.index, result)
        })
    }

    /// Bytes of all that nothing was wrong with.
    pub(crate) fn got(&self) -> u64 {
        if self.is_whole() {
            return self.strip.wanted_in(ByteRange::at(0, self.strip.len()));
        }
        self.results().filter_map(|(_, result)| result.ok()).sum()
    }
}

//! One simulated transfer: what was asked, and whether what came of it is right.

use std::sync::Arc;
use std::time::Duration;

use super::memory::{Memory, all_are};
use super::ring::SimRing;
use super::start::SimTools;
use super::world::{Contents, World};
use crate::error::{Error, Result};
use crate::queue::op::{Direction, Op};
use crate::queue::{Claim, Core, Plan, Reader, Ring, Tools};
use crate::transfer::{Outcome, State};
use crate::units::ByteRange;

/// What the target of a read holds before.
pub(super) const UNTOUCHED: u8 = 0xEE;

/// What the caller's thread still has to do.
pub(super) enum Caller {
    Plan(Claim),
    Opened(usize, Plan),
    /// Works for the transfer until there is nothing to do.
    Help(Box<Reader<SimRing>>),
    Waits,
}

/// See the module's own text.
pub(super) struct Job {
    pub(super) state: Arc<State>,
    pub(super) file: usize,
    pub(super) direction: Direction,
    pub(super) range: ByteRange,
    pub(super) memory: Memory,
    pub(super) on_gpu: bool,
    /// The bytes to be written, or those of the file that a read should find.
    pub(super) bytes: Vec<u8>,
    pub(super) exact: bool,
    pub(super) caller: Caller,
    pub(super) blocking: bool,
    /// Whether a write to what it reads was under way at the same time.
    pub(super) racy: bool,
    pub(super) cancelled: bool,
    /// The smallest that the file has been meanwhile.
    pub(super) size_min: u64,
    /// Whether the file has grown again after it was cut.
    pub(super) zeros: bool,
    /// The first error, as the scheduler noted it.
    pub(super) error: Option<String>,
}

impl Job {
    pub(super) fn ring(&self) -> Option<&SimRing> {
        match &self.caller {
            Caller::Help(reader) => Some(reader.held().0),
            _ => None,
        }
    }

    /// Whether its caller has what is a reader's work.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(&self.caller, Caller::Help(reader) if reader.is_at_work())
    }

    pub(super) fn ops(&self) -> impl Iterator<Item = &Op> {
        let held = match &self.caller {
            Caller::Help(reader) => Some(reader.held()),
            _ => None,
        };
        held.into_iter()
            .flat_map(|(ring, done)| ring.ops().chain(done.iter().map(|completion| &completion.op)))
    }

    pub(super) fn can_step(&self, now: Duration) -> bool {
        match &self.caller {
            Caller::Plan(_) | Caller::Opened(..) => true,
            Caller::Help(_) => self.ring().is_none_or(|ring| {
                ring.in_flight() == 0 || ring.next_due().is_some_and(|due| due <= now)
            }),
            Caller::Waits => false,
        }
    }

    /// A step of the caller's own thread.
    pub(super) fn step(&mut self, core: &Arc<Core>, tools: &SimTools) {
        self.caller = match std::mem::replace(&mut self.caller, Caller::Waits) {
            Caller::Plan(claim) => {
                let plan = tools.plan(&claim);
                Caller::Opened(claim.window, plan)
            }
            Caller::Opened(window, (piece, segments)) => {
                core.with(|scheduler| scheduler.opened(window, piece, segments));
                if self.blocking {
                    let ring = SimRing::new(&tools.world, core, 1, tools.planner.segment);
                    Caller::Help(Box::new(Reader::new(ring)))
                } else {
                    Caller::Waits
                }
            }
            Caller::Help(mut reader) => {
                if reader.step_for(core, tools, &self.state) {
                    Caller::Help(reader)
                } else {
                    Caller::Waits
                }
            }
            Caller::Waits => Caller::Waits,
        };
    }
}

impl Job {
    /// Compares what the ended transfer reports and did with what it should have done.
    pub(super) fn judge(mut self, world: &mut World) {
        assert!(self.state.is_done());
        let result = self.state.wait().0;
        self.judge_error(world, result.as_ref().err());
        match self.direction {
            Direction::Read => self.judge_read(&result),
            Direction::Write => self.judge_write(&mut world.files[self.file], &result),
        }
        if let Ok(outcome) = &result {
            self.judge_counts(outcome);
        }
        match result {
            Err(Error::CopyNotOver { .. }) => std::mem::forget(self.memory),
            _ => self.memory.free(),
        }
    }

    fn judge_error(&mut self, world: &mut World, error: Option<&Error>) {
        let failures: Vec<_> =
            world.failed.extract_if(.., |(state, _)| Arc::ptr_eq(state, &self.state)).collect();
        let faults = &world.faults;
        if let Some(Error::CopyNotOver { .. }) = error {
            assert!(self.on_gpu && faults.calls + faults.copies > 0.0, "{error:?}");
            return; // it comes before the first error
        }
        if let (Some(first), Some(error)) = (&self.error, error) {
            assert_eq!(*first, format!("{error:?}"), "not the first error is reported");
        }
        match error {
            None => {
                assert!(!self.cancelled, "cancelled, and reported as done");
                assert!(failures.is_empty(), "{failures:?}, and reported as done");
            }
            Some(Error::Cancelled { .. }) => assert!(self.cancelled, "cancelled by nobody"),
            Some(Error::Io { source, .. }) => {
                let known = failures.iter().any(|(_, errno)| errno == source);
                assert!(known, "nobody made this error: {error:?}");
            }
            Some(Error::NoProgress { .. }) => {
                assert!(faults.empty + faults.odd > 0.0, "every op went on: {error:?}");
            }
            Some(Error::EndOfFile { .. } | Error::FileChanged { .. }) => {
                assert!(self.exact, "nobody asked for all bytes");
            }
            Some(Error::Device { .. }) => {
                assert!(self.on_gpu && faults.calls + faults.copies > 0.0, "{error:?}");
            }
            Some(other) => panic!("an error that nothing here can cause: {other:?}"),
        }
    }

    fn judge_read(&self, result: &Result<Outcome>) {
        let got = match result {
            Ok(outcome) => Some(outcome.bytes),
            Err(Error::EndOfFile { got, .. } | Error::FileChanged { got, .. }) => Some(*got),
            Err(_) => None,
        };
        if let Some(got) = got {
            let (start, most) = (self.range.start, self.bytes.len() as u64);
            let least = self.size_min.clamp(start, start + most) - start;
            assert!((least..=most).contains(&got), "{got} bytes of {least} to {most}");
            let whole = got == self.range.len();
            assert!(!self.exact || whole == result.is_ok(), "{got} bytes: {result:?}");
        }
        if self.racy {
            self.memory.bytes(); // the guards hold nevertheless
            return;
        }
        let bytes = self.memory.bytes();
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

    fn judge_write(&self, file: &mut Contents, result: &Result<Outcome>) {
        assert!(self.memory.bytes() == self.bytes, "the source of a write has changed");
        let start = usize::try_from(self.range.start).expect("a small file");
        let end = (start + self.bytes.len()).min(file.bytes.len());
        if result.is_ok() {
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

    fn judge_counts(&self, outcome: &Outcome) {
        let end = self.range.start + self.bytes.len() as u64;
        if self.direction == Direction::Read && self.size_min < end {
            return; // bytes behind the end may have been counted before it was known
        }
        let by_route: u64 = outcome.routes.iter().map(|share| share.bytes).sum();
        assert_eq!(by_route, outcome.bytes, "bytes by route: {outcome:?}");
        assert_eq!(self.state.done(), outcome.bytes, "progress: {outcome:?}");
    }
}

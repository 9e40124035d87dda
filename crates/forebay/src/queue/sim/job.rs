//! One simulated transfer: the request, and its caller's actions. `judge` checks the result.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::units::ByteRange;

use super::direct::DirectPart;
use super::gates::Opens;
use super::memory::Memory;
use super::ring::SimRing;
use super::start::SimTools;
use crate::plan::Direction;
use crate::queue::op::Op;
use crate::queue::{Claim, Core, Plan, Reader, Ring, Tools};
use crate::transfer::{Batch, State};

/// Initial contents of a read's target.
pub(super) const UNTOUCHED: u8 = 0xEE;

/// The next action of the caller's thread.
pub(super) enum Caller {
    Plan(Claim),
    Opened(usize, Plan),
    /// Helps with the transfer until there is nothing to do.
    Help(Box<Reader<SimRing>>),
    Waits,
}

/// A file range that a transfer moves: its only one, or one of a batch.
pub(super) struct Piece {
    pub(super) file: usize,
    pub(super) range: ByteRange,
    /// Offset in the transfer's memory.
    pub(super) at: usize,
    /// The bytes to write, or the file's bytes that a read should return.
    pub(super) bytes: Vec<u8>,
    /// Whether a write overlapped this read in time and range.
    pub(super) racy: bool,
    /// Smallest size of the file during the transfer.
    pub(super) size_min: u64,
    /// Whether the file was extended again after being truncated.
    pub(super) zeros: bool,
}

/// One simulated transfer.
pub(super) struct Job {
    pub(super) state: Arc<State>,
    pub(super) pieces: Vec<Piece>,
    pub(super) batch: Option<Arc<Batch>>,
    /// The caller's actions, for a gated read.
    pub(super) opens: Option<Opens>,
    pub(super) direction: Direction,
    /// Drives that it may have to wait for.
    pub(super) drives: Vec<usize>,
    pub(super) memory: Memory,
    pub(super) on_gpu: bool,
    /// The direct part, if any.
    pub(super) direct: Option<DirectPart>,
    pub(super) exact: bool,
    pub(super) caller: Caller,
    pub(super) blocking: bool,
    pub(super) cancelled: bool,
    /// The first error recorded by the scheduler.
    pub(super) error: Option<String>,
}

impl Piece {
    /// A range of a file that now has `size` bytes.
    pub(super) fn new(file: usize, range: ByteRange, bytes: Vec<u8>, size: u64) -> Self {
        Self { file, range, at: 0, bytes, racy: false, size_min: size, zeros: false }
    }

    /// Whether both ranges overlap in the same file.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.file == other.file && !self.range.intersect(other.range).is_empty()
    }
}

/// Marks reads among `pieces` and other transfers that overlap a concurrent write.
pub(super) fn note_races(jobs: &mut [Job], direction: Direction, pieces: &mut [Piece]) {
    for job in jobs.iter_mut() {
        for old in &mut job.pieces {
            for new in pieces.iter_mut() {
                let meets = old.meets(new);
                old.racy |= meets && direction == Direction::Write;
                new.racy |= meets && job.direction == Direction::Write;
            }
        }
    }
}

impl Job {
    pub(super) fn ring(&self) -> Option<&SimRing> {
        match &self.caller {
            Caller::Help(reader) => Some(reader.held().0),
            _ => None,
        }
    }

    /// Cancels it if it has not ended.
    pub(super) fn cancel(&mut self, core: &Core) {
        self.cancelled |= !self.state.is_done();
        core.with(|scheduler| scheduler.cancel(self.state.key(), &self.state));
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

    /// One step of the caller's own thread.
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

//! One simulated transfer: what was asked, and what its caller does. `judge` says whether what came
//! of it is right.

use std::sync::Arc;
use std::time::Duration;

use super::gates::Opens;
use super::memory::Memory;
use super::peers::Straight;
use super::ring::SimRing;
use super::start::SimTools;
use crate::queue::op::{Direction, Op};
use crate::queue::{Batch, Claim, Core, Plan, Reader, Ring, Tools};
use crate::transfer::State;
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

/// A range of a file that a transfer moves: the only one, or one of a batch.
pub(super) struct Piece {
    pub(super) file: usize,
    pub(super) range: ByteRange,
    /// Where it begins in the transfer's memory.
    pub(super) at: usize,
    /// The bytes to be written, or those of the file that a read should find.
    pub(super) bytes: Vec<u8>,
    /// Whether a write to what it reads was under way at the same time.
    pub(super) racy: bool,
    /// The smallest that the file has been meanwhile.
    pub(super) size_min: u64,
    /// Whether the file has grown again after it was cut.
    pub(super) zeros: bool,
}

/// See the module's own text.
pub(super) struct Job {
    pub(super) state: Arc<State>,
    pub(super) pieces: Vec<Piece>,
    pub(super) batch: Option<Arc<Batch>>,
    /// What its caller does where it is read behind a gate.
    pub(super) opens: Option<Opens>,
    pub(super) direction: Direction,
    /// Those that it may have to wait for.
    pub(super) drives: Vec<usize>,
    pub(super) memory: Memory,
    pub(super) on_gpu: bool,
    /// Where it goes straight.
    pub(super) straight: Option<Straight>,
    pub(super) exact: bool,
    pub(super) caller: Caller,
    pub(super) blocking: bool,
    pub(super) cancelled: bool,
    /// The first error, as the scheduler noted it.
    pub(super) error: Option<String>,
}

impl Piece {
    /// Of a file that now has `size` bytes.
    pub(super) fn new(file: usize, range: ByteRange, bytes: Vec<u8>, size: u64) -> Self {
        Self { file, range, at: 0, bytes, racy: false, size_min: size, zeros: false }
    }

    /// Whether it has bytes of a range of a file.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.file == other.file && !self.range.intersect(other.range).is_empty()
    }
}

/// Notes which of `pieces` and of those of other transfers are read while they are written.
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

    /// Cancels it, if it has not ended.
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

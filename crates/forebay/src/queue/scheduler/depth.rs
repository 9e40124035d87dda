//! How much a drive has in flight: as much as was set, or as its tuners find.

use crate::queue::op::Direction;
use crate::tune::{DepthLimits, DepthTuner, Learned};

/// See the module's own text.
#[derive(Debug)]
pub(crate) enum Depth {
    /// This many requests.
    Fixed(usize),
    /// What is found for each direction, reads first.
    Tuned(Box<[DepthTuner; 2]>),
}

impl Depth {
    /// Finds it, beginning with what was `learned` of the drive.
    pub(crate) fn tuned(limits: DepthLimits, learned: [Option<Learned>; 2]) -> Self {
        Self::Tuned(Box::new(learned.map(|learned| DepthTuner::new(limits, learned))))
    }

    fn tuner(&self, direction: Direction) -> Result<&DepthTuner, usize> {
        match self {
            Self::Fixed(depth) => Err(*depth),
            Self::Tuned(tuners) => Ok(&tuners[direction as usize]),
        }
    }

    /// Whether there may be one more where `ops` of `len` bytes together are in flight.
    pub(super) fn admits(&self, direction: Direction, ops: usize, len: u64) -> bool {
        self.tuner(direction).map_or_else(|depth| ops < depth, |tuner| tuner.admits(ops, len))
    }

    /// Requests of [`request_size`](Self::request_size) that are to be in flight.
    pub(super) fn requests(&self, direction: Direction) -> usize {
        self.tuner(direction).map_or_else(|depth| depth, DepthTuner::depth)
    }

    /// Bytes that are to be in flight now; `size`: those of a request, where they are not found.
    pub(super) fn window(&self, direction: Direction, size: u64) -> u64 {
        let set = |depth: usize| size.saturating_mul(depth as u64);
        self.tuner(direction).map_or_else(set, DepthTuner::window)
    }

    /// Bytes of one request, where they were found.
    pub(super) fn request_size(&self, direction: Direction) -> Option<u64> {
        self.tuner(direction).ok().map(DepthTuner::request_size)
    }

    /// What was found and is worth remembering.
    pub(super) fn learned(&self) -> [Option<Learned>; 2] {
        let learned = |direction| self.tuner(direction).ok().and_then(DepthTuner::learned);
        [Direction::Read, Direction::Write].map(learned)
    }

    /// Takes in a request that is done. Whether it changed what is to be in flight.
    pub(super) fn completed(&mut self, direction: Direction, landed: Landed) -> bool {
        let Self::Tuned(tuners) = self else { return false };
        let Landed { at_ns, len, took_ns, filled_len } = landed;
        let tuner = &mut tuners[direction as usize];
        let before = (tuner.depth(), tuner.request_size());
        tuner.completed(at_ns, len, took_ns, filled_len);
        (tuner.depth(), tuner.request_size()) != before
    }
}

/// A request that is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landed {
    pub(super) at_ns: u64,
    pub(super) len: u64,
    pub(super) took_ns: u64,
    /// Bytes in flight when the drive was given its last request.
    pub(super) filled_len: u64,
}

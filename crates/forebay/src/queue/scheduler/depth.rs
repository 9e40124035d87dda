//! Queue depth of a drive: fixed, or found by its tuners.

use crate::plan::Direction;
use crate::tune::{DepthLimits, DepthTuner};

/// How a drive's queue depth is determined.
#[derive(Debug)]
pub(crate) enum Depth {
    /// This many requests.
    Fixed(usize),
    /// A tuner for each direction, reads first.
    Tuned(Box<[DepthTuner; 2]>),
}

impl Depth {
    /// Tunes the depth.
    pub(crate) fn tuned(limits: DepthLimits) -> Self {
        Self::Tuned(Box::new([(); 2].map(|()| DepthTuner::new(limits))))
    }

    fn tuner(&self, direction: Direction) -> Result<&DepthTuner, usize> {
        match self {
            Self::Fixed(depth) => Err(*depth),
            Self::Tuned(tuners) => Ok(&tuners[direction as usize]),
        }
    }

    /// True if one more op is allowed while `ops` ops of `len` bytes in total are in flight.
    pub(super) fn admits(&self, direction: Direction, ops: usize, len: u64) -> bool {
        self.tuner(direction).map_or_else(|depth| ops < depth, |tuner| tuner.admits(ops, len))
    }

    /// Target number of requests of [`block_size`](Self::block_size) in flight.
    pub(super) fn requests(&self, direction: Direction) -> usize {
        self.tuner(direction).map_or_else(|depth| depth, DepthTuner::depth)
    }

    /// Target bytes in flight; `size` is the block size for a fixed depth.
    pub(super) fn window(&self, direction: Direction, size: u64) -> u64 {
        let set = |depth: usize| size.saturating_mul(depth as u64);
        self.tuner(direction).map_or_else(set, DepthTuner::window)
    }

    /// Block size in bytes, if tuned.
    pub(super) fn block_size(&self, direction: Direction) -> Option<u64> {
        self.tuner(direction).ok().map(DepthTuner::block_size)
    }

    /// Records a completed request. True if the depth or the block size has changed.
    pub(super) fn completed(&mut self, direction: Direction, landed: Landed) -> bool {
        let Self::Tuned(tuners) = self else { return false };
        let Landed { at_ns, len, took_ns, filled_len } = landed;
        let tuner = &mut tuners[direction as usize];
        let before = (tuner.depth(), tuner.block_size());
        tuner.completed(at_ns, len, took_ns, filled_len);
        (tuner.depth(), tuner.block_size()) != before
    }
}

/// A completed request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landed {
    pub(super) at_ns: u64,
    pub(super) len: u64,
    pub(super) took_ns: u64,
    /// Bytes in flight when the drive was given its last request.
    pub(super) filled_len: u64,
}

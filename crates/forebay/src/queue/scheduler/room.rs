//! How much a drive may have in flight.

use super::{Limits, Scheduler};
use crate::queue::op::{Direction, Line};
use crate::tune::Learned;

/// Threads of the pool that wait for one drive at most. Where io_uring is refused a drive needs as
/// many in flight from threads as from a ring: on a virtio drive with 2 cores, 4 threads gave 0.95
/// of the ring's rate, 8 gave 0.97, 32 gave 0.98. Each may need a huge page to bounce through,
/// which bounds them: 32 would take 64 MiB.
pub(crate) const EACH_MAX: usize = 24;

impl Scheduler {
    /// Whether a drive may have one more op of a line in flight: up to its depth, and while there
    /// are as many in all as there may be, up to its share; beside others on the same hardware as
    /// many as these may; beside its other line up to half; of the pool as many threads as it
    /// leaves to others. But one of each line in any case, so that nothing that others do can hold
    /// it up; a caller who helps needs none beside others, since the pool has one.
    pub(super) fn has_room(&self, drive: usize, line: Line) -> bool {
        let Limits { in_flight: most, pool, .. } = self.limits;
        let state = &self.drives[drive];
        let all = state.in_flight();
        let waits = state.waits_flying + state.helped_flying;
        let (first, own, other) = match line {
            Line::Direct => (state.direct_flying == 0, state.direct_flying, &state.waits),
            Line::Waits => (state.waits_flying == 0, waits, &state.direct),
            Line::Cached => (all == 0, waits, &state.direct),
        };
        let share = most / (self.busy + usize::from(all == 0)).max(1);
        let sharers = state.hardware.iter().map(|&piece| self.sharers[piece]).max().unwrap_or(0);
        let depth = state.most / (sharers + usize::from(all == 0)).max(1);
        let half = if other.is_empty() { depth } else { depth / 2 };
        let threads = match line {
            Line::Waits => pool.saturating_sub(self.pool.flying).min(EACH_MAX),
            Line::Direct | Line::Cached => usize::MAX,
        };
        let admits = || state.depth.admits(state.direction, all, state.flying_len);
        first
            || (own < half
                && all < depth
                && state.waits_flying < threads
                && all < share
                && self.in_flight < most
                && admits())
    }

    /// How many more threads of the pool a drive could use, at least one.
    pub(super) fn pool_room(&self, drive: usize) -> usize {
        let state = &self.drives[drive];
        let most = state.depth.requests(state.direction).min(EACH_MAX);
        most.saturating_sub(state.waits_flying).min(state.queued).max(1)
    }

    /// What was found about a drive, for reads and for writes.
    pub(crate) fn learned(&self, drive: usize) -> [Option<Learned>; 2] {
        self.drives[drive].depth.learned()
    }

    /// Bytes that a drive is to have in flight now.
    pub(crate) fn in_flight(&self, drive: usize, direction: Direction) -> u64 {
        self.drives[drive].depth.window(direction, self.limits.segment)
    }
}

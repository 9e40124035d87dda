//! How many ops a drive may have in flight.

use super::{Limits, Scheduler};
use crate::queue::op::{Direction, Line};

/// Maximum pool threads that wait for one drive. Without io_uring, a drive needs as many ops in
/// flight from threads as from a ring. On a virtio drive with 2 cores, 4 threads reached 0.95 of
/// the ring's rate, 8 reached 0.97, 32 reached 0.98. Each thread may need a huge page as bounce
/// buffer, which sets the limit: 32 would take 64 MiB.
pub(crate) const EACH_MAX: usize = 24;

impl Scheduler {
    /// True if a drive may have one more op of a line in flight. The limits:
    ///
    /// - its queue depth, divided by the number of busy drives on the same hardware;
    /// - its share of the ops that all drives may have;
    /// - half of its depth, if its other line has ops;
    /// - for the pool, as many threads as it leaves free, at most `EACH_MAX`.
    ///
    /// One op of each line is always allowed, so that no other load can block it. A caller that
    /// runs its own op does not need this, since the pool's op makes progress.
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

    /// Number of pool threads that a drive could use in addition, at least one.
    pub(super) fn pool_room(&self, drive: usize) -> usize {
        let state = &self.drives[drive];
        let most = state.depth.requests(state.direction).min(EACH_MAX);
        most.saturating_sub(state.waits_flying).min(state.queued).max(1)
    }

    /// Bytes that a drive should have in flight now; 0 for an unknown drive.
    pub(crate) fn in_flight(&self, drive: usize, direction: Direction) -> u64 {
        let window = |drive: &super::Drive| drive.depth.window(direction, self.limits.segment);
        self.drives.get(drive).map_or(0, window)
    }
}

//! The threads that serve the scheduler: which are parked, and which have a pending wake-up.
//!
//! A thread is counted here, under the lock, before it parks. A thread that adds work marks as many
//! parked threads as the work needs, and wakes them after the lock is released. A marked thread
//! does not park, so no wake-up is lost between its last look and its sleep.

use std::collections::VecDeque;

use super::round_robin::{Openable, RoundRobin};
use crate::queue::op::WindowKey;

/// Threads that share a wake-up primitive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workers {
    /// All readers.
    Readers,
    /// The worker of a ring.
    Ring(usize),
    /// The workers of the pool.
    Pool,
    /// The submitter of a link.
    Link(usize),
}

/// Parked threads of a kind.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// Parked, without a pending wake-up.
    pub(super) waiting: usize,
    /// With a pending wake-up, not yet running.
    pub(super) woken: usize,
}

impl Parked {
    /// Marks at most `most` parked threads for a wake-up; returns how many.
    pub(super) fn wake(&mut self, most: usize) -> usize {
        let woken = most.min(self.waiting);
        self.waiting -= woken;
        self.woken += woken;
        woken
    }
}

/// The readers, and their work.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// Transfers that may open a window, in turn.
    pub(super) openable: Openable,
    /// Transfers with ops for the readers.
    pub(super) order: RoundRobin,
    /// Number of these ops.
    pub(super) queued: usize,
    /// Windows for readers that are being planned.
    pub(super) planned: usize,
    /// Readers that run a work item.
    pub(super) busy: usize,
    pub(super) parked: Parked,
}

/// A ring: a thread that serves drives.
#[derive(Debug, Default)]
pub(super) struct RingState {
    pub(super) drives: VecDeque<usize>,
    /// True if it failed and serves no drive.
    pub(super) is_lost: bool,
    /// Windows of stopped transfers; the ring may still hold some of their ops.
    pub(super) to_cancel: Vec<WindowKey>,
    pub(super) parked: Parked,
}

/// Threads that run a single blocking op at a time.
#[derive(Debug, Default)]
pub(super) struct PoolState {
    /// Drives with ops for the pool, in turn.
    pub(super) drives: VecDeque<usize>,
    pub(super) parked: Parked,
    started: usize,
    unstarted: usize,
}

impl PoolState {
    /// Adds threads, to be started when first needed.
    pub(super) fn add_unstarted(&mut self, threads: usize) {
        self.unstarted += threads;
    }

    /// True if a thread is parked or can be started.
    pub(super) fn can_wake(&self) -> bool {
        self.parked.waiting + self.unstarted > 0
    }

    /// Number of running threads without an op, of which `flying` are in flight. They look for an
    /// op before they park.
    pub(super) fn awake(&self, flying: usize) -> usize {
        self.started - self.parked.waiting - flying
    }

    /// Counts a thread that is started now; its wake-up is pending.
    pub(super) fn start(&mut self) {
        self.unstarted -= 1;
        self.started += 1;
        self.parked.woken += 1;
    }

    /// Uncounts a thread that could not be started. The next wake-up may start it. True if no
    /// thread remains.
    pub(super) fn cannot_start(&mut self) -> bool {
        self.parked.woken -= 1;
        self.started -= 1;
        self.unstarted += 1;
        self.started == 0
    }

    /// Number of threads not started yet.
    #[cfg(test)]
    pub(super) fn unstarted(&self) -> usize {
        self.unstarted
    }
}

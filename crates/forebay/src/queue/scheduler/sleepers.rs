//! Which threads are parked, and which of them have a pending wake-up.
//!
//! A thread is counted here, under the lock, before it parks. A thread that adds work marks as many
//! parked threads as the work needs, and wakes them after the lock is released. A marked thread
//! does not park, so no wake-up is lost between its last look and its sleep.

use rustix::io::Errno;

use super::{Active, PoolState, Scheduler};
use crate::error::Error;
use crate::queue::op::Line;

/// Threads that share a wake-up primitive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crew {
    /// All readers.
    Readers,
    /// The worker of a ring.
    Ring(usize),
    /// The workers of the pool.
    Pool,
    /// The submitter of a link.
    Link(usize),
}

/// Number of parked threads of a crew.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// Parked, without a pending wake-up.
    asleep: usize,
    /// With a pending wake-up, not yet running.
    called: usize,
}

impl Sleepers {
    /// Marks at most `most` parked threads for a wake-up; returns how many.
    pub(super) fn call(&mut self, most: usize) -> usize {
        let called = most.min(self.asleep);
        self.asleep -= called;
        self.called += called;
        called
    }

    /// True if every parked thread has a pending wake-up.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.asleep == 0
    }

    /// Number of threads with a pending wake-up that are not yet running.
    pub(super) fn called(&self) -> usize {
        self.called
    }
}

impl Scheduler {
    /// Counts a thread that is about to park.
    pub(crate) fn sleeps(&mut self, crew: Crew) {
        self.sleepers(crew).asleep += 1;
    }

    /// Uncounts a thread that has resumed, with or without a wake-up.
    pub(crate) fn wakes(&mut self, crew: Crew) {
        if self.is_closed() {
            return; // the counts were reset when it closed
        }
        let sleepers = self.sleepers(crew);
        // It does not matter which of several threads was meant: the counts come out the same.
        if sleepers.called > 0 {
            sleepers.called -= 1;
        } else {
            sleepers.asleep -= 1;
        }
    }

    fn sleepers(&mut self, crew: Crew) -> &mut Sleepers {
        match crew {
            Crew::Readers => &mut self.readers,
            Crew::Ring(ring) => &mut self.rings[ring].sleepers,
            Crew::Pool => &mut self.pool.sleepers,
            Crew::Link(link) => &mut self.links[link].sleepers,
        }
    }

    /// Wakes the worker of a drive's ring if the drive may have one more op in flight. Otherwise
    /// the completion of an op in flight brings the worker back.
    pub(super) fn call_ring(&mut self, drive: usize) {
        if let Some(ring) = self.drives[drive].ring
            && self.has_room(drive, Line::Direct)
        {
            self.call_back(ring);
        }
    }

    /// Wakes the worker of a ring, however many ops its drives have in flight.
    pub(super) fn call_back(&mut self, ring: usize) {
        if self.rings[ring].sleepers.call(1) > 0 {
            self.effects.rings.push(ring);
        }
    }

    /// Wakes a pool worker for a drive if the drive may have one more op in flight. Otherwise a
    /// worker that completes an op takes the next. Running workers without an op look for one
    /// before they park, so only as many more are woken as the drive can use in addition.
    pub(super) fn call_pool(&mut self, drive: usize) {
        let PoolState { started, flying, sleepers, .. } = &self.pool;
        let awake = started - sleepers.asleep - flying;
        if !self.can_call_pool()
            || !self.has_room(drive, Line::Waits)
            || awake >= self.pool_room(drive)
        {
            return;
        }
        let called = self.pool.sleepers.call(1);
        self.effects.pool += called;
        if called == 0 {
            // No worker is parked.
            self.pool.unstarted -= 1;
            self.pool.started += 1;
            self.pool.sleepers.called += 1;
            self.effects.starts += 1;
        }
    }

    /// True if a pool worker is parked or can be started.
    pub(super) fn can_call_pool(&self) -> bool {
        self.pool.sleepers.asleep + self.pool.unstarted > 0
    }

    /// Handles a pool thread that could not be started. Existing workers look for work before they
    /// park. Without any worker, queued pool ops would never run, so their transfers fail.
    pub(crate) fn cannot_start(&mut self, errno: Errno) {
        if self.is_closed() {
            return;
        }
        self.pool.sleepers.called -= 1;
        self.pool.started -= 1;
        // The next wake-up may start it successfully.
        self.pool.unstarted += 1;
        if self.pool.started > 0 {
            return;
        }
        let waits = |active: &Active| !active.waits.ops.is_empty();
        let stuck = self.transfers.iter().filter(|(_, active)| waits(active)).map(|(key, _)| key);
        for key in stuck.collect::<Vec<_>>() {
            self.fail(key, Error::Resource { what: "drive threads", source: errno });
            self.finish_if_done(key);
        }
    }

    pub(super) fn call_link(&mut self, link: usize) {
        if self.links[link].sleepers.call(1) > 0 {
            self.effects.links.push(link);
        }
    }

    /// Wakes all threads: the engine shuts down.
    pub(super) fn call_all(&mut self) {
        self.effects.readers += self.readers.call(usize::MAX);
        (0..self.rings.len()).for_each(|ring| self.call_back(ring));
        self.effects.pool += self.pool.sleepers.call(usize::MAX);
        (0..self.links.len()).for_each(|link| self.call_link(link));
    }
}

//! Who sleeps, and who is called.
//!
//! A thread is counted in here, under the lock, before it sleeps; whoever makes work calls as many
//! as the work needs, and rings their bell after the lock is released. A thread that finds itself
//! called does not sleep, so no call can fall between its last look and its sleep.

use rustix::io::Errno;

use super::{Active, PoolState, Scheduler};
use crate::error::Error;
use crate::queue::op::Line;

/// The threads that share a bell.
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

/// How many of a crew sleep.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// Asleep and not called.
    asleep: usize,
    /// Called and not yet awake.
    called: usize,
}

impl Sleepers {
    /// Calls at most `most` sleepers; returns how many.
    pub(super) fn call(&mut self, most: usize) -> usize {
        let called = most.min(self.asleep);
        self.asleep -= called;
        self.called += called;
        called
    }

    /// Whether nobody sleeps whom nobody has called.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.asleep == 0
    }

    /// How many are called and not yet awake.
    pub(super) fn called(&self) -> usize {
        self.called
    }
}

impl Scheduler {
    /// Counts a thread in that is about to sleep.
    pub(crate) fn sleeps(&mut self, crew: Crew) {
        self.sleepers(crew).asleep += 1;
    }

    /// Counts a thread out that went on, called or not.
    pub(crate) fn wakes(&mut self, crew: Crew) {
        if self.is_closed() {
            return; // it was counted before
        }
        let sleepers = self.sleepers(crew);
        // Which of several was meant does not matter: the counts come out the same.
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

    /// Calls the worker of a drive's ring, if the drive may have one more in flight; if not, the
    /// end of one that it has brings the worker back.
    pub(super) fn call_ring(&mut self, drive: usize) {
        if let Some(ring) = self.drives[drive].ring
            && self.has_room(drive, Line::Direct)
        {
            self.call_back(ring);
        }
    }

    /// Calls the worker of a ring, whatever its drives have in flight.
    pub(super) fn call_back(&mut self, ring: usize) {
        if self.rings[ring].sleepers.call(1) > 0 {
            self.effects.rings.push(ring);
        }
    }

    /// Calls a worker of the pool to a drive, if that may have one more in flight; if not, whoever
    /// is done with one goes on with the next. Those that are awake without an op look for one
    /// before they sleep: as many more are called as the drive can use beside them.
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
            // All that there are, are awake.
            self.pool.unstarted -= 1;
            self.pool.started += 1;
            self.pool.sleepers.called += 1;
            self.effects.starts += 1;
        }
    }

    /// Whether a worker of the pool sleeps or could be started.
    pub(super) fn can_call_pool(&self) -> bool {
        self.pool.sleepers.asleep + self.pool.unstarted > 0
    }

    /// A thread of the pool could not be started. The others look for work before they sleep; where
    /// there are none, nothing of what waits for one will ever move.
    pub(crate) fn cannot_start(&mut self, errno: Errno) {
        if self.is_closed() {
            return;
        }
        self.pool.sleepers.called -= 1;
        self.pool.started -= 1;
        // The next who has work for it may be luckier.
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

    /// Calls everybody: the engine ends.
    pub(super) fn call_all(&mut self) {
        self.effects.readers += self.readers.call(usize::MAX);
        (0..self.rings.len()).for_each(|ring| self.call_back(ring));
        self.effects.pool += self.pool.sleepers.call(usize::MAX);
        (0..self.links.len()).for_each(|link| self.call_link(link));
    }
}

//! Who sleeps, and who is called.
//!
//! A thread is counted in here, under the lock, before it sleeps; whoever makes work calls as many
//! as the work needs, and rings their bell after the lock is released. A thread that finds itself
//! called does not sleep, so no call can fall between its last look and its sleep.

use rustix::io::Errno;

use super::{Active, Scheduler};
use crate::error::Error;

/// The threads that share a bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crew {
    /// All readers.
    Readers,
    /// The worker of a drive's ring.
    Ring(usize),
    /// The same, while its ring is full.
    FullRing(usize),
    /// The workers of a drive's pool.
    Pool(usize),
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
    pub(super) fn new(asleep: usize) -> Self {
        Self { asleep, called: 0 }
    }

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
            Crew::Ring(drive) => &mut self.drives[drive].ring,
            Crew::FullRing(drive) => &mut self.drives[drive].full,
            Crew::Pool(drive) => &mut self.drives[drive].pool,
            Crew::Link(link) => &mut self.links[link].sleepers,
        }
    }

    pub(super) fn call_ring(&mut self, drive: usize) {
        if self.drives[drive].ring.call(1) > 0 {
            self.effects.rings.push(drive);
        }
    }

    /// Calls the worker of a drive's ring whether that has room or not: ops are to come back.
    pub(super) fn call_back(&mut self, drive: usize) {
        let state = &mut self.drives[drive];
        if state.full.call(1) + state.ring.call(1) > 0 {
            self.effects.rings.push(drive);
        }
    }

    pub(super) fn call_pool(&mut self, drive: usize) {
        if self.drives[drive].pool.call(1) > 0 {
            self.effects.pools.push(drive);
        }
    }

    /// A thread of a drive's pool that was called could not be started. Where it has no `others`,
    /// nothing of what waits for them will ever move.
    pub(crate) fn cannot_start(&mut self, drive: usize, errno: Errno, others: bool) {
        self.drives[drive].pool.called -= 1;
        if others {
            return;
        }
        let waits = |active: &Active| active.request.drive == drive && !active.waits.ops.is_empty();
        let stuck = self.transfers.iter().filter(|(_, active)| waits(active)).map(|(key, _)| key);
        for key in stuck.collect::<Vec<_>>() {
            self.fail(key, Error::Resource { what: "drive threads", source: errno });
            self.finish_if_done(key);
        }
        // The next who has work for them may be luckier.
        self.drives[drive].pool.asleep += 1;
    }

    pub(super) fn call_link(&mut self, link: usize) {
        if self.links[link].sleepers.call(1) > 0 {
            self.effects.links.push(link);
        }
    }

    /// Calls everybody: the engine ends.
    pub(super) fn call_all(&mut self) {
        self.effects.readers += self.readers.call(usize::MAX);
        for drive in 0..self.drives.len() {
            self.call_ring(drive);
            let asleep = self.drives[drive].pool.call(usize::MAX);
            self.effects.all_pools.push((drive, asleep));
        }
        (0..self.links.len()).for_each(|link| self.call_link(link));
    }
}

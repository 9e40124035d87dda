//! Who sleeps, and who is called.
//!
//! A thread is counted in here, under the lock, before it sleeps; whoever makes work calls as many
//! as the work needs, and rings their bell after the lock is released. A thread that finds itself
//! called does not sleep, so no call can fall between its last look and its sleep.

use super::Scheduler;

/// The threads that share a bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crew {
    /// All readers.
    Readers,
    /// The workers of a drive.
    Drive(usize),
    /// Those of them whose rings are full.
    Full(usize),
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

    pub(super) fn asleep(&self) -> usize {
        self.asleep
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
            Crew::Drive(drive) => &mut self.drives[drive].sleepers,
            Crew::Full(drive) => &mut self.drives[drive].full,
            Crew::Link(link) => &mut self.links[link].sleepers,
        }
    }

    pub(super) fn call_drive(&mut self, drive: usize) {
        if self.drives[drive].sleepers.call(1) > 0 {
            self.effects.drives.push(drive);
        }
    }

    /// Calls a worker of a drive whether its ring has room or not: ops are to come back.
    pub(super) fn call_back(&mut self, drive: usize) {
        let drive_state = &mut self.drives[drive];
        if drive_state.full.call(1) + drive_state.sleepers.call(1) > 0 {
            self.effects.drives.push(drive);
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
        for drive in 0..self.drives.len() {
            (0..self.drives[drive].sleepers.asleep()).for_each(|_| self.call_drive(drive));
        }
        (0..self.links.len()).for_each(|link| self.call_link(link));
    }
}

//! Parking threads, and choosing which parked threads to wake.

use rustix::io::Errno;

use super::Scheduler;
use super::active::Active;
use super::crews::{Crew, Parked};
use crate::error::Error;
use crate::queue::op::RunBy;

impl Scheduler {
    /// Counts a thread that is about to park.
    pub(crate) fn parks(&mut self, crew: Crew) {
        self.parked(crew).park();
    }

    /// Uncounts a thread that has resumed, with or without a wake-up.
    pub(crate) fn resumes(&mut self, crew: Crew) {
        // The counts were reset when it closed.
        if !self.is_closed() {
            self.parked(crew).resume();
        }
    }

    fn parked(&mut self, crew: Crew) -> &mut Parked {
        match crew {
            Crew::Readers => &mut self.readers.parked,
            Crew::Ring(ring) => &mut self.rings[ring].parked,
            Crew::Pool => &mut self.pool.parked,
            Crew::Link(link) => &mut self.links[link].parked,
        }
    }

    /// Wakes the worker of a drive's ring if the drive may have one more op in flight. Otherwise
    /// the completion of an op in flight brings the worker back.
    pub(super) fn wake_ring_for(&mut self, drive: usize) {
        if let Some(ring) = self.drives[drive].ring
            && self.drives.has_room(drive, RunBy::Ring)
        {
            self.wake_ring(ring);
        }
    }

    /// Wakes the worker of a ring, however many ops its drives have in flight.
    pub(super) fn wake_ring(&mut self, ring: usize) {
        if self.rings[ring].parked.wake(1) > 0 {
            self.effects.rings.push(ring);
        }
    }

    /// Wakes a pool worker for a drive if the drive may have one more op in flight. Otherwise a
    /// worker that completes an op takes the next. Running workers without an op look for one
    /// before they park, so only as many more are woken as the drive can use in addition.
    pub(super) fn wake_pool_for(&mut self, drive: usize) {
        if !self.pool.can_wake()
            || !self.pool_has_room(drive)
            || self.pool.awake(self.drives.in_pool()) >= self.drives[drive].pool_room()
        {
            return;
        }
        let woken = self.pool.parked.wake(1);
        self.effects.pool += woken;
        if woken == 0 {
            // No worker is parked.
            self.pool.start();
            self.effects.starts += 1;
        }
    }

    /// Handles a pool thread that could not be started. Existing workers look for work before they
    /// park. Without any worker, queued pool ops would never run, so their transfers fail.
    pub(crate) fn cannot_start(&mut self, errno: Errno) {
        if self.is_closed() || !self.pool.cannot_start() {
            return;
        }
        let waits = |active: &Active| !active.for_pool.ops.is_empty();
        let stuck = self.transfers.iter().filter(|(_, active)| waits(active)).map(|(key, _)| key);
        for key in stuck.collect::<Vec<_>>() {
            self.fail(key, Error::Resource { what: "drive threads", source: errno });
            self.finish_if_done(key);
        }
    }

    pub(super) fn wake_link(&mut self, link: usize) {
        if self.links[link].parked.wake(1) > 0 {
            self.effects.links.push(link);
        }
    }

    /// Wakes all threads: the engine shuts down.
    pub(super) fn wake_all(&mut self) {
        self.effects.readers += self.readers.parked.wake(usize::MAX);
        (0..self.rings.len()).for_each(|ring| self.wake_ring(ring));
        self.effects.pool += self.pool.parked.wake(usize::MAX);
        (0..self.links.len()).for_each(|link| self.wake_link(link));
    }
}

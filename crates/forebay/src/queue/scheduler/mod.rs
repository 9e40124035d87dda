//! State of all transfers of an engine, and every decision about which operation runs next.
//!
//! No I/O, no clock, no thread: workers pop work and report results under a single lock. That lock
//! is never held across a system call or a call into a GPU driver. So a single thread can step the
//! scheduler in tests, and a seed replays exactly.
//!
//! A transfer is cut into windows. A window is opened (planned), its segments become ops in the
//! queues below, and it closes when its last op and last copy are done. A transfer ends with its
//! last window. After an error or a cancel nothing new starts, and ops in flight drain.

mod active;
#[cfg(test)]
mod cancel_tests;
#[cfg(test)]
mod checks;
mod copies;
mod direct;
#[cfg(test)]
mod direct_tests;
mod drives;
mod link;
mod op_queues;
mod ops;
mod round_robin;
#[cfg(test)]
mod tests;
mod transfers;
mod windows;
mod work;
mod workers;
#[cfg(test)]
mod writer_tests;

use std::sync::Arc;

use active::Active;
pub(crate) use active::{DirectPath, Request, Share};
use drives::Drives;
pub(crate) use drives::EACH_MAX;
use forebay_base::units::ByteRange;
use link::Link;
use slab::Slab;
pub(crate) use work::{Claim, Copy, CopyFailure, DriveWork, Effects, Limits, ReaderWork, SlotUse};
pub(crate) use workers::Workers;
use workers::{Parked, PoolState, Readers, RingState};

use rustix::io::Errno;

use super::op::RunBy;
use super::window::{Slot, Window};
use super::writers::Writers;
use crate::error::{Error, SystemError};
use crate::plan::Direction;
use crate::statistics::Statistics;
use crate::transfer::{Gate, State};
use crate::tune::DepthLimits;

/// Readers that one thread wakes; each of them wakes as many more while there is work. A wake-up
/// costs the waking thread 3 µs, and the woken thread runs after 40 to 200 µs.
const WOKEN_AT_ONCE: usize = 8;

/// Minimum number of readers that may work at once: two keep planning a window while copying.
pub(crate) const READERS_LEAST: usize = 2;

/// The scheduler's state. Each field is changed through its own methods or by the files of this
/// folder that extend the scheduler.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    life: Life,
    /// Shares of transfers, and their number so far.
    transfers: Slab<Active>,
    begun: u64,
    windows: Slab<Window>,
    readers: Readers,
    drives: Drives,
    rings: Vec<RingState>,
    pool: PoolState,
    links: Vec<Link>,
    in_use: LinksInUse,
    pub(super) writers: Arc<Writers>,
    effects: Effects,
    /// True if slot use is traced.
    traced: bool,
    /// Durations of stages.
    statistics: Box<Statistics>,
    /// The time of the last completion, or the later time that a worker passed in.
    now_ns: u64,
}

/// Links with transfers.
#[derive(Debug, Default)]
struct LinksInUse {
    here: usize,
    /// Those of other processes of the host.
    elsewhere: usize,
}

/// Whether the engine accepts transfers.
#[derive(Debug)]
enum Life {
    Runs,
    /// It shuts down: its threads end once nothing is left.
    Ends,
    /// It has failed, for this reason.
    Failed(Arc<str>),
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            life: Life::Runs,
            transfers: Slab::new(),
            begun: 0,
            windows: Slab::new(),
            readers: Readers::default(),
            drives: Drives::new(limits),
            rings: Vec::new(),
            pool: PoolState::default(),
            links: Vec::new(),
            in_use: LinksInUse::default(),
            writers: Arc::default(),
            effects: Effects::default(),
            traced: false,
            statistics: Box::default(),
            now_ns: 0,
        }
    }

    /// Adds `threads` pool threads, to be started when first needed.
    pub(crate) fn add_unstarted(&mut self, threads: usize) {
        self.pool.add_unstarted(threads);
    }

    /// Adds a drive on this hardware.
    pub(crate) fn add_drive(&mut self, limits: DepthLimits, hardware: &[usize]) -> usize {
        self.drives.add(limits, hardware)
    }

    /// Adds a ring that serves no drive yet.
    pub(crate) fn add_ring(&mut self) -> usize {
        self.rings.push(RingState::default());
        self.rings.len() - 1
    }

    pub(crate) fn add_link(&mut self, slots_max: usize) -> usize {
        let Limits { slot_size, segment, .. } = self.limits;
        self.links.push(Link::new(slot_size, segment, slots_max));
        self.limit_resident();
        self.links.len() - 1
    }

    /// Adds slots to a link; an empty list means that none could be allocated.
    pub(crate) fn add_slots(&mut self, link: usize, slots: &[Slot]) {
        if self.has_failed() {
            return;
        }
        let state = &mut self.links[link];
        state.growing = false;
        if slots.is_empty() {
            state.slots.most = state.slots.made(); // no more memory: do not try again
        }
        state.slots.add(slots);
        self.admit_waiting(link);
    }

    /// Returns and clears the pending side effects, to be run without the lock.
    pub(crate) fn take_effects(&mut self) -> Effects {
        let mut effects = std::mem::take(&mut self.effects);
        let wants_slots = || self.links.iter().any(|link| self.wants_slots(link));
        if effects.work == 0 && self.readers.parked.woken == 0 && wants_slots() {
            effects.work = 1; // a reader must allocate slots, whatever made a transfer wait for one
        }
        let idle = self.readers_at_once().saturating_sub(self.readers.busy);
        let most = effects.work.min(WOKEN_AT_ONCE).min(idle);
        effects.readers += self.readers.parked.wake(most);
        effects
    }

    /// Readers that may work at the same time: as many for each link in use as for one, while the
    /// host has so many for all. Each further GPU needs as many again: with 12 readers two GPUs
    /// received 46 GB/s of the page cache's bytes, with 24 they received 105, and their links carry
    /// 109.5 (4 × H200, 64 cores, 2026-11-27, `244a17e5`).
    fn readers_at_once(&self) -> usize {
        let LinksInUse { here, elsewhere } = self.in_use;
        let here = here.max(1);
        let share = self.limits.readers_of_host.saturating_mul(here) / (here + elsewhere);
        (self.limits.readers * here).min(share.max(READERS_LEAST))
    }

    /// Counts a link whose first transfer begins, or whose last one has ended.
    fn use_link(&mut self, link: usize, begins: bool) {
        let count = &mut self.links[link].transfers;
        let before = *count;
        *count = if begins { before + 1 } else { before - 1 };
        match (before, *count) {
            (0, _) => self.in_use.here += 1,
            (_, 0) => self.in_use.here -= 1,
            _ => return,
        }
        self.limit_resident();
    }

    /// The links with transfers.
    pub(crate) fn links_in_use(&self) -> impl Iterator<Item = usize> {
        (0..self.links.len()).filter(|&link| self.links[link].transfers > 0)
    }

    /// Sets the number of links that other processes of the host use.
    pub(crate) fn set_links_elsewhere(&mut self, links: usize) {
        if std::mem::replace(&mut self.in_use.elsewhere, links) != links {
            self.limit_resident();
            self.effects.work = self.effects.work.max(self.readers.queued);
        }
    }

    /// Limits the slots of resident bytes to what the readers of a link fill, what two groups of
    /// copies hold, and one slot between them; if several links are in use, also to their share of
    /// the processor's cache. Bytes that fall out of it before they are copied cross the memory bus
    /// twice more.
    fn limit_resident(&mut self) {
        let Limits { slot_size, segment, readers, cache, .. } = self.limits;
        let filled = (readers as u64 * segment).next_multiple_of(slot_size);
        let most = filled + (link::COPIES_QUEUED_MAX as u64 + 1) * slot_size;
        let links = self.in_use.here + self.in_use.elsewhere;
        let share = if links < 2 { most } else { most.min(cache / links as u64) };
        for link in 0..self.links.len() {
            if self.links[link].slots.set_resident_max(share) {
                self.admit_waiting(link);
            }
        }
    }

    /// Bytes that a drive should have in flight now; 0 for an unknown drive.
    pub(crate) fn in_flight(&self, drive: usize, direction: Direction) -> u64 {
        self.drives.get(drive).map_or(0, |drive| drive.depth(direction).window())
    }

    /// The statistics so far.
    pub(crate) fn statistics(&self) -> Statistics {
        Statistics::clone(&self.statistics)
    }

    /// Sets the current time; an earlier time is ignored.
    pub(crate) fn set_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Turns slot tracing on or off.
    pub(crate) fn trace_slots(&mut self, traced: bool) {
        self.traced = traced;
    }

    /// Reports that a slot was taken for `range`, or given back.
    fn trace_slot(&mut self, slot: Slot, range: Option<ByteRange>) {
        if self.traced {
            self.effects.slots.push(SlotUse { slot, range });
        }
    }

    /// Makes all threads end once nothing is in flight or queued.
    pub(crate) fn stop(&mut self) {
        if !self.has_failed() {
            self.life = Life::Ends;
        }
        self.wake_all();
    }

    /// True if the engine is shutting down and nothing is in flight or queued.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.life, Life::Runs) && self.transfers.is_empty()
    }

    /// Counts a thread that is about to park.
    pub(crate) fn parks(&mut self, workers: Workers) {
        self.parked(workers).waiting += 1;
    }

    /// Uncounts a thread that has resumed, with or without a wake-up. It does not matter which of
    /// several threads was meant: the counts come out the same.
    pub(crate) fn resumes(&mut self, workers: Workers) {
        // The counts were reset when the engine failed.
        if !self.has_failed() {
            let parked = self.parked(workers);
            match parked.woken {
                0 => parked.waiting -= 1,
                _ => parked.woken -= 1,
            }
        }
    }

    fn parked(&mut self, workers: Workers) -> &mut Parked {
        match workers {
            Workers::Readers => &mut self.readers.parked,
            Workers::Ring(ring) => &mut self.rings[ring].parked,
            Workers::Pool => &mut self.pool.parked,
            Workers::Link(link) => &mut self.links[link].parked,
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
    /// park, and readers try again, in case all of them hang. Without any worker, transfers with
    /// queued pool ops fail.
    pub(crate) fn cannot_start(&mut self, errno: Errno) {
        if self.has_failed() || !self.pool.cannot_start() {
            return;
        }
        let waits = |active: &Active| !active.for_pool.ops.is_empty();
        let stuck = self.transfers.iter().filter(|(_, active)| waits(active)).map(|(key, _)| key);
        for key in stuck.collect::<Vec<_>>() {
            self.fail(
                key,
                Error::Resource { what: "drive threads", source: SystemError::of(errno) },
            );
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

/// The transfers and gates of a scheduler that a panic left half-changed.
#[derive(Debug)]
pub(crate) struct Abandoned {
    /// Transfers that have not ended.
    pub(crate) transfers: Vec<Arc<State>>,
    /// Transfers that have ended but whose end was not reported yet.
    pub(crate) finished: Vec<(Arc<State>, Result<u64, Error>)>,
    pub(crate) gates: Vec<Arc<Gate>>,
}

impl Scheduler {
    /// True if the engine failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.life, Life::Failed(_))
    }

    /// Replaces this scheduler with a failed one. Everything that the old scheduler holds is
    /// leaked: drives and GPUs may still write to its slots, and its counts may be wrong. Its state
    /// is only read, not changed.
    pub(crate) fn close(&mut self, cause: Arc<str>) -> Abandoned {
        let mut failed = Self::new(self.limits);
        for _ in 0..self.drives.len() {
            failed.add_drive(DepthLimits::fixed(1, self.limits.segment), &[]);
        }
        for _ in &self.rings {
            let ring = failed.add_ring();
            failed.rings[ring].is_lost = true;
        }
        for _ in &self.links {
            failed.add_link(0);
        }
        failed.life = Life::Failed(cause);
        let mut old = std::mem::replace(self, failed);
        let Effects { finished, gates, .. } = &mut old.effects;
        let (finished, mut gates) = (std::mem::take(finished), std::mem::take(gates));
        let (mut transfers, mut known) = (Vec::new(), std::collections::HashSet::new());
        for (_, active) in &old.transfers {
            let request = &active.request;
            gates.extend(request.batch.iter().filter_map(|batch| batch.gate().cloned()));
            if known.insert(Arc::as_ptr(&request.state)) {
                transfers.push(Arc::clone(&request.state));
            }
        }
        std::mem::forget(old);
        Abandoned { transfers, finished, gates }
    }
}

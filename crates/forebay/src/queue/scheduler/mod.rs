//! State of all transfers of an engine, and every decision about which operation runs next.
//!
//! No I/O, no clock, no thread: workers take work and report results under one lock. That lock is
//! never held across a system call or a call into a GPU driver. So one thread can step the
//! scheduler in tests, and a seed replays exactly.
//!
//! A transfer is cut into windows. A window is opened (planned), its segments become ops in the
//! queues below, and it closes when its last op and last copy are done. A transfer ends with its
//! last window. After an error or a cancel nothing new starts, and ops in flight drain.

mod active;
mod batches;
#[cfg(test)]
mod cancel_tests;
#[cfg(test)]
mod checks;
mod closed;
mod copies;
mod crews;
mod drives;
mod lines;
mod link;
mod ops;
#[cfg(test)]
mod peer_tests;
mod peers;
mod request;
mod slots;
#[cfg(test)]
mod tests;
mod transfers;
mod turns;
mod wakeups;
mod windows;
mod work;
#[cfg(test)]
mod writer_tests;
mod writers;
mod writes;

use std::sync::Arc;

use active::Active;
pub(crate) use crews::Crew;
use crews::{PoolState, Readers, RingState};
use drives::Drives;
pub(crate) use drives::{Depth, EACH_MAX};
use forebay_base::units::ByteRange;
use link::Link;
pub(crate) use request::{Peer, Request, Share};
use slab::Slab;
pub use turns::Priority;
pub(crate) use work::{Claim, Copy, CopyFailure, DriveWork, Effects, Limits, ReaderWork, SlotUse};
use writers::Writers;

use super::SmallWrites;
use super::window::{Slot, Window};
use crate::plan::Direction;
use crate::statistics::Statistics;

/// Readers that one thread wakes; each of them wakes as many more while there is work. A wake-up
/// costs the waking thread 3 µs, and the woken thread runs after 40 to 200 µs.
const WOKEN_AT_ONCE: usize = 8;

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
    writers: Writers,
    effects: Effects,
    /// True if slot use is traced.
    traced: bool,
    /// Durations of stages; `None` if statistics are disabled.
    statistics: Option<Box<Statistics>>,
    /// The time of the last completion, or the later time that a worker passed in.
    now_ns: u64,
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
        Self::sharing(limits, Arc::default())
    }

    /// A new scheduler with the state of callers that write small ranges themselves.
    fn sharing(limits: Limits, small_writes: Arc<SmallWrites>) -> Self {
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
            writers: Writers::new(small_writes),
            effects: Effects::default(),
            traced: false,
            statistics: Some(Box::default()),
            now_ns: 0,
        }
    }

    /// Adds `threads` pool threads, to be started when first needed.
    pub(crate) fn add_unstarted(&mut self, threads: usize) {
        self.pool.add_unstarted(threads);
    }

    /// Adds a drive with a queue depth given by `depth`, at most `most` ops, on this hardware.
    pub(crate) fn add_drive(&mut self, depth: Depth, most: usize, hardware: &[usize]) -> usize {
        self.drives.add(depth, most, hardware)
    }

    /// Adds a ring that serves no drive yet.
    pub(crate) fn add_ring(&mut self) -> usize {
        self.rings.push(RingState::default());
        self.rings.len() - 1
    }

    pub(crate) fn add_link(&mut self, slots_max: usize) -> usize {
        let Limits { slot_size, segment, .. } = self.limits;
        self.links.push(Link::new(slot_size, segment, slots_max));
        self.links.len() - 1
    }

    /// Adds slots to a link; an empty list means that none could be allocated.
    pub(crate) fn add_slots(&mut self, link: usize, slots: &[Slot]) {
        if self.is_closed() {
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
        if effects.work == 0 && self.readers.parked.woken() == 0 && self.link_wants_slots() {
            effects.work = 1; // whatever left a transfer without a slot
        }
        let most = effects.work.min(WOKEN_AT_ONCE);
        effects.readers += self.readers.parked.wake(most);
        effects
    }

    /// True if a link wants more slots, which a reader allocates.
    fn link_wants_slots(&self) -> bool {
        self.links.iter().any(|link| self.wants_slots(link))
    }

    /// The state shared with callers that write small ranges themselves.
    pub(crate) fn small_writes(&self) -> &Arc<SmallWrites> {
        self.writers.small()
    }

    /// Bytes that a drive should have in flight now; 0 for an unknown drive.
    pub(crate) fn in_flight(&self, drive: usize, direction: Direction) -> u64 {
        let segment = self.limits.segment;
        self.drives.get(drive).map_or(0, |drive| drive.depth.window(direction, segment))
    }

    /// Bytes of the queued copies of a link. Copies of other streams wait until they are done.
    pub(crate) fn queued_len(&self, link: usize) -> u64 {
        self.links[link].queued_len()
    }

    /// Enables statistics, or disables and clears them.
    pub(crate) fn keep_statistics(&mut self, keep: bool) {
        self.statistics = keep.then(|| self.statistics.take().unwrap_or_default());
    }

    /// The statistics so far.
    pub(crate) fn statistics(&self) -> Statistics {
        self.statistics.as_deref().cloned().unwrap_or_default()
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
        if !self.is_closed() {
            self.life = Life::Ends;
        }
        self.wake_all();
    }

    /// True if the engine is shutting down and nothing is in flight or queued.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.life, Life::Runs) && self.transfers.is_empty()
    }
}

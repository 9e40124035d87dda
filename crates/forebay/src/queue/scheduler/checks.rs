//! Invariants of the scheduler; tests check them after every step.

use std::collections::HashMap;
use std::sync::Arc;

use super::Scheduler;
use super::active::{Active, Phase};
use super::link::Link;
use super::round_robin::Listed;
use crate::error::Error;
use crate::plan::Direction;
use crate::queue::op::{Op, Owner};
use crate::queue::window::Window;
use crate::transfer::State;

impl Scheduler {
    /// Panics if the lists contradict each other. `taken`: ops held by a ring or on their way to or
    /// from one. `come`: readers with work, and callers that return for their work.
    pub(crate) fn check(&self, taken: &[&Op], come: usize) {
        self.check_readers(come);
        self.check_windows(taken);
        self.check_lists();
        self.check_drives(taken);
        self.check_links();
        self.check_writers(taken);
        assert_eq!(self.effects.work, 0, "work without a wake-up");
        assert!(self.effects.rings.is_empty() && self.effects.links.is_empty());
        assert!(self.effects.pool + self.effects.starts == 0);
        assert!(self.effects.finished.is_empty(), "an end without a notification");
    }

    /// If work waits for a reader, a reader is about to look at it.
    fn check_readers(&self, come: usize) {
        let in_use = self.links.iter().filter(|link| link.transfers > 0).count();
        assert_eq!(in_use, self.in_use.here, "links in use");
        let grows = usize::from(self.links.iter().any(|link| self.wants_slots(link)));
        let waiting = self.readers.queued + self.readers.openable.len() + grows;
        let is_seen = come + self.readers.parked.woken > 0
            || self.readers.parked.waiting == 0
            || self.readers.busy >= self.readers_at_once();
        assert!(waiting == 0 || is_seen, "{waiting} wait for readers");
    }

    fn queued(&self) -> impl Iterator<Item = &Op> {
        let queues =
            self.transfers.iter().flat_map(|(_, a)| [&a.for_ring, &a.for_pool, &a.for_readers]);
        queues.flat_map(|queue| &queue.ops)
    }

    /// Each window counts its ops, and each transfer counts its windows.
    fn check_windows(&self, taken: &[&Op]) {
        let mut ops: HashMap<usize, u32> = HashMap::new();
        let mut open: HashMap<usize, u32> = HashMap::new();
        let owners = self.queued().chain(taken.iter().copied()).map(|op| op.owner);
        for owner in owners.chain(self.writers.waiting()) {
            match owner {
                Owner::Piece(window, _) => *ops.entry(window).or_default() += 1,
                Owner::Transfer(key) => *open.entry(key).or_default() += 1,
            }
        }
        for (key, window) in &self.windows {
            *open.entry(window.transfer).or_default() += 1;
            let own = &self.transfers[window.transfer].windows;
            assert_eq!(own.get(window.index), Some(&key), "its transfer knows window {key}");
            let ops = ops.remove(&key).unwrap_or(0);
            let planning = window.outstanding.checked_sub(ops);
            assert!(planning.is_some_and(|n| n <= 1), "window {key} has {ops} ops: {window:?}");
        }
        assert!(ops.is_empty(), "ops of closed windows: {ops:?}");
        for (key, active) in &self.transfers {
            assert_eq!(open.remove(&key).unwrap_or(0), active.open, "windows of {key}: {active:?}");
        }
        assert!(open.is_empty(), "windows of ended transfers: {open:?}");
    }

    /// A transfer is in exactly one list if it says so, and only with bytes left to open. A
    /// transfer that could continue is in a list, or has something open whose end puts it there.
    fn check_lists(&self) {
        let mut listed: HashMap<usize, u32> = HashMap::new();
        let waiting = self.links.iter().flat_map(|link| link.waiting.all());
        let gated = self.drives.iter().flat_map(|drive| drive.waiting.all());
        let opens = self.transfers.iter().filter(|(_, active)| active.listed == Listed::Ring);
        let opens: Vec<usize> = opens.map(|(key, _)| key).collect();
        let gated = gated.chain(opens);
        for key in self.readers.openable.all().chain(waiting).chain(gated) {
            *listed.entry(key).or_default() += 1;
        }
        for (key, active) in &self.transfers {
            let times = listed.remove(&key).unwrap_or(0);
            assert_eq!(times, u32::from(active.is_listed()), "lists that hold {key}: {active:?}");
            let bytes_left = !active.request.parts.is_empty();
            assert!(
                !active.is_listed() || (bytes_left && !active.is_stopped()),
                "listed: {active:?}"
            );
            assert!(!active.is_listed() || !active.is_shut(), "listed behind its gate: {active:?}");
            let waits = self.waits_for_peer(key) || active.is_shut();
            let goes_on = active.is_listed() || active.open > 0 || waits;
            assert!(goes_on, "{key} makes no progress: {active:?}");
        }
        assert!(listed.is_empty(), "ended transfers in lists: {listed:?}");
    }

    /// Queue lengths match the counts, and every transfer with ops has a turn. No transfer waits
    /// for a drive that needs more ops.
    fn check_drives(&self, taken: &[&Op]) {
        for (index, drive) in self.drives.iter().enumerate() {
            let of_drive = |key: usize| self.transfers[key].request.drive == index;
            let active = || self.transfers.iter().filter(|(key, _)| of_drive(*key));
            let queued: usize =
                active().map(|(_, a)| a.for_ring.ops.len() + a.for_pool.ops.len()).sum();
            assert_eq!(queued, drive.queued, "ops for drive {index}");
            let windows = self.windows.iter().filter(|(_, w)| of_drive(w.transfer));
            let promised: usize = windows.map(|(_, w)| w.promised).sum();
            let promised = promised + active().map(|(_, a)| a.promised).sum::<usize>();
            assert_eq!(promised, drive.promised, "ops that drive {index} was promised");
            let counted = |op: &&&Op| op.counted.is_some() && of_drive(self.transfer_of(op));
            let in_flight = taken.iter().filter(counted).count();
            assert_eq!(in_flight, drive.in_flight(), "ops in flight on drive {index}");
            assert!(drive.waiting.is_empty() || !drive.wants_more(), "drive {index} wants more");
        }
        let queued: usize = self.transfers.iter().map(|(_, a)| a.for_readers.ops.len()).sum();
        assert_eq!(queued, self.readers.queued, "ops for readers");
        let planned = self.windows.iter().filter(|(_, w)| w.for_readers).count();
        assert_eq!(planned, self.readers.planned, "windows for readers that are being planned");
        self.drives.check();
        for (index, drive) in self.drives.iter().enumerate() {
            let times = self.pool.drives.iter().filter(|&&other| other == index).count();
            assert_eq!(times, usize::from(drive.is_queued), "drive {index} in line for the pool");
            assert!(
                drive.is_queued || drive.pool_order.is_empty(),
                "no thread serves drive {index}"
            );
        }
        let queues =
            self.transfers.iter().flat_map(|(_, a)| [&a.for_ring, &a.for_pool, &a.for_readers]);
        assert!(queues.into_iter().all(|q| q.ops.is_empty() || q.is_queued), "ops without a turn");
        let has_turn = |active: &Active| active.listed != Listed::Ring || active.for_ring.is_queued;
        assert!(
            self.transfers.iter().all(|(_, active)| has_turn(active)),
            "no thread opens its windows"
        );
    }

    /// Every slot is free or owned, and no transfer waits while a slot that it may take is free.
    fn check_links(&self) {
        for (index, link) in self.links.iter().enumerate() {
            let of_link = |active: &Active| active.request.link == Some(index);
            let windows =
                || self.windows.iter().filter(|(_, w)| of_link(&self.transfers[w.transfer]));
            let own = self.transfers.iter().filter(|(_, a)| of_link(a));
            let left: u64 = own.clone().map(|(_, a)| a.left).sum();
            assert_eq!(link.left, left, "bytes left of link {index}");
            let mut slots: Vec<(u64, u64)> = link
                .slots
                .free()
                .chain(windows().filter_map(|(_, w)| w.slot.as_ref()))
                .chain(own.filter_map(|(_, a)| a.slot.as_ref()))
                .map(|slot| (slot.address, slot.len))
                .collect();
            slots.sort_unstable();
            assert!(slots.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "used twice");
            let bytes: u64 = slots.iter().map(|(_, len)| len).sum();
            let made = link.slots.made() as u64 * self.limits.slot_size;
            assert!(bytes == made || link.broken.is_some(), "slots lost: {bytes} of {made}");
            let copies: u32 = windows().map(|(_, w)| w.copies).sum();
            assert_eq!(copies, link.copies, "copies of link {index}");
            // A window whose slot is lost is not filled any more.
            let has_slot = |w: &Window| w.direction == Direction::Read && w.slot.is_some();
            let filling = windows().filter(|(_, w)| has_slot(w)).count();
            assert_eq!(filling, link.filling.len(), "windows that are filled on link {index}");
            for key in link.waiting.first() {
                let (drive, need) = (self.transfers[key].request.drive, self.need(key));
                assert!(!link.slots.has(drive, need), "a slot is free and {key} waits for one");
            }
        }
    }

    /// Each file has one write through the page cache or any number of direct writes. No write
    /// waits without a reason.
    fn check_writers(&self, taken: &[&Op]) {
        let mut writes: HashMap<(u64, u64), [usize; 2]> = HashMap::new();
        let queues =
            self.transfers.iter().flat_map(|(_, active)| [&active.for_ring, &active.for_pool]);
        let lined = queues.flat_map(|queue| &queue.ops);
        for op in lined.chain(taken.iter().copied()).filter(|op| op.is_write()) {
            let [through, around] = writes.entry(op.file.identity()).or_default();
            *(if op.is_cached_write() { through } else { around }) += 1;
        }
        self.writers.check(writes);
        let mut waiting: HashMap<usize, usize> = HashMap::new();
        for owner in self.writers.waiting() {
            let Owner::Piece(window, _) = owner else { panic!("{owner:?} does not write") };
            *waiting.entry(self.windows[window].transfer).or_default() += 1;
        }
        for (key, active) in &self.transfers {
            let found = waiting.remove(&key).unwrap_or(0);
            assert_eq!(found, active.writes_waiting.len(), "writes of {key} that wait: {active:?}");
        }
    }

    /// Number of pool threads not started yet.
    pub(crate) fn unstarted(&self) -> usize {
        self.pool.unstarted()
    }

    /// The state of the transfer that an op belongs to.
    pub(crate) fn state_of(&self, op: &Op) -> Arc<State> {
        Arc::clone(&self.transfers[self.transfer_of(op)].request.state)
    }

    /// The drive of an op.
    pub(crate) fn drive_of(&self, op: &Op) -> usize {
        self.transfers[self.transfer_of(op)].request.drive
    }

    /// True if an op's transfer stopped.
    pub(crate) fn has_stopped(&self, op: &Op) -> bool {
        self.transfers[self.transfer_of(op)].is_stopped()
    }

    /// The first error of a transfer that has not ended.
    pub(crate) fn error_of(&self, state: &Arc<State>) -> Option<&Error> {
        let same = |active: &&Active| Arc::ptr_eq(&active.request.state, state);
        match &self.transfers.iter().map(|(_, active)| active).find(same)?.phase {
            Phase::Stopped(error) => Some(error),
            _ => None,
        }
    }

    /// Panics unless all remaining work waits for `in_flight` ops, which are with their rings.
    pub(crate) fn check_that_all_wait(&self, in_flight: usize) {
        assert_eq!(self.queued().count(), 0, "ops that no thread takes");
        assert!(self.writers.waiting().is_empty(), "writes that wait for nothing");
        let waits: u32 = self.windows.iter().map(|(_, window)| window.outstanding).sum();
        let syncs = self.transfers.iter().map(|(_, active)| active.open).sum::<u32>()
            - u32::try_from(self.windows.len()).expect("few windows");
        assert_eq!((waits + syncs) as usize, in_flight, "windows that wait for nothing");
        let all =
            self.windows.iter().all(|(_, window)| window.outstanding > 0 && window.copies == 0);
        assert!(all, "windows that could be closed: {:?}", self.windows);
    }

    /// Debug output of the scheduler's state of a transfer.
    pub(crate) fn what_is_left_of(&self, state: &Arc<State>) -> String {
        let own = |active: &Active| Arc::ptr_eq(&active.request.state, state);
        let transfers: Vec<_> = self.transfers.iter().filter(|(_, a)| own(a)).collect();
        let of = |window: &Window| transfers.iter().any(|(key, _)| *key == window.transfer);
        let windows: Vec<_> = self.windows.iter().filter(|(_, w)| of(w)).collect();
        format!("{transfers:?} {windows:?} {self:?}")
    }

    /// True if a transfer waits for a slot.
    pub(crate) fn waits_for_slot(&self, state: &Arc<State>) -> bool {
        let mut waiting = self.links.iter().flat_map(|link| link.waiting.all());
        waiting.any(|key| Arc::ptr_eq(&self.transfers[key].request.state, state))
    }

    /// True if a write of a transfer waits for its turn at a file.
    pub(crate) fn waits_for_turn(&self, state: &Arc<State>) -> bool {
        let own = |active: &Active| Arc::ptr_eq(&active.request.state, state);
        self.transfers.iter().any(|(_, active)| own(active) && !active.writes_waiting.is_empty())
    }

    /// Free bytes and total bytes of a link's slots; `None` if a copy was lost.
    pub(crate) fn slots(&self, link: usize) -> Option<(u64, u64)> {
        let Link { slots, broken, .. } = &self.links[link];
        let free = slots.free().map(|slot| slot.len).sum();
        broken.is_none().then_some((free, slots.made() as u64 * self.limits.slot_size))
    }
}

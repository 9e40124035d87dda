//! What always holds between two calls; tests look after every step.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Active, Scheduler};
use crate::error::Error;
use crate::plan::Io;
use crate::queue::op::{Direction, Op, Owner, Work};
use crate::transfer::State;

impl Scheduler {
    /// Panics where the lists contradict each other. `taken`: ops that are with a ring or on their
    /// way to or from one.
    pub(crate) fn check(&self, taken: &[&Op]) {
        self.check_windows(taken);
        self.check_lists();
        self.check_links();
        self.check_writers(taken);
        assert_eq!(self.effects.work, 0, "work that nobody was called for");
        assert!(self.effects.drives.is_empty() && self.effects.links.is_empty());
        assert!(self.effects.finished.is_empty(), "an end that nobody was told of");
    }

    fn queued(&self) -> impl Iterator<Item = &Op> {
        let ready = self.drives.iter().flat_map(|drive| &drive.ready);
        let writers = self.writers.values().flatten();
        self.cached.iter().chain(ready).chain(writers)
    }

    /// Each window counts the ops that there are of it, and each transfer its windows.
    fn check_windows(&self, taken: &[&Op]) {
        let mut ops: HashMap<usize, u32> = HashMap::new();
        let mut open: HashMap<usize, u32> = HashMap::new();
        for op in self.queued().chain(taken.iter().copied()) {
            match op.owner {
                Owner::Piece(window, _) => *ops.entry(window).or_default() += 1,
                Owner::Transfer(key) => *open.entry(key).or_default() += 1,
            }
        }
        for (key, window) in &self.windows {
            *open.entry(window.transfer).or_default() += 1;
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

    /// A transfer stands in one list if it says so, and never without bytes to open; one that could
    /// go on stands in a list or has something open whose end puts it there.
    fn check_lists(&self) {
        let mut listed: HashMap<usize, u32> = HashMap::new();
        let waiting = self.links.iter().flat_map(|link| &link.waiting);
        for &key in self.openable.iter().chain(waiting) {
            *listed.entry(key).or_default() += 1;
        }
        for (key, active) in &self.transfers {
            let times = listed.remove(&key).unwrap_or(0);
            assert_eq!(times, u32::from(active.listed), "lists that hold {key}: {active:?}");
            let bytes_left = !active.request.parts.is_empty();
            assert!(!active.listed || (bytes_left && !active.stopped), "listed: {active:?}");
            assert!(active.listed || active.open > 0, "nothing goes on with {key}: {active:?}");
        }
        assert!(listed.is_empty(), "ended transfers in lists: {listed:?}");
    }

    /// Every slot is free or a window's; nobody waits beside a free one.
    fn check_links(&self) {
        for (index, link) in self.links.iter().enumerate() {
            let of_link = |active: &Active| active.request.link == Some(index);
            let windows =
                || self.windows.iter().filter(|(_, w)| of_link(&self.transfers[w.transfer]));
            let mut slots: Vec<u64> = link.free.iter().map(|slot| slot.address).collect();
            slots.extend(windows().filter_map(|(_, w)| w.slot).map(|slot| slot.address));
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), link.slots, "slots lost or used twice");
            let copies: u32 = windows().map(|(_, w)| w.copies).sum();
            assert_eq!(copies, link.copies, "copies of link {index}");
            let filling = windows().filter(|(_, w)| w.direction == Direction::Read).count();
            assert_eq!(filling, link.filling.len(), "windows that are filled on link {index}");
            let admitted = |key: &&usize| of_link(&self.transfers[**key]);
            let openable = self.openable.iter().filter(admitted).count();
            let served = link.waiting.is_empty() || link.free.len() <= openable;
            assert!(served, "a slot is free and {:?} wait for one", link.waiting);
        }
    }

    /// One write through the page cache for each file, and the others behind it.
    fn check_writers(&self, taken: &[&Op]) {
        let mut writing: HashMap<(u64, u64), u32> = HashMap::new();
        for op in self.cached.iter().chain(taken.iter().copied()) {
            if op.work == Work::Move(Direction::Write) && op.segment.io == Io::Buffered {
                *writing.entry(op.file.identity()).or_default() += 1;
            }
        }
        for file in self.writers.keys() {
            assert_eq!(writing.remove(file), Some(1), "writers of one file");
        }
        assert!(writing.is_empty(), "writes that no list knows of");
    }

    /// The state of the transfer that an op belongs to.
    pub(crate) fn state_of(&self, op: &Op) -> Arc<State> {
        Arc::clone(&self.transfers[self.transfer_of(op)].request.state)
    }

    /// Whether an op's transfer wants it no more.
    pub(crate) fn has_stopped(&self, op: &Op) -> bool {
        self.transfers[self.transfer_of(op)].stopped
    }

    /// The first error of a transfer that has not ended.
    pub(crate) fn error_of(&self, state: &Arc<State>) -> Option<&Error> {
        let same = |active: &&Active| Arc::ptr_eq(&active.request.state, state);
        self.transfers.iter().map(|(_, active)| active).find(same)?.error.as_ref()
    }

    /// Free slots and all slots of a link.
    pub(crate) fn slots(&self, link: usize) -> (usize, usize) {
        (self.links[link].free.len(), self.links[link].slots)
    }
}

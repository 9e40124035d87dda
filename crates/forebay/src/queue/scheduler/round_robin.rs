//! Turn order of transfers, urgent ones first: those with queued ops, a single op per turn, and
//! those that may open a window.

use std::collections::{BTreeMap, VecDeque};

use crate::options::Priority;

/// A transfer's entry in the turn order. Keys are reused and serials are not, so an entry that
/// outlived its transfer is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: usize,
    pub(super) serial: u64,
    pub(super) priority: Priority,
}

/// An end of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueEnd {
    Front,
    Back,
}

/// The turn order of transfers, by priority.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    urgent: VecDeque<Entry>,
    normal: VecDeque<Entry>,
}

impl RoundRobin {
    /// Adds a transfer to those of its priority.
    pub(super) fn push(&mut self, entry: Entry, end: QueueEnd) {
        let queue = match entry.priority {
            Priority::Urgent => &mut self.urgent,
            Priority::Normal => &mut self.normal,
        };
        match end {
            QueueEnd::Back => queue.push_back(entry),
            QueueEnd::Front => queue.push_front(entry),
        }
    }

    /// True if the queue is empty, stale entries included.
    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.normal.is_empty()
    }

    /// The transfer in turn, which may have ended.
    pub(super) fn first(&self) -> Option<&Entry> {
        self.urgent.front().or_else(|| self.normal.front())
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        self.urgent.pop_front().or_else(|| self.normal.pop_front())
    }
}

/// A transfer's position in the order: urgent ones first, then those that have a slot, then by
/// arrival. If the transfer that got a slot last were first, the rest would wait until no read
/// remains: a read of 1 MiB among 512 took up to ten times the median.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    is_normal: bool,
    lacks_slot: bool,
    came: u64,
}

/// Where a transfer waits to open its next window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    Nowhere,
    /// In the list of openable transfers, until a reader opens a window of it.
    Openable(Ticket),
    /// Until its drive needs more ops.
    Drive(Ticket),
    /// Until a slot of its link is free; with its ticket.
    Link(u64),
    /// Until the ring of its drive opens the window.
    Ring,
}

/// Transfers that may open a window.
#[derive(Debug, Default)]
pub(super) struct Openable {
    keys: BTreeMap<Ticket, usize>,
    came: u64,
}

impl Openable {
    /// Appends a transfer to those of its priority that have a slot, or lack it too.
    pub(super) fn push(&mut self, key: usize, priority: Priority, has_slot: bool) -> Ticket {
        self.came += 1;
        let is_normal = priority == Priority::Normal;
        let ticket = Ticket { is_normal, lacks_slot: !has_slot, came: self.came };
        self.keys.insert(ticket, key);
        ticket
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        self.keys.pop_first().map(|(_, key)| key)
    }

    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.keys.remove(&ticket);
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        self.keys.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_by_priority_and_any_place_can_be_given_up() {
        let mut openable = Openable::default();
        openable.push(1, Priority::Normal, false);
        let second = openable.push(2, Priority::Normal, false);
        openable.push(3, Priority::Normal, false);
        openable.push(4, Priority::Urgent, false);
        openable.push(5, Priority::Normal, true);
        openable.push(6, Priority::Normal, true);
        openable.push(7, Priority::Urgent, true);
        openable.remove(second);
        assert_eq!(openable.len(), 6);
        let turns: Vec<usize> = std::iter::from_fn(|| openable.pop()).collect();
        assert_eq!(turns, [7, 4, 5, 6, 1, 3]);
        assert!(openable.is_empty());
    }
}

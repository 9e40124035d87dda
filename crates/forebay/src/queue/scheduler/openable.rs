//! Transfers that may open a window, in turn. Any of them leaves by its ticket in logarithmic time:
//! of a hundred thousand that are cancelled, none has to be searched for.

use std::collections::BTreeMap;

use super::turns::Priority;

/// Whose turn comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Urgent,
    /// Those that have waited for a slot and have it.
    HasSlot,
    Normal,
}

/// The place of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(Rank, i64);

/// Where a transfer waits to open its next window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    Nowhere,
    /// Among those that a reader may open a window of.
    Openable(Ticket),
    /// For its drive to want more.
    Drive(Ticket),
    /// For a slot of its link, since then.
    Link(u64),
    /// For the ring of its drive.
    Ring,
}

/// See the module's own text.
#[derive(Debug, Default)]
pub(super) struct Openable {
    keys: BTreeMap<Ticket, usize>,
    came: i64,
}

impl Openable {
    /// Puts a transfer last among those of its priority.
    pub(super) fn push(&mut self, key: usize, priority: Priority) -> Ticket {
        self.came += 1;
        let rank = match priority {
            Priority::Urgent => Rank::Urgent,
            Priority::Normal => Rank::Normal,
        };
        self.add(Ticket(rank, self.came), key)
    }

    /// Puts a transfer that has a slot before all others of its priority.
    pub(super) fn push_first(&mut self, key: usize, priority: Priority) -> Ticket {
        self.came += 1;
        let rank = match priority {
            Priority::Urgent => Rank::Urgent,
            Priority::Normal => Rank::HasSlot,
        };
        self.add(Ticket(rank, -self.came), key)
    }

    fn add(&mut self, ticket: Ticket, key: usize) -> Ticket {
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
        openable.push(1, Priority::Normal);
        let second = openable.push(2, Priority::Normal);
        openable.push(3, Priority::Normal);
        openable.push(4, Priority::Urgent);
        openable.push_first(5, Priority::Normal);
        openable.push_first(6, Priority::Normal);
        openable.push_first(7, Priority::Urgent);
        openable.remove(second);
        assert_eq!(openable.len(), 6);
        let turns: Vec<usize> = std::iter::from_fn(|| openable.pop()).collect();
        assert_eq!(turns, [7, 4, 6, 5, 1, 3]);
        assert!(openable.is_empty());
    }
}

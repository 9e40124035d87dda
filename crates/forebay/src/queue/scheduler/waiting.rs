//! Transfers that wait for a slot of a link, in separate queues for each drive.
//!
//! The next transfer is chosen for every slot that is given back, so only the head of each queue is
//! examined. If the head may not have more, those after it may not either. Transfers without a
//! bound, or without a slot so far, have separate queues, since they may take slots that are
//! refused to the rest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::slots::Need;
use super::turns::Priority;

/// Key of a queue: urgent or not, drive, limited number of slots or not, first slot or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    /// False for urgent transfers, which come first regardless of arrival.
    pub(super) is_normal: bool,
    pub(super) drive: usize,
    pub(super) is_bounded: bool,
    pub(super) is_first: bool,
}

impl Class {
    pub(super) fn new(drive: usize, priority: Priority, need: Need) -> Self {
        let is_normal = priority == Priority::Normal;
        let Need { in_flight, is_first, .. } = need;
        Self { is_normal, drive, is_bounded: in_flight != u64::MAX, is_first }
    }
}

/// Order of arrival and key of a transfer.
type Waiter = (u64, usize);

/// The queues of transfers that wait for a slot of one link.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// No queue in the map is empty.
    lines: BTreeMap<Class, BTreeMap<u64, usize>>,
    came: u64,
}

/// The head of each queue, in the order in which to serve them.
#[derive(Debug)]
pub(super) struct Heads(BinaryHeap<Reverse<(bool, Waiter, Class)>>);

impl Waiting {
    /// Appends a transfer to a queue; returns its ticket.
    pub(super) fn push(&mut self, line: Class, key: usize) -> u64 {
        self.came += 1;
        self.lines.entry(line).or_default().insert(self.came, key);
        self.came
    }

    /// Removes the transfer with this ticket from its drive's queues.
    pub(super) fn remove(&mut self, drive: usize, since: u64) {
        self.lines.retain(|line, waiters| {
            let removed = line.drive == drive && waiters.remove(&since).is_some();
            !removed || !waiters.is_empty()
        });
    }

    /// True if a transfer is waiting for its first slot.
    pub(super) fn has_first(&self) -> bool {
        self.lines.keys().any(|line| line.is_first)
    }

    /// True if anything but a short transfer's first window is waiting on `drive`.
    pub(super) fn has_others(&self, drive: usize) -> bool {
        self.lines.keys().any(|line| line.drive == drive && !line.is_first)
    }

    /// The head of each queue, in no particular order.
    pub(super) fn first(&self) -> impl Iterator<Item = usize> {
        self.lines.values().filter_map(|line| Some(*line.first_key_value()?.1))
    }

    pub(super) fn heads(&self) -> Heads {
        let of = |(&line, waiters): (&Class, &BTreeMap<u64, usize>)| {
            Some(Reverse((line.is_normal, first_of(waiters)?, line)))
        };
        Heads(self.lines.iter().filter_map(of).collect())
    }

    /// Removes the head of a queue and adds the new head to `heads`.
    pub(super) fn serve(&mut self, line: Class, heads: &mut Heads) {
        let Some(waiters) = self.lines.get_mut(&line) else { return };
        waiters.pop_first();
        match first_of(waiters) {
            Some(next) => heads.0.push(Reverse((line.is_normal, next, line))),
            None => drop(self.lines.remove(&line)),
        }
    }

    /// Moves the head of a queue, whose class has changed, to the end of another queue; returns its
    /// new ticket.
    pub(super) fn change(&mut self, from: Class, to: Class, heads: &mut Heads) -> Option<u64> {
        let first = self.lines.get(&from).and_then(first_of);
        self.serve(from, heads);
        let (_, key) = first?;
        let since = self.push(to, key);
        if self.lines[&to].len() == 1 {
            heads.0.push(Reverse((to.is_normal, (since, key), to)));
        }
        Some(since)
    }

    /// All waiting transfers.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        self.lines.values().flatten().map(|(_, &key)| key)
    }
}

fn first_of(waiters: &BTreeMap<u64, usize>) -> Option<Waiter> {
    waiters.first_key_value().map(|(&came, &key)| (came, key))
}

impl Iterator for Heads {
    type Item = (usize, Class);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.pop().map(|Reverse((_, (_, key), line))| (key, line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(drive: usize, priority: Priority, in_flight: u64) -> Class {
        Class::new(drive, priority, Need { len: 1, in_flight, is_first: false, others_wait: false })
    }

    /// The transfers that are served if those in `refused` are not.
    fn served(waiting: &mut Waiting, refused: &[usize]) -> Vec<usize> {
        let mut heads = waiting.heads();
        let mut served = Vec::new();
        while let Some((key, line)) = heads.next() {
            if !refused.contains(&key) {
                waiting.serve(line, &mut heads);
                served.push(key);
            }
        }
        served
    }

    #[test]
    fn who_came_first_is_served_first_and_urgent_ones_before() {
        let mut waiting = Waiting::default();
        let (a, b) = (line(0, Priority::Normal, 9), line(1, Priority::Normal, 9));
        let urgent = line(0, Priority::Urgent, u64::MAX);
        for (key, line) in [(1, a), (2, b), (3, a), (4, urgent), (5, b)] {
            waiting.push(line, key);
        }
        assert_eq!(served(&mut waiting, &[]), [4, 1, 2, 3, 5]);
        assert!(waiting.lines.is_empty());
    }

    #[test]
    fn one_that_is_refused_holds_up_its_own_line_alone() {
        let mut waiting = Waiting::default();
        let bounded = line(0, Priority::Normal, 9);
        let unbounded = line(0, Priority::Normal, u64::MAX);
        let lines = [(1, bounded), (2, bounded), (3, unbounded)];
        let since = lines.map(|(key, line)| waiting.push(line, key));
        assert_eq!(served(&mut waiting, &[1]), [3]);
        assert_eq!(waiting.all().collect::<Vec<_>>(), [1, 2]);
        waiting.remove(0, since[0]);
        assert_eq!(served(&mut waiting, &[]), [2]);
    }

    #[test]
    fn one_that_has_changed_stands_last_in_its_new_line() {
        let mut waiting = Waiting::default();
        let (from, to) = (line(0, Priority::Normal, 9), line(0, Priority::Normal, u64::MAX));
        for (key, line) in [(1, from), (2, from), (3, to)] {
            waiting.push(line, key);
        }
        let mut heads = waiting.heads();
        assert_eq!(heads.next(), Some((1, from)));
        waiting.change(from, to, &mut heads);
        let rest: Vec<usize> = heads.map(|(key, _)| key).collect();
        assert_eq!(rest, [2, 3]);
        assert_eq!(served(&mut waiting, &[]), [2, 3, 1]);
    }
}

//! The slots of a link: whole ones, and parts of those that were split.
//!
//! Resident bytes take whole slots, since the link wants large copies. A drive is slower than the
//! link, so what comes from one takes parts: a few, which are used again while they still are in a
//! cache (measured: `docs/internals/hot-slots.md`).
//!
//! What was given back last is taken first, for the same reason. A drive may hold as much as it
//! leaves to the others, so that one that hangs never holds all: alone half of the slots, beside
//! another a third.

use std::collections::HashMap;

use crate::queue::window::Slot;

/// Parts that a slot is split into.
pub(super) const PARTS: u64 = 4;

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Slots {
    /// Bytes of a whole slot.
    size: u64,
    whole: Vec<Slot>,
    parts: Vec<Slot>,
    /// The slots that are split, by address, and how many of their parts are free.
    split: HashMap<u64, u64>,
    made: usize,
    /// How many there may be in all.
    pub(super) most: usize,
    /// Bytes that each drive's windows hold, by the drive's index.
    held: Vec<u64>,
    used: u64,
}

impl Slots {
    pub(super) fn new(size: u64, most: usize) -> Self {
        Self {
            size,
            whole: Vec::new(),
            parts: Vec::new(),
            split: HashMap::new(),
            made: 0,
            most,
            held: Vec::new(),
            used: 0,
        }
    }

    /// How many were made and not lost.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    pub(super) fn add(&mut self, slots: &[Slot]) {
        self.made += slots.len();
        self.whole.extend_from_slice(slots);
    }

    /// Whether `drive` may hold `len` more bytes. Two slots are never refused: with fewer nothing
    /// overlaps.
    fn is_share(&self, drive: usize, len: u64) -> bool {
        let all = self.most as u64 * self.size;
        let left = all.saturating_sub(self.used + len);
        let held = self.held.get(drive).copied().unwrap_or(0);
        held + len <= left.max(2 * self.size)
    }

    /// Whether nobody would get anything now.
    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.parts.is_empty()
    }

    /// Takes a slot, or a part of one where `len` is that of a part.
    pub(super) fn take(&mut self, drive: usize, len: u64) -> Option<Slot> {
        if !self.is_share(drive, len) {
            return None;
        }
        let slot = if len < self.size { self.take_part() } else { self.take_whole() }?;
        if self.held.len() <= drive {
            self.held.resize(drive + 1, 0);
        }
        self.held[drive] += slot.len;
        self.used += slot.len;
        Some(slot)
    }

    fn take_part(&mut self) -> Option<Slot> {
        if self.parts.is_empty() {
            let Slot { address, whole, len } = self.whole.pop()?;
            let len = len / PARTS;
            // The first is taken first.
            let part = |index| Slot { address: address + index * len, whole, len };
            self.parts.extend((0..PARTS).rev().map(part));
            self.split.insert(whole, PARTS);
        }
        let part = self.parts.pop()?;
        *self.split.get_mut(&part.whole)? -= 1;
        Some(part)
    }

    fn take_whole(&mut self) -> Option<Slot> {
        if let Some(slot) = self.whole.pop() {
            return Some(slot);
        }
        let (&address, _) = self.split.iter().find(|(_, free)| **free == PARTS)?;
        self.split.remove(&address);
        self.parts.retain(|part| part.whole != address);
        Some(Slot::whole(address, self.size))
    }

    /// Takes back what a window of `drive` had.
    pub(super) fn give(&mut self, drive: usize, slot: Slot) {
        self.count_back(drive, slot);
        if slot.len == self.size {
            self.whole.push(slot);
        } else {
            self.parts.push(slot);
            *self.split.entry(slot.whole).or_default() += 1;
        }
    }

    /// Never gives a slot out again: something may still write into it. Of a split one the other
    /// parts stay in use.
    pub(super) fn lose(&mut self, drive: usize, slot: Slot) {
        self.count_back(drive, slot);
        if slot.len == self.size {
            self.made -= 1;
        }
    }

    fn count_back(&mut self, drive: usize, slot: Slot) {
        self.held[drive] -= slot.len;
        self.used -= slot.len;
    }

    /// Those that nobody has.
    #[cfg(test)]
    pub(super) fn free(&self) -> impl Iterator<Item = &Slot> {
        self.whole.iter().chain(&self.parts)
    }

    /// Whether a window of `drive` would get `len` bytes now.
    #[cfg(test)]
    pub(super) fn has(&self, drive: usize, len: u64) -> bool {
        let whole = !self.whole.is_empty() || self.split.values().any(|&free| free == PARTS);
        let part = len < self.size && !self.parts.is_empty();
        self.is_share(drive, len) && (whole || part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: u64) -> Slots {
        let mut slots = Slots::new(16, usize::try_from(count).unwrap());
        let all: Vec<Slot> = (0..count).map(|n| Slot::whole(16 * n, 16)).collect();
        slots.add(&all);
        slots
    }

    #[test]
    fn parts_come_from_one_slot_and_become_one_again() {
        let mut slots = slots(4);
        let parts: Vec<Slot> = (0..4).map(|_| slots.take(0, 4).unwrap()).collect();
        assert!(parts.iter().all(|part| part.whole == 48 && part.len == 4));
        parts.iter().for_each(|&part| slots.give(0, part));
        assert_eq!(slots.take(0, 4), Some(parts[3]), "the last to come is the first to go");
        slots.give(0, parts[3]);
        let whole: Vec<u64> = (0..4).map(|drive| slots.take(drive, 16).unwrap().address).collect();
        assert_eq!(whole, [32, 16, 0, 48]);
        assert_eq!(slots.free().count(), 0);
    }

    #[test]
    fn nobody_holds_more_than_is_left() {
        let mut slots = slots(16);
        let mut take = |drive| std::iter::from_fn(|| slots.take(drive, 16)).count();
        assert_eq!((take(0), take(1), take(2), take(3), take(4)), (8, 4, 2, 2, 0));
    }
}

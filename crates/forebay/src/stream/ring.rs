//! The slots that layers pass through on the host: taken one after the other, and again once
//! nothing is copied from them any more.

use std::collections::VecDeque;
use std::ops::Range;

use super::marks::Mark;
use crate::error::Result;
use crate::memory::Buffer;

/// Slots: two are copied together, one or two are ready behind them, and the others are being
/// filled. Where each was copied alone, layers came from the page cache at 38, 45 and 52 GB/s
/// through 3, 4 and 5, at 54 through 6, and no faster through more
/// (`benches/runs/2026-11-22-h200-layers-c`); two at a time, 55 through 6, and 57 through 8
/// (`2026-11-22-h200-layers-d/together`).
pub(super) const SLOTS: u64 = 8;

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Ring {
    /// All of them, one behind the other; `None` where nothing passes through slots.
    memory: Option<Buffer>,
    slot_len: u64,
    /// The number of the first that may be in use. Numbers go on, slots come round.
    first: u64,
    /// Of each that was taken since: whether it was given back, and behind what.
    taken: VecDeque<Option<Vec<Mark>>>,
    /// Behind what was copied last but one, and last.
    last: [Vec<Mark>; 2],
}

impl Ring {
    /// Of slots of `slot_len` bytes in `memory`.
    pub(super) fn new(memory: Option<Buffer>, slot_len: u64) -> Self {
        let last = Default::default();
        Self { memory, slot_len, first: 0, taken: VecDeque::new(), last }
    }

    /// The memory of all slots.
    pub(super) fn memory(&self) -> Option<&Buffer> {
        self.memory.as_ref()
    }

    /// The number of the slot that is taken next.
    pub(super) fn next(&self) -> u64 {
        self.first + self.taken.len() as u64
    }

    /// Where a slot begins in their memory.
    pub(super) fn place(&self, number: u64) -> u64 {
        number % SLOTS * self.slot_len
    }

    /// Takes the next slot, if nothing is copied from it any more.
    ///
    /// # Errors
    /// A GPU's.
    pub(super) fn take(&mut self) -> Result<bool> {
        while let Some(Some(marks)) = self.taken.front() {
            if !are_passed(marks)? {
                break;
            }
            self.taken.pop_front();
            self.first += 1;
        }
        let is_free = self.memory.is_some() && (self.taken.len() as u64) < SLOTS;
        if is_free {
            self.taken.push_back(None);
        }
        Ok(is_free)
    }

    /// Gives a slot back, which is free when all `marks` are passed.
    pub(super) fn give(&mut self, number: u64, marks: Vec<Mark>) {
        let index = usize::try_from(number - self.first).expect("no more than there are slots");
        self.taken[index] = Some(marks);
    }

    /// Gives slots back that were not yet, and to which nothing comes any more.
    pub(super) fn give_all(&mut self, numbers: Range<u64>) {
        let first = self.first;
        let of = |number: u64| usize::try_from(number.checked_sub(first)?).ok();
        for index in numbers.filter_map(of) {
            self.taken[index].get_or_insert_default();
        }
    }

    /// Notes copies that were queued last.
    pub(super) fn queued(&mut self, marks: &[Mark]) {
        self.last = [std::mem::take(&mut self.last[1]), marks.to_vec()];
    }

    /// Whether what was queued before the last copies is still to be done.
    ///
    /// # Errors
    /// A GPU's.
    pub(super) fn is_ahead(&self) -> Result<bool> {
        Ok(!are_passed(&self.last[0])?)
    }

    /// Keeps the memory for ever: a copy may still read it.
    pub(super) fn lose(&mut self) {
        std::mem::forget(self.memory.take());
    }
}

/// Whether all marks are passed.
///
/// # Errors
/// A GPU's.
pub(super) fn are_passed(marks: &[Mark]) -> Result<bool> {
    for mark in marks {
        if !mark.is_passed().map_err(|source| mark.failed(source))? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_round_in_order() {
        let engine = crate::Engine::new(crate::Options::default()).unwrap();
        let memory = engine.allocate_pinned(SLOTS * 8192).unwrap();
        let mut ring = Ring::new(Some(memory), 8192);
        for number in 0..SLOTS {
            assert_eq!(ring.next(), number);
            assert_eq!(ring.place(number), number * 8192);
            assert!(ring.take().unwrap());
        }
        assert!(!ring.take().unwrap(), "all are in use");
        ring.give(1, Vec::new());
        assert!(!ring.take().unwrap(), "the one before it is in use");
        ring.give_all(0..2);
        let taken = [(); 3].map(|()| ring.take().unwrap());
        assert_eq!(taken, [true, true, false]);
        assert_eq!((ring.next(), ring.place(SLOTS + 1)), (SLOTS + 2, 8192));
        let mut none = Ring::new(None, 8192);
        assert!(!none.take().unwrap(), "there are none");
    }
}

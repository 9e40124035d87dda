//! The staging slots of a group of streams. A slot is free again once all copies from it are done.
//!
//! Data from the page cache uses whole slots. A drive is slower than the link, so data from drives
//! uses small slots, no more than it needs at the time. The most recently used free one is taken
//! first, so that slots are reused while still in the CPU cache (`docs/internals.md#layers`). Both
//! kinds are cut from the same memory.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay::internal::SKEW;
use forebay::{Buffer, Engine, Result};

use super::marks::Mark;

/// Number of slots: two are copied together, one or two are ready after them, and the rest are
/// being filled. With each copied alone, layers came from the page cache at 38, 45 and 52 GB/s
/// through 3, 4 and 5 slots, at 54 through 6, and no faster through more
/// (H200, 2026-11-22, `11a48073`). With two copied at a time it was 55 through 6, and 57
/// through 8 (H200, 2026-11-22, `04e6c7bc`).
pub(super) const SLOTS: u64 = 8;

/// Minimum number of small slots for copies, in addition to those for reads in flight; for many
/// reads it is an eighth of them. The engine's own transfers use the same number
/// (`queue/scheduler/link.rs`).
const SPARE: u64 = 4;

/// Bytes of a slot: half of the engine's, whose transfers forward parts of a slot while the rest
/// arrives. A layer's slots are copied whole, so smaller ones keep reads and copies overlapping.
pub(super) fn slot_len(engine: &Engine) -> u64 {
    engine.options().slot_size / 2
}

/// Bytes of a small slot: the size of an op.
pub(super) fn small_len(engine: &Engine) -> u64 {
    engine.options().segment_size.min(slot_len(engine))
}

/// The slots and their state.
#[derive(Debug)]
pub(super) struct Ring {
    /// All cells in a row; `None` if no layer uses slots.
    memory: Option<Buffer>,
    /// Bytes of a small slot.
    small: u64,
    /// Number of cells, which are small slots with the gaps before them, and number of cells per
    /// whole slot.
    cells: usize,
    cells_each: usize,
    /// Free cells with the most recently used one last, and the number of free cells per whole
    /// slot.
    free: Vec<usize>,
    free_of: Vec<usize>,
    /// Small slots in use.
    small_used: usize,
    /// Slots that are being copied from, in the order of their copies. The marks before the first
    /// copy of the layer copied last; they wait for the compute.
    copied: VecDeque<(Slot, Arc<[Mark]>)>,
    begun: Vec<Mark>,
    /// Marks after the second to last and the last copies.
    last: [Vec<Mark>; 2],
    /// Whether the link was behind when the last layer arrived.
    was_behind: bool,
}

/// A slot in use. It must be returned.
#[derive(Debug)]
pub(super) struct Slot {
    start: usize,
    cells: usize,
}

/// Which slots a layer uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Whole,
    Small,
}

impl Ring {
    /// Allocates the memory if any layer `passes` through slots.
    ///
    /// # Errors
    /// The pinned memory cannot be allocated.
    pub(super) fn new(engine: &Engine, passes: bool) -> Result<Self> {
        let small = small_len(engine);
        let cells_each = index(slot_len(engine).div_ceil(small));
        let whole = if passes { index(SLOTS) } else { 0 };
        let cells = whole * cells_each;
        let len = cells as u64 * (small + SKEW);
        Ok(Self {
            memory: passes.then(|| engine.allocate_pinned(len)).transpose()?,
            small,
            cells,
            cells_each,
            free: (0..cells).rev().collect(),
            free_of: vec![cells_each; whole],
            small_used: 0,
            copied: VecDeque::new(),
            begun: Vec::new(),
            last: Default::default(),
            was_behind: false,
        })
    }

    /// The memory of all slots.
    pub(super) fn memory(&self) -> Option<&Buffer> {
        self.memory.as_ref()
    }

    /// Whether a layer from a drive may use small slots. If drives deliver faster than the link
    /// copies, whole slots are used.
    pub(super) fn has_small(&self) -> bool {
        self.cells > 0 && self.cells_each > 1 && !self.was_behind
    }

    /// Whether there are more small slots than that.
    pub(super) fn exceeds(&self, room: usize) -> bool {
        room < self.cells
    }

    /// Offset of a slot in the memory.
    pub(super) fn place(&self, slot: &Slot) -> u64 {
        slot.start as u64 * (self.small + SKEW)
    }

    /// Pops a free slot, if there is any. A small slot is only popped if fewer than
    /// `room` are in use. Slots that wait for the compute do not count, so that read-ahead may use
    /// all slots in that time.
    ///
    /// # Errors
    /// Errors of a GPU.
    pub(super) fn take(&mut self, size: Size, room: usize) -> Result<Option<Slot>> {
        while let Some((_, marks)) = self.copied.front()
            && are_passed(marks)?
        {
            let (slot, _) = self.copied.pop_front().expect("just seen");
            self.give_back(slot);
        }
        if size == Size::Small && self.small_used - self.waiting(room)? >= room {
            return Ok(None);
        }
        let slot = match size {
            Size::Small => self.free.pop().map(|start| Slot { start, cells: 1 }),
            // Whole slots are used in rotation: all of them always hold some data from the page
            // cache.
            Size::Whole => {
                let mut of = self.free.iter().map(|cell| cell / self.cells_each);
                let whole = of.find(|&whole| self.free_of[whole] == self.cells_each);
                whole.map(|whole| Slot { start: whole * self.cells_each, cells: self.cells_each })
            }
        };
        let Some(slot) = slot else { return Ok(None) };
        if size == Size::Whole {
            self.free.retain(|cell| !slot.has(*cell));
        }
        self.free_of[slot.start / self.cells_each] -= slot.cells;
        self.small_used += usize::from(size == Size::Small);
        Ok(Some(slot))
    }

    /// How many small slots wait for the compute, if they are at least half of `room`; fewer are
    /// just being copied.
    ///
    /// # Errors
    /// Errors of a GPU.
    fn waiting(&self, room: usize) -> Result<usize> {
        let few = self.copied.len() < room.div_ceil(2);
        if self.small_used < room || few || are_passed(&self.begun)? {
            return Ok(0);
        }
        Ok(self.copied.iter().filter(|(slot, _)| slot.is_small(self.cells_each)).count())
    }

    /// Returns a slot, which is free when all `marks` are signaled.
    pub(super) fn give(&mut self, slot: Slot, marks: &Arc<[Mark]>) {
        self.copied.push_back((slot, Arc::clone(marks)));
    }

    /// Returns a slot that is neither read to nor copied from any more.
    pub(super) fn give_back(&mut self, slot: Slot) {
        self.free_of[slot.start / self.cells_each] += slot.cells;
        self.free.extend((slot.start..slot.start + slot.cells).rev());
        self.small_used -= usize::from(slot.is_small(self.cells_each));
    }

    /// Whether slots are being copied from, so that some will become free.
    pub(super) fn is_copied(&self) -> bool {
        !self.copied.is_empty()
    }

    /// Records the marks after the last queued copies, and those before the first copy of their
    /// layer.
    pub(super) fn queued(&mut self, marks: &[Mark], begun: Vec<Mark>) {
        self.last = [std::mem::take(&mut self.last[1]), marks.to_vec()];
        self.begun = begun;
    }

    /// Whether the second to last copies are still running.
    ///
    /// # Errors
    /// Errors of a GPU.
    pub(super) fn is_ahead(&self) -> Result<bool> {
        Ok(!are_passed(&self.last[0])?)
    }

    /// Records whether the link was behind for most blocks of a layer from a drive.
    pub(super) fn set_behind(&mut self, was_behind: bool) {
        self.was_behind = was_behind;
    }

    /// Leaks the memory, because a copy may still read it.
    pub(super) fn lose(&mut self) {
        std::mem::forget(self.memory.take());
    }
}

/// Number of small slots for this many bytes in flight on a drive, with `each` bytes per slot.
pub(super) fn room_for(in_flight: u64, each: u64) -> usize {
    let requests = in_flight.div_ceil(each.max(1));
    let room = requests.saturating_add(SPARE.max(requests / 8));
    usize::try_from(room).unwrap_or(usize::MAX)
}

impl Slot {
    fn is_small(&self, cells_each: usize) -> bool {
        self.cells < cells_each
    }

    fn has(&self, cell: usize) -> bool {
        (self.start..self.start + self.cells).contains(&cell)
    }
}

/// A number of slots or blocks, as an index.
pub(super) fn index(number: u64) -> usize {
    usize::try_from(number).expect("far fewer than memory has bytes")
}

/// Whether all marks are signaled.
///
/// # Errors
/// Errors of a GPU.
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
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::marks::Marks;
    use forebay::Options;
    use forebay::gpu::sim::SimDevice;
    use forebay::gpu::{CallerStream, Device};
    use forebay_base::clock::ManualClock;

    const SMALL: u64 = 128 << 10;

    /// Eight slots of four small ones each.
    fn ring() -> Ring {
        let mut options = Options::default();
        (options.slot_size, options.segment_size) = (1 << 20, SMALL);
        let engine = Engine::new(options).unwrap();
        Ring::new(&engine, true).unwrap()
    }

    fn take(ring: &mut Ring, size: Size, room: usize) -> Option<Slot> {
        ring.take(size, room).unwrap()
    }

    fn nothing() -> Arc<[Mark]> {
        Arc::new([])
    }

    #[test]
    fn whole_slots_come_round() {
        let mut ring = ring();
        let whole = 4 * (SMALL + SKEW);
        let mut slots: Vec<Slot> =
            std::iter::from_fn(|| take(&mut ring, Size::Whole, usize::MAX)).collect();
        let mut places: Vec<u64> = slots.iter().map(|slot| ring.place(slot)).collect();
        let order = places.clone();
        places.sort_unstable();
        assert_eq!(places, (0..SLOTS).map(|slot| slot * whole).collect::<Vec<u64>>());
        assert!(take(&mut ring, Size::Small, usize::MAX).is_none(), "all are in use");
        for slot in slots.drain(..3) {
            ring.give(slot, &nothing());
        }
        for place in &order[..3] {
            let next = take(&mut ring, Size::Whole, usize::MAX).unwrap();
            assert_eq!(ring.place(&next), *place, "the one that was free first");
        }
        assert!(take(&mut ring, Size::Whole, usize::MAX).is_none());
    }

    #[test]
    fn a_ring_may_have_no_slots() {
        let engine = Engine::new(Options::default()).unwrap();
        let mut none = Ring::new(&engine, false).unwrap();
        assert!(!none.has_small());
        assert!(take(&mut none, Size::Whole, usize::MAX).is_none());
        assert!(take(&mut none, Size::Small, usize::MAX).is_none());
        assert!(none.memory().is_none());
    }

    #[test]
    fn a_drive_takes_no_more_small_slots_than_it_needs() {
        let mut ring = ring();
        assert_eq!(room_for(SMALL, SMALL), 5, "one request, and four that are copied");
        assert_eq!(room_for(20 * SMALL - 1, SMALL), 24);
        assert_eq!(room_for(20 * SMALL, SMALL / 2), 45, "half of each is used");
        assert_eq!(room_for(u64::MAX, 0), usize::MAX);
        assert!(ring.has_small() && ring.exceeds(31) && !ring.exceeds(32));
        ring.set_behind(true);
        assert!(!ring.has_small(), "the link wants large copies");
        ring.set_behind(false);
        let mut slots: Vec<Slot> = std::iter::from_fn(|| take(&mut ring, Size::Small, 5)).collect();
        let places: Vec<u64> = slots.iter().map(|slot| ring.place(slot)).collect();
        assert_eq!(places, [0, 1, 2, 3, 4].map(|cell| cell * (SMALL + SKEW)));
        assert!(take(&mut ring, Size::Small, 6).is_some(), "the drive takes more by now");
        // The most recently used slot is taken again, and no further memory is touched.
        for turn in 0..100 {
            let place = places[turn % 5];
            let at = slots.iter().position(|slot| ring.place(slot) == place).unwrap();
            ring.give(slots.remove(at), &nothing());
            slots.push(take(&mut ring, Size::Small, 6).unwrap());
            assert_eq!(ring.place(&slots[4]), place);
        }
        // A whole slot waits for the small ones in its memory.
        let whole = 4 * (SMALL + SKEW);
        let others: Vec<Slot> =
            std::iter::from_fn(|| take(&mut ring, Size::Whole, usize::MAX)).collect();
        assert_eq!(others.len(), 6);
        assert!(others.iter().all(|slot| ring.place(slot) >= 2 * whole));
        assert!(!ring.is_copied());
        slots.sort_by_key(|slot| slot.start);
        slots.drain(..4).for_each(|slot| ring.give(slot, &nothing()));
        assert!(ring.is_copied());
        let first = take(&mut ring, Size::Whole, usize::MAX).unwrap();
        assert_eq!(ring.place(&first), 0);
    }

    #[test]
    fn slots_that_wait_for_the_compute_do_not_stop_reads() {
        let (mut ring, room) = (ring(), 6);
        let clock = Arc::new(ManualClock::new());
        let device = Arc::new(SimDevice::new(0, "sim".parse().unwrap(), Arc::clone(&clock) as _));
        let marks = Marks::new(&(Arc::clone(&device) as _));
        let stream = device.create_stream().unwrap();
        device.work(CallerStream(stream.0), Duration::from_secs(1)).unwrap();
        let mark = marks.put(stream).unwrap();
        let one: Arc<[Mark]> = vec![mark.clone()].into();
        let mut slots: Vec<Slot> =
            std::iter::from_fn(|| take(&mut ring, Size::Small, room)).collect();
        for slot in slots.drain(..2) {
            ring.give(slot, &one);
        }
        ring.queued(std::slice::from_ref(&mark), vec![mark.clone()]);
        assert!(take(&mut ring, Size::Small, room).is_none(), "a few may be copied just now");
        ring.give(slots.pop().unwrap(), &one);
        let ahead: Vec<Slot> = std::iter::from_fn(|| take(&mut ring, Size::Small, room)).collect();
        assert_eq!(ahead.len(), 3, "as many as wait");
        clock.advance(Duration::from_secs(2));
        assert!(take(&mut ring, Size::Small, room).is_none(), "those that wait are free");
        ahead.into_iter().for_each(|slot| ring.give_back(slot));
        assert!(take(&mut ring, Size::Small, room).is_some());
    }

    proptest! {
        /// For any sequence of sizes, no two slots in use overlap, and in the end all memory is
        /// free again.
        #[test]
        fn nothing_is_in_two_slots(
            layers in prop::collection::vec((0..40_usize, prop::option::of(1..30_usize)), 1..20),
            keeps in prop::collection::vec(any::<bool>(), 64),
        ) {
            let mut ring = ring();
            let mut held: Vec<(Slot, u64, u64)> = Vec::new();
            let mut kept = keeps.iter().cycle();
            for (blocks, small) in layers {
                let size = if small.is_some() { Size::Small } else { Size::Whole };
                let room = small.unwrap_or(index(SLOTS));
                for _ in 0..blocks {
                    let slot = loop {
                        if let Some(slot) = ring.take(size, room).unwrap() {
                            break slot;
                        }
                        // A waiter is never alone: another reading holds the slot it needs.
                        let at = if *kept.next().unwrap() { 0 } else { held.len() - 1 };
                        ring.give(held.remove(at).0, &nothing());
                    };
                    let start = ring.place(&slot);
                    let end = start + slot.cells as u64 * (ring.small + SKEW);
                    prop_assert!(end <= ring.memory().unwrap().len());
                    let is_apart = |&(_, first, last): &_| last <= start || end <= first;
                    prop_assert!(held.iter().all(is_apart));
                    prop_assert!(size == Size::Whole || ring.small_used <= room);
                    held.push((slot, start, end));
                }
            }
            held.into_iter().for_each(|(slot, ..)| ring.give_back(slot));
            let all = std::iter::from_fn(|| ring.take(Size::Whole, usize::MAX).unwrap());
            prop_assert_eq!(all.count() as u64, SLOTS);
        }
    }
}

//! The slots that layers pass through on the host: taken one after the other, and again once
//! nothing is copied from them any more.
//!
//! What the page cache has takes whole slots. A drive is slower than the link, so what one brings
//! takes small ones, as many as it needs, which are used again while they are still in a cache
//! (`docs/internals/layers.md`). Both are cut from the same memory.

use std::ops::Range;
use std::sync::Arc;

use super::marks::Mark;
use crate::engine::Engine;
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::SKEW;

/// Slots: two are copied together, one or two are ready behind them, and the others are being
/// filled. Where each was copied alone, layers came from the page cache at 38, 45 and 52 GB/s
/// through 3, 4 and 5, at 54 through 6, and no faster through more
/// (`benches/runs/2026-11-22-h200-layers-c`); two at a time, 55 through 6, and 57 through 8
/// (`2026-11-22-h200-layers-d/together`).
pub(super) const SLOTS: u64 = 8;

/// Small slots beside those that hold what is in flight, for what is copied; of many an eighth. As
/// many as the engine's own transfers have (`queue/scheduler/slots.rs`).
const SPARE: u64 = 4;

/// Bytes of a slot: half of the engine's, whose transfers hand on parts of a slot while the rest
/// comes. A layer's slots leave whole, so that smaller ones keep reads and copies going at once.
pub(super) fn slot_len(engine: &Engine) -> u64 {
    engine.options().slot_size / 2
}

/// Bytes of a small slot: of one request.
pub(super) fn small_len(engine: &Engine) -> u64 {
    engine.options().segment_size.min(slot_len(engine))
}

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Ring {
    /// All cells, one behind the other; `None` where nothing passes through slots.
    memory: Option<Buffer>,
    /// Bytes of a small slot.
    small: u64,
    /// Small slots, with the room before each, that a whole one takes.
    cells_each: usize,
    cells: Vec<Cell>,
    /// Blocks that have been given slots, and the cell behind the last one's.
    blocks: u64,
    behind: usize,
    /// Behind what was copied last but one, and last.
    last: [Vec<Mark>; 2],
    /// Whether the link was behind when a layer came last.
    was_behind: bool,
}

/// What the memory of a small slot is used for.
#[derive(Debug, Clone)]
enum Cell {
    Free,
    /// By the block with this number.
    Taken(u64),
    /// Free when all marks are passed.
    Copied(Arc<[Mark]>),
}

/// The slots of a layer, one for each of its blocks, which come round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    /// The number of the first block.
    first: u64,
    /// The cell where it begins, how many cells come round, and how many of them a slot takes.
    start: usize,
    span: usize,
    each: usize,
}

impl Ring {
    /// With memory if anything `passes` through slots.
    ///
    /// # Errors
    /// What stands against so much pinned memory.
    pub(super) fn new(engine: &Engine, passes: bool) -> Result<Self> {
        let small = small_len(engine);
        let cells_each = index(slot_len(engine).div_ceil(small));
        let count = index(SLOTS) * cells_each;
        let len = count as u64 * (small + SKEW);
        Ok(Self {
            memory: passes.then(|| engine.allocate_pinned(len)).transpose()?,
            small,
            cells_each,
            cells: vec![Cell::Free; if passes { count } else { 0 }],
            blocks: 0,
            behind: 0,
            last: Default::default(),
            was_behind: false,
        })
    }

    /// The memory of all slots.
    pub(super) fn memory(&self) -> Option<&Buffer> {
        self.memory.as_ref()
    }

    /// How many small slots a drive takes that has so many bytes in flight; `None`: whole ones are
    /// as good, since it takes all, or brings more than the link carries.
    pub(super) fn small_for(&self, in_flight: u64) -> Option<usize> {
        let requests = in_flight.div_ceil(self.small);
        let count = requests.saturating_add(SPARE.max(requests / 8));
        let few = count < self.cells.len() as u64 && self.cells_each > 1;
        (few && !self.was_behind).then(|| index(count))
    }

    /// Slots for so many blocks: small ones, of which no more than this come round, or whole ones.
    pub(super) fn slots_for(&mut self, blocks: u64, small: Option<usize>) -> Slots {
        let (span, each) = small.map_or((self.cells.len(), self.cells_each), |count| (count, 1));
        let start = self.behind.next_multiple_of(each) % span.max(1);
        let slots = Slots { first: self.blocks, start, span, each };
        self.blocks += blocks;
        self.behind = slots.cells(blocks).start;
        slots
    }

    /// Where a block's slot begins in the memory of all.
    pub(super) fn place(&self, slots: &Slots, block: u64) -> u64 {
        slots.cells(block).start as u64 * (self.small + SKEW)
    }

    /// Takes a block's slot, if nothing else comes to it and nothing is copied from it any more.
    ///
    /// # Errors
    /// A GPU's.
    pub(super) fn take(&mut self, slots: &Slots, block: u64) -> Result<bool> {
        let Some(cells) = self.cells.get_mut(slots.cells(block)) else { return Ok(false) };
        for cell in &mut *cells {
            match cell {
                Cell::Free => {}
                Cell::Copied(marks) if are_passed(marks)? => *cell = Cell::Free,
                Cell::Taken(_) | Cell::Copied(_) => return Ok(false),
            }
        }
        cells.fill(Cell::Taken(slots.first + block));
        Ok(true)
    }

    /// Gives a block's slot back, which is free when all `marks` are passed.
    pub(super) fn give(&mut self, slots: &Slots, block: u64, marks: &Arc<[Mark]>) {
        self.cells[slots.cells(block)].fill(Cell::Copied(Arc::clone(marks)));
    }

    /// Gives those slots back that these blocks still have, to which nothing comes any more.
    pub(super) fn give_all(&mut self, slots: &Slots, blocks: Range<u64>) {
        for block in blocks {
            for cell in &mut self.cells[slots.cells(block)] {
                if matches!(cell, Cell::Taken(number) if *number == slots.first + block) {
                    *cell = Cell::Free;
                }
            }
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

    /// Notes whether the link was behind when most blocks of a layer came.
    pub(super) fn came(&mut self, was_behind: bool) {
        self.was_behind = was_behind;
    }

    /// Keeps the memory for ever: a copy may still read it.
    pub(super) fn lose(&mut self) {
        std::mem::forget(self.memory.take());
    }
}

impl Slots {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.span / self.each
    }

    /// The cells of a block's slot.
    fn cells(&self, block: u64) -> Range<usize> {
        let turn = index(block % (self.count().max(1) as u64));
        let start = (self.start + turn * self.each) % self.span.max(1);
        start..start + self.each
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("far fewer than memory has bytes")
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
    use proptest::prelude::*;

    use super::*;
    use crate::Options;

    /// Of eight slots of four small ones.
    fn ring() -> Ring {
        let options = Options { slot_size: 1 << 20, segment_size: 128 << 10, ..Options::default() };
        let engine = Engine::new(options).unwrap();
        Ring::new(&engine, true).unwrap()
    }

    fn nothing() -> Arc<[Mark]> {
        Arc::new([])
    }

    #[test]
    fn slots_come_round_in_order() {
        let mut ring = ring();
        let cell = (128 << 10) + SKEW;
        let slots = ring.slots_for(12, None);
        for block in 0..SLOTS {
            assert_eq!(ring.place(&slots, block), block * 4 * cell);
            assert!(ring.take(&slots, block).unwrap());
        }
        assert_eq!(ring.place(&slots, SLOTS + 1), 4 * cell);
        assert!(!ring.take(&slots, SLOTS).unwrap(), "all are in use");
        ring.give(&slots, 1, &nothing());
        assert!(!ring.take(&slots, SLOTS).unwrap(), "it is the first one's turn");
        ring.give_all(&slots, 0..2);
        let taken = [8, 9, 10].map(|block| ring.take(&slots, block).unwrap());
        assert_eq!(taken, [true, true, false]);
        ring.give_all(&slots, 0..2);
        assert!(!ring.take(&slots, SLOTS).unwrap(), "what others have is not given back");
        let next = ring.slots_for(1, None);
        assert_eq!(ring.place(&next, 0), 4 * 4 * cell, "behind the last one");
    }

    #[test]
    fn there_may_be_none() {
        let engine = Engine::new(Options::default()).unwrap();
        let mut none = Ring::new(&engine, false).unwrap();
        assert_eq!(none.small_for(1), None);
        let slots = none.slots_for(3, None);
        assert!(!none.take(&slots, 0).unwrap());
        assert!(none.memory().is_none());
    }

    #[test]
    fn a_drive_takes_as_many_small_slots_as_it_needs() {
        let mut ring = ring();
        let small = 128 << 10;
        assert_eq!(ring.small_for(small), Some(5), "one request, and four that are copied");
        assert_eq!(ring.small_for(20 * small - 1), Some(24));
        assert_eq!(ring.small_for(28 * small), None, "as many as there are");
        assert_eq!(ring.small_for(u64::MAX), None);
        ring.came(true);
        assert_eq!(ring.small_for(small), None, "the link wants large copies");
        ring.came(false);
        let slots = ring.slots_for(100, ring.small_for(small));
        assert_eq!(slots.count(), 5);
        let places: Vec<u64> = (0..6).map(|block| ring.place(&slots, block)).collect();
        assert_eq!(places, [0, 1, 2, 3, 4, 0].map(|cell| cell * (small + SKEW)));
        // A whole slot waits for small ones in its place.
        assert!(ring.take(&slots, 1).unwrap());
        let whole = ring.slots_for(2, None);
        let first = (0..SLOTS).find(|&block| ring.place(&whole, block) == 0).unwrap();
        assert!(!ring.take(&whole, first).unwrap());
        ring.give(&slots, 1, &nothing());
        assert!(ring.take(&whole, first).unwrap());
        assert!(!ring.take(&slots, 0).unwrap());
    }

    proptest! {
        /// Whatever sizes follow each other: no two blocks that hold slots share a byte.
        #[test]
        fn nothing_is_in_two_slots(
            layers in prop::collection::vec((0..40_u64, prop::option::of(1..30_usize)), 1..20),
            keeps in prop::collection::vec(any::<bool>(), 64),
        ) {
            let mut ring = ring();
            let mut held: Vec<(Slots, u64, Range<u64>)> = Vec::new();
            let mut kept = keeps.iter().cycle();
            for (blocks, small) in layers {
                let slots = ring.slots_for(blocks, small);
                for block in 0..blocks {
                    while !ring.take(&slots, block).unwrap() {
                        // Who waits is never alone: somebody has what it waits for.
                        let at = if *kept.next().unwrap() { 0 } else { held.len() - 1 };
                        let (of, number, _) = held.remove(at);
                        ring.give(&of, number, &nothing());
                    }
                    let start = ring.place(&slots, block);
                    let len = slots.each as u64 * (ring.small + SKEW);
                    let range = start..start + len;
                    prop_assert!(range.end <= ring.memory().unwrap().len());
                    let is_apart =
                        |other: &Range<u64>| other.end <= range.start || range.end <= other.start;
                    prop_assert!(held.iter().all(|(_, _, other)| is_apart(other)));
                    held.push((slots, block, range));
                }
            }
        }
    }
}

//! The caller of a simulated gated read. It opens the gate further at random times, and checks each
//! block once it is reported as arrived.

use std::ops::Range;

use super::job::{Job, Piece, UNTOUCHED};
use super::memory::all_are;
use super::world::below;
use crate::gpu::sim::Dice;
use crate::queue::Core;
use crate::transfer::Batch;

/// The caller's side of a gated read.
#[derive(Debug)]
pub(super) struct Opens {
    /// The pieces of each block.
    blocks: Vec<Range<usize>>,
    /// How far each block's target is after the address first given to the batch.
    shifts: Vec<u64>,
    open: usize,
    came: usize,
}

/// Splits the pieces into blocks of random size, some of them empty.
pub(super) fn blocks(dice: &mut Dice, mut left: usize) -> Vec<usize> {
    let mut counts = Vec::new();
    while left > 0 {
        let count = usize::try_from(below(dice, 5)).expect("small").min(left);
        counts.push(count);
        left -= count;
    }
    counts
}

impl Opens {
    /// Blocks with these numbers of pieces. Their targets are set when they are opened, or from the
    /// start.
    pub(super) fn new(dice: &mut Dice, counts: &[usize], pieces: &[Piece]) -> Self {
        let ends = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        });
        let blocks: Vec<_> = ends.zip(counts).map(|(end, count)| end - count..end).collect();
        let is_late = dice.roll(0.5);
        let first = |block: &Range<usize>| pieces[block.clone()].first().filter(|_| is_late);
        let shift = |block| first(block).map_or(0, |piece| piece.at as u64);
        let shifts = blocks.iter().map(shift).collect();
        Self { blocks, shifts, open: 0, came: 0 }
    }

    /// Number of pieces of each block.
    pub(super) fn counts(&self) -> Vec<usize> {
        self.blocks.iter().map(Range::len).collect()
    }

    /// How far a piece's target is after the address first given to the batch.
    pub(super) fn shift_of(&self, piece: usize) -> u64 {
        let of = self.blocks.iter().zip(&self.shifts);
        let found = of.into_iter().find(|(block, _)| block.contains(&piece));
        found.map_or(0, |(_, shift)| *shift)
    }
}

impl Job {
    /// Whether its caller may open more of it.
    pub(super) fn can_open(&self) -> bool {
        let is_shut = |opens: &Opens| opens.open < opens.blocks.len();
        self.opens.as_ref().is_some_and(is_shut) && !self.state.is_done()
    }

    /// Opens the next block, after checking that none of its bytes arrived early.
    pub(super) fn open(&mut self, core: &Core) {
        let (Some(opens), Some(batch)) = (&mut self.opens, &self.batch) else { return };
        let bytes = self.memory.bytes();
        for piece in &self.pieces[opens.blocks[opens.open].clone()] {
            let memory = &bytes[piece.at..piece.at + piece.bytes.len()];
            assert!(all_are(memory, UNTOUCHED), "bytes of a block that is not open");
        }
        let gate = batch.gate().expect("it has blocks");
        gate.shift(opens.open, opens.shifts[opens.open]);
        opens.open += 1;
        gate.open(opens.open);
        core.with(|scheduler| scheduler.go_on(&self.state));
    }

    /// Checks the blocks that are reported as arrived.
    pub(super) fn look_at_blocks(&mut self) {
        let (Some(opens), Some(batch)) = (&mut self.opens, &self.batch) else { return };
        let arrived = batch.gate().expect("it has blocks").take_arrived();
        let bytes = self.memory.bytes();
        for &block in &arrived {
            assert!(block < opens.open, "a block came that was not open");
            for piece in &self.pieces[opens.blocks[block].clone()] {
                let end = piece.at + piece.bytes.len();
                // Otherwise some of them may have failed.
                if batch.is_whole() {
                    piece.judge(Some(piece.bytes.len() as u64), &bytes[piece.at..end]);
                }
            }
        }
        opens.came += arrived.len();
    }

    /// Whether every block with bytes has arrived.
    pub(super) fn all_blocks_arrived(&self, batch: &Batch) -> bool {
        let Some(opens) = &self.opens else { return true };
        let items: Vec<usize> = batch.strip().items().iter().map(|item| item.index).collect();
        let has_bytes = |block: &&Range<usize>| items.iter().any(|index| block.contains(index));
        opens.came == opens.blocks.iter().filter(has_bytes).count()
    }
}

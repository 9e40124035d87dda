//! A gate limits how far a transfer may read, and reports the blocks that have arrived. It is for
//! callers with memory for a few blocks at a time, who reuse a block's memory for a later block.
//!
//! One transfer thus continues across blocks, instead of one transfer per block. Its readers find
//! the next block open before they have finished the one before.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

use forebay_base::lock::Lock;
use forebay_base::units::ByteRange;

use crate::plan::Strip;

/// The open blocks of a transfer, and those that have arrived.
#[derive(Debug)]
pub(crate) struct Gate {
    /// End of each block in the strip.
    ends: Box<[u64]>,
    /// Wanted bytes of each block that have not arrived.
    left: Box<[AtomicU64]>,
    /// Number of blocks, from the first, that may be read.
    open: AtomicUsize,
    /// Offset added to the addresses of each block's items, set before the block is opened.
    shifts: Box<[AtomicU64]>,
    /// Blocks that have arrived and were not reported yet.
    arrived: Lock<Vec<usize>>,
    /// The thread to notify.
    caller: Thread,
}

impl Gate {
    /// For a strip whose items are laid out block by block; `blocks` has the number of items of
    /// each block. The calling thread is woken for each block that arrives.
    pub(crate) fn new(strip: &Strip, blocks: &[usize]) -> Self {
        let mut ends = Vec::with_capacity(blocks.len());
        let (mut items, mut behind, mut end) = (strip.items().iter().peekable(), 0, 0);
        for count in blocks {
            behind += count;
            while let Some(item) = items.next_if(|item| item.index < behind) {
                end = item.at.end;
            }
            ends.push(end);
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let wanted = |(start, &end): (u64, &u64)| strip.wanted_in(ByteRange { start, end });
        let left = starts.zip(&ends).map(wanted).map(AtomicU64::new).collect();
        let shifts = blocks.iter().map(|_| AtomicU64::new(0)).collect();
        let (open, arrived) = (AtomicUsize::new(0), Lock::default());
        Self { ends: ends.into(), left, open, shifts, arrived, caller: std::thread::current() }
    }

    /// Sets the offset added to the addresses of a block. So its memory need not be known before it
    /// is opened.
    pub(crate) fn shift(&self, block: usize, bytes: u64) {
        self.shifts[block].store(bytes, Ordering::Relaxed);
    }

    /// The offset added to the address of the byte at `position`.
    pub(crate) fn shift_at(&self, position: u64) -> u64 {
        let block = self.ends.partition_point(|&end| end <= position);
        self.shifts.get(block).map_or(0, |shift| shift.load(Ordering::Relaxed))
    }

    /// Allows reading the first `count` blocks. The caller must then notify the scheduler.
    pub(crate) fn open(&self, count: usize) {
        // A thread that sees the new count also sees the blocks' shifts.
        self.open.fetch_max(count.min(self.ends.len()), Ordering::Release);
    }

    /// End of the last open block in the strip.
    pub(crate) fn limit(&self) -> u64 {
        match self.open.load(Ordering::Acquire) {
            0 => 0,
            open => self.ends[open - 1],
        }
    }

    /// End of the block with the byte at `position`. Windows end there, so that a block arrives as
    /// soon as its own bytes have.
    pub(crate) fn end_of_block(&self, position: u64) -> u64 {
        let block = self.ends.partition_point(|&end| end <= position);
        self.ends.get(block).copied().unwrap_or(u64::MAX)
    }

    /// Counts a range as arrived. True if this completed a block.
    pub(crate) fn arrive(&self, strip: &Strip, range: ByteRange) -> bool {
        let first = self.ends.partition_point(|&end| end <= range.start);
        let mut whole = Vec::new();
        for block in first..self.ends.len() {
            let start = block.checked_sub(1).map_or(0, |before| self.ends[before]);
            if start >= range.end {
                break;
            }
            let part = range.intersect(ByteRange { start, end: self.ends[block] });
            let bytes = strip.wanted_in(part);
            if bytes > 0 && self.left[block].fetch_sub(bytes, Ordering::Relaxed) == bytes {
                whole.push(block);
            }
        }
        let any = !whole.is_empty();
        if any {
            self.arrived.lock().append(&mut whole);
        }
        any
    }

    /// The blocks that have arrived since the last call.
    pub(crate) fn take_arrived(&self) -> Vec<usize> {
        std::mem::take(&mut self.arrived.lock())
    }

    /// Wakes the waiting thread. Must not be called under the scheduler's lock.
    pub(crate) fn notify(&self) {
        self.caller.unpark();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::Wanted;

    fn strip(lens: &[u64]) -> Strip {
        let mut offset = 0;
        let wanted: Vec<Wanted> = lens
            .iter()
            .map(|&len| {
                offset += len + 9000; // none of them touch
                Wanted { source: 0, offset, len, address: offset }
            })
            .collect();
        Strip::in_given_order(&wanted, 512, 0).unwrap()
    }

    #[test]
    fn the_limit_is_the_end_of_the_open_blocks() {
        let strip = strip(&[1000, 0, 24, 4096]);
        let gate = Gate::new(&strip, &[2, 1, 1]);
        assert_eq!(gate.limit(), 0);
        let ends: Vec<u64> = strip.items().iter().map(|item| item.at.end).collect();
        for (open, end) in [(1, ends[0]), (2, ends[1]), (3, ends[2]), (9, ends[2])] {
            gate.open(open);
            assert_eq!(gate.limit(), end);
        }
        gate.open(1);
        assert_eq!(gate.limit(), ends[2], "it is never shut again");
        let of = [0, ends[0] - 1, ends[0], ends[2] - 1].map(|at| gate.end_of_block(at));
        assert_eq!(of, [ends[0], ends[0], ends[1], ends[2]]);
        gate.shift(1, 77);
        let of = [0, ends[0] - 1, ends[0], ends[1] - 1, ends[1], ends[2]];
        assert_eq!(of.map(|at| gate.shift_at(at)), [0, 0, 77, 77, 0, 0]);
    }

    proptest! {
        #[test]
        fn each_block_with_bytes_arrives_once(
            blocks in prop::collection::vec(prop::collection::vec(0_u64..9000, 0..5), 1..8),
            cut in 1_u64..20_000,
        ) {
            let lens: Vec<u64> = blocks.concat();
            let strip = strip(&lens);
            let counts: Vec<usize> = blocks.iter().map(Vec::len).collect();
            let gate = Gate::new(&strip, &counts);
            gate.open(counts.len());
            prop_assert_eq!(gate.limit(), strip.len());
            // Windows complete in any order: here every second one first.
            let starts = || (0..strip.len()).step_by(usize::try_from(cut).unwrap());
            let mut came = Vec::new();
            for start in starts().step_by(2).chain(starts().skip(1).step_by(2)) {
                let range = ByteRange { start, end: (start + cut).min(strip.len()) };
                let is_news = gate.arrive(&strip, range);
                let arrived = gate.take_arrived();
                prop_assert_eq!(is_news, !arrived.is_empty());
                came.extend(arrived);
            }
            came.sort_unstable();
            let with_bytes: Vec<usize> =
                (0..blocks.len()).filter(|&block| blocks[block].iter().sum::<u64>() > 0).collect();
            prop_assert_eq!(came, with_bytes);
        }
    }
}

//! How far a transfer may read, and what of it has come: for whoever has memory for a few blocks
//! of it at a time, and gives a block's memory to a later one when it is done with it.
//!
//! So one transfer goes on where a transfer for each block would begin and end: its readers find
//! the next block open before they are through with the one before it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

use crate::lock::Lock;
use crate::plan::Strip;
use crate::units::ByteRange;

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Where each block ends in the strip.
    ends: Box<[u64]>,
    /// Wanted bytes of each that have not come.
    left: Box<[AtomicU64]>,
    /// How many blocks may be read, from the first on.
    open: AtomicUsize,
    /// How much further on than its items say each block goes, set before it is opened.
    shifts: Box<[AtomicU64]>,
    /// Those that have come and that nobody was told of.
    arrived: Lock<Vec<usize>>,
    /// Who wants to know.
    caller: Thread,
}

impl Gate {
    /// Of a strip whose items are laid out block by block, as many of them as `blocks` says for
    /// each. The thread that calls is woken for each block that has come.
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

    /// Has a block go so many bytes further on than its items say: its memory need not be known
    /// before it is opened.
    pub(crate) fn shift(&self, block: usize, bytes: u64) {
        self.shifts[block].store(bytes, Ordering::Relaxed);
    }

    /// How much further on the byte at `position` goes.
    pub(crate) fn shift_at(&self, position: u64) -> u64 {
        let block = self.ends.partition_point(|&end| end <= position);
        self.shifts.get(block).map_or(0, |shift| shift.load(Ordering::Relaxed))
    }

    /// Lets the first `count` blocks be read. The scheduler is to be told.
    pub(crate) fn open(&self, count: usize) {
        // Who sees it sees where they go.
        self.open.fetch_max(count.min(self.ends.len()), Ordering::Release);
    }

    /// Where in the strip it stands.
    pub(crate) fn limit(&self) -> u64 {
        match self.open.load(Ordering::Acquire) {
            0 => 0,
            open => self.ends[open - 1],
        }
    }

    /// Where the block ends that has the byte at `position`: windows keep to it, so that a block
    /// comes as soon as its own bytes are there.
    pub(crate) fn end_of_block(&self, position: u64) -> u64 {
        let block = self.ends.partition_point(|&end| end <= position);
        self.ends.get(block).copied().unwrap_or(u64::MAX)
    }

    /// Counts a range as come; whether a block is whole by that.
    pub(crate) fn came(&self, strip: &Strip, range: ByteRange) -> bool {
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

    /// The blocks that have come since it was last asked.
    pub(crate) fn take_arrived(&self) -> Vec<usize> {
        std::mem::take(&mut self.arrived.lock())
    }

    /// Wakes who wants to know. Not under the scheduler's lock.
    pub(crate) fn call(&self) {
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
    fn it_stands_behind_the_blocks_that_are_open() {
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
            // Windows come in any order: here every second one first.
            let starts = || (0..strip.len()).step_by(usize::try_from(cut).unwrap());
            let mut came = Vec::new();
            for start in starts().step_by(2).chain(starts().skip(1).step_by(2)) {
                let range = ByteRange { start, end: (start + cut).min(strip.len()) };
                let told = gate.came(&strip, range);
                let arrived = gate.take_arrived();
                prop_assert_eq!(told, !arrived.is_empty());
                came.extend(arrived);
            }
            came.sort_unstable();
            let with_bytes: Vec<usize> =
                (0..blocks.len()).filter(|&block| blocks[block].iter().sum::<u64>() > 0).collect();
            prop_assert_eq!(came, with_bytes);
        }
    }
}

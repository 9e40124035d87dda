//! Packs many pieces into slots. Pieces are cut at their files' multiples of the slot size; the
//! parts are packed file by file. Pure.

use std::ops::Range;

use forebay_base::units::{ByteRange, align_down, align_up};

use super::Wanted;
use forebay_gpu::BATCH_MAX;

/// Padding before a slot's bytes, which keep their file offset within a page of this size.
pub const SKEW: u64 = 4096;

/// A part keeps its file offset within a unit of this size, as suits requests to drives.
const UNIT: u64 = 512;

/// The part of a piece that is in a single slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Index of the piece in the call.
    pub piece: usize,
    /// Index of its file in the list of files.
    pub file: usize,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the slot.
    pub at: u64,
    /// Address on the GPU.
    pub address: u64,
}

/// The packed parts, grouped into slot-sized blocks.
#[derive(Debug, Default)]
pub struct Packing {
    /// Slot by slot; none is empty.
    parts: Vec<Packed>,
    /// The indices of the parts, by block.
    blocks: Vec<Range<usize>>,
}

impl Packing {
    /// Packs the `wanted` ranges into slots of `slot` bytes plus padding.
    #[must_use]
    pub fn new(wanted: &[Wanted], slot: u64) -> Self {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|&index| (wanted[index].source, wanted[index].offset));
        let (mut packing, mut first, mut cursor) = (Self::default(), 0, 0);
        for piece in order {
            let Wanted { source: file, offset: start, len, address } = wanted[piece];
            let mut offset = start;
            while offset < start + len {
                let cut = align_down(offset, slot) + slot;
                let range = ByteRange { start: offset, end: cut.min(start + len) };
                let mut at = align_up(cursor, UNIT) + offset % UNIT;
                let is_full = packing.parts.len() - first == BATCH_MAX;
                if is_full || at + range.len() > slot + SKEW {
                    packing.blocks.push(first..packing.parts.len());
                    first = packing.parts.len();
                    at = offset % UNIT;
                }
                cursor = at + range.len();
                let (len, address) = (range.len(), address + (offset - start));
                packing.parts.push(Packed { piece, file, offset, len, at, address });
                offset = range.end;
            }
        }
        if first < packing.parts.len() {
            packing.blocks.push(first..packing.parts.len());
        }
        packing
    }

    /// Packs the same parts again for a different slot size.
    #[must_use]
    pub fn again(&self, slot: u64) -> Self {
        let of = |&Packed { file, offset, len, address, .. }: &Packed| {
            Wanted { source: file, offset, len, address } //
        };
        Self::new(&self.parts.iter().map(of).collect::<Vec<_>>(), slot)
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// All parts.
    #[must_use]
    pub fn parts(&self) -> &[Packed] {
        &self.parts
    }

    /// The parts of a block.
    ///
    /// # Panics
    /// If there is no such block.
    #[must_use]
    pub fn parts_of(&self, block: u64) -> &[Packed] {
        let index = usize::try_from(block).expect("far fewer than memory has bytes");
        &self.parts[self.blocks[index].clone()]
    }

    /// Total bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOT: u64 = 64 << 10;

    fn any_wanted() -> impl Strategy<Value = Wanted> {
        let len = prop_oneof![Just(0), 1..2000_u64, 1..4 * SLOT];
        (0..4_usize, 0..10 * SLOT, len, 0..1_u64 << 40)
            .prop_map(|(source, offset, len, address)| Wanted { source, offset, len, address })
    }

    proptest! {
        #[test]
        fn every_byte_has_one_place(
            wanted in prop::collection::vec(any_wanted(), 0..700),
            small in prop::option::of(12..16_u32),
        ) {
            let (mut packing, mut wanted, mut slot) = (Packing::new(&wanted, SLOT), wanted, SLOT);
            if let Some(log) = small {
                // When packed again, its parts are the wanted ranges.
                let of = |&Packed { file, offset, len, address, .. }: &Packed| Wanted {
                    source: file,
                    offset,
                    len,
                    address,
                };
                wanted = packing.parts().iter().map(of).collect();
                slot = 1 << log;
                packing = packing.again(slot);
            }
            let mut next: Vec<u64> = vec![0; wanted.len()];
            for block in 0..packing.blocks() {
                let parts = packing.parts_of(block);
                prop_assert!(!parts.is_empty() && parts.len() <= BATCH_MAX);
                let mut free = 0;
                for part in parts {
                    let of = wanted[part.piece];
                    prop_assert!(part.len > 0 && part.at >= free && part.file == of.source);
                    prop_assert_eq!(part.at % UNIT, part.offset % UNIT);
                    // The next part of its piece, in whichever slot.
                    prop_assert_eq!(part.offset, of.offset + next[part.piece]);
                    prop_assert_eq!(part.address, of.address + next[part.piece]);
                    next[part.piece] += part.len;
                    free = part.at + part.len;
                }
                prop_assert!(free <= slot + SKEW);
            }
            let lens: Vec<u64> = wanted.iter().map(|wanted| wanted.len).collect();
            prop_assert_eq!(&next, &lens);
            prop_assert_eq!(packing.bytes(), lens.iter().sum::<u64>());
        }
    }

    #[test]
    fn small_pieces_share_a_slot() {
        let of = |n: u64| Wanted { source: 0, offset: n * 8192, len: 4096, address: n };
        let wanted: Vec<Wanted> = (0..64).map(of).collect();
        assert_eq!(Packing::new(&wanted, SLOT).blocks(), 4);
        assert_eq!(Packing::new(&[], SLOT).blocks(), 0);
    }
}

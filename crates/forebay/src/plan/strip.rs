//! Lays the ranges of a call out in a row, the strip, so that windows can be cut from it as from a
//! file.
//!
//! Ranges of a source that touch, or nearly do, become a stretch and are read together. A stretch
//! keeps its source's offset within an alignment unit, and no two stretches share a unit: a request
//! that covers whole units of a stretch touches no second stretch.

use forebay_base::units::{ByteRange, KIB, align_up};

/// Largest gap between two ranges that are read together, with the gap. A separate request costs
/// as much as copying this much from the page cache (0.4 µs), and drives read at least this much.
pub(crate) const GAP_MAX: u64 = 4 * KIB;

/// A range of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Index of the source that it is read from.
    pub source: usize,
    /// Offset in the source.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Target address of its first byte.
    pub address: u64,
}

/// Adjacent bytes of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Its range in the strip.
    pub(crate) at: ByteRange,
    pub(crate) source: usize,
    /// Offset in the source.
    pub(crate) offset: u64,
}

/// A wanted range in the strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) at: ByteRange,
    pub(crate) address: u64,
    /// Index of the range in the call.
    pub(crate) index: usize,
    /// Bytes of the items before it.
    before: u64,
}

/// The stretches and items of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Strip {
    /// In strip order; none is empty, and they do not overlap.
    stretches: Vec<Stretch>,
    /// In strip order; none is empty, and they do not overlap.
    items: Vec<Item>,
}

impl Strip {
    /// Lays out the `wanted` ranges by source and offset; `unit` is a power of two. Ranges with up
    /// to `gap` bytes between them share a stretch; empty ranges are omitted. `None` if the strip
    /// would be longer than any file may be.
    pub(crate) fn new(wanted: &[Wanted], unit: u64, gap: u64) -> Option<Self> {
        Self::laid_out(wanted, in_order(wanted)?, unit, gap)
    }

    /// Like [`new`](Self::new), but in the given order.
    pub(crate) fn in_given_order(wanted: &[Wanted], unit: u64, gap: u64) -> Option<Self> {
        let count = u32::try_from(wanted.len()).ok()?;
        let with_bytes = (0..count).filter(|&index| wanted[index as usize].len > 0);
        Self::laid_out(wanted, with_bytes.collect(), unit, gap)
    }

    fn laid_out(wanted: &[Wanted], order: Vec<u32>, unit: u64, gap: u64) -> Option<Self> {
        let mut strip = Self { stretches: Vec::new(), items: Vec::with_capacity(order.len()) };
        for index in order {
            let index = index as usize;
            let Wanted { source, offset, len, address } = wanted[index];
            let end = offset.checked_add(len)?;
            let start = match strip
                .stretches
                .last_mut()
                .filter(|stretch| stretch.takes(source, offset, gap))
            {
                Some(stretch) => {
                    let start = stretch.at.start + (offset - stretch.offset);
                    stretch.at.end = stretch.at.start + (end - stretch.offset);
                    start
                }
                None => {
                    let before = strip.stretches.last().map_or(0, |stretch| stretch.at.end);
                    let start = align_up(before, unit).checked_add(offset % unit)?;
                    strip.stretches.push(Stretch { at: ByteRange::at(start, len), source, offset });
                    start
                }
            };
            let at = ByteRange { start, end: start.checked_add(len)? };
            let before = strip.items.last().map_or(0, |last| last.before + last.at.len());
            strip.items.push(Item { at, address, index, before });
        }
        i64::try_from(strip.len()).ok()?;
        Some(strip)
    }

    /// End of the last stretch.
    pub(crate) fn len(&self) -> u64 {
        self.stretches.last().map_or(0, |stretch| stretch.at.end)
    }

    /// The stretches in order.
    pub(crate) fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    /// The wanted ranges in order.
    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Index of the stretch that contains `position`, or of the next stretch.
    pub(crate) fn stretch_at(&self, position: u64) -> usize {
        self.stretches.partition_point(|stretch| stretch.at.end <= position)
    }

    /// The parts of stretches that are in `range`, with the stretch's index.
    pub(crate) fn stretches_in(
        &self,
        range: ByteRange,
    ) -> impl Iterator<Item = (usize, ByteRange)> {
        let first = self.stretch_at(range.start);
        let of =
            self.stretches[first..].iter().take_while(move |stretch| stretch.at.start < range.end);
        (first..).zip(of).map(move |(number, stretch)| (number, stretch.at.intersect(range)))
    }

    /// The parts of items that are in `range`, with their target addresses.
    pub(crate) fn items_in(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, u64)> {
        let first = self.items.partition_point(|item| item.at.end <= range.start);
        let of = self.items[first..].iter().take_while(move |item| item.at.start < range.end);
        of.map(move |item| {
            let part = item.at.intersect(range);
            (part, item.address + (part.start - item.at.start))
        })
    }

    /// Number of wanted bytes in `range`.
    pub(crate) fn wanted_in(&self, range: ByteRange) -> u64 {
        let before = |position: u64| {
            let next = self.items.partition_point(|item| item.at.end <= position);
            let all = self.items.last().map_or(0, |last| last.before + last.at.len());
            let own = |item: &Item| item.before + position.saturating_sub(item.at.start);
            self.items.get(next).map_or(all, own)
        };
        before(range.end.max(range.start)) - before(range.start)
    }
}

/// Indices of the non-empty ranges by source, offset and index; `None` if there are too many.
fn in_order(wanted: &[Wanted]) -> Option<Vec<u32>> {
    u32::try_from(wanted.len()).ok()?;
    let sources = wanted.iter().fold(0, |all, one| all | one.source as u64);
    let offsets = wanted.iter().fold(0, |all, one| all | one.offset);
    // Many offsets share trailing zeros; drop these bits to shorten the key.
    let zeros = offsets.trailing_zeros() % u64::BITS;
    let (high, low) = (used_bits(offsets >> zeros), used_bits(wanted.len() as u64));
    let with_bytes = (0_u32..).zip(wanted).filter(|(_, wanted)| wanted.len > 0);
    if used_bits(sources) + high + low <= u64::BITS {
        let key = |(index, wanted): (u32, &Wanted)| {
            let place = (wanted.source as u64).unbounded_shl(high) | wanted.offset >> zeros;
            place.unbounded_shl(low) | u64::from(index)
        };
        let mut keys: Vec<u64> = with_bytes.map(key).collect();
        keys.sort_unstable();
        let mask = (1 << low) - 1;
        return keys.into_iter().map(|key| u32::try_from(key & mask).ok()).collect();
    }
    let key = |(index, wanted): (u32, &Wanted)| (wanted.source, wanted.offset, index);
    let mut keys: Vec<(usize, u64, u32)> = with_bytes.map(key).collect();
    keys.sort_unstable();
    Some(keys.into_iter().map(|(_, _, index)| index).collect())
}

/// Number of bits up to the highest set bit.
fn used_bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

impl Stretch {
    /// Whether a range at `offset` can join: it does not overlap the stretch and starts at most
    /// `gap` bytes after it.
    fn takes(&self, source: usize, offset: u64, gap: u64) -> bool {
        let end = self.offset + self.at.len();
        self.source == source && offset >= end && offset - end <= gap
    }

    /// The source offset of the byte at `position` of the strip.
    pub(crate) fn offset_of(&self, position: u64) -> u64 {
        (position + self.offset) - self.at.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::units::align_down;
    use proptest::prelude::*;

    fn wanted(source: usize, offset: u64, len: u64) -> Wanted {
        Wanted { source, offset, len, address: 1 << 40 }
    }

    #[test]
    fn neighbours_are_read_together() {
        let all = [(0, 0, 100), (1, 0, 100), (0, 100, 50), (0, 5000, 10), (0, 4000, 200)];
        let all = all.map(|(source, offset, len)| wanted(source, offset, len));
        let strip = Strip::new(&all, 512, GAP_MAX).unwrap();
        let stretches: Vec<(usize, u64, ByteRange)> = strip
            .stretches()
            .iter()
            .map(|stretch| (stretch.source, stretch.offset, stretch.at))
            .collect();
        assert_eq!(stretches, [(0, 0, ByteRange::at(0, 5010)), (1, 0, ByteRange::at(5120, 100))]);
        let indices: Vec<usize> = strip.items().iter().map(|item| item.index).collect();
        assert_eq!(indices, [0, 2, 4, 3, 1]);
        assert_eq!(strip.wanted_in(ByteRange::at(0, strip.len())), 460);
    }

    #[test]
    fn pieces_that_overlap_or_are_apart_have_their_own_stretch() {
        let all = [wanted(0, 0, 100), wanted(0, 50, 100), wanted(0, 10_000, 7), wanted(0, 3, 0)];
        let strip = Strip::new(&all, 512, GAP_MAX).unwrap();
        let stretches: Vec<ByteRange> =
            strip.stretches().iter().map(|stretch| stretch.at).collect();
        // 50 % 512 and 10,000 % 512, in the next free units.
        let at = [ByteRange::at(0, 100), ByteRange::at(562, 100), ByteRange::at(1024 + 272, 7)];
        assert_eq!(stretches, at);
        assert_eq!(strip.items().len(), 3);
    }

    #[test]
    fn ranges_beyond_any_file_are_refused() {
        assert!(Strip::new(&[wanted(0, u64::MAX, 2)], 1, 0).is_none());
        let half = i64::MAX.cast_unsigned();
        assert!(Strip::new(&[wanted(0, 0, half), wanted(1, 0, half)], 4096, 0).is_none());
        assert_eq!(Strip::new(&[], 1, 0).unwrap().len(), 0);
    }

    #[test]
    fn many_are_in_order_whatever_their_offsets() {
        // Keys that fit into one number and keys that do not; more than are sorted by comparing.
        for unit in [1, 4096, 3 << 40, 1 << 48] {
            let one = |n: u64| wanted((n % 7) as usize, n * 7919 % 5003 * unit, n % 3);
            let all: Vec<Wanted> = (0..5003).map(one).collect();
            let of = |&index: &u32| (all[index as usize].source, all[index as usize].offset, index);
            let mut expected: Vec<u32> =
                (0..5003).filter(|&index| all[index as usize].len > 0).collect();
            expected.sort_by_key(of);
            assert_eq!(in_order(&all).unwrap(), expected, "offsets are multiples of {unit}");
        }
    }

    proptest! {
        #[test]
        fn every_requested_byte_has_its_place(
            all in proptest::collection::vec((0_usize..3, 0_u64..60_000, 0_u64..9000), 0..40),
            unit in prop::sample::select(vec![1_u64, 512, 4096]),
            gap in prop::sample::select(vec![0, GAP_MAX]),
            cut in 1_u64..50_000,
        ) {
            let mut address = 0;
            let all: Vec<Wanted> = all.into_iter().map(|(source, offset, len)| {
                address += 10_000;
                Wanted { source, offset, len, address }
            }).collect();
            let strip = Strip::new(&all, unit, gap).unwrap();
            for two in strip.stretches().windows(2) {
                prop_assert!(align_up(two[0].at.end, unit) <= align_down(two[1].at.start, unit));
            }
            for stretch in strip.stretches() {
                prop_assert_eq!(stretch.at.start % unit, stretch.offset % unit);
                prop_assert!(gap > 0 || strip.wanted_in(stretch.at) == stretch.at.len());
            }
            // For any window size, the parts of each range add up to the range, from the right
            // place.
            let mut got = vec![0; all.len()];
            let mut start = 0;
            while start < strip.len() {
                let window = ByteRange { start, end: (start + cut).min(strip.len()) };
                for (number, part) in strip.stretches_in(window) {
                    prop_assert!(!part.is_empty());
                    prop_assert_eq!(part.intersect(strip.stretches()[number].at), part);
                }
                let sum: u64 = strip.items_in(window).map(|(part, _)| part.len()).sum();
                prop_assert_eq!(strip.wanted_in(window), sum);
                for (part, address) in strip.items_in(window) {
                    let index = usize::try_from(address / 10_000 - 1).unwrap();
                    let stretch = strip.stretches()[strip.stretch_at(part.start)];
                    prop_assert_eq!(stretch.source, all[index].source);
                    let Wanted { offset, address: first, .. } = all[index];
                    prop_assert_eq!(address - first, stretch.offset_of(part.start) - offset);
                    got[index] += part.len();
                }
                start = window.end;
            }
            let wanted: Vec<u64> = all.iter().map(|wanted| wanted.len).collect();
            prop_assert_eq!(got, wanted);
        }
    }
}

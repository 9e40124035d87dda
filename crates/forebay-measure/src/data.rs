//! The test data and its check: random bytes that depend on their position.
//!
//! Any eight bytes follow from a key and their position, so data of any size are generated and
//! checked in place by all cores, without a stored copy. All bytes of a pattern are odd and all
//! bytes of its inverse are even. So a byte that was not moved is always found.

use forebay::units::{KIB, MIB};
use serde::{Deserialize, Serialize};

/// Bytes that one thread fills or hashes at a time.
pub const PIECE: u64 = MIB;

/// The distance of the stamps in a written request: the engine's parts of a request have 1 MiB by
/// default. At 4 KiB they took 5 ms for 512 MiB (`benches/runs/2026-11-27-2-cores`).
const STAMP_DISTANCE: u64 = 64 * KIB;

const ODD: u64 = 0x0101_0101_0101_0101;

/// The bytes of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    key: u64,
    inverted: bool,
}

impl Pattern {
    /// The pattern of odd bytes that `key` yields.
    #[must_use]
    pub const fn new(key: u64) -> Self {
        Self { key, inverted: false }
    }

    /// The pattern that differs from this one in every byte.
    #[must_use]
    pub const fn inverse(self) -> Self {
        Self { key: self.key, inverted: !self.inverted }
    }

    /// The eight bytes at `8 * index`: a keyed mix of the index, by two rounds of xor and multiply.
    const fn word(self, index: u64) -> u64 {
        let mut word = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.key;
        word = (word ^ (word >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        word = (word ^ (word >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let odd = (word ^ (word >> 32)) | ODD;
        if self.inverted { !odd } else { odd }
    }

    /// Writes the bytes at `offset` of the file, a multiple of eight, to `bytes`.
    pub fn fill(self, offset: u64, bytes: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(8));
        let (words, rest) = bytes.as_chunks_mut::<8>();
        let mut index = offset / 8;
        for word in words {
            *word = self.word(index).to_le_bytes();
            index += 1;
        }
        rest.copy_from_slice(&self.word(index).to_le_bytes()[..rest.len()]);
    }

    /// Writes the bytes at any `offset` of the file to `bytes`.
    pub fn fill_at(self, offset: u64, bytes: &mut [u8]) {
        let before = usize::try_from(offset % 8).expect("less than eight");
        if before == 0 {
            return self.fill(offset, bytes);
        }
        let mut first = [0; 8];
        self.fill(offset - offset % 8, &mut first);
        let (start, rest) = bytes.split_at_mut(bytes.len().min(8 - before));
        start.copy_from_slice(&first[before..before + start.len()]);
        self.fill(offset - offset % 8 + 8, rest);
    }

    /// Marks the start of each 64 KiB of a request with its offset in the file. The request begins
    /// at `offset`, and `bytes` at its byte `from`.
    pub fn stamp(self, offset: u64, from: u64, bytes: &mut [u8]) {
        let mut at = from.next_multiple_of(STAMP_DISTANCE);
        while let Some(bytes) = usize::try_from(at - from).ok().and_then(|i| bytes.get_mut(i..)) {
            let stamp = self.word(offset.wrapping_add(at)).to_le_bytes();
            bytes.iter_mut().zip(stamp).for_each(|(byte, stamp)| *byte = stamp);
            at += STAMP_DISTANCE;
        }
    }

    /// Whether `bytes` are those at `offset` of the file, a multiple of eight.
    #[must_use]
    pub fn matches(self, offset: u64, bytes: &[u8]) -> bool {
        debug_assert!(offset.is_multiple_of(8));
        let (words, rest) = bytes.as_chunks::<8>();
        let mut index = offset / 8;
        let mut wrong = 0;
        for word in words {
            wrong |= u64::from_le_bytes(*word) ^ self.word(index);
            index += 1;
        }
        wrong == 0 && rest == &self.word(index).to_le_bytes()[..rest.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::whole;

    #[test]
    fn every_byte_of_the_inverse_differs() {
        let pattern = Pattern::new(7);
        let (mut one, mut two) = (vec![0; 1003], vec![0; 1003]);
        pattern.fill(0, &mut one);
        pattern.inverse().fill(0, &mut two);
        assert!(one.iter().zip(&two).all(|(a, b)| a != b && a & 1 == 1));
        assert_eq!(pattern.inverse().inverse(), pattern);
    }

    #[test]
    fn a_part_holds_the_bytes_of_the_whole() {
        let pattern = Pattern::new(9);
        let mut whole = vec![0; 4096];
        pattern.fill(0, &mut whole);
        let mut part = vec![0; 101];
        pattern.fill(1024, &mut part);
        assert_eq!(part, whole[1024..1125]);
        assert!(pattern.matches(1024, &part));
        assert!(!pattern.matches(1032, &part));
        assert!(!Pattern::new(10).matches(1024, &part));
    }

    #[test]
    fn each_part_of_a_request_is_stamped_with_its_offset() {
        let pattern = Pattern::new(3).inverse();
        let (distance, len) = (whole(STAMP_DISTANCE), whole(2 * STAMP_DISTANCE) + 3);
        let mut all = vec![1; len];
        pattern.stamp(100, 0, &mut all);
        let stamp = |number| pattern.word(100 + number * STAMP_DISTANCE).to_le_bytes();
        assert_eq!((&all[..8], &all[distance..][..8]), (&stamp(0)[..], &stamp(1)[..]));
        assert_eq!((&all[2 * distance..], all[8]), (&stamp(2)[..3], 1));
        let mut parts = vec![1; len];
        let (start, end) = parts.split_at_mut(1000);
        pattern.stamp(100, 0, start);
        pattern.stamp(100, 1000, end);
        assert_eq!(all, parts);
    }

    #[test]
    fn one_wrong_byte_anywhere_is_seen() {
        let pattern = Pattern::new(11).inverse();
        let mut bytes = vec![0; 83];
        pattern.fill(0, &mut bytes);
        for at in 0..bytes.len() {
            bytes[at] ^= 0x10;
            assert!(!pattern.matches(0, &bytes), "{at}");
            bytes[at] ^= 0x10;
        }
        assert!(pattern.matches(0, &bytes));
    }

    #[test]
    fn words_of_neighbours_have_nothing_in_common() {
        let pattern = Pattern::new(0);
        let words: std::collections::HashSet<u64> = (0..10_000).map(|i| pattern.word(i)).collect();
        assert_eq!(words.len(), 10_000);
        let ones: u32 = words.iter().map(|word| word.count_ones()).sum();
        // 8 bits of 64 are always set; of the other 56 half are.
        assert!((355_000..365_000).contains(&ones), "{ones}");
    }
}

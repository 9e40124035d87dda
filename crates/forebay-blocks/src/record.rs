//! What the index has of a block: one record of 64 bytes for each slot of a data file, and one page
//! of records for each set.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::key::Key;

/// Bytes of a record.
pub(crate) const RECORD: usize = 64;
/// Bytes of a set's records, and of the units in which blocks are stored.
pub(crate) const PAGE: usize = 4096;
/// Most records of a set.
pub(crate) const WAYS: usize = PAGE / RECORD;

const WRITING: u32 = 1;
const WHOLE: u32 = 2;

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// Nothing is stored.
    Free,
    /// A process is writing this key, or died while it did.
    Writing(Key),
    /// A whole block.
    Whole(Whole),
    /// The record's own checksum is wrong: it is being written, or was damaged.
    Damaged,
}

/// What is known of a whole block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) key: Key,
    /// The XXH3 of its bytes.
    pub(crate) checksum: u64,
    pub(crate) len: u32,
    /// When it was written, since 1970. The nanoseconds distinguish it from the same block that was
    /// written again while a read was under way.
    pub(crate) written: Duration,
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let (key, state) = match self {
            Self::Free | Self::Damaged => return bytes,
            Self::Writing(key) => (key, WRITING),
            Self::Whole(whole) => (&whole.key, WHOLE),
        };
        bytes[..Key::LEN].copy_from_slice(&key.0);
        bytes[36..40].copy_from_slice(&state.to_le_bytes());
        if let Self::Whole(whole) = self {
            bytes[24..32].copy_from_slice(&whole.checksum.to_le_bytes());
            bytes[32..36].copy_from_slice(&whole.len.to_le_bytes());
            let seconds = u32::try_from(whole.written.as_secs()).unwrap_or(u32::MAX);
            bytes[40..44].copy_from_slice(&seconds.to_le_bytes());
            bytes[44..48].copy_from_slice(&whole.written.subsec_nanos().to_le_bytes());
        }
        let own = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        if bytes.iter().all(|&byte| byte == 0) {
            return Self::Free;
        }
        if u64_at(56) != xxh3_64(&bytes[..56]) {
            return Self::Damaged;
        }
        let key = Key(bytes[..Key::LEN].try_into().expect("a key's length"));
        let (checksum, len) = (u64_at(24), u32_at(32));
        let written = Duration::new(u32_at(40).into(), u32_at(44));
        match u32_at(36) {
            WRITING => Self::Writing(key),
            WHOLE => Self::Whole(Whole { key, checksum, len, written }),
            _ => Self::Damaged,
        }
    }
}

/// The records of one set.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub(crate) struct Records(pub(crate) [u8; PAGE]);

impl Records {
    pub(crate) fn at(&self, way: usize) -> Record {
        Record::decode(&self.0[way * RECORD..][..RECORD])
    }

    /// The way whose record has `key`, and the record; a whole block rather than another state.
    pub(crate) fn find(&self, key: &Key) -> Option<(usize, Record)> {
        let mut other = None;
        for (way, bytes) in self.0.chunks_exact(RECORD).enumerate() {
            // Eight bytes first: most records differ there, and to compare them is one instruction.
            if bytes[..8] != key.0[..8] || bytes[..Key::LEN] != key.0 {
                continue;
            }
            match Record::decode(bytes) {
                whole @ Record::Whole(_) => return Some((way, whole)),
                record => other = Some((way, record)),
            }
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_back_and_no_flipped_bit_passes(
            key: [u8; 24], checksum: u64, len: u32, seconds: u32, nanos in 0_u32..1_000_000_000,
            bit in 0_usize..512,
        ) {
            let written = Duration::new(seconds.into(), nanos);
            let record = Record::Whole(Whole { key: Key(key), checksum, len, written });
            let mut bytes = record.encode();
            prop_assert_eq!(Record::decode(&bytes), record);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Record::decode(&bytes), Record::Damaged);
        }

        #[test]
        fn any_bytes_decode(bytes: [u8; 32], more: [u8; 32]) {
            Record::decode(&[bytes, more].concat());
        }
    }
}

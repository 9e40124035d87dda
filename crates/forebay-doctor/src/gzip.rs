//! Unpacks and packs `/proc/config.gz`.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// The unpacked bytes, or `None` if there are more than `most` or `packed` is not gzip.
pub(super) fn unpack(packed: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(most).ok()?.saturating_add(1);
    GzDecoder::new(packed).take(bound).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= most).then_some(bytes)
}

/// Packs bytes; a write to memory does not fail.
pub(super) fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    if packed.write_all(bytes).is_err() {
        return Vec::new();
    }
    packed.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn damaged_bytes_are_refused_or_bounded(
            bytes in proptest::collection::vec(any::<u8>(), 0..4096),
            at in any::<prop::sample::Index>(),
            with in any::<u8>(),
        ) {
            let mut packed = pack(&bytes);
            prop_assert_eq!(unpack(&packed, 4096), Some(bytes.clone()));
            if let Some(fewer) = bytes.len().checked_sub(1) {
                prop_assert_eq!(unpack(&packed, fewer), None);
            }
            let at = at.index(packed.len());
            prop_assert_eq!(unpack(&packed[..at], 4096), None);
            packed[at] = with;
            prop_assert!(unpack(&packed, 100).is_none_or(|found| found.len() <= 100));
        }
    }
}

//! How much of a file's range its drives supply byte for byte, by the file system's answer.

use std::ops::Range;
use std::path::Path;

use rustix::fs::FileType;

use super::answers::{ENCODED, ENCRYPTED, Extent, INLINE, UNWRITTEN};
use super::cache::Resolver;

/// Most extents that are requested: 8 GiB of a compressed file. The rest counts in proportion.
const EXTENTS_MAX: usize = 64 << 10;

/// The bytes of a range whose reads differ from reads of the drive. The rest counts as stored as
/// it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of the range within the file.
    pub len: u64,
    /// Bytes in holes, and in extents that were allocated and never written: read as zeros, without
    /// the drive.
    pub unwritten: u64,
    /// Bytes in compressed extents: the drive reads fewer, and the processor unpacks them.
    pub compressed: u64,
    /// Bytes in encrypted extents: the drive reads as many, and the processor decrypts them.
    pub encrypted: u64,
    /// Bytes inside the file system's metadata, which stays in memory.
    pub inline: u64,
}

impl Resolver {
    /// How `range` of a file is stored. Unwritten bytes in the page cache are written to the drive
    /// first. Discarded ranges of a block device are unknown to the kernel.
    ///
    /// # Errors
    /// The reason why the file system does not report it.
    pub fn stored(&self, path: &Path, range: Range<u64>) -> Result<Stored, String> {
        let path = std::path::absolute(path).map_err(|error| error.to_string())?;
        let probe = self.system();
        let extents = probe.extents(&path, EXTENTS_MAX).map_err(|refusal| refusal.to_string())?;
        let file = probe.stat(&path).ok().filter(|stat| stat.kind() == FileType::RegularFile);
        let end = file.map_or(range.end, |file| range.end.min(file.size));
        Ok(of(&extents, range.start..end))
    }
}

/// Extents are in ascending order.
fn of(extents: &[Extent], range: Range<u64>) -> Stored {
    // A file may end before the range begins.
    let range = range.start..range.end.max(range.start);
    let mut stored = Stored { len: range.end - range.start, ..Stored::default() };
    let mut at = range.start;
    for extent in extents {
        let end = extent.logical.saturating_add(extent.len).min(range.end);
        let start = extent.logical.clamp(at, range.end);
        stored.unwritten += start - at;
        at = end.max(start);
        let len = at - start;
        match extent.flags {
            flags if flags & UNWRITTEN != 0 => stored.unwritten += len,
            flags if flags & INLINE != 0 => stored.inline += len,
            flags if flags & ENCRYPTED != 0 => stored.encrypted += len,
            flags if flags & ENCODED != 0 => stored.compressed += len,
            _ => {}
        }
    }
    let rest = range.end.saturating_sub(at);
    if extents.len() < EXTENTS_MAX {
        stored.unwritten += rest;
        return stored;
    }
    let Stored { unwritten, compressed, encrypted, inline, .. } = &mut stored;
    for bytes in [unwritten, compressed, encrypted, inline] {
        let more = u128::from(*bytes) * u128::from(rest) / u128::from(at - range.start).max(1);
        *bytes += u64::try_from(more).unwrap_or(0);
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_byte_of_a_range_counts_once() {
        let extent = |logical, len, flags| Extent { logical, physical: 0, len, flags };
        let all = [
            extent(0, 10, 0),
            extent(20, 10, UNWRITTEN),
            extent(30, 10, ENCODED),
            extent(40, 10, ENCODED | ENCRYPTED),
            extent(50, 10, INLINE | 1),
        ];
        let found = |range| {
            let Stored { len, unwritten, compressed, encrypted, inline } = of(&all, range);
            [len, unwritten, compressed, encrypted, inline]
        };
        assert_eq!(found(0..60), [60, 20, 10, 10, 10]);
        assert_eq!(found(0..100), [100, 60, 10, 10, 10]);
        assert_eq!(found(5..25), [20, 15, 0, 0, 0]);
        assert_eq!(found(35..45), [10, 0, 5, 5, 0]);
        assert_eq!(found(12..18), [6, 6, 0, 0, 0]);
        assert_eq!(found(7..7), [0; 5]);
        assert_eq!(found(Range { start: 45, end: 5 }), [0; 5], "the file ends before it");
        assert_eq!(of(&[], 0..7).unwritten, 7);
        // Every second extent is compressed, so half of the bytes behind the last count too.
        let pair = |i| [extent(i * 20, 10, 0), extent(i * 20 + 10, 10, ENCODED)];
        let many: Vec<Extent> = (0..EXTENTS_MAX as u64 / 2).flat_map(pair).collect();
        let half = of(&many, 0..EXTENTS_MAX as u64 * 20);
        assert_eq!((half.compressed, half.unwritten), (EXTENTS_MAX as u64 * 10, 0));
    }

    proptest! {
        #[test]
        fn no_extents_are_too_strange(
            extents in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u32>()), 0..9),
            range in any::<std::ops::Range<u64>>(),
        ) {
            let extents = extents.into_iter();
            let extents =
                extents.map(|(logical, len, flags)| Extent { logical, physical: 0, len, flags });
            let stored = of(&extents.collect::<Vec<_>>(), range);
            let Stored { len, unwritten, compressed, encrypted, inline } = stored;
            let sum = [unwritten, compressed, encrypted, inline].into_iter().map(u128::from);
            prop_assert!(sum.sum::<u128>() <= u128::from(len));
        }
    }
}

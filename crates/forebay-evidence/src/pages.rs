//! Resident pages of files at an edge of a span.
//!
//! Counting the pages of 1 GiB costs the kernel up to 34 ms with pages of 4 KiB, and 1 ms with
//! large folios (measured on a virtual machine, Linux 6.18, ext4). So long ranges are sampled in
//! evenly spaced windows, and the result says how much of the range they covered.

use std::os::unix::fs::MetadataExt;

use forebay::{File, Residency};
use forebay_base::units::MIB;

use super::evidence::PageCache;
use super::seen::Seen;

/// Maximum number of bytes sampled over all files.
const LOOKED_MAX: u64 = 512 * MIB;
/// Size of a window in bytes.
const WINDOW: u64 = 4 * MIB;
/// Bytes behind a range that the kernel may read ahead.
const AHEAD: u64 = 16 * MIB;
/// The unit of `st_blocks`.
const BLOCK: u64 = 512;
/// Maximum number of files whose pages are counted.
const FILES_MAX: usize = 64;
/// Remedy if the kernel refuses to report pages.
const OWNER: &str = "run as the owner of the file, or as a user who may write it";

/// The page-cache state at an edge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pages {
    len: u64,
    looked: u64,
    resident: u64,
    ahead: u64,
    holes: u64,
}

impl Pages {
    /// Counts the pages of ranges of files, given by offset and length, `bytes` in all.
    pub(super) fn look(files: &[(File, u64, u64)], bytes: u64) -> Seen<Self> {
        if files.is_empty() {
            return Seen::Nothing("no file is part of it".into());
        }
        if files.len() > FILES_MAX {
            let why = format!("{} files are too many to query their pages", files.len());
            return Seen::missing(why, format!("put at most {FILES_MAX} into one span"));
        }
        let mut pages = Self::default();
        for (file, offset, len) in files {
            let budget = u128::from(LOOKED_MAX) * u128::from(*len) / u128::from(bytes.max(1));
            let budget = u64::try_from(budget).unwrap_or(LOOKED_MAX);
            match Self::of(file, *offset, *len, budget) {
                Seen::Value(more) => pages.add(more),
                other => return other,
            }
        }
        Seen::Value(pages)
    }

    fn of(file: &File, offset: u64, len: u64, budget: u64) -> Seen<Self> {
        let resident = |offset, len| match file.residency(offset, len) {
            Ok(Residency::Known { resident, len }) => Seen::Value((resident, len)),
            Ok(Residency::Unknown(why)) => Seen::missing(why, OWNER),
            Err(error) => Seen::missing(error.to_string(), OWNER),
        };
        let (mut seen, mut looked) = (0_u64, 0_u64);
        for (start, part) in windows(len, budget) {
            match resident(offset.saturating_add(start), part) {
                // There are no pages behind the end of a file.
                Seen::Value((resident, len)) => (seen, looked) = (seen + resident, looked + len),
                other => return other.map(|_| Self::default()),
            }
        }
        let whole = |seen: u64| {
            let seen = u128::from(seen) * u128::from(len) / u128::from(looked.max(1));
            u64::try_from(seen).unwrap_or(len).min(len)
        };
        resident(offset.saturating_add(len), AHEAD).map(|(ahead, _)| {
            let is_whole = looked >= len || budget >= len;
            let resident = if is_whole { seen } else { whole(seen) };
            Self { len, looked, resident, ahead, holes: holes(file) }
        })
    }

    fn add(&mut self, more: Self) {
        self.len = self.len.saturating_add(more.len);
        self.looked = self.looked.saturating_add(more.looked);
        self.resident = self.resident.saturating_add(more.resident);
        self.ahead = self.ahead.saturating_add(more.ahead);
        self.holes = self.holes.saturating_add(more.holes);
    }

    /// The change until a later edge, for files with these `encoded` bytes and this block size.
    pub(super) fn until(self, after: Self, encoded: u64, block: u64) -> PageCache {
        PageCache {
            len: after.len,
            looked: after.looked,
            before: self.resident,
            after: after.resident,
            ahead: after.ahead.saturating_sub(self.ahead),
            holes: after.holes,
            encoded,
            block,
        }
    }
}

/// The windows of a range of `len` bytes to sample: `budget` bytes in all, but at least a window.
fn windows(len: u64, budget: u64) -> Vec<(u64, u64)> {
    if len <= budget.max(WINDOW) {
        return vec![(0, len)];
    }
    let count = (budget / WINDOW).max(1);
    let step = len / count;
    (0..count).map(|index| (index * step, WINDOW)).collect()
}

/// Bytes of a file in holes, as far as its file system reports them.
fn holes(file: &File) -> u64 {
    let Ok(facts) = std::fs::metadata(file.path()) else { return 0 };
    facts.len().saturating_sub(facts.blocks().saturating_mul(BLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::{Engine, Options};
    use proptest::prelude::*;

    #[test]
    fn a_long_file_is_looked_at_in_windows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // A sparse file; its first half is made resident by writing it.
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(64 * MIB).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 32 << 20], 0).unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let file = engine.open(&path).unwrap();
        let Seen::Value(whole) = Pages::of(&file, 0, 64 * MIB, u64::MAX) else { panic!("ours") };
        assert_eq!((whole.looked, whole.len), (64 * MIB, 64 * MIB));
        let Seen::Value(part) = Pages::of(&file, 0, 64 * MIB, 16 * MIB) else { panic!("ours") };
        assert_eq!((part.looked, part.len), (16 * MIB, 64 * MIB));
        assert!(part.resident >= 32 * MIB && whole.resident >= 32 * MIB, "{part:?} {whole:?}");
        let Seen::Value(behind) = Pages::of(&file, 0, 65 * MIB, u64::MAX) else { panic!("ours") };
        assert_eq!(behind.looked, 64 * MIB, "a file has no pages behind its end");
        let mut many = vec![(file, 0, MIB); FILES_MAX + 1];
        let text = Pages::look(&many, 65 * MIB).absence().unwrap();
        assert!(text.starts_with("65 files are too many"), "{text}");
        many.truncate(2);
        let Seen::Value(two) = Pages::look(&many, 2 * MIB) else { panic!("ours") };
        assert_eq!((two.len, two.looked, two.resident), (2 * MIB, 2 * MIB, 2 * MIB));
    }

    proptest! {
        #[test]
        fn windows_lie_in_the_range_apart_from_each_other(
            len in prop_oneof![0..100 * MIB, any::<u64>()],
            budget in prop_oneof![0..100 * MIB, Just(LOOKED_MAX)],
        ) {
            let all = windows(len, budget);
            prop_assert!(all.iter().all(|(start, part)| start.checked_add(*part) <= Some(len)));
            prop_assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            let sum: u64 = all.iter().map(|(_, part)| part).sum();
            prop_assert!(sum == len || sum <= budget.max(WINDOW));
        }
    }
}

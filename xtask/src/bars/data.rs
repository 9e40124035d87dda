//! Test data: random, and different at every position, so that a piece that is missing, doubled
//! or in the wrong place is found. Nothing is stored: any part can be made again from its offset.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use forebay::units::MIB;

use crate::bar::Stop;

/// Bytes of one word of the data.
const WORD_LEN: u64 = 8;
/// Bytes that are made and written at a time.
const PIECE_LEN: u64 = MIB;

/// The word at `index`: a counter that a mixer with full avalanche turns into noise (the
/// finaliser of SplitMix64, Steele, Lea and Flood, 2014).
fn word(index: u64) -> [u8; 8] {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)).to_le_bytes()
}

/// A number below `bound` that depends on `index` alone.
pub(crate) fn number(index: u64, bound: u64) -> u64 {
    u64::from_le_bytes(word(index ^ (1 << 62))) % bound.max(1)
}

/// Shuffles `all` in a way that depends on `seed` alone.
pub(crate) fn shuffle<T>(all: &mut [T], seed: u64) {
    for index in (1..all.len()).rev() {
        let other = number((seed << 40) + index as u64, index as u64 + 1);
        all.swap(index, usize::try_from(other).unwrap_or(0));
    }
}

/// Fills `bytes` with the data of a file at `offset`, a multiple of eight.
pub(crate) fn fill(bytes: &mut [u8], offset: u64) {
    let first = offset / WORD_LEN;
    for (index, piece) in (first..).zip(bytes.chunks_mut(8)) {
        piece.copy_from_slice(&word(index)[..piece.len()]);
    }
}

/// Fails unless `bytes` are the data of a file at `offset`, a multiple of eight.
pub(crate) fn check(bytes: &[u8], offset: u64) -> Result<(), Stop> {
    let first = offset / WORD_LEN;
    for (index, piece) in (first..).zip(bytes.chunks(8)) {
        if piece != &word(index)[..piece.len()] {
            return Err(Stop::Fail(format!("wrong bytes at {} of the file", index * WORD_LEN)));
        }
    }
    Ok(())
}

/// Writes a new file of `len` bytes of data, by several threads, down to the drive.
pub(crate) fn write(path: &Path, len: u64) -> Result<(), Stop> {
    let failed = |error| Stop::Fail(format!("cannot write `{}`: {error}", path.display()));
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    let next = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let work = || -> std::io::Result<()> {
        let mut piece = vec![0; usize::try_from(PIECE_LEN).unwrap_or_default()];
        loop {
            let offset = next.fetch_add(PIECE_LEN, Ordering::Relaxed);
            if offset >= len {
                return Ok(());
            }
            let count = usize::try_from(PIECE_LEN.min(len - offset)).unwrap_or_default();
            fill(&mut piece[..count], offset);
            file.write_all_at(&piece[..count], offset)?;
        }
    };
    let written = thread::scope(|scope| {
        let mut started = (0..threads).map(|_| scope.spawn(work)).collect::<Vec<_>>().into_iter();
        started.try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    });
    written.map_err(failed)?;
    file.sync_all().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_wrong_missing_or_moved_is_found() {
        let mut bytes = vec![0; 1003];
        fill(&mut bytes, 4096);
        check(&bytes, 4096).unwrap();
        assert!(check(&bytes, 0).is_err());
        bytes[1002] ^= 1;
        assert!(check(&bytes, 4096).is_err());
    }

    #[test]
    fn files_hold_the_data_of_their_positions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let len = 3 * MIB + 1001;
        write(&path, len).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, len);
        check(&bytes, 0).unwrap();
        assert!(write(&path, 1).is_err(), "a file that exists stays as it is");
    }
}

//! Test data: random, and different at every position, so that a piece that is missing, doubled
//! or in the wrong place is found. Nothing is stored: any part can be made again from its offset.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use forebay_measure::data::Pattern;
use forebay_measure::make;

use crate::bar::Stop;

/// The bytes of every file.
const DATA: Pattern = Pattern::new(1);

/// A number below `bound` that depends on `index` alone: a counter that a mixer with full avalanche
/// turns into noise (the finaliser of SplitMix64, Steele, Lea and Flood, 2014).
pub(crate) fn number(index: u64, bound: u64) -> u64 {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) % bound.max(1)
}

/// Shuffles `all` in a way that depends on `seed` alone.
pub(crate) fn shuffle<T>(all: &mut [T], seed: u64) {
    for index in (1..all.len()).rev() {
        let other = number((seed << 40) + index as u64, index as u64 + 1);
        all.swap(index, usize::try_from(other).unwrap_or(0));
    }
}

/// Fails unless `bytes` are the data of a file at `offset`, a multiple of eight.
pub(crate) fn check(bytes: &[u8], offset: u64) -> Result<(), Stop> {
    if DATA.matches(offset, bytes) {
        return Ok(());
    }
    Err(Stop::Fail(format!("wrong bytes in {} at {offset} of the file", bytes.len())))
}

/// Writes a new file of `len` bytes of data, down to the drive.
pub(crate) fn write(path: &Path, len: u64) -> Result<(), Stop> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|error| Stop::Fail(format!("cannot make `{}`: {error}", path.display())))?;
    make::fill(path, DATA, len).map_err(|failure| Stop::Fail(failure.in_one_line()))
}

#[cfg(test)]
mod tests {
    use forebay::units::MIB;

    use super::*;

    #[test]
    fn a_byte_that_is_wrong_missing_or_moved_is_found() {
        let mut bytes = vec![0; 1003];
        DATA.fill(4096, &mut bytes);
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

//! Reads a file's pages into the page cache, or drops them, and checks the outcome.
//!
//! Only the pages of this one file are ever dropped. If a state cannot be reached or checked, the
//! reason is returned as text: a number must not be called cold when it may not be.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay::Residency;
use forebay::units::{MIB, format_size};

use crate::failure::{Failure, Result};
use crate::memory::whole;
use crate::parallel::{cores, each_range};
use crate::steps::Step;

/// How long pages may stay that are dropped again and again.
const STAYS: Duration = Duration::from_secs(2);
/// Attempts to read a file in: other processes may evict its pages in between.
const TRIES: usize = 3;

/// Queries and drops the cached pages of one file.
pub trait PageCache {
    /// Drops the file's pages.
    ///
    /// # Errors
    /// System errors.
    fn evict(&self) -> Result<()>;

    /// The part of the first `len` bytes that is in the page cache.
    ///
    /// # Errors
    /// System errors.
    fn residency(&self, len: u64) -> Result<Residency>;
}

/// A file from a byte on: others may use the bytes before it.
#[derive(Debug)]
pub struct FileFrom<'a>(pub &'a forebay::File, pub u64);

impl PageCache for FileFrom<'_> {
    fn evict(&self) -> Result<()> {
        self.0.evict().map(drop).map_err(Into::into)
    }

    fn residency(&self, len: u64) -> Result<Residency> {
        Ok(self.0.residency(self.1, len)?)
    }
}

/// Drops the pages; the text says why the file cannot be called cold.
///
/// # Errors
/// System errors.
pub fn make_cold(file: &dyn PageCache, len: u64) -> Result<Result<(), String>> {
    let begun = Instant::now();
    loop {
        file.evict()?;
        match file.residency(len)? {
            Residency::Unknown(reason) => {
                return Ok(Err(format!("the eviction cannot be checked: {reason}")));
            }
            // The kernel may keep a few pages for a moment; 1 % does not change the result.
            Residency::Known { resident, .. } if resident <= len / 100 => return Ok(Ok(())),
            Residency::Known { resident, .. } if begun.elapsed() > STAYS => {
                let (resident, len) = (format_size(resident), format_size(len));
                return Ok(Err(format!("{resident} of {len} stayed in the page cache")));
            }
            // Another rank of a run may be comparing bytes of the same file.
            Residency::Known { .. } => sleep(Duration::from_millis(20)),
        }
    }
}

/// Reads the pages in; the text says why the file cannot be called warm.
///
/// # Errors
/// System errors.
pub fn make_resident(path: &Path, file: &dyn PageCache, len: u64) -> Result<Result<(), String>> {
    let missing = |residency| match residency {
        Residency::Known { resident, .. } => len.saturating_sub(resident),
        Residency::Unknown(_) => 0,
    };
    if matches!(file.residency(len)?, Residency::Known { resident, .. } if resident >= len) {
        return Ok(Ok(()));
    }
    let mut lost = len;
    for _ in 0..TRIES {
        read_in(path, len)?;
        lost = missing(file.residency(len)?);
        if lost <= len / 100 {
            return Ok(Ok(()));
        }
    }
    let (lost, len) = (format_size(lost), format_size(len));
    Ok(Err(format!("{lost} of {len} did not stay in the page cache")))
}

/// Reads the first `len` bytes through the page cache with several threads.
///
/// # Errors
/// System errors, and an early end of the file.
fn read_in(path: &Path, len: u64) -> Result<()> {
    let at = |offset: u64| format!("cannot read `{}` at {offset}", path.display());
    let step = Step::begin("read", path);
    let file = File::open(path).map_err(|error| Failure::at("open", path, &error))?;
    let buffer = || vec![0; whole(MIB)];
    each_range(len, MIB, cores().max(4), buffer, |buffer, range| {
        step.goes_on();
        file.read_exact_at(&mut buffer[..whole(range.len())], range.start)
            .map_err(|error| Failure::io(at(range.start), &error))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A page cache in which `stays` bytes cannot be dropped.
    struct Stubborn {
        stays: Residency,
    }

    impl PageCache for Stubborn {
        fn evict(&self) -> Result<()> {
            Ok(())
        }

        fn residency(&self, _len: u64) -> Result<Residency> {
            Ok(self.stays)
        }
    }

    #[test]
    fn a_drop_that_cannot_be_shown_is_not_cold() {
        let stubborn = |stays| Stubborn { stays };
        let known = |resident| Residency::Known { resident, len: 1000 };
        assert_eq!(make_cold(&stubborn(known(0)), 1000).unwrap(), Ok(()));
        assert_eq!(make_cold(&stubborn(known(10)), 1000).unwrap(), Ok(()));
        let text = make_cold(&stubborn(known(500)), 1000).unwrap().unwrap_err();
        assert_eq!(text, "500 B of 1000 B stayed in the page cache");
        let text = make_cold(&stubborn(Residency::Unknown("why")), 1000).unwrap().unwrap_err();
        assert_eq!(text, "the eviction cannot be checked: why");
    }

    /// A page cache that loses pages after reading them in, this many times.
    struct Losing(AtomicU64);

    impl PageCache for Losing {
        fn evict(&self) -> Result<()> {
            Ok(())
        }

        fn residency(&self, len: u64) -> Result<Residency> {
            let less =
                self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            let resident = if less.is_ok() { 0 } else { len };
            Ok(Residency::Known { resident, len })
        }
    }

    #[test]
    fn evicted_pages_are_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 1000]).unwrap();
        let made =
            |times| make_resident(file.path(), &Losing(AtomicU64::new(times)), 1000).unwrap();
        for times in 0..=TRIES as u64 {
            assert_eq!(made(times), Ok(()));
        }
        let text = made(TRIES as u64 + 1).unwrap_err();
        assert_eq!(text, "1000 B of 1000 B did not stay in the page cache");
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 3 * whole(MIB) + 1]).unwrap();
        read_in(file.path(), 3 * MIB + 1).unwrap();
        let failure = read_in(file.path(), 5 * MIB).unwrap_err();
        assert!(failure.message.contains("cannot read"), "{failure:?}");
    }
}

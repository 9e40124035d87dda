//! The expected bytes of a file, and their comparison with those in memory.

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;

use forebay::Buffer;
use forebay::units::{ByteRange, MIB};

use crate::data::Pattern;
use crate::failure::{Failure, Result};
use crate::memory::whole;
use crate::parallel::{cores, each_range};

/// Bytes that a thread compares at a time.
const STEP: u64 = 4 * MIB;

/// The expected bytes of a file.
#[derive(Debug, Clone, Copy)]
pub enum Expected<'a> {
    /// Test data.
    Pattern(Pattern),
    /// The file's bytes, read again.
    File(&'a File),
}

impl Expected<'_> {
    /// Fills `bytes` with the expected bytes at `offset`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn fill(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::Pattern(pattern) => {
                pattern.fill_at(offset, bytes);
                Ok(())
            }
            Self::File(file) => file.read_exact_at(bytes, offset),
        }
    }

    /// Whether `found` is what is expected at `offset`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_in_bytes(&self, found: &[u8], offset: u64) -> Result<bool> {
        self.compare(found.len() as u64, offset, |range, _| {
            Ok(Cow::Borrowed(&found[whole(range.start)..whole(range.end)]))
        })
    }

    /// Whether `len` bytes of `buffer` from byte `at` on are what is expected at `offset`.
    ///
    /// # Errors
    /// The file or the buffer cannot be read.
    pub fn is_in(&self, buffer: &Buffer, at: u64, len: u64, offset: u64) -> Result<bool> {
        if let Some(bytes) = buffer.as_slice() {
            return self.is_in_bytes(&bytes[whole(at)..whole(at + len)], offset);
        }
        self.compare(len, offset, |range, mut scratch: Vec<u8>| {
            scratch.resize(whole(range.len()), 0);
            buffer.download(at + range.start, &mut scratch)?;
            Ok(Cow::Owned(scratch))
        })
    }

    fn compare<'f>(
        &self,
        len: u64,
        offset: u64,
        found: impl Fn(ByteRange, Vec<u8>) -> Result<Cow<'f, [u8]>> + Sync,
    ) -> Result<bool> {
        let work = |scratch: &mut (Vec<u8>, Vec<u8>), range: ByteRange| {
            let (expected, spare) = scratch;
            let at = offset + range.start;
            let found = found(range, std::mem::take(spare)).map_err(Some)?;
            let same = match self {
                Self::Pattern(pattern) if at.is_multiple_of(8) => pattern.matches(at, &found),
                _ => {
                    expected.resize(found.len(), 0);
                    let filled = self.fill(at, expected);
                    filled.map_err(|error| {
                        Some(Failure::io("cannot read the file a second time", &error))
                    })?;
                    *found == **expected
                }
            };
            if let Cow::Owned(used) = found {
                *spare = used;
            }
            // One mismatch is enough: stop comparing.
            if same { Ok(()) } else { Err(None) }
        };
        unless_different(each_range(len, STEP, cores().min(8), Default::default, work))
    }
}

/// Whether a comparison found no mismatch: `Err(None)` is one, and ends it.
pub(super) fn unless_different(compared: Result<(), Option<Failure>>) -> Result<bool> {
    match compared {
        Ok(()) => Ok(true),
        Err(None) => Ok(false),
        Err(Some(failure)) => Err(failure),
    }
}

//! The expected bytes of a file, and their comparison with those in memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use forebay::Buffer;
use forebay::units::{ByteRange, MIB};

use crate::data::Pattern;
use crate::failure::{Failure, Result};
use crate::memory::whole;
use crate::parallel::{cores, each_range};

/// Bytes that a thread compares at a time; it has memory for twice as many.
const STEP: u64 = MIB;

/// The expected bytes of a file.
#[derive(Debug, Clone, Copy)]
pub enum Expected<'a> {
    /// Test data.
    Pattern(Pattern),
    /// The file's bytes, read again.
    File(&'a File),
}

impl Expected<'_> {
    /// Whether `found` is what is expected at `offset`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_in_bytes(&self, found: &[u8], offset: u64) -> Result<bool> {
        compare(found.len() as u64, STEP, |(_, expected), range| {
            let found = &found[whole(range.start)..whole(range.end)];
            self.is(found, offset + range.start, expected)
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
        compare(len, STEP, |(found, expected), range| {
            found.resize(whole(range.len()), 0);
            buffer.download(at + range.start, found)?;
            self.is(found, offset + range.start, expected)
        })
    }

    /// Like `is_in_bytes`; `expected` is memory for the expected bytes.
    fn is(&self, found: &[u8], offset: u64, expected: &mut Vec<u8>) -> Result<bool> {
        match self {
            Self::Pattern(pattern) if offset.is_multiple_of(8) => {
                return Ok(pattern.matches(offset, found));
            }
            Self::Pattern(pattern) => {
                expected.resize(found.len(), 0);
                pattern.fill_at(offset, expected);
            }
            Self::File(file) => {
                expected.resize(found.len(), 0);
                file.read_exact_at(expected, offset)
                    .map_err(|error| Failure::io("cannot read the file a second time", &error))?;
            }
        }
        Ok(found == *expected)
    }
}

/// Whether `is_same` is true of every part, of `step` bytes, of `len` bytes. It has memory of its
/// thread for the found and the expected bytes. The first mismatch ends the comparison.
pub(super) fn compare(
    len: u64,
    step: u64,
    is_same: impl Fn(&mut (Vec<u8>, Vec<u8>), ByteRange) -> Result<bool> + Sync,
) -> Result<bool> {
    let work = |memory: &mut _, range| match is_same(memory, range) {
        Ok(true) => Ok(()),
        Ok(false) => Err(None),
        Err(failure) => Err(Some(failure)),
    };
    match each_range(len, step, cores().min(8), Default::default, work) {
        Ok(()) => Ok(true),
        Err(None) => Ok(false),
        Err(Some(failure)) => Err(failure),
    }
}

//! Fills the memory that bytes move to and from, and closes files.

#![expect(unsafe_code, reason = "files are closed by number")]

use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd as _;
use std::path::Path;

use forebay::Buffer;
use forebay::units::MIB;

use crate::data::{PIECE, Pattern};
use crate::failure::{Failure, Result};
use crate::parallel::{cores, each_piece};

/// Bytes of one step when GPU memory is filled: enough for the link's full rate.
const STEP: u64 = 16 * MIB;

/// Closes a file. Some file systems report a failed write only here: network file systems, or those
/// with a quota.
///
/// # Errors
/// System errors.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: `file` has given up its descriptor, so nothing else closes it.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Linux has closed it anyway.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

/// Closes a duplicate of the descriptor, so that the file system reports errors as at the last
/// close.
///
/// # Errors
/// System errors.
pub fn flush(file: &File, path: &Path) -> Result<()> {
    let closed = file.try_clone().and_then(close);
    closed.map_err(|error| Failure::at("close", path, &error))
}

/// Fills `bytes` with the part of `pattern` that begins at `start`, on all cores.
pub(crate) fn put_bytes(bytes: &mut [u8], pattern: Pattern, start: u64) {
    each_piece(bytes, whole(PIECE), cores(), |at, bytes| pattern.fill(start + at, bytes));
}

/// Writes the first `len` bytes of `pattern` into a buffer in any memory, from byte `at` on.
///
/// # Errors
/// GPU errors.
pub fn put_into(buffer: &mut Buffer, at: u64, pattern: Pattern, len: u64) -> Result<()> {
    if let Some(bytes) = buffer.as_mut_slice() {
        put_bytes(&mut bytes[whole(at)..whole(at + len)], pattern, 0);
        return Ok(());
    }
    let mut step = vec![0; whole(STEP.min(len))];
    let mut start = 0;
    while start < len {
        let bytes = &mut step[..whole(STEP.min(len - start))];
        put_bytes(bytes, pattern, start);
        buffer.upload(at + start, bytes)?;
        start += bytes.len() as u64;
    }
    Ok(())
}

/// `len`, the size of something in memory, as an index.
pub fn whole(len: u64) -> usize {
    usize::try_from(len).expect("memory is addressed by 64 bits here")
}

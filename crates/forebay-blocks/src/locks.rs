//! Locks on bytes of a file that end with the process that holds them.

#![expect(unsafe_code, reason = "no crate at hand has locks of open file descriptions on ranges")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A kind of lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Several holders at a time.
    Shared,
    /// One holder.
    Exclusive,
}

/// Locks `len` bytes from `start`; false if another open file holds a lock that excludes it. All
/// users of one open file count as one holder.
pub(crate) fn try_lock(file: &File, kind: Kind, start: u64, len: u64) -> io::Result<bool> {
    let kind = match kind {
        Kind::Shared => libc::F_RDLCK,
        Kind::Exclusive => libc::F_WRLCK,
    };
    match set(file, kind, start, len) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Ends the lock of `len` bytes from `start`.
pub(crate) fn unlock(file: &File, start: u64, len: u64) -> io::Result<()> {
    set(file, libc::F_UNLCK, start, len)
}

fn set(file: &File, kind: libc::c_int, start: u64, len: u64) -> io::Result<()> {
    let wide = |value: u64| libc::off_t::try_from(value).map_err(io::Error::other);
    let lock = libc::flock {
        l_type: libc::c_short::try_from(kind).expect("three small numbers"),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).expect("zero"),
        l_start: wide(start)?,
        l_len: wide(len)?,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the call only reads the structure.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

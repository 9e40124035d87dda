//! Opens the file of a descriptor again, with other flags. All duplicates of a descriptor share its
//! flags, so the flags of a descriptor that another party may hold are never changed.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

use super::calls::retry;
use super::kind::identity;

/// Why the file could not be reopened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The system call failed.
    Errno(Errno),
    /// The path leads to another file.
    AnotherFile,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// The flags that a further descriptor shares with the first: access mode, O_SYNC and O_DSYNC.
pub(super) fn lasting(flags: OFlags) -> OFlags {
    flags & (OFlags::RWMODE | OFlags::SYNC | OFlags::DSYNC)
}

/// Opens the file of `fd`, whose identity is `stat`. `/proc` leads to the file even if it is
/// unlinked. Without `/proc`, `name` must still lead to it.
pub(super) fn reopen(
    fd: BorrowedFd<'_>,
    stat: (u64, u64),
    name: Option<&Path>,
    flags: OFlags,
) -> Result<OwnedFd, Refusal> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = flags | OFlags::CLOEXEC;
    let open = |path: &Path, flags| retry(|| openat(CWD, path, flags, Mode::empty()));
    let opened = match (open(link.as_ref(), flags), name) {
        (Ok(fd), _) => fd,
        (Err(Errno::INVAL), _) => return Err(Errno::INVAL.into()),
        // The name may lead to a FIFO by now; opening it must not block.
        (Err(_), Some(name)) => open(name, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?,
        (Err(errno), None) => return Err(errno.into()),
    };
    let found: Stat = rustix::fs::fstat(&opened)?;
    if identity(&found) != stat {
        return Err(Refusal::AnotherFile);
    }
    // Without this, io_uring would not wait for a block device.
    rustix::fs::fcntl_setfl(&opened, flags & OFlags::DIRECT)?;
    Ok(opened)
}

//! Opens the file of a descriptor once more, with other flags. The flags of a descriptor belong to
//! all its duplicates, so they are changed on none that somebody else may have.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

use super::calls::retry;
use super::identity;

/// Why there is no further descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The system refused.
    Errno(Errno),
    /// What was found is another file.
    AnotherFile,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// The access of `flags`, and whether writes are to be durable at once: what a further descriptor
/// has of the first.
pub(super) fn lasting(flags: OFlags) -> OFlags {
    flags & (OFlags::RWMODE | OFlags::SYNC | OFlags::DSYNC)
}

/// Opens the file of `fd`, which `stat` tells from others. `/proc` leads to the very file even
/// where its name is gone; without `/proc`, the `name` must still lead to it.
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
        // The name may by now lead to a FIFO, for which the opening must not wait.
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

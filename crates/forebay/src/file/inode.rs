//! Inodes: kinds, identity, and opening the file of a descriptor again with other flags. All
//! duplicates of a descriptor share its flags, so the flags of a descriptor that other code may
//! hold are never changed.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

use super::calls::retry;

/// Why the file could not be reopened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The system call failed.
    Errno(Errno),
    /// The path leads to a different file.
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

/// Files that can be read and written at offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A regular file.
    Regular,
    /// A whole drive, a partition or a volume.
    BlockDevice,
}

impl Kind {
    /// The kind of an inode of this type, or the name of its actual type.
    pub(crate) fn of(inode: FileType) -> Result<Self, &'static str> {
        match inode {
            FileType::RegularFile => Ok(Self::Regular),
            FileType::BlockDevice => Ok(Self::BlockDevice),
            FileType::Directory => Err("folder"),
            FileType::Fifo => Err("FIFO"),
            FileType::Socket => Err("socket"),
            FileType::CharacterDevice => Err("character device"),
            FileType::Symlink => Err("symbolic link"),
            FileType::Unknown => Err("thing of unknown kind"),
        }
    }
}

/// Device and inode of the file; for a block device its device number, since it may have several
/// nodes.
pub(super) fn identity(stat: &Stat) -> (u64, u64) {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (stat.st_rdev, 0),
        _ => (stat.st_dev, stat.st_ino),
    }
}

//! Handles of files that the caller opened: for a descriptor that is given away, or a descriptor
//! that is borrowed and duplicated.
//!
//! All duplicates of a descriptor share its flags and position, and other parties may hold
//! duplicates. So the engine never changes them: bytes move at explicit offsets, and if a flag is
//! unsuitable the file is reopened. The new descriptor never allows more access than the given
//! descriptor, except in `stale`, which compares pages with the drive.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::inode::identity;
use super::inode::{Refusal, lasting, reopen};
use super::{Handle, kind_of};
use crate::error::{Error, Operation, Place, Result};

/// A given descriptor that is kept open although a second descriptor moves the bytes: closing its
/// last duplicate would release its locks.
#[derive(Debug)]
pub(super) struct Spared {
    _fd: OwnedFd,
    why: &'static str,
}

/// An unsuitable flag, and its effect.
struct Hindrance {
    flag: OFlags,
    name: &'static str,
    why: &'static str,
    /// True if the given descriptor is used when the file cannot be reopened.
    is_bearable: bool,
}

const HINDRANCES: [Hindrance; 3] = [
    Hindrance {
        flag: OFlags::APPEND,
        name: "O_APPEND",
        why: "with O_APPEND every write goes to the end of the file, whatever its offset",
        is_bearable: false,
    },
    Hindrance {
        flag: OFlags::DIRECT,
        name: "O_DIRECT",
        why: "with O_DIRECT only aligned ranges can be moved",
        is_bearable: false,
    },
    // For the descriptor that uses the page cache, only a FUSE file system may honour this flag.
    Hindrance {
        flag: OFlags::NONBLOCK,
        name: "O_NONBLOCK",
        why: "with O_NONBLOCK a file system may refuse requests that have to wait",
        is_bearable: true,
    },
];

impl Handle {
    /// Takes ownership of a descriptor.
    ///
    /// # Errors
    /// [`Error::NotAFile`] for a file without offsets. [`Error::BadRequest`] for a descriptor that
    /// can neither read nor write, or that appends and cannot be replaced. [`Error::Io`].
    pub(crate) fn from_fd(fd: OwnedFd) -> Result<Self> {
        let path = name_of(fd.as_fd());
        Self::given(path, fd)
    }

    /// Duplicates a descriptor.
    ///
    /// # Errors
    /// As [`from_fd`](Self::from_fd).
    pub(crate) fn from_borrowed(fd: BorrowedFd<'_>) -> Result<Self> {
        let path = name_of(fd);
        match fd.try_clone_to_owned() {
            Ok(fd) => Self::given(path, fd),
            Err(error) => Err(Error::io(Operation::Open, Place::whole(path), error)),
        }
    }

    /// Why a second descriptor moves its bytes; `None` if that is not the case.
    pub(crate) fn reopened(&self) -> Option<&'static str> {
        self.spared.as_ref().map(|spared| spared.why)
    }

    fn given(path: PathBuf, fd: OwnedFd) -> Result<Self> {
        let place = || Place::whole(&path);
        let failed = |source: Errno| Error::io(Operation::Open, place(), source);
        let refused =
            |reason| Error::BadRequest { operation: Operation::Open, place: place(), reason };
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        kind_of(&path, &stat)?;
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(failed)?;
        let access = flags & OFlags::RWMODE;
        if flags.contains(OFlags::PATH) || access == OFlags::RWMODE {
            let reason = "its descriptor can neither read nor write (O_PATH): open it for reading \
                          or writing";
            return Err(refused(reason.into()));
        }
        let in_way = |hindrance: &&Hindrance| {
            let harms = hindrance.flag != OFlags::APPEND || access != OFlags::RDONLY;
            flags.contains(hindrance.flag) && harms
        };
        let Some(first) = HINDRANCES.iter().find(in_way) else {
            return Self::of(path, fd, &stat, flags);
        };
        let flags = lasting(flags);
        match reopen(fd.as_fd(), identity(&stat), None, flags) {
            Ok(other) => {
                let spared = Some(Spared { _fd: fd, why: first.why });
                Ok(Self { spared, ..Self::of(path, other, &stat, flags)? })
            }
            Err(_) if first.is_bearable => Self::of(path, fd, &stat, flags),
            Err(refusal) => Err(refused(not_without(first, refusal))),
        }
    }
}

/// The message for a descriptor that can neither be used nor be replaced.
fn not_without(hindrance: &Hindrance, refusal: Refusal) -> String {
    let Hindrance { name, why, .. } = hindrance;
    let cause = match refusal {
        Refusal::Errno(Errno::NOENT) => "there is no `/proc` here".into(),
        Refusal::Errno(errno) => errno.to_string(),
        Refusal::AnotherFile => "`/proc` leads to another file".into(),
    };
    format!("{why}, and it cannot be opened anew ({cause}): give a descriptor without {name}")
}

/// The name of a descriptor's file for errors: as in `/proc`, which adds ` (deleted)` if the file
/// is unlinked; otherwise the descriptor's number.
fn name_of(fd: BorrowedFd<'_>) -> PathBuf {
    let number = fd.as_raw_fd();
    let name = std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
    // Pipes and unreachable files have names that are not paths.
    name.filter(|path| path.is_absolute()).unwrap_or_else(|| format!("fd {number}").into())
}

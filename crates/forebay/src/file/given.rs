//! Files that somebody else has opened: by a descriptor that is handed over, or lent and
//! duplicated.
//!
//! A descriptor's flags and position belong to all its duplicates, which others may have, so
//! nothing here or behind changes them: bytes move at offsets, and where a flag is in the way the
//! file is opened once more. Never with more access than the given descriptor has, except by
//! `stale`, which compares pages with the drive.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::reopen::{Refusal, lasting, reopen};
use super::{Handle, identity, kind_of};
use crate::error::{Error, Operation, Place, Result};

/// A descriptor that was given, and is kept although another moves the bytes: with its last
/// duplicate its locks would go.
#[derive(Debug)]
pub(super) struct Spared {
    _fd: OwnedFd,
    why: &'static str,
}

/// A flag that is in the way, and what it does.
struct Hindrance {
    flag: OFlags,
    name: &'static str,
    why: &'static str,
    /// Whether the given descriptor does all the same, where there is no other.
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
        why: "with O_DIRECT nothing that is not aligned can be moved",
        is_bearable: false,
    },
    // Of the descriptor that goes through the page cache only a file system in user space may care.
    Hindrance {
        flag: OFlags::NONBLOCK,
        name: "O_NONBLOCK",
        why: "with O_NONBLOCK a file system may refuse what has to wait",
        is_bearable: true,
    },
];

impl Handle {
    /// Takes a descriptor over.
    ///
    /// # Errors
    /// [`Error::NotAFile`] for what has no offsets, [`Error::BadRequest`] for a descriptor that can
    /// neither read nor write, or that appends and cannot be replaced, [`Error::Io`].
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

    /// Why another descriptor than the given one moves its bytes; `None` where none was given, or
    /// the given one does.
    pub(crate) fn reopened(&self) -> Option<&'static str> {
        self.spared.as_ref().map(|spared| spared.why)
    }

    fn given(path: PathBuf, fd: OwnedFd) -> Result<Self> {
        let place = || Place::whole(&path);
        let failed = |source| Error::Io { operation: Operation::Open, place: place(), source };
        let refused =
            |reason| Error::BadRequest { operation: Operation::Open, place: place(), reason };
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        kind_of(&path, &stat)?;
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(failed)?;
        let access = flags & OFlags::RWMODE;
        if flags.contains(OFlags::PATH) || access == OFlags::RWMODE {
            let reason = "its descriptor can neither read nor write (O_PATH): open it for that";
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

/// Says that a descriptor cannot be used as it is, nor be replaced.
fn not_without(hindrance: &Hindrance, refusal: Refusal) -> String {
    let Hindrance { name, why, .. } = hindrance;
    let cause = match refusal {
        Refusal::Errno(Errno::NOENT) => "there is no `/proc` here".into(),
        Refusal::Errno(errno) => errno.to_string(),
        Refusal::AnotherFile => "`/proc` leads to another file".into(),
    };
    format!("{why}, and it cannot be opened anew ({cause}): give a descriptor without {name}")
}

/// How errors name the file of a descriptor: as `/proc` does, which adds ` (deleted)` where the
/// name is gone; else by the descriptor's number.
fn name_of(fd: BorrowedFd<'_>) -> PathBuf {
    let number = fd.as_raw_fd();
    let told = std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
    // Pipes and what is out of reach have names that are no paths.
    told.filter(|path| path.is_absolute()).unwrap_or_else(|| format!("fd {number}").into())
}

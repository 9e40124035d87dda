//! The O_DIRECT descriptor of a file, and the alignment that it requires.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::Handle;
use super::calls::read_at;
use super::inode::Kind;
use super::inode::{self, reopen};
use crate::events;

/// Alignment that O_DIRECT requires of a request. Both values are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// Memory addresses are multiples of this.
    pub(crate) memory: u32,
    /// Offsets and lengths are multiples of this.
    pub(crate) offset: u32,
}

impl Alignment {
    /// Used if the file system reports none: the page size of most machines, and at least the block
    /// size of nearly every drive.
    const DEFAULT: Self = Self { memory: 4096, offset: 4096 };

    /// Largest plausible value. File systems align to their blocks, of at most 64 KiB.
    const MAX: u32 = 1 << 20;

    fn is_sane(self) -> bool {
        [self.memory, self.offset].iter().all(|n| n.is_power_of_two() && *n <= Self::MAX)
    }
}

/// A descriptor with O_DIRECT, for the same file and with the same access.
#[derive(Debug)]
pub(crate) struct ODirect {
    fd: OwnedFd,
    alignment: Alignment,
    reports_alignment: bool,
}

/// Why a file lacks an O_DIRECT descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    /// Permanent.
    Lasting(String),
    /// Temporary: the system cannot open a descriptor now.
    Passing(&'static str),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Lasting(reason)
    }
}

impl Refusal {
    /// Classifies `errno`; `reason` describes a permanent error.
    fn of(errno: Errno, reason: impl FnOnce(Errno) -> String) -> Self {
        match errno {
            Errno::MFILE | Errno::NFILE => Self::Passing(TOO_MANY),
            Errno::NOMEM => Self::Passing(
                "there is not enough memory now for a second descriptor with O_DIRECT",
            ),
            Errno::AGAIN | Errno::INTR => {
                Self::Passing("the system did not open a second descriptor with O_DIRECT now")
            }
            errno => Self::Lasting(reason(errno)),
        }
    }
}

impl ODirect {
    /// Opens the second descriptor without waiting for a drive; the error says why there is none.
    fn open(handle: &Handle) -> Result<Self, Refusal> {
        if handle.is_memory() {
            // Newer kernels accept the flag here but still copy from the page cache.
            return Err(Refusal::Lasting("the file lives in memory".into()));
        }
        let fd = open_direct(handle)?;
        let reported = reported_alignment(fd.as_fd());
        let alignment = match reported {
            Some((memory, offset)) => judged(memory, offset),
            None => default_alignment(handle, fd.as_fd()),
        };
        match alignment {
            Ok(alignment) => Ok(Self { fd, alignment, reports_alignment: reported.is_some() }),
            Err(reason) => {
                handle.unused.lock().push(fd);
                Err(reason.into())
            }
        }
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The alignment that its requests must have.
    pub(crate) fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// True if the file system reported that alignment.
    pub(super) fn reports_alignment(&self) -> bool {
        self.reports_alignment
    }

    /// Reads the first unit, since a file system may accept the flag and refuse the request. A
    /// smaller unit would prove nothing: some file systems read it through the page cache.
    fn confirm(&self, handle: &Handle) -> Result<(), Refusal> {
        if !handle.readable() || handle.size().map_err(|e| e.to_string())? == 0 {
            return Ok(());
        }
        let memory = self.alignment.memory as usize;
        let unit = self.alignment.offset as usize;
        // Filled with a nonzero byte: fresh zero pages are not present until touched, and btrfs
        // then reads through the page cache.
        let mut room = vec![0xa5_u8; unit + memory];
        let start = room.as_ptr().align_offset(memory);
        let target = room.get_mut(start..start + unit).expect("room for one more");
        read_at(self.fd(), target, 0).map(drop).map_err(|error| {
            match Errno::from_io_error(&error) {
                Some(errno @ (Errno::INVAL | Errno::OPNOTSUPP)) => Refusal::Lasting(failed(errno)),
                _ => Refusal::Passing("the first read with O_DIRECT failed"),
            }
        })
    }
}

impl Handle {
    /// The O_DIRECT descriptor, opened on the first call, or why there is none. A temporary failure
    /// is not kept: the next call tries again. This never waits for a drive, so only the first
    /// request shows whether the file system supports O_DIRECT.
    pub(crate) fn o_direct(&self) -> Result<&ODirect, &str> {
        if let Some(reason) = self.refused.get() {
            return Err(reason);
        }
        let kept = match self.o_direct.get() {
            Some(kept) => kept,
            None => {
                let found = match ODirect::open(self) {
                    Ok(direct) => Ok(direct),
                    Err(Refusal::Lasting(reason)) => Err(reason),
                    Err(Refusal::Passing(reason)) => {
                        events::direct_refused(&self.path, reason, false);
                        return Err(reason);
                    }
                };
                let set = self.o_direct.set(found);
                let is_news = set.is_ok();
                // A second thread was faster.
                if let Err(Ok(ODirect { fd, .. })) = set {
                    self.unused.lock().push(fd);
                }
                let kept = self.o_direct.get().expect("set above, or by another");
                match kept {
                    Ok(direct) if is_news => {
                        events::direct_opened(&self.path, direct.alignment().offset);
                    }
                    Err(reason) if is_news => events::direct_refused(&self.path, reason, true),
                    _ => {}
                }
                kept
            }
        };
        kept.as_ref().map_err(String::as_str)
    }

    /// The O_DIRECT descriptor, also after a refusal.
    pub(super) fn refused_o_direct(&self) -> Option<&ODirect> {
        self.o_direct().ok().or_else(|| self.o_direct.get()?.as_ref().ok())
    }

    /// The O_DIRECT descriptor, confirmed once by a read, which waits for the drive.
    pub(crate) fn try_o_direct(&self) -> Result<&ODirect, &str> {
        let direct = self.o_direct()?;
        if self.confirmed.get().is_none() {
            match direct.confirm(self) {
                Ok(()) => *self.confirmed.get_or_init(|| ()),
                Err(Refusal::Lasting(reason)) => return Err(self.refused.get_or_init(|| reason)),
                Err(Refusal::Passing(reason)) => return Err(reason),
            }
        }
        Ok(direct)
    }

    /// Records that the file system failed a request with O_DIRECT. Returns the reason, and whether
    /// this is the first such failure.
    pub(crate) fn refuse_o_direct(&self, errno: Errno) -> (&str, bool) {
        let is_news = self.refused.set(failed(errno)).is_ok();
        (self.refused.get().expect("set above, or before"), is_news)
    }
}

/// Why O_DIRECT is no longer used.
fn failed(errno: Errno) -> String {
    format!("a request with O_DIRECT failed: {errno}")
}

const TOO_MANY: &str = "too many files are open for a second descriptor with O_DIRECT";

/// The last sixteenth of the process's descriptors is reserved for callers that need a descriptor:
/// a second descriptor is only an optimization.
const LEFT_SHARE: u64 = 16;

/// True if enough descriptors are free for a second descriptor.
fn has_room() -> bool {
    use rustix::event::{EventfdFlags, eventfd};
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // The kernel returns the lowest free number. This does not duplicate the descriptor: closing
    // the duplicate would release this process's locks on its file.
    let (Some(most), Ok(next)) = (most, eventfd(0, EventfdFlags::CLOEXEC)) else { return true };
    u64::try_from(next.as_raw_fd()).is_ok_and(|next| next < most - most / LEFT_SHARE)
}

/// Opens the file again with O_DIRECT.
fn open_direct(handle: &Handle) -> Result<OwnedFd, Refusal> {
    if !has_room() {
        return Err(Refusal::Passing(TOO_MANY));
    }
    let name = handle.is_named.then_some(handle.path());
    let flags = handle.flags | OFlags::DIRECT;
    reopen(handle.fd(), handle.identity(), name, flags).map_err(|refusal| match refusal {
        inode::Refusal::Errno(errno) => Refusal::of(errno, |errno| match errno {
            Errno::INVAL => "the file system refuses O_DIRECT".into(),
            errno => format!("no second descriptor with O_DIRECT: {errno}"),
        }),
        inode::Refusal::AnotherFile => {
            Refusal::Lasting("the path now leads to another file".into())
        }
    })
}

/// Memory and offset alignment reported by `statx` (Linux 6.1).
fn reported_alignment(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let is_reported = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    is_reported.then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// The alignment if the file system reports none: the default, or the drive's block size if that is
/// larger.
fn default_alignment(handle: &Handle, fd: BorrowedFd<'_>) -> Result<Alignment, String> {
    let block = match handle.kind() {
        Kind::BlockDevice => rustix::fs::ioctl_blksszget(fd).ok(),
        Kind::Regular => handle.drive().logical_block_size(),
    };
    let least = Alignment::DEFAULT;
    judged(least.memory, least.offset.max(block.unwrap_or(0)))
}

/// The reported numbers as an alignment, or why they are invalid.
fn judged(memory: u32, offset: u32) -> Result<Alignment, String> {
    let alignment = Alignment { memory, offset };
    if memory == 0 || offset == 0 {
        // File systems report this for single files: encrypted, verified or journalled.
        Err("the file system has no O_DIRECT for this file".into())
    } else if alignment.is_sane() {
        Ok(alignment)
    } else {
        Err(format!("the file system reports an alignment of {memory} and {offset} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lasts_is_taken_for_the_truth() {
        let of = |errno| Refusal::of(errno, |errno| errno.to_string());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR, Errno::AGAIN] {
            assert!(matches!(of(errno), Refusal::Passing(_)), "{errno}");
        }
        for errno in [Errno::INVAL, Errno::OPNOTSUPP, Errno::PERM, Errno::ACCESS, Errno::IO] {
            assert_eq!(of(errno), Refusal::Lasting(errno.to_string()));
        }
    }

    #[test]
    fn only_sane_alignments_are_believed() {
        assert_eq!(judged(4, 512), Ok(Alignment { memory: 4, offset: 512 }));
        assert_eq!(judged(4096, 1 << 20), Ok(Alignment { memory: 4096, offset: 1 << 20 }));
        for (memory, offset) in [(0, 512), (512, 0), (3, 512), (512, 1000), (512, 1 << 21)] {
            assert!(judged(memory, offset).is_err(), "{memory} {offset}");
        }
        assert!(judged(u32::MAX, u32::MAX).is_err());
    }
}

//! Pages of files where they are: mapped, so that the kernel is asked about them, or a GPU copies
//! from them.
//!
//! The processor never reads through such a mapping, so that a file that shrinks meanwhile cannot
//! raise SIGBUS.

#![expect(unsafe_code, reason = "maps files, and has the kernel bring their pages in")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::time::ClockId;

use super::Handle;
use super::kind::Kind;
use crate::units::ByteRange;

/// Threads that bring pages in at most, as many as touch fresh memory, and what is worth one. No
/// run has measured which are best.
const THREADS: usize = 8;
const WORTH_A_THREAD: usize = 32 << 20;

/// A file that was changed as recently as this may be in the middle of it: its time says when a
/// write began, and a request that passes the page cache takes as long as its drive.
const SETTLES: Duration = Duration::from_secs(2);

/// A read-only mapping of a part of a file.
#[derive(Debug)]
pub(crate) struct FilePages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: no more than an address; nobody reads or writes through it in this process.
unsafe impl Send for FilePages {}
// SAFETY: as above.
unsafe impl Sync for FilePages {}

/// What tells that a file was not changed: which it is, its size, and when it was last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    identity: (u64, u64),
    size: i64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
    /// The same of its bytes alone.
    written: (i64, i64),
    links: u64,
}

impl FilePages {
    /// Maps `len` bytes from `offset` on, a multiple of the page.
    pub(super) fn map(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: the kernel picks free addresses, so nothing that exists is mapped over.
        let start =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, offset)? };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero");
        Ok(Self { start, len })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Brings its pages in, by several threads; a kernel before 5.14 leaves that to whoever pins
    /// them.
    ///
    /// # Errors
    /// The drive's; EFAULT where the file has ended.
    pub(crate) fn bring_in(&self) -> io::Result<()> {
        let most = thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let count = (self.len / WORTH_A_THREAD).clamp(1, most);
        let share = self.len.div_ceil(count).next_multiple_of(rustix::param::page_size());
        let bring = |at: usize| {
            let len = share.min(self.len - at);
            // SAFETY: inside the mapping; the call changes no byte.
            unsafe {
                let start = self.start.as_ptr().wrapping_add(at).cast();
                madvise(start, len, Advice::LinuxPopulateRead)
            }
        };
        let results: Vec<Result<(), Errno>> = thread::scope(|scope| {
            let begin = |at| thread::Builder::new().spawn_scoped(scope, move || bring(at));
            let others: Vec<_> =
                (share..self.len).step_by(share).map(|at| (at, begin(at))).collect();
            let own = bring(0);
            let join = |(at, thread): (usize, io::Result<thread::ScopedJoinHandle<'_, _>>)| {
                thread.map_or_else(|_| bring(at), |thread| thread.join().unwrap_or(Err(Errno::IO)))
            };
            std::iter::once(own).chain(others.into_iter().map(join)).collect()
        });
        match results.into_iter().find_map(Result::err) {
            None | Some(Errno::INVAL) => Ok(()),
            Some(errno) => Err(errno.into()),
        }
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly this, and no reference into it was ever made.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be given back");
    }
}

impl Handle {
    /// Why its pages cannot be used from where they are, whatever they hold.
    pub(crate) fn no_pages(&self) -> Option<String> {
        let path = self.path.display();
        match self.kind {
            Kind::BlockDevice => {
                Some(format!("`{path}` is a device, which does not say who writes"))
            }
            Kind::Regular if !self.readable() => {
                Some(format!("`{path}` is open for writing alone"))
            }
            Kind::Regular if !self.file_system.owns_pages() => {
                Some(format!("{}, on which `{path}` is, may change it unseen", self.file_system()))
            }
            Kind::Regular => None,
        }
    }

    /// Maps the pages of a range that begins and ends at one.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn map_pages(&self, range: ByteRange) -> io::Result<FilePages> {
        let len = usize::try_from(range.len()).map_err(|_| io::Error::from(Errno::OVERFLOW))?;
        FilePages::map(self.fd(), range.start, len)
    }

    /// What tells later that it was not changed meanwhile.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn stamp(&self) -> io::Result<Stamp> {
        let stat = rustix::fs::fstat(&self.fd)?;
        // One system interface has them with a sign, another without.
        let changed = (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0));
        let written = (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
        let (identity, size) = ((stat.st_dev, stat.st_ino), stat.st_size);
        #[allow(clippy::unnecessary_cast, reason = "it has 32 bits on some machines")]
        let links = stat.st_nlink as u64;
        Ok(Stamp { identity, size, changed, written, links })
    }
}

impl Stamp {
    /// Whether its bytes may be others by `now`. Who has removed it, or put another file in its
    /// place, has changed the number of its links and no byte of it.
    pub(crate) fn is_outdated(&self, now: &Self) -> bool {
        let bytes = |of: &Self| (of.identity, of.size, of.written);
        bytes(self) != bytes(now) || (self.changed != now.changed && self.links == now.links)
    }

    /// Whether nobody can be in the middle of a change that began before.
    pub(crate) fn is_settled(&self) -> bool {
        let now = rustix::time::clock_gettime(ClockId::Realtime);
        let seconds = now.tv_sec.saturating_sub(self.changed.0);
        let nanos = seconds.saturating_mul(1_000_000_000) + now.tv_nsec - self.changed.1;
        u64::try_from(nanos).is_ok_and(|nanos| Duration::from_nanos(nanos) > SETTLES)
    }
}

//! Mappings of a file's pages: to let a GPU copy from them, or private ones that a caller uses as
//! memory.
//!
//! This library never reads through a mapping, so a file that is truncated raises no SIGBUS here.

#![expect(unsafe_code, reason = "maps files, and lets the kernel bring their pages in")]

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::Duration;

use forebay::{Error, File, Operation, Result};
use forebay_base::units::ByteRange;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use rustix::time::ClockId;

/// Maximum threads that populate pages, as many as touch fresh memory, and the bytes worth one
/// thread. Not tuned by measurements.
const THREADS: usize = 8;
const WORTH_A_THREAD: usize = 32 << 20;

/// Pages of a file that changed more recently than this are not pinned: the timestamp is set when a
/// write begins, and a write with O_DIRECT may still be in progress.
const SETTLES: Duration = Duration::from_secs(2);

/// A mapping of a part of a file.
#[derive(Debug)]
pub struct FilePages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: only an address; this process never reads or writes through it.
unsafe impl Send for FilePages {}
// SAFETY: as above.
unsafe impl Sync for FilePages {}

/// Detects changes of a file: its identity, its size, and the times of its last changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    identity: (u64, u64),
    size: i64,
    /// ctime in seconds and nanoseconds.
    changed: (i64, i64),
    /// mtime in seconds and nanoseconds.
    written: (i64, i64),
}

impl FilePages {
    /// Maps the pages of a page-aligned range.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn map(file: &File, range: ByteRange) -> io::Result<Self> {
        Self::map_with(file, range, ProtFlags::READ, MapFlags::SHARED)
    }

    /// Maps the first `len` bytes as private memory, which the process may also write: that does
    /// not change the file. No memory is reserved for such writes, so the file may be larger than
    /// memory. If the file is truncated, access beyond its end raises SIGBUS.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn map_private(file: &File, len: u64) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Self::map_with(file, ByteRange::at(0, len), access, flags)
    }

    fn map_with(
        file: &File,
        range: ByteRange,
        access: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        let len = usize::try_from(range.len()).map_err(|_| io::Error::from(Errno::OVERFLOW))?;
        // SAFETY: the kernel picks free addresses, so no existing mapping is replaced.
        let start = unsafe {
            mmap(ptr::null_mut(), len, access, flags, file.descriptor(), range.start)? //
        };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero");
        Ok(Self { start, len })
    }

    /// The first address.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes that are mapped.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Populates the pages of a part with several threads; false before Linux 5.14, which cannot.
    ///
    /// # Errors
    /// EFAULT beyond the end of the file, or if a page cannot be read; ENOMEM.
    pub fn bring_in(&self, part: Range<usize>) -> io::Result<bool> {
        let part = self.whole_pages(part);
        // The number of processors is read from files of the control group.
        let count = match (part.len() / WORTH_A_THREAD).clamp(1, THREADS) {
            1 => 1,
            // A new thread that finds no memory for its signal handlers' stack aborts the process.
            _ if getrlimit(Resource::As).current.is_some() => 1,
            several => several.min(thread::available_parallelism().map_or(1, usize::from)),
        };
        let share = part.len().div_ceil(count).next_multiple_of(rustix::param::page_size());
        let bring =
            |at: usize| self.advise(at..(at + share).min(part.end), Advice::LinuxPopulateRead);
        let results: Vec<Result<(), Errno>> = thread::scope(|scope| {
            let begin = |at| {
                let thread = thread::Builder::new().name("forebay-pin".into());
                thread.spawn_scoped(scope, move || bring(at))
            };
            let others = (part.start + share..part.end).step_by(share.max(1));
            let others: Vec<_> = others.map(|at| (at, begin(at))).collect();
            let own = bring(part.start);
            let join = |(at, thread): (usize, io::Result<thread::ScopedJoinHandle<'_, _>>)| {
                thread.map_or_else(|_| bring(at), |thread| thread.join().unwrap_or(Err(Errno::IO)))
            };
            std::iter::once(own).chain(others.into_iter().map(join)).collect()
        });
        match results.into_iter().find_map(Result::err) {
            None => Ok(true),
            Some(Errno::INVAL) => Ok(false),
            Some(errno) => Err(errno.into()),
        }
    }

    /// Starts reading the pages of a part into the page cache, without waiting for them.
    pub fn read_ahead(&self, part: Range<usize>) {
        // Only a hint: the read that needs the bytes waits for them, and gets the errors.
        let _ = self.advise(self.whole_pages(part), Advice::WillNeed);
    }

    /// A part, extended to whole pages, and cut at the end of the mapping.
    fn whole_pages(&self, part: Range<usize>) -> Range<usize> {
        let page = rustix::param::page_size();
        let start = part.start.min(self.len) / page * page;
        start..part.end.clamp(start, self.len)
    }

    fn advise(&self, part: Range<usize>, advice: Advice) -> Result<(), Errno> {
        if part.is_empty() {
            return Ok(());
        }
        // SAFETY: inside the mapping; the call changes no byte.
        unsafe {
            let start = self.start.as_ptr().wrapping_add(part.start).cast();
            madvise(start, part.len(), advice)
        }
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly this range, and no reference into it exists.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be given back");
    }
}

impl Stamp {
    /// The state of a file now.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel refuses the file's metadata, as NFS does for a file that another
    /// host has removed.
    pub fn of(file: &File) -> Result<Self> {
        let stat = rustix::fs::fstat(file.descriptor())
            .map_err(|source| Error::io(Operation::Inspect, file.place(0, 0), source))?;
        // The sign of these fields depends on the system interface.
        let changed = (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0));
        let written = (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
        Ok(Self { identity: (stat.st_dev, stat.st_ino), size: stat.st_size, changed, written })
    }

    /// True if `now` is the state of a different file, or the bytes may have changed. The ctime
    /// does not count: new names, owners and permissions change it, and none of the bytes.
    pub fn is_outdated(&self, now: &Self) -> bool {
        let bytes = |of: &Self| (of.identity, of.size, of.written);
        bytes(self) != bytes(now)
    }

    /// Inode, size, and mtime in seconds and nanoseconds: the same for every process of a host.
    pub fn facts(&self) -> (u64, i64, (i64, i64)) {
        (self.identity.1, self.size, self.written)
    }

    /// True if the last change is old enough that no write that began then is still in progress.
    pub fn is_settled(&self) -> bool {
        let now = rustix::time::clock_gettime(ClockId::Realtime);
        let seconds = now.tv_sec.saturating_sub(self.changed.0);
        let nanos = seconds.saturating_mul(1_000_000_000) + now.tv_nsec - self.changed.1;
        u64::try_from(nanos).is_ok_and(|nanos| Duration::from_nanos(nanos) > SETTLES)
    }
}

//! System calls on files: reads and writes at an offset, residency queries, and hints to the page
//! cache.
//!
//! Reads and writes are made once. All other calls are repeated after EINTR, with pauses and for a
//! bounded time, since a server (FUSE) may return it forever. The caller handles short counts and
//! all other errors: EAGAIN means that a read would block, or that a file is leased. Offsets are
//! below `i64::MAX`, the largest that a file may have.

#![expect(unsafe_code, reason = "raw addresses of slots, and calls that the libraries lack")]

use std::ffi::{c_long, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd as _};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::units::{ByteRange, align_down, align_up};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// How long a call is repeated after EINTR.
const INTERRUPTED_MAX: Duration = Duration::from_secs(10);

/// The second and the longest pause before a repetition; pauses double. The first repetition does
/// not pause.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(10)];

/// Number of the `cachestat` system call (Linux 6.5), on all architectures with common numbers for
/// new calls.
const CACHESTAT: c_long = 451;

/// Reads into `target` from `offset`. A short count is not an error; zero means the end of the
/// file.
pub(crate) fn read_at(fd: BorrowedFd<'_>, target: &mut [u8], offset: u64) -> io::Result<usize> {
    let (memory, len) = (target.as_mut_ptr(), target.len());
    // SAFETY: the exclusive borrow covers all that the call may write.
    retried(|| unsafe { read_at_raw(fd, memory, len, offset) })
}

/// [`read_at`] for memory given by address.
///
/// # Safety
/// `target` must be writable for `len` bytes, with no other access to them until the call returns.
pub(crate) unsafe fn read_at_raw(
    fd: BorrowedFd<'_>,
    target: *mut u8,
    len: usize,
    offset: u64,
) -> io::Result<usize> {
    let offset = file_offset(offset)?;
    // SAFETY: the caller promises the memory; the borrow keeps the descriptor open.
    counted(unsafe { libc::pread(fd.as_raw_fd(), target.cast(), len, offset) })
}

/// Writes `source` at `offset`. A short count is not an error.
#[cfg(test)]
pub(crate) fn write_at(fd: BorrowedFd<'_>, source: &[u8], offset: u64) -> io::Result<usize> {
    // SAFETY: the borrow covers all that the call reads.
    retried(|| unsafe { write_at_raw(fd, source.as_ptr(), source.len(), offset) })
}

/// [`write_at`] for memory given by address.
///
/// # Safety
/// `source` must be readable for `len` bytes, with no writes to them until the call returns.
pub(crate) unsafe fn write_at_raw(
    fd: BorrowedFd<'_>,
    source: *const u8,
    len: usize,
    offset: u64,
) -> io::Result<usize> {
    let offset = file_offset(offset)?;
    // SAFETY: the caller promises the memory; the borrow keeps the descriptor open.
    counted(unsafe { libc::pwrite(fd.as_raw_fd(), source.cast(), len, offset) })
}

/// Reads without blocking: EAGAIN if the first byte is not in the page cache, EOPNOTSUPP if the
/// file system does not support it (Linux 4.14).
///
/// A failed attempt starts read-ahead, so the following bytes are read whether needed or not.
///
/// # Safety
/// As for [`read_at_raw`].
pub(crate) unsafe fn read_nowait_raw(
    fd: BorrowedFd<'_>,
    target: *mut u8,
    len: usize,
    offset: u64,
) -> io::Result<usize> {
    let offset = file_offset(offset)?;
    let flags = ReadWriteFlags::NOWAIT.bits().cast_signed();
    let vector = libc::iovec { iov_base: target.cast(), iov_len: len };
    // SAFETY: the caller promises the memory, and the vector outlives the call.
    counted(unsafe { libc::preadv2(fd.as_raw_fd(), &raw const vector, 1, offset, flags) })
}

/// [`read_nowait_raw`] for borrowed memory.
pub(crate) fn read_nowait(fd: BorrowedFd<'_>, target: &mut [u8], offset: u64) -> io::Result<usize> {
    let (memory, len) = (target.as_mut_ptr(), target.len());
    // SAFETY: the exclusive borrow covers all that the call may write.
    retried(|| unsafe { read_nowait_raw(fd, memory, len, offset) })
}

/// Number of resident pages that `range` touches, in a single call.
///
/// As for [`cache_state`].
pub(crate) fn cached_pages(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<u64> {
    cache_state(fd, range).map(|(cached, _)| cached)
}

/// Number of resident pages that `range` touches, and of those that wait to be written.
///
/// ENOSYS before Linux 6.5; EPERM for a caller who neither owns the file nor may write it.
pub(crate) fn cache_state(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<(u64, u64)> {
    #[repr(C)]
    struct CachestatRange {
        offset: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    if range.is_empty() {
        // A length of zero would mean "up to the end".
        return Ok((0, 0));
    }
    let queried = CachestatRange { offset: range.start, len: range.len() };
    let mut counts = Counts::default();
    let flags: c_uint = 0;
    retried(|| {
        // SAFETY: both structures have the kernel's layout and outlive the call, which reads the
        // first and fills the second.
        let result = unsafe {
            libc::syscall(CACHESTAT, fd.as_raw_fd(), &raw const queried, &raw mut counts, flags)
        };
        counted(isize::try_from(result).unwrap_or(-1))
    })?;
    // `cached` includes dirty pages and pages under writeback.
    Ok((counts.cached, counts.dirty + counts.writeback))
}

/// Residency of the pages that `range` touches, from a mapping that is never accessed: a byte per
/// page, odd if it is resident.
///
/// Reliable only for a caller who owns the file or may write it; for other users the kernel reports
/// every page as resident.
pub(crate) fn mapped_pages(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<Vec<u8>> {
    let page = page_size();
    let start = align_down(range.start, page);
    let len = usize::try_from(align_up(range.end, page).saturating_sub(start))
        .map_err(|_| io::Error::from(Errno::OVERFLOW))?;
    let pages = len / rustix::param::page_size();
    let mut answer = vec![0_u8; pages];
    if len == 0 {
        return Ok(answer);
    }
    // SAFETY: the kernel picks free addresses, and nothing is accessed through them.
    let first =
        unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, start)? };
    // SAFETY: the mapping covers `len` bytes from the start of a page, and the answer has a byte
    // per page of it.
    let asked = retried(|| match unsafe { libc::mincore(first, len, answer.as_mut_ptr()) } {
        0 => counted(0),
        _ => counted(-1),
    });
    // SAFETY: it was mapped above, and no reference into it exists.
    unsafe { munmap(first, len) }?;
    asked.map(|_| answer)
}

/// Makes a file's bytes durable, with the metadata that is needed to read them.
pub(crate) fn sync_data(fd: BorrowedFd<'_>) -> io::Result<()> {
    retried(|| Ok(rustix::fs::fdatasync(fd)?))
}

/// Makes a file's bytes and all of its metadata durable.
pub(crate) fn sync_all(fd: BorrowedFd<'_>) -> io::Result<()> {
    retried(|| Ok(rustix::fs::fsync(fd)?))
}

/// Sets the length of a file.
pub(crate) fn set_len(fd: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    retried(|| Ok(rustix::fs::ftruncate(fd, len)?))
}

/// Reserves space for `range` without changing the file's size. `false` if the file system does not
/// support it.
pub(crate) fn reserve(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<bool> {
    use rustix::fs::{FallocateFlags, fallocate};
    if range.is_empty() {
        return Ok(true);
    }
    let reserved = retry(|| fallocate(fd, FallocateFlags::KEEP_SIZE, range.start, range.len()));
    match reserved {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes the kernel drop the file's clean, unused pages.
pub(crate) fn drop_pages(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fadvise(fd, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// Closes a duplicate of the descriptor, so that the file system reports errors as on close: NFS
/// and FUSE send their last writes then.
pub(crate) fn flush(fd: BorrowedFd<'_>) -> io::Result<()> {
    retried(|| {
        let duplicate = fd.try_clone_to_owned()?.into_raw_fd();
        // SAFETY: this function owns the descriptor and does not use it again, whatever the call
        // returns.
        match unsafe { libc::close(duplicate) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// Makes the kernel drop the clean, unused pages of a range.
pub(crate) fn drop_pages_of(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    let len = std::num::NonZero::new(range.len());
    Ok(rustix::fs::fadvise(fd, range.start, len, rustix::fs::Advice::DontNeed)?)
}

/// Writes the dirty pages of a range and waits for them. This does not make them durable.
pub(crate) fn write_out(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    let (start, len) = (file_offset(range.start)?, file_offset(range.len())?);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    retried(|| {
        // SAFETY: the arguments are only numbers.
        let result = unsafe { libc::sync_file_range(fd.as_raw_fd(), start, len, flags) };
        counted(isize::try_from(result).unwrap_or(-1)).map(drop)
    })
}

/// The size of a block device in bytes.
pub(crate) fn device_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    use rustix::ioctl::{Getter, ioctl, opcode};
    // The kernel's header says `size_t`, but the answer is 64 bits everywhere.
    const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(0x12, 114);
    // SAFETY: the call writes 64 bits, for which the getter has space, and is made only for block
    // devices.
    retry(|| unsafe { ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) })
}

/// The kernel's page size in bytes.
pub(crate) fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

fn file_offset(offset: u64) -> io::Result<i64> {
    i64::try_from(offset).map_err(|_| Errno::INVAL.into())
}

/// Converts the result of a system call: a count, or -1 for an error.
fn counted(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Repeats `call` while it returns EINTR.
fn retried<T>(call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    retried_within(INTERRUPTED_MAX, call)
}

fn retried_within<T>(bound: Duration, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let (mut first, mut pause) = (None, Duration::ZERO);
    loop {
        let answer = call();
        let interrupted = |error: &io::Error| error.kind() == io::ErrorKind::Interrupted;
        if !answer.as_ref().is_err_and(interrupted)
            || first.get_or_insert_with(Instant::now).elapsed() >= bound
        {
            return answer;
        }
        thread::sleep(pause);
        pause = (pause * 2).clamp(PAUSES[0], PAUSES[1]);
    }
}

/// Repeats a call that returns an errno while that is EINTR.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let answer = retried(|| Ok(call()?));
    answer.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruptions_are_repeated_for_a_time_and_with_pauses() {
        let (start, mut calls) = (Instant::now(), 0);
        let ends = retried(|| {
            calls += 1;
            let lasts = start.elapsed() < Duration::from_millis(300);
            if lasts { Err(Errno::INTR.into()) } else { Ok(42) }
        });
        assert_eq!(ends.expect("it was repeated until then"), 42);
        assert!(calls < 300, "{calls} calls in 300 ms");
        let interrupted = || Err::<(), _>(Errno::INTR.into());
        let error = retried_within(Duration::from_millis(1), interrupted).expect_err("a bound");
        assert_eq!(error.raw_os_error(), Some(libc::EINTR));
    }

    #[test]
    fn only_an_interruption_is_repeated() {
        let answers = |list: &[i32]| {
            let mut rest = list.iter();
            retried(|| match rest.next() {
                Some(errno) => Err(io::Error::from_raw_os_error(*errno)),
                None => Ok(42),
            })
        };
        assert_eq!(answers(&[libc::EINTR, libc::EINTR]).expect("repeated"), 42);
        for list in [&[libc::EAGAIN][..], &[libc::EINTR, libc::EIO], &[libc::EINVAL]] {
            let error = answers(list).expect_err("not repeated");
            assert_eq!(error.raw_os_error(), list.last().copied());
        }
    }
}

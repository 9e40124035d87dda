//! Everything the engine needs to know about a file: its descriptors and what they support, the
//! alignment for O_DIRECT, and the resident pages.
//!
//! A [`Handle`] is opened once and shared. All properties except the descriptor itself are
//! determined on first use and kept. This module knows nothing about plans, slots or GPUs.

mod calls;
mod given;
mod inode;
mod o_direct;
mod port;
mod residency;
mod stale;
#[cfg(test)]
mod stale_tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_base::lock::Lock;
use forebay_base::units::ByteRange;
use forebay_topology::{BlockDevice, FileSystem, System};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

pub(crate) use calls::{page_size, read_at_raw, read_nowait_raw, write_at_raw};
pub(crate) use inode::Kind;
pub(crate) use o_direct::ODirect;
pub(crate) use port::Ports;
pub use residency::Residency;
pub(crate) use residency::ResidencySource;

use crate::error::{Error, Operation, Place, Result};
use crate::events;

/// How to open a file. By default an existing file is opened for reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Create the file if it is missing.
    pub create: bool,
    /// Create the file, and fail if it exists.
    pub create_new: bool,
    /// Truncate the file to zero bytes.
    pub truncate: bool,
}

impl OpenOptions {
    /// For writing to a file that may or may not exist.
    #[must_use]
    pub fn writing() -> Self {
        Self { write: true, create: true, ..Self::default() }
    }

    /// For writing to a file that must not exist.
    #[must_use]
    pub fn new_file() -> Self {
        Self { write: true, create_new: true, ..Self::default() }
    }

    /// Changes options: `OpenOptions::writing().with(|how| how.truncate = true)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Consecutive resident reads after which a small read does not query the page cache. A query takes
/// 0.7 µs for 4 KiB and 1.9 for 256 KiB (32 cores, 2026-11-30), but a read that finds nothing has
/// the kernel read ahead.
const WARM: u32 = 8;

/// An open file or block device.
#[derive(Debug)]
pub(crate) struct Handle {
    path: PathBuf,
    fd: OwnedFd,
    kind: Kind,
    /// Access mode and O_SYNC, which the O_DIRECT descriptor shares.
    flags: OFlags,
    /// True if the file was opened by `path`.
    is_named: bool,
    spared: Option<given::Spared>,
    /// Second descriptors that are not used. Closing them would release the process's `fcntl` locks
    /// on the file.
    unused: Lock<Vec<OwnedFd>>,
    identity: (u64, u64),
    /// Device number: of a block device itself, or the number that the file system reports for its
    /// files.
    device: u64,
    /// Block size of the file system when the file was opened.
    block: u64,
    /// The size when it was last queried.
    seen_size: AtomicU64,
    file_system: FileSystem,
    drive: OnceLock<BlockDevice>,
    o_direct: OnceLock<Result<ODirect, String>>,
    /// Why O_DIRECT is no longer used, although there is a descriptor.
    refused: OnceLock<String>,
    /// Set after the first successful read with O_DIRECT.
    confirmed: OnceLock<()>,
    source: OnceLock<ResidencySource>,
    nowait: OnceLock<bool>,
    /// Consecutive small reads whose bytes were resident, at most [`WARM`].
    warm: AtomicU32,
    queue: OnceLock<usize>,
    ring_tried: OnceLock<()>,
    ports: Ports,
}

impl Handle {
    /// Opens `path`. Never waits for the other end of a FIFO, and rejects files without offsets.
    ///
    /// # Errors
    /// [`Error::NotAFile`] for a folder, FIFO, socket or character device, [`Error::BadRequest`]
    /// for creating or truncating without write access, [`Error::Io`] for errors of the system.
    pub(crate) fn open(path: impl Into<PathBuf>, how: &OpenOptions) -> Result<Self> {
        let path = path.into();
        let failed = |errno: Errno| Error::io(Operation::Open, Place::whole(&path), errno);
        if (how.create || how.create_new || how.truncate) && !how.write {
            return Err(Error::BadRequest {
                operation: Operation::Open,
                place: Place::whole(&path),
                reason: "only a file opened for writing can be created or truncated".into(),
            });
        }
        let fd = open_without_waiting(&path, how)?;
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        kind_of(&path, &stat)?;
        // O_NONBLOCK is no longer needed; with it, io_uring would not wait for a block device.
        rustix::fs::fcntl_setfl(&fd, OFlags::empty()).map_err(failed)?;
        let flags = if how.write { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(Self { is_named: true, ..Self::of(path, fd, &stat, flags)? })
    }

    /// The handle of an open descriptor.
    fn of(path: PathBuf, fd: OwnedFd, stat: &Stat, flags: OFlags) -> Result<Self> {
        let kind = kind_of(&path, stat)?;
        let file_system = rustix::fs::fstatfs(&fd)
            .map_err(|source| Error::io(Operation::Open, Place::whole(&path), source))?;
        Ok(Self {
            path,
            fd,
            kind,
            flags: inode::lasting(flags),
            is_named: false,
            spared: None,
            unused: Lock::default(),
            identity: inode::identity(stat),
            block: u64::try_from(stat.st_blksize).unwrap_or(0),
            device: if kind == Kind::BlockDevice { stat.st_rdev } else { stat.st_dev },
            seen_size: AtomicU64::new(0),
            file_system: FileSystem::of(&file_system),
            drive: OnceLock::new(),
            o_direct: OnceLock::new(),
            refused: OnceLock::new(),
            confirmed: OnceLock::new(),
            source: OnceLock::new(),
            nowait: OnceLock::new(),
            warm: AtomicU32::new(0),
            queue: OnceLock::new(),
            ring_tried: OnceLock::new(),
            ports: Ports::default(),
        })
    }

    /// The file's direct paths to GPUs.
    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The path as given, or the name in `/proc` for a given descriptor.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor that uses the page cache.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Regular file or block device.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// True if it was opened for writing.
    pub(crate) fn writable(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }

    /// True if it was opened for reading; only a given descriptor may not be.
    pub(crate) fn readable(&self) -> bool {
        !self.flags.contains(OFlags::WRONLY)
    }

    /// Identifies the file while it is open, whatever its name.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Smallest unit that the page cache dirties: a page, or a larger block of the file system. XFS
    /// and ext4 support blocks of up to 64 KiB on 4 KiB pages from Linux 6.12 on.
    pub(crate) fn cache_unit(&self) -> u64 {
        let is_sane = self.block.is_power_of_two() && self.block <= 1 << 20;
        page_size().max(if is_sane { self.block } else { 0 })
    }

    /// Device number: of a block device itself, or the number that the file system reports for its
    /// files.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Current size in bytes; for a block device, the size of the device.
    ///
    /// # Errors
    /// [`Error::Io`] if the system does not report it.
    pub(crate) fn size(&self) -> Result<u64> {
        let size = match self.kind {
            Kind::Regular => {
                rustix::fs::fstat(&self.fd).map(|stat| u64::try_from(stat.st_size).unwrap_or(0))
            }
            // Not by seeking: the given descriptor's owner shares its position.
            Kind::BlockDevice => calls::device_size(self.fd()),
        };
        size.inspect(|size| self.seen_size.store(*size, Ordering::Relaxed))
            .map_err(|errno| self.failed(Operation::Inspect, ByteRange::at(0, 0), errno))
    }

    /// Whether it is `end` bytes long, or was when its size was last queried.
    pub(crate) fn has(&self, end: u64) -> bool {
        let seen = self.seen_size.load(Ordering::Relaxed);
        end <= seen || self.size().is_ok_and(|size| end <= size)
    }

    /// The size in bytes that the kernel knew last, without a query to the server.
    ///
    /// # Errors
    /// As [`size`](Self::size).
    pub(crate) fn last_size(&self) -> Result<u64> {
        use rustix::fs::{AtFlags, StatxFlags, statx};
        if self.kind == Kind::BlockDevice {
            return self.size();
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = statx(&self.fd, c"", flags, StatxFlags::SIZE);
        stat.map(|stat| stat.stx_size)
            .map_err(|errno| self.failed(Operation::Inspect, ByteRange::at(0, 0), errno))
    }

    /// True if `size` is reliable. Some file systems report no real sizes, and a file may report a
    /// size of zero (many pseudo-files do). Then only a read finds the end.
    pub(crate) fn is_sized(&self, size: u64) -> bool {
        size > 0 && (self.kind == Kind::BlockDevice || !self.file_system.makes_sizes_up())
    }

    /// `len` bytes at `offset` of this file, for an error message.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Place {
        Place {
            path: self.path.clone(),
            offset,
            len,
            drive: self.drive().name().map(str::to_owned),
        }
    }

    /// The name of its file system, such as `ext4`, or `block device`.
    pub(crate) fn file_system(&self) -> &'static str {
        match self.kind {
            Kind::Regular => self.file_system.name(),
            Kind::BlockDevice => "block device",
        }
    }

    /// The drive that holds the file.
    pub(crate) fn drive(&self) -> &BlockDevice {
        self.drive.get_or_init(|| System::default().drive(self.device))
    }

    /// True if io_uring may be used with O_DIRECT. Threads serve other files: see
    /// [`FileSystem::completes_requests`]. An overlay reports the alignment of the file system
    /// below; FUSE reports none.
    pub(crate) fn allows_io_uring(&self) -> bool {
        let reports_alignment =
            || matches!(self.o_direct.get(), Some(Ok(direct)) if direct.reports_alignment());
        self.kind == Kind::BlockDevice
            || self.file_system.completes_requests()
            || (self.file_system.is_overlay() && reports_alignment())
    }

    /// True if its bytes are on drives of this machine, which the kernel reads ahead. Files of
    /// servers, which overlays may have too, need more requests in flight.
    pub(crate) fn is_local(&self) -> bool {
        self.kind == Kind::BlockDevice || self.file_system.completes_requests()
    }

    /// Emits an event that the file was opened.
    pub(crate) fn emit_opened(&self) {
        events::file_opened(&self.path, self.file_system(), self.writable(), self.reopened());
    }

    /// True if [`o_direct`](Self::o_direct) opened the descriptor, or was refused for good.
    pub(crate) fn knows_o_direct(&self) -> bool {
        self.o_direct.get().is_some()
    }

    /// The same open file, for a further engine.
    pub(crate) fn detached(self) -> Self {
        let (queue, ring_tried) = Default::default();
        Self { queue, ring_tried, ports: Ports::default(), ..self }
    }

    /// Index of the file's drive in the engine that opened it. The drive stays the same while the
    /// file is open, whatever is mounted over it.
    pub(crate) fn queue(&self) -> &OnceLock<usize> {
        &self.queue
    }

    /// Set once the file's queue owns a ring, or was refused a ring.
    pub(crate) fn ring_tried(&self) -> &OnceLock<()> {
        &self.ring_tried
    }

    /// Makes its bytes durable, with the metadata that is needed to read them.
    ///
    /// # Errors
    /// [`Error::Io`]: bytes written before may be lost.
    pub(crate) fn sync_data(&self) -> Result<()> {
        calls::sync_data(self.fd()).map_err(|e| Error::io(Operation::Sync, self.place(0, 0), e))
    }

    /// Makes its bytes and all of its metadata durable.
    ///
    /// # Errors
    /// [`Error::Io`]: bytes written before may be lost.
    pub(crate) fn sync_all(&self) -> Result<()> {
        calls::sync_all(self.fd()).map_err(|e| Error::io(Operation::Sync, self.place(0, 0), e))
    }

    /// Sets the length of the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn set_len(&self, len: u64) -> Result<()> {
        self.seen_size.store(0, Ordering::Relaxed);
        calls::set_len(self.fd(), len)
            .map_err(|e| Error::io(Operation::Truncate, self.place(len, 0), e))
    }

    /// Reserves space for `len` bytes at `offset` without changing the size. `false` if the file
    /// system does not support it.
    ///
    /// # Errors
    /// [`Error::Io`], with ENOSPC on a full disk; part of the space may stay reserved then.
    pub(crate) fn preallocate(&self, offset: u64, len: u64) -> Result<bool> {
        let end = offset.checked_add(len).and_then(|end| i64::try_from(end).ok());
        if end.is_none() {
            let (operation, place) = (Operation::Preallocate, self.place(offset, len));
            let reason = "the range ends beyond the largest file offset".into();
            return Err(Error::BadRequest { operation, place, reason });
        }
        if self.kind == Kind::BlockDevice {
            return Ok(false); // nothing to reserve, and older kernels drop dirty pages
        }
        calls::reserve(self.fd(), ByteRange::at(offset, len))
            .map_err(|e| Error::io(Operation::Preallocate, self.place(offset, len), e))
    }

    /// True if a read can fail instead of blocking (RWF_NOWAIT). Probed once, beyond the end of any
    /// file, so that the probe starts no read-ahead.
    pub(crate) fn supports_nowait(&self) -> bool {
        // While a file is written, XFS must wait even here.
        let has_to_wait = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        *self
            .nowait
            .get_or_init(|| self.nowait_at(&mut [0], 1 << 62).map_or_else(has_to_wait, |_| true))
    }

    /// True if small reads may expect their bytes in the page cache, and so read without a query.
    pub(crate) fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Relaxed) >= WARM && self.supports_nowait()
    }

    /// Counts a small read whose bytes were resident, or were not; returns which.
    pub(crate) fn count_small(&self, is_resident: bool) -> bool {
        let before = self.warm.load(Ordering::Relaxed);
        let count = if is_resident { WARM.min(before + 1) } else { 0 };
        if count != before {
            self.warm.store(count, Ordering::Relaxed); // else a cache miss for other threads
        }
        is_resident
    }

    /// True if the result of [`supports_nowait`](Self::supports_nowait) is known.
    #[cfg(test)]
    pub(crate) fn knows_nowait(&self) -> bool {
        self.nowait.get().is_some()
    }

    /// True if opening it again may block: on its server (FUSE, network file systems), or there on
    /// pages being read. No transfer should begin with that.
    pub(crate) fn opens_slowly(&self) -> bool {
        !self.is_memory() && !self.supports_nowait()
    }

    /// Reads resident bytes at `offset` into `target` without blocking. Returns a short count if
    /// only the first part is resident or the file ends. Returns `None` if nothing is resident, if
    /// the file system does not support it, or if the read fails; the blocking read then reports
    /// the error.
    ///
    /// An attempt that finds less than requested starts read-ahead.
    pub(crate) fn try_read_nowait(&self, target: &mut [u8], offset: u64) -> Option<usize> {
        if !self.supports_nowait() {
            return None;
        }
        self.nowait_at(target, offset).ok()
    }

    fn nowait_at(&self, target: &mut [u8], offset: u64) -> io::Result<usize> {
        calls::read_nowait(self.fd(), target, offset)
    }

    /// True if its bytes exist only in memory.
    pub(crate) fn is_memory(&self) -> bool {
        // A block device's node is on a memory file system, but its bytes are not.
        self.kind == Kind::Regular && self.file_system.is_memory()
    }

    /// Makes the file system report the errors that it would report on close.
    ///
    /// # Errors
    /// [`Error::Io`]: bytes written before may be lost.
    pub(crate) fn flush(&self) -> Result<()> {
        let flushed = calls::flush(self.fd());
        let direct = match self.o_direct.get() {
            Some(Ok(direct)) => calls::flush(direct.fd()),
            _ => Ok(()),
        };
        let flushed = flushed.and(direct);
        flushed.map_err(|e| Error::io(Operation::Close, self.place(0, 0), e))
    }

    /// Why its pages cannot be used in place, independent of their contents.
    pub(crate) fn no_pages(&self) -> Option<String> {
        let path = self.path.display();
        match self.kind {
            Kind::BlockDevice => {
                Some(format!("`{path}` is a device, whose writes the kernel does not report"))
            }
            Kind::Regular if !self.readable() => Some(format!("`{path}` is open for writing only")),
            Kind::Regular if !self.file_system.owns_pages() => Some(format!(
                "`{path}` is on {}, where it may change unnoticed",
                self.file_system()
            )),
            Kind::Regular => None,
        }
    }

    fn failed(&self, operation: Operation, range: ByteRange, source: Errno) -> Error {
        Error::io(operation, self.place(range.start, range.len()), source)
    }
}

/// Opens `path` without blocking, after checking that it is a supported kind of file. Opening a
/// character device can have side effects, such as rewinding a tape.
fn open_without_waiting(path: &Path, how: &OpenOptions) -> Result<OwnedFd> {
    let mut flags = if how.write { OFlags::RDWR } else { OFlags::RDONLY };
    flags |= OFlags::CLOEXEC | OFlags::NOCTTY;
    flags.set(OFlags::CREATE, how.create || how.create_new);
    flags.set(OFlags::EXCL, how.create_new);
    flags.set(OFlags::TRUNC, how.truncate);
    let there = calls::retry(|| rustix::fs::stat(path));
    if let Ok(stat) = &there
        && !how.create_new
    {
        kind_of(path, stat)?;
    }
    let open = |flags| calls::retry(|| openat(CWD, path, flags, Mode::from_raw_mode(0o666)));
    let opened = match open(flags | OFlags::NONBLOCK) {
        // A different process, such as a file server, holds a lease; a blocking open waits for it.
        Err(Errno::AGAIN) if there.is_ok() => open(flags),
        opened => opened,
    };
    opened.map_err(|source| Error::io(Operation::Open, Place::whole(path), source))
}

fn kind_of(path: &Path, stat: &Stat) -> Result<Kind> {
    Kind::of(FileType::from_raw_mode(stat.st_mode))
        .map_err(|kind| Error::NotAFile { path: path.to_owned(), kind })
}

#[cfg(test)]
mod tests;

//! All that the engine needs to know about a file: its descriptors and what they can do, the
//! alignment that O_DIRECT wants, and what of it is in the page cache.
//!
//! A [`Handle`] is opened once and shared; everything but the opening itself is found out at the
//! first question and kept. Nothing here knows about plans, slots or GPUs.

mod calls;
mod direct;
mod given;
mod kind;
pub(crate) mod pages;
mod port;
mod reopen;
mod residency;
mod stale;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

pub(crate) use calls::{page_size, read_at_raw, read_nowait_raw, write_at_raw};
pub(crate) use direct::Direct;
use direct::Refusal;
pub(crate) use kind::{FileSystem, Kind};
pub(crate) use port::{FoundPort, NoPort, Port, PortError, Ports};
pub use residency::Residency;
pub(crate) use residency::Source;

use crate::error::{Error, Operation, Place, Result};
use crate::events;
use crate::topology::{BlockDevice, System};
use crate::units::ByteRange;

/// How to open a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OpenHow {
    /// Open for writing as well as reading.
    pub(crate) write: bool,
    /// Create where missing.
    pub(crate) create: bool,
    /// Fail where it exists.
    pub(crate) create_new: bool,
    /// Cut to zero bytes.
    pub(crate) truncate: bool,
}

/// An open file or block device.
#[derive(Debug)]
pub(crate) struct Handle {
    path: PathBuf,
    fd: OwnedFd,
    kind: Kind,
    /// Its access and O_SYNC, which the descriptor with O_DIRECT has as well.
    flags: OFlags,
    /// Whether `path` is what it was opened by.
    is_named: bool,
    spared: Option<given::Spared>,
    identity: (u64, u64),
    /// The number of the device that it is, or that its file system reports for its files.
    device: u64,
    /// Its file system's block, as it was when the file was opened.
    block: u64,
    file_system: FileSystem,
    drive: OnceLock<BlockDevice>,
    direct: OnceLock<Result<Direct, String>>,
    /// Why requests with O_DIRECT are made no more, although there is a descriptor.
    refused: OnceLock<String>,
    /// Set by a first read with O_DIRECT that has come through.
    confirmed: OnceLock<()>,
    source: OnceLock<Source>,
    nowait: OnceLock<bool>,
    queue: OnceLock<usize>,
    ports: Ports,
}

impl Handle {
    /// Opens `path`. Never waits for the other end of a FIFO, and refuses what has no offsets.
    ///
    /// # Errors
    /// [`Error::NotAFile`] for a folder, FIFO, socket or character device, [`Error::BadRequest`]
    /// for a creation without the right to write, [`Error::Io`] for all that the system refuses.
    pub(crate) fn open(path: impl Into<PathBuf>, how: &OpenHow) -> Result<Self> {
        let path = path.into();
        let failed = |errno| Error::Io {
            operation: Operation::Open,
            place: Place::whole(&path),
            source: errno,
        };
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
        // The flag has served; io_uring would take it as a wish not to wait for a block device.
        rustix::fs::fcntl_setfl(&fd, OFlags::empty()).map_err(failed)?;
        let flags = if how.write { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(Self { is_named: true, ..Self::of(path, fd, &stat, flags)? })
    }

    /// The handle of an open descriptor.
    fn of(path: PathBuf, fd: OwnedFd, stat: &Stat, flags: OFlags) -> Result<Self> {
        let kind = kind_of(&path, stat)?;
        let file_system = rustix::fs::fstatfs(&fd).map_err(|source| Error::Io {
            operation: Operation::Open,
            place: Place::whole(&path),
            source,
        })?;
        Ok(Self {
            path,
            fd,
            kind,
            flags: reopen::lasting(flags),
            is_named: false,
            spared: None,
            identity: identity(stat),
            block: u64::try_from(stat.st_blksize).unwrap_or(0),
            device: if kind == Kind::BlockDevice { stat.st_rdev } else { stat.st_dev },
            file_system: FileSystem::of(&file_system),
            drive: OnceLock::new(),
            direct: OnceLock::new(),
            refused: OnceLock::new(),
            confirmed: OnceLock::new(),
            source: OnceLock::new(),
            nowait: OnceLock::new(),
            queue: OnceLock::new(),
            ports: Ports::default(),
        })
    }

    /// Its ways to GPUs without a copy on the host.
    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The path as it was given, or what `/proc` calls the descriptor that was given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor that goes through the page cache.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it was opened for writing.
    pub(crate) fn writable(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }

    /// Whether it was opened for reading, which only a given descriptor may not be.
    pub(crate) fn readable(&self) -> bool {
        !self.flags.contains(OFlags::WRONLY)
    }

    /// What tells it from every other file while it is open, whatever its name.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// What the page cache dirties as one, at the least: a page, or a larger block of the file
    /// system (XFS and ext4 have blocks of up to 64 KiB on pages of 4 from Linux 6.12 on).
    pub(crate) fn cache_unit(&self) -> u64 {
        let is_sane = self.block.is_power_of_two() && self.block <= 1 << 20;
        page_size().max(if is_sane { self.block } else { 0 })
    }

    /// The number of the device that it is, or that its file system reports for its files.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Its size now, in bytes; the whole device for a block device.
    ///
    /// # Errors
    /// [`Error::Io`] where the system does not say.
    pub(crate) fn size(&self) -> Result<u64> {
        let size = match self.kind {
            Kind::Regular => {
                rustix::fs::fstat(&self.fd).map(|stat| u64::try_from(stat.st_size).unwrap_or(0))
            }
            // Not by a seek: whoever gave the descriptor shares its position.
            Kind::BlockDevice => calls::device_size(self.fd()),
        };
        size.map_err(|errno| self.failed(Operation::Inspect, ByteRange::at(0, 0), errno))
    }

    /// Its size in bytes as the kernel knew it last: no server is asked.
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

    /// Whether its file system, which says so of it, knows its `size`. Where it does not, and where
    /// a file says that it is empty (many that the kernel makes up do), only a read shows the end.
    pub(crate) fn is_sized(&self, size: u64) -> bool {
        let made_up = self.kind == Kind::Regular && self.file_system.makes_sizes_up();
        size > 0 && !made_up
    }

    /// `len` bytes at `offset` of this file, as an error names them.
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

    /// The drive below it.
    pub(crate) fn drive(&self) -> &BlockDevice {
        self.drive.get_or_init(|| System::default().drive(self.device))
    }

    /// Its descriptor with O_DIRECT, opened at the first call, or why there is none. What may be
    /// there in a moment is not taken for missing: the next call tries again. No drive is waited
    /// for: the first request tells whether the file system takes any.
    pub(crate) fn direct(&self) -> Result<&Direct, &str> {
        if let Some(reason) = self.refused.get() {
            return Err(reason);
        }
        let kept = match self.direct.get() {
            Some(kept) => kept,
            None => {
                let found = match Direct::open(self) {
                    Ok(direct) => Ok(direct),
                    Err(Refusal::Lasting(reason)) => Err(reason),
                    Err(Refusal::Passing(reason)) => {
                        events::direct_refused(&self.path, reason, false);
                        return Err(reason);
                    }
                };
                let is_news = self.direct.set(found).is_ok();
                let kept = self.direct.get().expect("set above, or by another");
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

    /// The same, tried once by a read, which waits for the drive.
    pub(crate) fn try_direct(&self) -> Result<&Direct, &str> {
        let direct = self.direct()?;
        if self.confirmed.get().is_none() {
            match direct.confirm(self) {
                Ok(()) => *self.confirmed.get_or_init(|| ()),
                Err(Refusal::Lasting(reason)) => return Err(self.refused.get_or_init(|| reason)),
                Err(Refusal::Passing(reason)) => return Err(reason),
            }
        }
        Ok(direct)
    }

    /// Notes that the file system has answered a request with O_DIRECT so; returns what that means,
    /// and whether it is news.
    pub(crate) fn refuse_direct(&self, errno: Errno) -> (&str, bool) {
        let is_news = self.refused.set(direct::failed(errno)).is_ok();
        (self.refused.get().expect("set above, or before"), is_news)
    }

    /// True if io_uring may move its bytes past the page cache. Other files are left to threads:
    /// see [`FileSystem::completes_requests`]. An overlay passes on the alignment that the file
    /// system below reports; FUSE reports none.
    pub(crate) fn allows_io_uring(&self) -> bool {
        let reports_alignment =
            || matches!(self.direct.get(), Some(Ok(direct)) if direct.reports_alignment());
        self.kind == Kind::BlockDevice
            || self.file_system.completes_requests()
            || (self.file_system.is_overlay() && reports_alignment())
    }

    /// Tells subscribers that it was opened.
    pub(crate) fn tell_opened(&self) {
        events::file_opened(&self.path, self.file_system(), self.writable(), self.reopened());
    }

    /// Whether [`direct`](Self::direct) has its answer already.
    pub(crate) fn knows_direct(&self) -> bool {
        self.direct.get().is_some()
    }

    /// The number of the queue that serves it, in the engine that opened it; its drive stays the
    /// same while it is open, whatever is mounted over it.
    pub(crate) fn queue(&self) -> &OnceLock<usize> {
        &self.queue
    }

    /// Makes its bytes durable, and of the rest what is needed to read them.
    ///
    /// # Errors
    /// [`Error::Io`]: bytes written before may be lost.
    pub(crate) fn sync_data(&self) -> Result<()> {
        calls::sync_data(self.fd()).map_err(|e| Error::io(Operation::Sync, self.place(0, 0), e))
    }

    /// Makes its bytes and everything else about it durable.
    ///
    /// # Errors
    /// [`Error::Io`]: bytes written before may be lost.
    pub(crate) fn sync_all(&self) -> Result<()> {
        calls::sync_all(self.fd()).map_err(|e| Error::io(Operation::Sync, self.place(0, 0), e))
    }

    /// Reserves room for `len` bytes at `offset` without changing the size; `false` where the
    /// file system cannot.
    ///
    /// # Errors
    /// [`Error::Io`], which is ENOSPC on a full disk; part of the room may stay reserved then.
    pub(crate) fn preallocate(&self, offset: u64, len: u64) -> Result<bool> {
        let end = offset.checked_add(len).and_then(|end| i64::try_from(end).ok());
        if end.is_none() {
            let (operation, place) = (Operation::Preallocate, self.place(offset, len));
            let reason = "no file reaches so far".into();
            return Err(Error::BadRequest { operation, place, reason });
        }
        if self.kind == Kind::BlockDevice {
            return Ok(false); // there is nothing to reserve, and older kernels drop dirty pages
        }
        calls::reserve(self.fd(), ByteRange::at(offset, len))
            .map_err(|e| Error::io(Operation::Preallocate, self.place(offset, len), e))
    }

    /// Whether a read can be tried without waiting; asked once, behind the end of every file, so
    /// that the question starts no read-ahead.
    pub(crate) fn supports_nowait(&self) -> bool {
        *self.nowait.get_or_init(|| self.nowait_at(&mut [0], 1 << 62).is_ok())
    }

    /// Whether [`supports_nowait`](Self::supports_nowait) has its answer already.
    #[cfg(test)]
    pub(crate) fn knows_nowait(&self) -> bool {
        self.nowait.get().is_some()
    }

    /// Whether opening it once more may wait: for its server (FUSE, network file systems), or there
    /// for pages that are being read. No transfer should begin with that.
    pub(crate) fn opens_slowly(&self) -> bool {
        !self.is_memory() && !self.supports_nowait()
    }

    /// Reads into `target` what is in the page cache at `offset`: a count below its length where
    /// only the first part is (or the file ends), `None` where nothing is, where the file system
    /// cannot tell, and where the read fails, for then the one that waits tells why.
    ///
    /// A try that finds less than it asked for starts read-ahead.
    pub(crate) fn try_read_nowait(&self, target: &mut [u8], offset: u64) -> Option<usize> {
        if !self.supports_nowait() {
            return None;
        }
        self.nowait_at(target, offset).ok()
    }

    fn nowait_at(&self, target: &mut [u8], offset: u64) -> io::Result<usize> {
        calls::read_nowait(self.fd(), target, offset)
    }

    /// Whether its bytes have no other place than memory.
    pub(crate) fn is_memory(&self) -> bool {
        // A block device's node lives in memory; its bytes do not.
        self.kind == Kind::Regular && self.file_system.is_memory()
    }

    /// Has the file system report what it would when each descriptor of the file is closed.
    ///
    /// # Errors
    /// [`Error::Io`]: bytes written before may be lost.
    pub(crate) fn flush(&self) -> Result<()> {
        let flushed = calls::flush(self.fd());
        let direct = match self.direct.get() {
            Some(Ok(direct)) => calls::flush(direct.fd()),
            _ => Ok(()),
        };
        let flushed = flushed.and(direct);
        flushed.map_err(|e| Error::io(Operation::Close, self.place(0, 0), e))
    }

    fn failed(&self, operation: Operation, range: ByteRange, source: Errno) -> Error {
        Error::Io { operation, place: self.place(range.start, range.len()), source }
    }
}

/// Opens `path` without waiting for anybody, if it is something that may be opened at all:
/// opening a character device can have effects of its own, such as to rewind a tape.
fn open_without_waiting(path: &Path, how: &OpenHow) -> Result<OwnedFd> {
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
        // Somebody holds a lease, such as a file server, and gives it back to those who wait.
        Err(Errno::AGAIN) if there.is_ok() => open(flags),
        opened => opened,
    };
    opened.map_err(|source| Error::Io {
        operation: Operation::Open,
        place: Place::whole(path),
        source,
    })
}

fn kind_of(path: &Path, stat: &Stat) -> Result<Kind> {
    Kind::of(FileType::from_raw_mode(stat.st_mode))
        .map_err(|kind| Error::NotAFile { path: path.to_owned(), kind })
}

/// File system and inode, or the device itself, which may have several nodes.
fn identity(stat: &Stat) -> (u64, u64) {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (stat.st_rdev, 0),
        _ => (stat.st_dev, stat.st_ino),
    }
}

#[cfg(test)]
mod tests;

//! A file of an engine, and the calls that move its bytes.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::lent::Borrowed;
use super::start::Call;
use super::{Engine, bad_request};
use crate::error::{Error, Operation, Place, Result};
use crate::file::{Handle, OpenHow, Residency};
use crate::gpu::DeviceId;
use crate::memory::{Buffer, Source, Span, Target};
use crate::plan::Route;
use crate::queue::{Direction, Priority};
use crate::topology::BlockDevice;
use crate::transfer::{Outcome, SyncMode, Transfer};
use crate::units::ByteRange;

/// Memory at first for a whole file whose size is not known: most that the kernel makes up fit.
const ROOM: u64 = 64 << 10;

/// How to open a file. The default is to read one that exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// For writing as well as reading.
    pub write: bool,
    /// Make it where it is missing.
    pub create: bool,
    /// Make it, and fail where it exists.
    pub create_new: bool,
    /// Cut it to zero bytes.
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
}

impl From<&OpenOptions> for OpenHow {
    fn from(how: &OpenOptions) -> Self {
        let OpenOptions { write, create, create_new, truncate } = *how;
        Self { write, create, create_new, truncate }
    }
}

/// What a request may demand beyond its bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestOptions {
    /// Take this route or fail. `Cached` to or from host memory is through the page cache, and the
    /// outcome says `Host`.
    pub route: Option<Route>,
    /// A read: fail where the file ends early.
    pub exact: bool,
    /// A write: make the bytes durable before it counts as done.
    pub sync: SyncMode,
    /// A write: reserve the room first, so that a full disk shows at once. The caller waits for the
    /// drive, also where the call does not block otherwise.
    pub preallocate: bool,
    /// How soon its requests are made, beside those of other transfers on the same drive.
    pub priority: Priority,
}

impl RequestOptions {
    /// Demands `route`.
    #[must_use]
    pub fn by_route(route: Route) -> Self {
        Self { route: Some(route), ..Self::default() }
    }

    /// Demands that every byte arrives.
    #[must_use]
    pub fn exactly() -> Self {
        Self { exact: true, ..Self::default() }
    }

    /// The same with `sync`.
    #[must_use]
    pub fn synced(self, sync: SyncMode) -> Self {
        Self { sync, ..self }
    }

    /// The same, before all that is not urgent.
    #[must_use]
    pub fn urgent(self) -> Self {
        Self { priority: Priority::Urgent, ..self }
    }

    /// The same with a reservation first.
    #[must_use]
    pub fn preallocated(self) -> Self {
        Self { preallocate: true, ..self }
    }
}

/// A file opened by an engine. Clones share one descriptor, which is closed with the last of them
/// once nothing is in flight. As its engine it belongs to the process that opened it: a forked
/// child is refused with [`Error::Forked`](crate::Error::Forked).
#[derive(Debug, Clone)]
pub struct File {
    pub(super) handle: Arc<Handle>,
    pub(super) engine: Engine,
}

impl File {
    pub(super) fn new(handle: Arc<Handle>, engine: Engine) -> Self {
        Self { handle, engine }
    }

    /// The path as it was given. Of a descriptor that was given it is what `/proc` calls it, with
    /// ` (deleted)` behind where the name is gone, or `fd 5` where `/proc` does not say.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.handle.path()
    }

    /// Its size in bytes now, as its file system says; the whole device for a block device. Files
    /// that the kernel makes up when they are read, as in `/proc`, hold more than they say.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) where the system does not say.
    pub fn len(&self) -> Result<u64> {
        self.check(Operation::Inspect, 0, 0)?;
        self.handle.size()
    }

    /// Whether it holds no byte now.
    ///
    /// # Errors
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// The name of its file system, such as `ext4`; `unknown` where it is none that is known.
    #[must_use]
    pub fn file_system(&self) -> &'static str {
        self.handle.file_system()
    }

    /// The kernel's name for the block device below it, such as `nvme1n1`.
    #[must_use]
    pub fn drive(&self) -> Option<&str> {
        self.block_device()?.name()
    }

    /// What the maker calls that device.
    #[must_use]
    pub fn drive_model(&self) -> Option<String> {
        self.block_device()?.model()
    }

    /// Whether the kernel takes that device for a spinning disk; `None` where it does not say.
    #[must_use]
    pub fn is_rotational(&self) -> Option<bool> {
        self.block_device()?.rotational()
    }

    /// Why its bytes cannot go around the page cache, for good or at the moment; `None` where they
    /// can. The first call reads from the drive, and waits for it.
    #[must_use]
    pub fn no_direct_io(&self) -> Option<&str> {
        if !self.engine.home().is_here() {
            return Some("the file was opened before this process was forked");
        }
        self.handle.try_direct().err()
    }

    /// Why another descriptor than the one that was given moves its bytes; `None` where that one
    /// does, and for a file that was opened by its path.
    #[must_use]
    pub fn reopened(&self) -> Option<&str> {
        self.handle.reopened()
    }

    /// Reads from `offset` into all of `target`, up to the end of the file, as `pread` does;
    /// returns when the bytes are there. At or beyond the end nothing is read. A file that becomes
    /// shorter meanwhile ends where it ends then.
    ///
    /// # Errors
    /// Any of [`Error`](crate::Error)'s; the target may hold part of the bytes then.
    pub fn read<'a>(&self, offset: u64, target: impl Into<Target<'a>>) -> Result<Outcome> {
        self.read_with(offset, target, &RequestOptions::default())
    }

    /// As [`read`](Self::read), but an early end of the file is an error.
    ///
    /// # Errors
    /// [`Error::EndOfFile`](crate::Error::EndOfFile) says how many bytes arrived, and
    /// [`Error::FileChanged`](crate::Error::FileChanged) the same of a file that held all of them
    /// when the read began.
    pub fn read_exact<'a>(&self, offset: u64, target: impl Into<Target<'a>>) -> Result<Outcome> {
        self.read_with(offset, target, &RequestOptions::exactly())
    }

    /// As [`read`](Self::read), with demands.
    ///
    /// # Errors
    /// [`Error::RouteUnavailable`](crate::Error::RouteUnavailable) for a route that cannot be had.
    pub fn read_with<'a>(
        &self,
        offset: u64,
        target: impl Into<Target<'a>>,
        options: &RequestOptions,
    ) -> Result<Outcome> {
        // The borrow lasts until the transfer has drained: `wait` has no bound.
        let mut target = target.into();
        let span = match &mut target {
            Target::Host(bytes) => Span::of_host(bytes),
            Target::Buffer(buffer, range) => self.part(Operation::Read, offset, buffer, range)?,
        };
        self.run(Direction::Read, offset, span, options)
    }

    /// Reads the whole file into new memory: on `device`, or pinned on the host.
    ///
    /// # Errors
    /// As [`read_exact`](Self::read_exact), also where the file shrinks meanwhile.
    pub fn read_whole(&self, device: Option<DeviceId>) -> Result<(Buffer, Outcome)> {
        self.read_whole_by(device, &mut |buffer, options| self.read_with(0, buffer, options))
    }

    /// The same, by another way to read.
    pub(super) fn read_whole_by(
        &self,
        device: Option<DeviceId>,
        read: &mut dyn FnMut(&mut Buffer, &RequestOptions) -> Result<Outcome>,
    ) -> Result<(Buffer, Outcome)> {
        let len = self.len()?;
        let allocate = |len| match device {
            Some(device) => self.engine.allocate(device, len),
            None => self.engine.allocate_pinned(len),
        };
        if self.handle.is_sized(len) {
            let mut buffer = allocate(len)?;
            return match read(&mut buffer, &RequestOptions::exactly()) {
                Ok(outcome) => Ok((buffer, outcome)),
                // It held as many a moment ago.
                Err(Error::EndOfFile { place, got }) => Err(Error::FileChanged { place, got }),
                Err(error) => Err(error),
            };
        }
        let mut room = ROOM;
        loop {
            let mut buffer = allocate(room)?;
            let outcome = read(&mut buffer, &RequestOptions::default())?;
            if outcome.bytes < room {
                return Ok((buffer.split_at(outcome.bytes).0, outcome));
            }
            room *= 2;
        }
    }

    /// Writes all of `source` at `offset`; returns when the bytes are in the page cache, or on the
    /// drive where a route or durability is demanded. No byte outside the range is touched.
    ///
    /// # Errors
    /// Any of [`Error`](crate::Error)'s; part of the bytes may be written then.
    pub fn write<'a>(&self, offset: u64, source: impl Into<Source<'a>>) -> Result<Outcome> {
        self.write_with(offset, source, &RequestOptions::default())
    }

    /// As [`write`](Self::write), with demands.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`Error::RouteUnavailable`](crate::Error::RouteUnavailable).
    pub fn write_with<'a>(
        &self,
        offset: u64,
        source: impl Into<Source<'a>>,
        options: &RequestOptions,
    ) -> Result<Outcome> {
        let source = source.into();
        let span = match &source {
            Source::Host(bytes) => Span::of_host_source(bytes),
            Source::Buffer(buffer, range) => self.part(Operation::Write, offset, buffer, range)?,
        };
        self.run(Direction::Write, offset, span, options)
    }

    /// Starts reading into all of `target`, which the transfer owns until it is waited for.
    ///
    /// # Errors
    /// What can be known at once; the rest comes from [`Transfer::wait`].
    pub fn start_read(
        &self,
        offset: u64,
        target: Buffer,
        options: &RequestOptions,
    ) -> Result<Transfer> {
        self.start(Direction::Read, offset, target, options)
    }

    /// Starts writing all of `source`, which the transfer owns until it is waited for.
    ///
    /// # Errors
    /// What can be known at once; the rest comes from [`Transfer::wait`].
    pub fn start_write(
        &self,
        offset: u64,
        source: Buffer,
        options: &RequestOptions,
    ) -> Result<Transfer> {
        self.start(Direction::Write, offset, source, options)
    }

    /// Makes what was written durable, with what is needed to read it again (`fdatasync`).
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): bytes written before may be lost.
    pub fn sync_data(&self) -> Result<()> {
        self.check(Operation::Sync, 0, 0)?;
        self.handle.sync_data()
    }

    /// Makes what was written durable with all metadata (`fsync`).
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): bytes written before may be lost.
    pub fn sync_all(&self) -> Result<()> {
        self.check(Operation::Sync, 0, 0)?;
        self.handle.sync_all()
    }

    /// Reserves room for `len` bytes at `offset` and leaves the size as it is; `false` where the
    /// file system cannot.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), on a full disk above all.
    pub fn preallocate(&self, offset: u64, len: u64) -> Result<bool> {
        self.check(Operation::Preallocate, offset, len)?;
        self.handle.preallocate(offset, len)
    }

    /// How much of a range is in the page cache, as far as the kernel tells this user.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) where the file's size cannot be had.
    pub fn residency(&self, offset: u64, len: u64) -> Result<Residency> {
        self.check(Operation::Inspect, offset, len)?;
        let end = self.handle.size()?;
        let range = ByteRange::at(offset.min(end), len.min(end.saturating_sub(offset)));
        Ok(self.handle.residency(range))
    }

    /// As [`residency`](Self::residency), of bytes inside the file: its server is not asked.
    pub(crate) fn residency_inside(&self, range: ByteRange) -> Residency {
        self.handle.residency(range)
    }

    /// Writes this file's dirty pages out and drops its pages from the page cache; says what
    /// stayed.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
    pub fn evict(&self) -> Result<Residency> {
        self.check(Operation::Inspect, 0, 0)?;
        self.handle.evict()
    }

    /// Refuses a forked child, before anything that may be locked for ever there.
    #[inline]
    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        let place = || Some(Place { offset, len, ..Place::whole(self.handle.path()) });
        self.engine.home().check(operation, place)
    }

    /// The drive below it; a forked child is told of none.
    fn block_device(&self) -> Option<&BlockDevice> {
        self.engine.home().is_here().then(|| self.handle.drive())
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn into_parts(self) -> (Arc<Handle>, Engine) {
        (self.handle, self.engine)
    }

    /// Starts a block of a transfer, with a file whose size is known.
    pub(super) fn start_sized(
        &self,
        direction: Direction,
        offset: u64,
        memory: Buffer,
        options: &RequestOptions,
        size: u64,
    ) -> Result<Transfer> {
        let call = self.call(direction, offset, &memory, options)?;
        let call = Call { size: Some(size), is_block: true, ..call };
        let state = self.engine.start(&call, Some(memory))?;
        Ok(Transfer::new(state, self.engine.clone()))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn shared_handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(super) fn part(
        &self,
        operation: Operation,
        offset: u64,
        buffer: &Buffer,
        range: &Range<u64>,
    ) -> Result<Span> {
        let len = range.end.saturating_sub(range.start);
        self.check(operation, offset, len)?;
        buffer.check_usable(Some(self.handle.place(offset, len)))?;
        Span::of(buffer, range).ok_or_else(|| {
            let reason = format!(
                "the range {}..{} lies outside the buffer of {} bytes",
                range.start,
                range.end,
                buffer.len()
            );
            bad_request(operation, self.handle.place(offset, len), reason)
        })
    }

    pub(super) fn check_access(&self, direction: Direction, offset: u64, len: u64) -> Result<()> {
        self.check(direction.operation(), offset, len)?;
        let (operation, reason) = match direction {
            Direction::Read if !self.handle.readable() => {
                (Operation::Read, "the file is open for writing only")
            }
            Direction::Write if !self.handle.writable() => {
                (Operation::Write, "the file is open for reading only")
            }
            Direction::Read | Direction::Write => return Ok(()),
        };
        Err(bad_request(operation, self.handle.place(offset, len), reason.into()))
    }

    fn run(
        &self,
        direction: Direction,
        offset: u64,
        span: Span,
        options: &RequestOptions,
    ) -> Result<Outcome> {
        self.check_access(direction, offset, span.len)?;
        let call = Call::new(&self.handle, direction, offset, span, options);
        if let Some(done) = self.engine.move_small_traced(&call) {
            return done;
        }
        let on_gpu = call.span.gpu.is_some();
        let borrowed = Borrowed::new(&self.engine, self.engine.start(&call, None)?);
        self.engine.help(&borrowed.state);
        if on_gpu { borrowed.state.wait_awake().0 } else { borrowed.state.wait().0 }
    }

    pub(super) fn start(
        &self,
        direction: Direction,
        offset: u64,
        memory: Buffer,
        options: &RequestOptions,
    ) -> Result<Transfer> {
        let call = self.call(direction, offset, &memory, options)?;
        let state = self.engine.start(&call, Some(memory))?;
        Ok(Transfer::new(state, self.engine.clone()))
    }

    /// A call that moves all of a buffer, if it may.
    pub(super) fn call<'a>(
        &'a self,
        direction: Direction,
        offset: u64,
        memory: &Buffer,
        options: &'a RequestOptions,
    ) -> Result<Call<'a>> {
        self.check_access(direction, offset, memory.len())?;
        let span = self.part(direction.operation(), offset, memory, &(0..memory.len()))?;
        Ok(Call { may_wait: false, ..Call::new(&self.handle, direction, offset, span, options) })
    }
}

//! A file of an engine.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use forebay_base::units::ByteRange;
use forebay_topology::BlockDevice;

use super::small::{HERE_MAX, Setup};
use super::start::Call;
use super::unwind::OnUnwind;
use super::{Engine, bad_request};
use crate::engine::Transfer;
use crate::error::{Operation, Place, Result, refuse_child};
use crate::file::{Handle, Residency};
use crate::memory::{Buffer, Lent, Span};
use crate::options::RequestOptions;
use crate::plan::Direction;
use crate::transfer::Outcome;

/// A file opened by an engine. Clones share one descriptor, which is closed with the last of them
/// once nothing is in flight. [`Read`], [`Write`] and [`Seek`] of the standard library use host
/// memory, and so does `std::os::unix::fs::FileExt`:
///
/// ```
/// use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
///
/// # fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// let engine = forebay::Engine::new(forebay::Options::default())?;
/// let mut file = engine.open_with(dir.path().join("log"), &forebay::OpenOptions::writing())?;
/// writeln!(file, "first\nsecond")?;
/// file.seek(SeekFrom::Start(0))?;
/// let lines: Vec<String> = BufReader::new(file).lines().collect::<Result<_, _>>()?;
/// assert_eq!(lines, ["first", "second"]);
/// # Ok(())
/// # }
/// ```
/// Like its engine it belongs to the process that opened it: a forked
/// child gets [`Error::Forked`](crate::Error::Forked).
///
/// ```
/// use forebay::{Engine, OpenOptions, Options, Residency};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = Engine::new(Options::default())?;
/// let file = engine.open_with(&path, &OpenOptions::writing())?;
/// file.preallocate(0, 1 << 20)?; // `false` on some file systems
/// file.write(&[1, 2, 3]).at(4096).run()?;
/// file.sync_data()?; // or `sync_all`
/// if let Residency::Known { resident, len } = file.residency(0, 4096)? {
///     println!("{resident} of {len} bytes of {} are in memory", file.path().display());
/// }
/// file.evict()?; // the next read is from the drive
/// file.set_len(4096)?;
/// assert!(file.len()? == 4096 && !file.is_empty()?);
/// # file.sync_all()?;
/// file.close()?; // with the errors that a drop ignores
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct File {
    pub(crate) handle: Arc<Handle>,
    pub(crate) engine: Engine,
    /// Offset of the next byte for [`Read`], [`Write`] and [`Seek`]; clones have their own.
    position: u64,
}

impl File {
    pub(crate) fn new(handle: Arc<Handle>, engine: Engine) -> Self {
        Self { handle, engine, position: 0 }
    }

    /// The path as it was given. For a descriptor it is the path from `/proc`, or `fd 5` if `/proc`
    /// does not report one. If the name was removed, ` (deleted)` follows.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.handle.path()
    }

    /// Its current size in bytes, as reported by the file system; for a block device the whole
    /// device. Files that the kernel generates when they are read, as in `/proc`, hold more than
    /// they report.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system does not report it.
    pub fn len(&self) -> Result<u64> {
        self.check(Operation::Inspect, 0, 0)?;
        self.handle.size()
    }

    /// Whether it is empty now.
    ///
    /// # Errors
    /// As for [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Makes written bytes durable, with the metadata needed to read them again (`fdatasync`).
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): bytes written before may be lost.
    pub fn sync_data(&self) -> Result<()> {
        self.check(Operation::Sync, 0, 0)?;
        self.handle.sync_data()
    }

    /// Makes written bytes durable with all metadata (`fsync`).
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): bytes written before may be lost.
    pub fn sync_all(&self) -> Result<()> {
        self.check(Operation::Sync, 0, 0)?;
        self.handle.sync_all()
    }

    /// Reserves space for `len` bytes at `offset` without changing the size; `false` if the file
    /// system cannot.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), mostly on a full disk.
    pub fn preallocate(&self, offset: u64, len: u64) -> Result<bool> {
        self.check(Operation::Preallocate, offset, len)?;
        self.handle.preallocate(offset, len)
    }

    /// Sets the length of the file, as `ftruncate`: bytes beyond it are dropped, missing ones are
    /// zeros.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), also for a file that is open for reading only.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.check(Operation::Truncate, len, 0)?;
        self.handle.set_len(len)
    }

    /// How much of a range is in the page cache, as far as the kernel reports it to this user.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the file's size is not available.
    pub fn residency(&self, offset: u64, len: u64) -> Result<Residency> {
        self.check(Operation::Inspect, offset, len)?;
        let end = self.handle.size()?;
        let range = ByteRange::at(offset.min(end), len.min(end.saturating_sub(offset)));
        Ok(self.handle.residency(range))
    }

    /// Writes back this file's dirty pages and drops its pages from the page cache; returns how
    /// much stayed.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
    pub fn evict(&self) -> Result<Residency> {
        self.check(Operation::Inspect, 0, 0)?;
        self.handle.evict()
    }

    /// Closes this handle of the file. If the file was opened for writing, errors that the file
    /// system reports at close are returned; a drop ignores them. Running transfers continue, and
    /// clones stay open.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): bytes written before may be lost, for example because of an
    /// NFS quota. The handle is closed in any case.
    pub fn close(self) -> Result<()> {
        let is_ours = self.engine.home().is_here();
        if is_ours && self.handle.writable() { self.handle.flush() } else { Ok(()) }
    }
}

impl Read for File {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let moved = self.read_at(bytes, self.position)?;
        self.position += moved as u64;
        Ok(moved)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let moved = self.write_at(bytes, self.position)?;
        self.position += moved as u64;
        Ok(moved)
    }

    /// Does nothing, because nothing is buffered: [`File::sync_data`] makes bytes durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.len()?.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

impl File {
    /// Fails in a forked child, before any lock that may be held there forever.
    #[inline]
    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        let place = || Some(Place { offset, len, ..Place::whole(self.handle.path()) });
        refuse_child(self.engine.home(), operation, place)
    }

    /// The drive below it; none in a forked child.
    pub(crate) fn block_device(&self) -> Option<&BlockDevice> {
        self.engine.home().is_here().then(|| self.handle.drive())
    }

    /// Starts a block of a transfer of a file whose size is known.
    pub(super) fn start_sized(
        &self,
        direction: Direction,
        offset: u64,
        memory: Buffer,
        options: &RequestOptions,
        size: u64,
    ) -> Result<Transfer> {
        let call = self.call(direction, offset, &Lent::whole(&memory), options)?;
        let call = Call { size: Some(size), is_block: true, ..call };
        let state = self.engine.start(&call, Some(memory))?;
        Ok(Transfer::new(state, self.engine.clone()))
    }

    /// The addresses of memory that may be used.
    pub(super) fn span(
        &self,
        direction: Direction,
        offset: u64,
        memory: &Lent<'_>,
    ) -> Result<Span> {
        let (operation, place) = (direction.into(), || self.handle.place(offset, memory.len()));
        if let Some(buffer) = memory.buffer() {
            self.check(operation, offset, memory.len())?;
            buffer.check_usable(|| Some((operation, place())))?;
        }
        memory.span().map_err(|reason| bad_request(operation, place(), reason))
    }

    pub(super) fn check_access(&self, direction: Direction, offset: u64, len: u64) -> Result<()> {
        self.check(direction.into(), offset, len)?;
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

    pub(super) fn run(&self, mut call: Call<'_>) -> Result<Outcome> {
        let _caller = self.engine.note_caller(&mut call);
        let call = &call;
        if let Some(done) = self.engine.move_small(call) {
            return done;
        }
        let on_gpu = call.span.gpu().is_some();
        // Many callers at once have more small reads than there are lanes.
        if let Some(state) = self.engine.start_small(call, &mut None, Setup::Allowed) {
            let _lent = OnUnwind::drained(&self.engine, &state);
            self.engine.watch(&state);
            return state.wait_awake(on_gpu);
        }
        let state = self.engine.start(call, None)?;
        let _lent = OnUnwind::drained(&self.engine, &state);
        self.engine.help(&state, &mut || {});
        state.wait_awake(on_gpu)
    }

    pub(super) fn start(
        &self,
        direction: Direction,
        offset: u64,
        memory: Buffer,
        options: &RequestOptions,
    ) -> Result<Transfer> {
        let call = self.call(direction, offset, &Lent::whole(&memory), options)?;
        let mut memory = Some(memory);
        let state = match self.engine.start_small(&call, &mut memory, Setup::Allowed) {
            Some(state) => state,
            None => self.engine.start(&call, memory)?,
        };
        Ok(Transfer::new(state, self.engine.clone()))
    }

    pub(crate) fn start_at_once(
        &self,
        offset: u64,
        target: Buffer,
        options: &RequestOptions,
    ) -> std::result::Result<Transfer, Buffer> {
        if target.len() > HERE_MAX {
            return Err(target);
        }
        let call = self.call(Direction::Read, offset, &Lent::whole(&target), options).ok();
        let mut buffer = Some(target);
        let start = |call| self.engine.start_small(&call, &mut buffer, Setup::Refused);
        match call.and_then(start) {
            Some(state) => Ok(Transfer::new(state, self.engine.clone())),
            None => Err(buffer.expect("only a started read has the buffer")),
        }
    }

    /// A call that does not block, if access is allowed.
    pub(super) fn call<'a>(
        &'a self,
        direction: Direction,
        offset: u64,
        memory: &Lent<'_>,
        options: &'a RequestOptions,
    ) -> Result<Call<'a>> {
        self.check_access(direction, offset, memory.len())?;
        let span = self.span(direction, offset, memory)?;
        Ok(Call { may_wait: false, ..Call::new(&self.handle, direction, offset, span, options) })
    }
}

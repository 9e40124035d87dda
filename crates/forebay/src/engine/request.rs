//! A read or write before it begins: which bytes, which memory, and how.

use std::io;
use std::os::unix::fs::FileExt;

use super::many::{ManyOutcome, ManyTransfer, Piece};
use super::unwind::GoOn;
use super::{Engine, File, Transfer};
use crate::error::{Error, Result};
use crate::gpu::{CallerStream, DeviceId};
use crate::memory::{Buffer, Lent, ReadInto, Sealed, ToRun, WriteFrom};
use crate::options::Priority;
use crate::options::RequestOptions;
use crate::plan::{Direction, Route};
use crate::transfer::{Outcome, SyncMode};

/// Initial memory for a whole file of unknown size: most kernel-generated files fit.
const ROOM: u64 = 64 << 10;

/// A stream for which a caller has promised what [`Request::on`] requires.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderedOn(pub(super) CallerStream);

/// A read or write that has not begun: [`File::read`], [`File::write`], [`Engine::read_many`] and
/// [`Engine::write_many`] make it. With memory that it borrows, [`run`](Self::run) blocks until the
/// bytes have moved; with a [`Buffer`] of its own, [`start`](Self::start) returns a [`Transfer`].
///
/// ```
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = forebay::Engine::new(forebay::Options::from_env()?)?;
/// let file = engine.open(&path)?;
/// let mut header = [0; 512];
/// file.read(&mut header).exact().run()?;
/// let buffer = engine.allocate_pinned(4096)?;
/// let transfer = file.read(buffer).at(512).exact().start()?;
/// let (outcome, buffer) = transfer.wait();
/// assert_eq!(outcome?.bytes, 4096);
/// # assert_eq!((header[0], buffer.unwrap().len()), (7, 4096));
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is transferred before `run` or `start`"]
pub struct Request<'a, Of, Memory> {
    pub(crate) of: Of,
    direction: Direction,
    pub(crate) memory: Memory,
    pub(crate) options: RequestOptions,
    pub(crate) stream: Option<OrderedOn>,
    go_on: Option<GoOn<'a>>,
}

/// A range of a file, as long as the request's memory.
#[derive(Debug)]
pub struct At<'a> {
    pub(crate) file: &'a File,
    pub(crate) offset: u64,
}

/// Pieces of files.
#[derive(Debug)]
pub struct Pieces<'a> {
    engine: &'a Engine,
    pieces: &'a [Piece<'a>],
}

impl File {
    /// A read from offset 0, or [`at`](Request::at) another one, into all of `target`, up to the
    /// end of the file, like `pread`. At or beyond the end nothing is read. If the file is
    /// truncated during the read, the read ends at the new end.
    pub fn read<M>(&self, target: impl ReadInto<M>) -> Request<'_, At<'_>, M> {
        Request::new(At { file: self, offset: 0 }, Direction::Read, target.memory(Sealed(())))
    }

    /// A read up to the end of the file into new memory: on `device`, or pinned on the host. The
    /// outcome's time does not include the allocation.
    pub fn read_to_end(&self, device: Option<DeviceId>) -> Request<'_, At<'_>, Option<DeviceId>> {
        Request::new(At { file: self, offset: 0 }, Direction::Read, device)
    }

    /// A read of the same bytes into several targets, which have one length and are on GPUs. The
    /// targets are full afterwards, unless the file ends early. The route is not chosen: bytes are
    /// `cached` or `staged`, and none is `direct`.
    pub fn read_to_all<'a>(
        &'a self,
        targets: &'a mut [Buffer],
    ) -> Request<'a, At<'a>, &'a mut [Buffer]> {
        Request::new(At { file: self, offset: 0 }, Direction::Read, targets)
    }

    /// A write of all of `source` at offset 0, or [`at`](Request::at) another one. It ends when the
    /// bytes are in the page cache, or on the drive if a route or durability is required. No byte
    /// outside the range is changed.
    pub fn write<M>(&self, source: impl WriteFrom<M>) -> Request<'_, At<'_>, M> {
        Request::new(At { file: self, offset: 0 }, Direction::Write, source.memory(Sealed(())))
    }
}

impl Engine {
    /// A read of many pieces of files into `targets`, all of them on one GPU or on the host.
    /// Adjacent pieces of a file are read in one request, and copies to scattered places on a GPU
    /// are batched. One call can handle tens of thousands of pieces.
    ///
    /// If pieces overlap in a target, it holds bytes of either.
    ///
    /// ```
    /// use forebay::{Engine, Options, Piece};
    ///
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("experts.bin");
    /// # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    /// let engine = Engine::new(Options::from_env()?)?;
    /// let gpu = engine.device(&"sim".parse()?)?.expect("a GPU").id();
    /// let file = engine.open(&path)?;
    /// let mut memory = engine.allocate(gpu, 256 << 10)?;
    /// // Every second 8 KiB of the file, one behind the other.
    /// let pieces: Vec<Piece> =
    ///     (0..32).map(|n| Piece::new(&file, n * (16 << 10), 8 << 10, n * (8 << 10))).collect();
    /// let outcome = engine.read_many(&pieces, [&mut memory]).exact().run()?;
    /// assert!(outcome.results.iter().all(|result| matches!(result, Ok(8192))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_many<'a, M>(
        &'a self,
        pieces: &'a [Piece<'a>],
        targets: impl IntoIterator<Item: ReadInto<M>>,
    ) -> Request<'a, Pieces<'a>, Vec<M>> {
        let memory = targets.into_iter().map(|target| target.memory(Sealed(()))).collect();
        Request::new(Pieces { engine: self, pieces }, Direction::Read, memory)
    }

    /// A read of pieces of files to the same places of several targets, as [`File::read_to_all`]
    /// does. The pieces are in the order of their places and do not overlap. Bytes between them
    /// have no defined value afterwards. The first error of a piece is that of the call.
    pub fn read_many_to_all<'a>(
        &'a self,
        pieces: &'a [Piece<'a>],
        targets: &'a mut [Buffer],
    ) -> Request<'a, Pieces<'a>, &'a mut [Buffer]> {
        Request::new(Pieces { engine: self, pieces }, Direction::Read, targets)
    }

    /// A write of many pieces of `sources`, all of them on one GPU or on the host, to files: to the
    /// page cache, as in [`File::write`], or to the drive if that is required ([`Request::sync`]).
    /// Copies from scattered places on a GPU are batched, and adjacent pieces of a file are then
    /// one request; pieces of host memory are separate requests. A file is written by a single
    /// thread at a time.
    ///
    /// If pieces overlap in a file, it holds bytes of either.
    ///
    /// ```
    /// use forebay::{Engine, OpenOptions, Options, Piece};
    ///
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("cache.bin");
    /// let engine = Engine::new(Options::from_env()?)?;
    /// let gpu = engine.device(&"sim".parse()?)?.expect("a GPU").id();
    /// let file = engine.open_with(&path, &OpenOptions::new_file())?;
    /// let mut cache = engine.allocate(gpu, 1 << 20)?;
    /// cache.fill(7)?;
    /// // Every second block of the cache, one behind the other.
    /// let pieces: Vec<Piece> =
    ///     (0..32).map(|n| Piece::new(&file, n * (16 << 10), 16 << 10, n * (32 << 10))).collect();
    /// let outcome = engine.write_many(&pieces, [&cache]).run()?;
    /// assert!(outcome.results.iter().all(|result| matches!(result, Ok(16384))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_many<'a, M>(
        &'a self,
        pieces: &'a [Piece<'a>],
        sources: impl IntoIterator<Item: WriteFrom<M>>,
    ) -> Request<'a, Pieces<'a>, Vec<M>> {
        let memory = sources.into_iter().map(|source| source.memory(Sealed(()))).collect();
        Request::new(Pieces { engine: self, pieces }, Direction::Write, memory)
    }
}

impl<'a, Of, Memory> Request<'a, Of, Memory> {
    fn new(of: Of, direction: Direction, memory: Memory) -> Self {
        let options = RequestOptions::default();
        Self { of, direction, memory, options, stream: None, go_on: None }
    }

    /// Replaces all settings.
    pub fn options(self, options: RequestOptions) -> Self {
        Self { options, ..self }
    }

    /// Uses this route or fails with [`Error::RouteUnavailable`]. For host memory,
    /// [`Route::Cached`] means through the page cache, and the outcome reports [`Route::Host`].
    pub fn route(mut self, route: impl Into<Option<Route>>) -> Self {
        self.options.route = route.into();
        self
    }

    /// Fails a read with [`Error::EndOfFile`] if the file ends early, or with
    /// [`Error::FileChanged`] if it was long enough when the read began.
    pub fn exact(mut self) -> Self {
        self.options.exact = true;
        self
    }

    /// Makes written bytes durable before the transfer is done.
    pub fn sync(mut self, sync: SyncMode) -> Self {
        self.options.sync = sync;
        self
    }

    /// Reserves the space of a write first, so that a full disk is detected at once. The caller
    /// waits for the drive, even in calls that do not block otherwise.
    pub fn preallocate(mut self) -> Self {
        self.options.preallocate = true;
        self
    }

    /// Lets a write without a route bypass the page cache (O_DIRECT) if the file allows it, at any
    /// size. Bytes that do not fill a unit of the file system at either end still go through it.
    pub fn past_cache(mut self) -> Self {
        self.options.past_cache = true;
        self
    }

    /// Sets the priority relative to other transfers on the same drive.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = priority;
        self
    }
}

impl<'a, Of, Memory: ToRun> Request<'a, Of, Memory> {
    /// Calls `go_on` about 20 times a second during [`run`](Self::run). If it returns false or
    /// panics, the transfer is cancelled, and the call ends within a second; only a small copy to
    /// or from a GPU is waited for, and I/O into memory other than a [`Buffer`]. I/O in flight
    /// keeps a buffer's memory alive, and the object that it was borrowed from. Until it has
    /// drained, every call rejects the buffer and none can read it.
    ///
    /// A call that is stopped fails with [`Error::Cancelled`], or [`Error::TimedOut`] if I/O is
    /// still in flight. The transfer may also have ended before the cancel.
    pub fn while_(self, go_on: &'a mut dyn FnMut() -> bool) -> Self {
        Self { go_on: Some(go_on), ..self }
    }
}

impl<Memory> Request<'_, At<'_>, Memory> {
    /// Sets the offset in the file.
    pub fn at(mut self, offset: u64) -> Self {
        self.of.offset = offset;
        self
    }
}

impl Request<'_, At<'_>, Lent<'_>> {
    /// Returns when the bytes have moved.
    ///
    /// # Errors
    /// Any [`Error`]; part of the bytes may then have moved.
    pub fn run(self) -> Result<Outcome> {
        let At { file, offset } = self.of;
        // The borrow lasts until the transfer has drained.
        let mut call = file.call(self.direction, offset, &self.memory, &self.options)?;
        match self.go_on {
            Some(go_on) => file.run_while(call, go_on),
            None => {
                call.may_wait = true;
                file.run(call)
            }
        }
    }
}

impl Request<'_, At<'_>, Buffer> {
    /// Starts the transfer, which owns the buffer until it is waited for.
    ///
    /// # Errors
    /// Errors that are detected at once, and those of [`on`](Self::on); all further ones come from
    /// [`Transfer::wait`].
    pub fn start(self) -> Result<Transfer> {
        let At { file, offset } = self.of;
        match self.stream {
            Some(stream) => {
                file.start_on(stream, self.direction, offset, self.memory, &self.options)
            }
            None => file.start(self.direction, offset, self.memory, &self.options),
        }
    }
}

impl Request<'_, At<'_>, Option<DeviceId>> {
    /// Returns the memory when the bytes have arrived.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::FileChanged`] if the file shrinks during the read.
    pub fn run(self) -> Result<(Buffer, Outcome)> {
        let (At { file, offset }, device, mut go_on) = (self.of, self.memory, self.go_on);
        let allocate = |len| match device {
            Some(device) => file.engine.allocate(device, len),
            None => file.engine.allocate_pinned(len),
        };
        let mut read = |buffer: &mut Buffer, exact| {
            let options = RequestOptions { exact, ..self.options };
            let request = file.read(buffer).at(offset).options(options);
            match &mut go_on {
                Some(go_on) => request.while_(&mut **go_on).run(),
                None => request.run(),
            }
        };
        let size = file.len()?;
        if file.handle.is_sized(size) {
            let mut buffer = allocate(size.saturating_sub(offset))?;
            return match read(&mut buffer, true) {
                Ok(outcome) => Ok((buffer, outcome)),
                // The file was long enough just before.
                Err(Error::EndOfFile { place, got }) => Err(Error::FileChanged { place, got }),
                Err(error) => Err(error),
            };
        }
        let mut room = ROOM;
        loop {
            let mut buffer = allocate(room)?;
            let outcome = read(&mut buffer, false)?;
            if outcome.bytes < room {
                return Ok((buffer.split_at(outcome.bytes).0, outcome));
            }
            room *= 2;
        }
    }
}

/// Positional calls of `std`, with an outcome that is only a number.
impl FileExt for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        count(self.read(bytes).at(offset).run())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        count(self.write(bytes).at(offset).run())
    }
}

fn count(outcome: Result<Outcome>) -> io::Result<usize> {
    Ok(usize::try_from(outcome?.bytes).expect("no more than the slice"))
}

impl Request<'_, At<'_>, &mut [Buffer]> {
    /// Returns when all targets hold the bytes.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for targets of several lengths or on the host, or for a required
    /// route; otherwise any [`Error`].
    pub fn run(self) -> Result<Outcome> {
        let (At { file, offset }, targets) = (self.of, self.memory);
        if let [only] = targets {
            let memory = Lent::whole(only);
            let (direction, options, go_on) = (self.direction, self.options, self.go_on);
            let of = At { file, offset };
            return Request { of, direction, memory, options, stream: None, go_on }.run();
        }
        let len = targets.first().map_or(0, Buffer::len);
        let pieces = [Piece::new(file, offset, len, 0)];
        let engine = &file.engine;
        Ok(engine.run_to_all(&pieces, targets, &self.options, self.go_on)?.whole)
    }
}

impl Request<'_, Pieces<'_>, &mut [Buffer]> {
    /// Returns when all targets hold the bytes.
    ///
    /// # Errors
    /// As for [`File::read_to_all`]; [`Error::BadRequest`] for pieces in another order.
    pub fn run(self) -> Result<ManyOutcome> {
        let Pieces { engine, pieces } = self.of;
        engine.run_to_all(pieces, self.memory, &self.options, self.go_on)
    }
}

impl Request<'_, Pieces<'_>, Vec<Lent<'_>>> {
    /// Returns when the bytes have moved.
    ///
    /// # Errors
    /// An invalid call, or a failure of the whole transfer: the GPU, a cancel. An error of one
    /// piece is in its result, and an error of a file's sync is in the results of all its pieces.
    /// With [`preallocate`](Self::preallocate) space is reserved for all pieces, or the call fails.
    pub fn run(self) -> Result<ManyOutcome> {
        let Pieces { engine, pieces } = self.of;
        engine.run_many(self.direction, pieces, &self.memory, &self.options, self.go_on)
    }
}

impl Request<'_, Pieces<'_>, Vec<Buffer>> {
    /// Starts the transfer, which owns the buffers until it is waited for.
    ///
    /// # Errors
    /// Errors that are detected at once, those of [`on`](Self::on), and a call without pieces; all
    /// further errors come from [`ManyTransfer::wait`].
    pub fn start(self) -> Result<ManyTransfer> {
        let (Pieces { engine, pieces }, buffers) = (self.of, self.memory);
        match self.stream {
            Some(stream) => {
                engine.start_many_on(stream, self.direction, pieces, buffers, &self.options)
            }
            None => engine.start_owned(self.direction, pieces, buffers, &self.options),
        }
    }
}

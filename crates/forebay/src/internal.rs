//! What layers, blocks, the command and the Python package need beyond the public API. It may
//! change with every release.

use std::any::Any;
use std::io;
use std::iter;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_base::units::ByteRange;
use forebay_cufile::{Program, Session};
use libc::{EAGAIN, EIO};

use crate::engine::{At, Engine, File, Request, Transfer, notes, readers};
use crate::error::{Error, Operation, Place, Result, SystemError, refuse_child};
use crate::file::Residency;
use crate::gpu::{Device, DeviceError, DeviceId};
use crate::memory::{Buffer, Memory, Origin};
use crate::options::Options;
use crate::plan::{Direction, Reason};
use crate::statistics::{Histogram, bucket};

pub use crate::engine::{BlockRead, DetachedFile};
pub use crate::memory::Exchange;
pub use crate::plan::{Packed, Packing, SKEW, Wanted};
pub use crate::trace::{Recorded, Span, Trace, What};
pub use forebay_base::clock;
pub use forebay_gpu::{AddressKind, BATCH_MAX, DeviceCopy, DeviceResult, Event, Signal, Stream};

#[doc(hidden)]
impl File {
    /// The kernel's name for the block device below it, such as `nvme1n1`.
    #[must_use]
    pub fn drive(&self) -> Option<&str> {
        self.block_device()?.name()
    }

    /// The name of its file system, such as `ext4`; `unknown` for one without a known name.
    #[must_use]
    pub fn file_system(&self) -> &'static str {
        self.handle.file_system()
    }

    /// The model name of that device.
    #[must_use]
    pub fn drive_model(&self) -> Option<String> {
        self.block_device()?.model()
    }

    /// Whether the kernel reports that device as a spinning disk; `None` if it does not report it.
    #[must_use]
    pub fn is_rotational(&self) -> Option<bool> {
        self.block_device()?.rotational()
    }

    /// Why O_DIRECT is not possible, permanently or at the moment; `None` if it is. The first call
    /// reads from the drive and waits for it.
    #[must_use]
    pub fn no_direct_io(&self) -> Option<&str> {
        if !self.engine.home().is_here() {
            return Some("the file was opened before this process was forked");
        }
        self.handle.try_o_direct().err()
    }

    /// Why the given descriptor was opened anew; `None` if it is used as given, or if the file was
    /// opened by path.
    #[must_use]
    pub fn reopened(&self) -> Option<&str> {
        self.handle.reopened()
    }

    /// Like [`residency`](Self::residency), for bytes inside the file: the server is not queried.
    #[must_use]
    pub fn residency_inside(&self, range: ByteRange) -> Residency {
        self.handle.residency(range)
    }

    /// Drops this handle. The last one of the file returns the file, and dropping that closes it,
    /// which may wait for a server.
    #[must_use]
    pub fn dispose(self) -> Option<impl Send> {
        Arc::into_inner(self.handle)
    }

    /// Whether both are handles of one opened file.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Whether that engine opened it.
    #[must_use]
    pub fn is_of(&self, engine: &Engine) -> bool {
        std::ptr::eq(&*self.engine.inner, &*engine.inner)
    }

    /// The descriptor that uses the page cache.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.handle.fd()
    }

    /// Identifies the file, however often it was opened.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.handle.identity()
    }

    /// Whether it was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.handle.writable()
    }

    /// A range of it, for errors.
    #[must_use]
    pub fn place(&self, offset: u64, len: u64) -> Place {
        self.handle.place(offset, len)
    }

    /// Why its pages cannot be mapped and pinned.
    #[must_use]
    pub fn no_pages(&self) -> Option<String> {
        self.handle.no_pages()
    }

    /// Why its bytes bypass the page cache by threads instead of io_uring; `None` if io_uring may
    /// be used.
    ///
    /// After a short read io_uring continues the request itself. On some file systems (for example
    /// FUSE with `direct_io`) it then reads from the wrong offset and reports success. So it is
    /// used only for block devices, ext4, XFS, Btrfs, F2FS, and overlays of those whose files
    /// report an alignment for O_DIRECT.
    #[must_use]
    pub fn no_io_uring(&self) -> Option<String> {
        if !self.engine.home().is_here() {
            return Some("the file was opened before this process was forked".into());
        }
        let _ = self.handle.o_direct(); // this determines the alignment
        let refuses = !self.handle.allows_io_uring();
        refuses.then(|| notes::by_threads(self.handle.file_system()))
    }

    /// The alignment of O_DIRECT reads, if the file supports them.
    #[must_use]
    pub fn direct_block(&self) -> Option<u64> {
        self.handle.o_direct().ok().map(|direct| u64::from(direct.alignment().offset))
    }

    /// The queue of the drive for O_DIRECT reads; `None` if they are not possible.
    #[must_use]
    pub fn o_direct_queue(&self) -> Option<usize> {
        let (engine, handle) = (&self.engine, &self.handle);
        let can_be = !handle.is_memory() && engine.o_direct_alignment(handle).is_ok();
        can_be.then(|| engine.drive(handle, true).ok()).flatten()
    }

    /// Detaches the open file from its engine.
    ///
    /// # Errors
    /// The file itself while clones or transfers use it, and in a forked child.
    pub fn detach(mut self) -> std::result::Result<DetachedFile, Self> {
        if !self.engine.home().is_here() {
            return Err(self);
        }
        match Arc::try_unwrap(self.handle) {
            Ok(handle) => Ok(DetachedFile(Arc::new(handle.detached()))),
            Err(shared) => {
                self.handle = shared;
                Err(self)
            }
        }
    }

    /// Its engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

#[doc(hidden)]
impl Engine {
    /// Makes a detached file a file of this engine.
    #[must_use]
    pub fn attach(&self, file: DetachedFile) -> File {
        File::new(file.0, self.clone())
    }

    /// Bytes that O_DIRECT reads should keep in flight on these drives now; the maximum over the
    /// drives, without unknown ones.
    #[must_use]
    pub fn in_flight(&self, drives: &[usize]) -> u64 {
        let core = self.inner.core.lock();
        let of = |&drive: &usize| core.in_flight(drive, Direction::Read);
        drives.iter().map(of).max().unwrap_or(0)
    }

    /// The driver of cuFile, if this engine uses it; its counters prove the route that bytes took.
    #[must_use]
    pub fn cufile(&self) -> Option<Arc<Session>> {
        self.inner.direct.in_use()
    }

    /// Adds a device that the caller created, for example a simulated one in a test.
    ///
    /// # Errors
    /// Those of the device.
    pub fn add_device(&self, device: &Arc<dyn Device>) -> Result<()> {
        self.check_process(Operation::Open)?;
        self.link(device).map(drop)
    }

    /// Fails in a forked child: the locks may be held by threads that it does not have.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn check_process(&self, operation: Operation) -> Result<()> {
        refuse_child(&self.inner.home, operation, || None)
    }

    /// Maps memory that another process of this host [shares](Buffer::shared), for copies of a GPU.
    /// That process must keep it until this buffer is dropped.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate), also if this GPU does not reach the memory.
    pub fn map_shared(&self, device: DeviceId, handle: [u8; 64]) -> Result<Buffer> {
        self.check_process(Operation::Allocate)?;
        Buffer::mapped(self.inner.tools.arena.couriers(), self.known(device)?, handle)
    }

    /// Starts recording the activity of the engine's threads, slots and links; an earlier recording
    /// is dropped. While it is off, each trace point costs one load; while it is on, at most half a
    /// million spans are kept (40 MB).
    pub fn start_trace(&self) {
        if self.home().is_here() {
            self.inner.core.start_trace();
        }
    }

    /// Stops recording and returns the trace, without operations that are still running. It is
    /// empty in a forked child.
    #[must_use]
    pub fn end_trace(&self) -> Trace {
        if !self.home().is_here() {
            return Trace::default();
        }
        self.inner.core.end_trace()
    }
}

#[doc(hidden)]
impl Transfer {
    /// Whether the other calls take completions, which ends other callers' transfers too.
    #[must_use]
    pub fn reaps(&self) -> bool {
        self.engine.home().is_here() && self.state.reaps()
    }

    /// Returns the buffers of a finished transfer, once. The list is empty before the end, and
    /// leaves out buffers that a copy may still touch.
    #[must_use]
    pub fn reclaim(&self) -> Vec<Buffer> {
        if !self.engine.home().is_here() || !self.state.is_done() {
            return Vec::new();
        }
        self.state.take_buffers()
    }

    /// Why bytes are not transferred directly between drive and GPU, as far as known by now: see
    /// [`Outcome::not_direct`].
    #[must_use]
    pub fn not_direct(&self) -> Option<Arc<str>> {
        self.state.not_direct()
    }
}

#[doc(hidden)]
impl Options {
    /// Number of threads that read cached bytes for a GPU in an engine with these limits:
    /// `readers`, or the cores that this process may use, less an eighth, from 2 to 12. In either
    /// case it is limited to the readers' share of `threads`. By default every further GPU in use
    /// adds as many, up to seven of eight cores together.
    #[must_use]
    pub fn reader_count(&self) -> usize {
        readers::counts(self).one
    }

    /// Sets the program `forebay probe`, which opens cuFile's driver first, since that may hang.
    /// Default: the `forebay` found in `PATH`.
    pub fn set_probe(&mut self, probe: Option<Program>) {
        self.probe = probe;
    }
}

#[doc(hidden)]
impl Error {
    /// The message, and behind it those of its causes.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let causes = iter::successors(std::error::Error::source(self), |cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }

    /// The cause of a layer's error; any other error itself.
    #[must_use]
    pub fn without_layer(&self) -> &Self {
        match self {
            Self::Layer { source, .. } => source.without_layer(),
            other => other,
        }
    }

    /// Wraps the error for a layer.
    #[must_use]
    pub fn of_layer(self, operation: Operation, layer: &str) -> Self {
        Self::Layer { operation, layer: layer.to_owned(), source: Box::new(self) }
    }

    /// The error for a call that the state of an object does not allow.
    pub fn bad_state(reason: impl Into<String>) -> Self {
        Self::BadState { reason: reason.into() }
    }

    /// The error for a value of an option or argument that it does not take.
    pub fn bad_option(
        name: impl Into<String>,
        value: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::BadOption { name: name.into(), value: value.into(), expected: expected.into() }
    }

    /// The error of a GPU in an operation on `len` bytes of no particular file.
    pub fn of_device(
        operation: Operation,
        device: DeviceId,
        len: u64,
        source: DeviceError,
    ) -> Self {
        Self::Device { operation, device, len, place: None, source }
    }

    /// A system resource that is not available, such as a thread.
    pub fn resource(what: &'static str, error: &io::Error) -> Self {
        Self::Resource { what, source: SystemError(error.raw_os_error().unwrap_or(EAGAIN)) }
    }

    /// The error of a failed call of the system.
    pub fn io(operation: Operation, place: Place, source: impl Into<io::Error>) -> Self {
        let source = SystemError(source.into().raw_os_error().unwrap_or(EIO));
        Self::Io { operation, place, source }
    }
}

#[doc(hidden)]
impl Place {
    /// The whole of `path`, without a range.
    #[must_use]
    pub fn whole(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), offset: 0, len: 0, drive: None }
    }
}

#[doc(hidden)]
impl Histogram {
    /// Counts a duration of `ns` nanoseconds.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }
}

#[doc(hidden)]
impl Reason {
    /// The reason as a phrase that follows the route's name.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Resident => "resident in the page cache",
            Self::NotResident => "not resident, read from the drive with O_DIRECT",
            Self::InMemory => "the file lives in memory",
            Self::NoDirectIo => "no O_DIRECT on this file",
            Self::TriedResident => {
                "residency is hidden from this user, found in memory by an attempt"
            }
            Self::TriedNotResident => {
                "residency is hidden from this user, an attempt found nothing in memory"
            }
            Self::HadToWait => "no longer in memory when it was read",
            Self::Required => "required",
            Self::UnalignedEdge => "unaligned edge, through the page cache",
            Self::WriteThroughCache => "writes go through the page cache",
            Self::WritePastCache => "written to the drive with O_DIRECT",
            Self::PeerToPeer => "a path between drive and GPU",
            Self::PeerFailed => "the path between drive and GPU failed",
        }
    }

    /// Whether the bytes were in memory when the route was chosen, so that no drive is involved.
    #[must_use]
    pub const fn is_in_memory(self) -> bool {
        matches!(self, Self::Resident | Self::InMemory | Self::TriedResident)
    }
}

#[doc(hidden)]
impl Buffer {
    /// The GPU that the memory is on; `None` for host memory.
    #[must_use]
    pub fn gpu(&self) -> Option<&Arc<dyn Device>> {
        self.allocation.gpu()
    }

    /// Attaches an owner that keeps borrowed memory alive. Several owners can be attached.
    ///
    /// The owner is dropped once the buffer and everything split from it are dropped and no
    /// transfer can touch the memory any more, on the thread that drops the last share. It is never
    /// dropped if a failed copy may still touch the memory ([`Error::CopyNotOver`]).
    ///
    /// A forked child that drops the buffer drops its own copy of the owner, as for any value.
    ///
    /// # Panics
    /// If the buffer was split, or an abandoned call still moves bytes to or from it.
    #[must_use]
    pub fn kept_by(mut self, owner: impl Any + Send + Sync) -> Self {
        let allocation = Arc::get_mut(&mut self.allocation).expect("it has not been split");
        allocation.owners.push(Box::new(owner));
        self
    }

    /// A handle by which other processes of this host map the allocation.
    ///
    /// # Errors
    /// [`Error::BadOption`] for memory that the engine did not allocate on a GPU; the GPU's error.
    pub fn shared(&self) -> Result<[u8; 64]> {
        self.check_usable(|| None)?;
        match &self.allocation.memory {
            Memory::Device { device, address, origin: Origin::Allocated, .. } => {
                device.share(*address).map_err(|source| self.device_error(source))
            }
            _ => {
                let expected = "memory that the engine allocated on a GPU";
                Err(Error::bad_option("memory", format!("{self:?}"), expected))
            }
        }
    }

    /// Why [`as_slice`](Self::as_slice) has no bytes of our own host memory.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child; [`Error::BadState`] during an abandoned call.
    pub fn check(&self) -> Result<()> {
        self.check_usable(|| None)
    }

    /// Starts to copy bytes of this memory to pieces as a read does, or as a write does the pieces
    /// to it. Each piece has its offset here. Copies between pinned memory and a GPU are queued
    /// together; copies of other memory have ended when this returns. Errors come from
    /// [`Exchange::wait`].
    #[must_use]
    pub fn start_exchange(self, pieces: Vec<(u64, Self)>, direction: Direction) -> Exchange {
        let (own, running) = (Some(self), Vec::new());
        let mut exchange = Exchange { own, pieces, running, failed: None };
        exchange.failed = exchange.start(direction).err();
        exchange
    }
}

#[doc(hidden)]
impl Request<'_, At<'_>, Buffer> {
    /// Like [`start`](Self::start), for a caller that holds a lock others wait for, such as an
    /// interpreter's: a read that takes some microseconds, waits for no drive, and calls no driver.
    /// Otherwise the buffer is returned.
    pub fn start_at_once(self) -> std::result::Result<Transfer, Buffer> {
        let At { file, offset } = self.of;
        match self.stream {
            Some(_) => Err(self.memory),
            None => file.start_at_once(offset, self.memory, &self.options),
        }
    }
}

#[doc(hidden)]
impl Direction {
    /// The name in traces and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

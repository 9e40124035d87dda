//! The engine: opens files, owns the queues, and starts transfers.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::gpu::{Device, DeviceId, GpuSelector};
use crate::options::Options;
use crate::plan::{Reason, Route};

/// Moves bytes between files and memory. Clones share one engine; its threads end with the last.
#[derive(Debug, Clone)]
pub struct Engine {}

impl Engine {
    /// Checks the options. Threads, rings and pinned memory come with the first transfer that needs them.
    pub fn new(_options: Options) -> Result<Self> { todo!() }
    /// The options it was made with.
    pub fn options(&self) -> &Options { todo!() }
    /// The GPU that `wanted` names, brought into this engine (primary context); `None` for host memory.
    pub fn device(&self, _wanted: &GpuSelector) -> Result<Option<Arc<dyn Device>>> { todo!() }
    /// Memory on a GPU that was brought in by `device()`; 
    pub fn allocate(&self, _device: DeviceId, _len: u64) -> Result<Buffer> { todo!() }
    /// Host memory on huge pages, touched in parallel; pinned for all GPUs brought in so far.
    pub fn allocate_pinned(&self, _len: u64) -> Result<Buffer> { todo!() }
    /// Opens an existing file for reading.
    pub fn open(&self, _path: impl AsRef<Path>) -> Result<File> { todo!() }
    /// Opens as `how` says (create, truncate, write).
    pub fn open_with(&self, _path: impl AsRef<Path>, _how: &OpenOptions) -> Result<File> { todo!() }
    /// How requests reach the kernel: `io_uring` or `pread`, and why, where it is not the first choice. 
    pub fn ring_note(&self) -> Option<String> { todo!() }
    /// Notes that a report should show (io_uring refused, buffers unregistered because of the memlock limit, ...).
    pub fn notes(&self) -> Vec<String> { todo!() }
}

/// How to open a file for writing.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Create where missing.
    pub create: bool,
    /// Fail where it exists.
    pub create_new: bool,
    /// Cut to zero bytes.
    pub truncate: bool,
}

/// What a request may demand.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RequestOptions {
    /// Take this route or fail.
    pub route: Option<Route>,
    /// Fail where the file ends early (reads).
    pub exact: bool,
    /// After a write: make bytes durable before done.
    pub sync: SyncMode,
    /// Before a write: reserve the range with fallocate.
    pub preallocate: bool,
}

/// Durability of a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// None.
    #[default] None,
    /// fdatasync.
    Data,
    /// fsync.
    All,
}

/// A file opened by an engine. Cheap to clone; closed with the last clone once nothing is in flight.
#[derive(Debug, Clone)]
pub struct File {}

impl File {
    /// The path as given.
    pub fn path(&self) -> &Path { todo!() }
    /// Its size in bytes now.
    pub fn len(&self) -> Result<u64> { todo!() }
    /// Reads from `offset` into target, up to the end of the file; blocking.
    pub fn read<'a>(&self, _offset: u64, _target: impl Into<Target<'a>>) -> Result<Outcome> { todo!() }
    /// Fails with `EndOfFile` when short.
    pub fn read_exact<'a>(&self, _offset: u64, _target: impl Into<Target<'a>>) -> Result<Outcome> { todo!() }
    /// With options.
    pub fn read_with<'a>(&self, _offset: u64, _target: impl Into<Target<'a>>, _o: &RequestOptions) -> Result<Outcome> { todo!() }
    /// Whole file into a new buffer (`None`: pinned host memory).
    pub fn read_whole(&self, _device: Option<DeviceId>) -> Result<(Buffer, Outcome)> { todo!() }
    /// Writes; blocking.
    pub fn write<'a>(&self, _offset: u64, _source: impl Into<Source<'a>>) -> Result<Outcome> { todo!() }
    /// With options.
    pub fn write_with<'a>(&self, _offset: u64, _source: impl Into<Source<'a>>, _o: &RequestOptions) -> Result<Outcome> { todo!() }
    /// Starts reading into memory that the transfer owns.
    pub fn start_read(&self, _offset: u64, _target: Buffer, _o: &RequestOptions) -> Transfer { todo!() }
    /// Starts writing.
    pub fn start_write(&self, _offset: u64, _source: Buffer, _o: &RequestOptions) -> Transfer { todo!() }
    /// fdatasync
    pub fn sync_data(&self) -> Result<()> { todo!() }
    /// fsync
    pub fn sync_all(&self) -> Result<()> { todo!() }
    /// fallocate: reserve blocks
    pub fn preallocate(&self, _offset: u64, _len: u64) -> Result<()> { todo!() }
    /// Which bytes of a range are in the page cache, as far as the kernel tells this user.
    pub fn residency(&self, _offset: u64, _len: u64) -> Result<Residency> { todo!() }
    /// Drops this file's clean pages from the page cache (fsync first, then fadvise DONTNEED). Returns what stayed.
    pub fn evict(&self) -> Result<Residency> { todo!() }
}

/// How much of a range is in the page cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Residency {
    /// Known.
    Known {
        /// Bytes resident.
        resident: u64,
        /// Bytes asked about
        len: u64
    },
    /// The kernel does not say, and why.
    Unknown(&'static str),
}

/// Memory of ours: on a GPU or pinned on the host.
#[derive(Debug)]
pub struct Buffer {}
impl Buffer {
    /// Bytes.
    pub fn len(&self) -> u64 { todo!() }
    /// Device or `None` for host.
    pub fn device(&self) -> Option<DeviceId> { todo!() }
    /// First address (device or host).
    pub fn address(&self) -> u64 { todo!() }
    /// Splits in two that share one allocation.
    pub fn split_at(self, _mid: u64) -> (Buffer, Buffer) { todo!() }
    /// The bytes, if on the host.
    pub fn as_slice(&self) -> Option<&[u8]> { todo!() }
    /// The bytes, if on the host.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> { todo!() }
    /// Fills with a byte (blocking).
    pub fn fill(&mut self, _byte: u8) -> Result<()> { todo!() }
    /// Copies to host memory `out` from `offset` (blocking; for checking results; works for both kinds).
    pub fn download(&self, _offset: u64, _out: &mut [u8]) -> Result<()> { todo!() }
    /// Copies from host memory (blocking).
    pub fn upload(&mut self, _offset: u64, _bytes: &[u8]) -> Result<()> { todo!() }
}

/// Where a blocking read puts bytes.
#[derive(Debug)]
pub enum Target<'a> {
    /// Host memory.
    Host(&'a mut [u8]),
    /// Part of a buffer of ours.
    Buffer(&'a mut Buffer, Range<u64>),
}
/// Where a blocking write takes bytes from.
#[derive(Debug)]
pub enum Source<'a> {
    /// Host memory.
    Host(&'a [u8]),
    /// Part of a buffer.
    Buffer(&'a Buffer, Range<u64>),
}
impl<'a> From<&'a mut [u8]> for Target<'a> { fn from(b: &'a mut [u8]) -> Self { Self::Host(b) } }
impl<'a> From<&'a mut Buffer> for Target<'a> { fn from(b: &'a mut Buffer) -> Self { let n = b.len(); Self::Buffer(b, 0..n) } }
impl<'a> From<&'a [u8]> for Source<'a> { fn from(b: &'a [u8]) -> Self { Self::Host(b) } }
impl<'a> From<&'a Buffer> for Source<'a> { fn from(b: &'a Buffer) -> Self { let n = b.len(); Self::Buffer(b, 0..n) } }

/// What a finished transfer did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Bytes delivered.
    pub bytes: u64,
    /// Bytes by route and reason, most bytes first.
    pub routes: Vec<RouteShare>,
    /// Time by stage, summed over threads.
    pub stages: Stages,
    /// Wall time from start to end.
    pub elapsed: Duration,
}
/// Bytes that took one route for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteShare {
    /// Route.
    pub route: Route,
    /// Why.
    pub reason: Reason,
    /// Bytes.
    pub bytes: u64,
}
/// Time spent in each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stages {
    /// Asking what is resident.
    pub probe: Duration,
    /// Reading or writing files (summed over requests).
    pub file: Duration,
    /// Copies between slots and the GPU (queue to event).
    pub copy: Duration,
}

/// A transfer in flight.
#[derive(Debug)]
pub struct Transfer {}
impl Transfer {
    /// Waits to the end; the buffer comes back also after an error.
    pub fn wait(self) -> (Result<Outcome>, Option<Buffer>) { todo!() }
    /// Waits at most `bound`; `Ok(None)` when not finished by then.
    pub fn wait_for(&self, _bound: Duration) -> Option<Result<Outcome>> { todo!() }
    /// Whether it's finished.
    pub fn is_done(&self) -> bool { todo!() }
    /// Ask to stop: what is in flight drains.
    pub fn cancel(&self) { todo!() }
    /// Bytes done so far and bytes asked.
    pub fn progress(&self) -> (u64, u64) { todo!() }
}
/// unused
pub type Unused = PathBuf;

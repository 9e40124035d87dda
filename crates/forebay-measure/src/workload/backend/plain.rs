//! The methods without an engine, and the file that each of their threads opens.
//!
//! Publications use them as baselines of direct paths. So they use only the engine's pinned memory:
//! no larger queue, no shared reader, no reuse of page cache pages. As in the usual tools, one
//! request is one `pread` or `pwrite` with a pinned buffer.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::Route;

use super::call::{Context, Taken, taken};
use crate::failure::{Failure, Result};
use crate::held::no_link;
use crate::memory::flush;
use crate::results::Direction;
use crate::steps::Step;

/// The end of the hint for requests that O_DIRECT refuses; `gdsio` names its own options instead.
pub const ACCEPTS_ANY_SIZE: &str = "`forebay`, which accepts any size";

/// The hint if a file system has no O_DIRECT; `gdsio` names its own options instead.
pub const WITHOUT_O_DIRECT: &str = "use `cpu-cached-gpu` or `forebay`: they can use the page cache";

/// A method without an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plain {
    /// Between the drive and host memory, without a GPU.
    Cpu,
    /// With O_DIRECT into host memory, then copied; each step waits for the previous one.
    CpuGpu,
    /// Like `CpuGpu`, but the previous call's copy runs during the read. Its end is only checked
    /// after that read, so latencies include the read.
    CpuAsyncGpu,
    /// Through the page cache into host memory, then copied.
    CpuCachedGpu,
    /// Between the drive and host memory, with many requests of a thread in flight.
    Uring,
    /// `read` into pageable memory, then copied: what programs without a library do.
    Standard,
    /// A mapping of the file, then copied.
    Mmap,
}

impl Plain {
    /// All plain methods.
    pub const ALL: [Self; 7] = [
        Self::Standard,
        Self::Mmap,
        Self::Cpu,
        Self::CpuGpu,
        Self::CpuAsyncGpu,
        Self::CpuCachedGpu,
        Self::Uring,
    ];

    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuGpu => "cpu-gpu",
            Self::CpuAsyncGpu => "cpu-async-gpu",
            Self::CpuCachedGpu => "cpu-cached-gpu",
            Self::Uring => "io-uring",
            Self::Standard => "standard",
            Self::Mmap => "mmap",
        }
    }

    /// The queue depth of a thread, if the method fixes it.
    #[must_use]
    pub const fn depth(self) -> Option<u32> {
        match self {
            Self::Uring => None,
            _ => Some(1),
        }
    }

    /// The number of calls of a thread that have memory, if the method fixes it. A method that
    /// copies during the next request also has memory for that request.
    #[must_use]
    pub const fn places(self) -> Option<u32> {
        match self {
            Self::CpuAsyncGpu => Some(2),
            _ => self.depth(),
        }
    }

    /// Whether it uses host memory only.
    #[must_use]
    pub const fn stays_in_host(self) -> bool {
        matches!(self, Self::Cpu | Self::Uring)
    }

    /// Whether it uses O_DIRECT.
    #[must_use]
    pub const fn is_direct(self) -> bool {
        !matches!(self, Self::CpuCachedGpu | Self::Standard | Self::Mmap)
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Cpu => "drive → host memory, one request at a time",
            Self::CpuGpu => "drive → pinned memory → GPU, one request at a time",
            Self::CpuAsyncGpu => "drive → pinned memory → GPU, the copy during the next request",
            Self::CpuCachedGpu => "page cache → pinned memory → GPU, one request at a time",
            Self::Uring => "drive → host memory, many requests in flight by io_uring",
            Self::Standard => "page cache → pageable memory → target, 1 thread",
            Self::Mmap => "mapping → target, 1 thread",
        }
    }

    /// The closest equivalent of the engine's routes.
    const fn route(self) -> Route {
        match self {
            Self::Cpu | Self::Uring => Route::Host,
            Self::CpuGpu | Self::CpuAsyncGpu => Route::Staged,
            Self::CpuCachedGpu | Self::Standard | Self::Mmap => Route::Cached,
        }
    }
}

/// The open file of a plain method.
pub struct Opened {
    pub(super) plain: Plain,
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) request_size: u64,
    life: Arc<AtomicU64>,
}

impl Opened {
    pub(super) fn new(plain: Plain, context: &Context<'_>) -> Result<Self> {
        let _step = Step::begin("open", context.path);
        let direct = if plain.is_direct() { libc::O_DIRECT } else { 0 };
        let mut how = OpenOptions::new();
        how.read(true)
            .write(context.writes)
            .custom_flags(direct | no_link(context.path, context.writes));
        let opened = how.open(context.path).map_err(|error| {
            let text = format!("cannot open `{}`", context.path.display());
            match error.kind() {
                ErrorKind::InvalidInput if plain.is_direct() => {
                    Failure::new(format!("{text} with O_DIRECT"))
                        .because("the file system does not support it")
                        .hint(WITHOUT_O_DIRECT)
                }
                _ => Failure::io(text, &error),
            }
        });
        Ok(Self {
            plain,
            path: context.path.to_owned(),
            file: opened?,
            request_size: context.request_size,
            life: Arc::clone(context.life),
        })
    }

    pub(super) fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let read = self.file.read_exact_at(bytes, offset);
        read.map_err(|error| self.failed(Direction::Read, offset, bytes.len(), &error))?;
        self.goes_on();
        Ok(())
    }

    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let wrote = self.file.write_all_at(bytes, offset);
        wrote.map_err(|error| self.failed(Direction::Write, offset, bytes.len(), &error))?;
        self.goes_on();
        Ok(())
    }

    /// The failure of a request of `size` bytes.
    pub(super) fn failed(
        &self,
        direction: Direction,
        offset: u64,
        size: usize,
        error: &std::io::Error,
    ) -> Failure {
        let text = format!("cannot {} `{}` at {offset}", direction.name(), self.path.display());
        let failure = Failure::io(text, error);
        if error.kind() == ErrorKind::InvalidInput && self.plain.is_direct() {
            return failure.hint(format!(
                "with O_DIRECT, the block size ({size} bytes) and offsets must be multiples of \
                 the drive's block: use a multiple of 4096, or {ACCEPTS_ANY_SIZE}"
            ));
        }
        failure
    }

    /// Counts a part of a request as progress.
    pub(super) fn goes_on(&self) {
        self.life.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn sync(&self) -> Result<()> {
        // The system call, as the engine makes it: preloaded libraries such as `libeatmydata` drop
        // calls of libc.
        let synced = rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file));
        synced.map_err(|error| Failure::at("sync", &self.path, &error.into()))
    }

    pub(super) fn flush(&self) -> Result<()> {
        flush(&self.file, &self.path)
    }

    pub(super) fn routes(&self, moved: [u64; 2]) -> Vec<Taken> {
        taken(moved, self.plain.route(), self.plain.words())
    }
}

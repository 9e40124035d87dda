//! The methods without an engine: each thread has its own memory, reads into it, then copies.
//!
//! Publications use them as baselines of direct paths. So they use only the engine's pinned memory:
//! no larger queue, no shared reader, no reuse of page cache pages. As in the usual tools, one
//! request is one `pread` or `pwrite` with a pinned buffer.

#![expect(unsafe_code, reason = "copies to and from a GPU are queued by raw address")]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay::gpu::{Device, DeviceError, Stream};
use forebay::{Buffer, Route};

use super::{Backend, Call, Context, Done, Taken};
use crate::bench::held::no_link;
use crate::bench::memory::{flush, put_into, whole};
use crate::failure::{Failure, Result};
use crate::report::json::Direction;
use crate::steps::Step;
use crate::workload::check::Expected;

/// The end of the hint for requests that O_DIRECT refuses; `gdsio` names its own options instead.
pub(crate) const ACCEPTS_ANY_SIZE: &str = "`forebay`, which accepts any size";

/// The hint if a file system has no O_DIRECT; `gdsio` names its own options instead.
pub(crate) const WITHOUT_O_DIRECT: &str =
    "use `cpu-cached-gpu` or `forebay`: they can use the page cache";

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

    /// The routes of these read and written bytes.
    pub(super) fn taken(self, moved: [u64; 2]) -> Vec<Taken> {
        let route = match self {
            Self::Cpu | Self::Uring => Route::Host,
            Self::CpuGpu | Self::CpuAsyncGpu => Route::Staged,
            Self::CpuCachedGpu | Self::Standard | Self::Mmap => Route::Cached,
        };
        super::taken(moved, route, self.words())
    }
}

/// One call's memory.
struct Place {
    pinned: Buffer,
    gpu: Option<OnGpu>,
}

/// A GPU's memory, and the stream that fills it.
struct OnGpu {
    device: Arc<dyn Device>,
    buffer: Buffer,
    stream: Stream,
}

impl Drop for OnGpu {
    fn drop(&mut self) {
        // Copies must end before the memory is freed. If the driver fails, they have ended too.
        let _ = self.device.synchronize(self.stream);
        let _ = self.device.destroy_stream(self.stream);
    }
}

/// Makes requests without an engine.
pub struct PlainBackend {
    plain: Plain,
    path: PathBuf,
    file: File,
    request_size: usize,
    places: Vec<Place>,
    /// Places with calls, the oldest first.
    order: VecDeque<usize>,
    /// Bytes read and written.
    moved: [u64; 2],
    life: Arc<AtomicU64>,
}

impl PlainBackend {
    /// Opens the file and allocates memory.
    ///
    /// # Errors
    /// System and GPU errors, and a file system without O_DIRECT.
    pub fn new(plain: Plain, context: &Context<'_>) -> Result<Self> {
        let file = open(plain, context)?;
        let len = context.request_size * context.batch as u64;
        let device = context.device.filter(|_| !plain.stays_in_host());
        let place = |index: usize| {
            let pattern = context.held(index);
            let mut pinned = context.engine.allocate_pinned(len)?;
            put_into(&mut pinned, pattern, len)?;
            let gpu = device.map(|device| {
                let mut buffer = context.engine.allocate(device.id(), len)?;
                put_into(&mut buffer, pattern, len)?;
                let stream = device.create_stream().map_err(|error| refused(&error))?;
                Ok::<_, Failure>(OnGpu { device: Arc::clone(device), buffer, stream })
            });
            Ok(Place { pinned, gpu: gpu.transpose()? })
        };
        let places = (0..context.depth).map(place).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            plain,
            path: context.path.to_owned(),
            file,
            request_size: whole(context.request_size),
            places,
            order: VecDeque::new(),
            moved: [0; 2],
            life: Arc::clone(context.life),
        })
    }

    fn failed(&self, direction: Direction, offset: u64, error: &std::io::Error) -> Failure {
        failed(self.plain, &self.path, (direction, offset, self.request_size), error)
    }

    fn read(&mut self, place: usize, offsets: &[u64]) -> Result<()> {
        let size = self.request_size;
        for (index, &offset) in offsets.iter().enumerate() {
            let bytes = self.places[place].pinned.as_mut_slice().expect("it is the host's");
            let bytes = &mut bytes[index * size..][..size];
            let read = self.file.read_exact_at(bytes, offset);
            read.map_err(|error| self.failed(Direction::Read, offset, &error))?;
            self.life.fetch_add(1, Ordering::Relaxed);
        }
        let Place { pinned, gpu: Some(gpu) } = &mut self.places[place] else { return Ok(()) };
        let bytes = pinned.as_mut_slice().expect("it is the host's");
        let (host, len) = (NonNull::from(&mut *bytes).cast(), size * offsets.len());
        // SAFETY: both are this place's, `len` bytes long, and stay until `finish` or the drop of
        // the place has waited for the stream.
        let queued =
            unsafe { gpu.device.copy_to_device(gpu.stream, gpu.buffer.address(), host, len) };
        queued.map_err(|error| refused(&error))
    }

    fn write(&mut self, place: usize, offsets: &[u64]) -> Result<()> {
        let size = self.request_size;
        let Place { pinned, gpu } = &mut self.places[place];
        if let Some(gpu) = gpu {
            let bytes = pinned.as_mut_slice().expect("it is the host's");
            let (host, len) = (NonNull::from(&mut *bytes).cast(), size * offsets.len());
            // SAFETY: as in `read`, and `synchronize` below waits for the copy.
            unsafe { gpu.device.copy_to_host(gpu.stream, host, gpu.buffer.address(), len) }
                .and_then(|()| gpu.device.synchronize(gpu.stream))
                .map_err(|error| refused(&error))?;
        }
        for (index, &offset) in offsets.iter().enumerate() {
            let bytes = self.places[place].pinned.as_slice().expect("it is the host's");
            let wrote = self.file.write_all_at(&bytes[index * size..][..size], offset);
            wrote.map_err(|error| self.failed(Direction::Write, offset, &error))?;
            self.life.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for the copy of a place.
    fn finish(&self, place: usize) -> Result<()> {
        match &self.places[place].gpu {
            Some(gpu) => gpu.device.synchronize(gpu.stream).map_err(|error| refused(&error)),
            None => Ok(()),
        }
    }
}

/// Syncs the written bytes.
pub(super) fn sync(file: &File, path: &Path) -> Result<()> {
    file.sync_data()
        .map_err(|error| Failure::io(format!("cannot sync `{}`", path.display()), &error))
}

/// The failure of a request of this many bytes at an offset.
pub(super) fn failed(
    plain: Plain,
    path: &Path,
    (direction, offset, size): (Direction, u64, usize),
    error: &std::io::Error,
) -> Failure {
    let text = format!("cannot {} `{}` at {offset}", direction.name(), path.display());
    let failure = Failure::io(text, error);
    if error.kind() == ErrorKind::InvalidInput && plain.is_direct() {
        return failure.hint(format!(
            "with O_DIRECT, the block size ({size} bytes) and offsets must be multiples of the \
             drive's block: use a multiple of 4096, or {ACCEPTS_ANY_SIZE}"
        ));
    }
    failure
}

pub(super) fn open(plain: Plain, context: &Context<'_>) -> Result<File> {
    let _step = Step::begin("open", context.path);
    let direct = if plain.is_direct() { libc::O_DIRECT } else { 0 };
    let mut how = OpenOptions::new();
    how.read(true)
        .write(context.writes)
        .custom_flags(direct | no_link(context.path, context.writes));
    how.open(context.path).map_err(|error| {
        let text = format!("cannot open `{}` with O_DIRECT", context.path.display());
        match error.kind() {
            ErrorKind::InvalidInput if plain.is_direct() => Failure::new(text)
                .because("the file system does not support it")
                .hint(WITHOUT_O_DIRECT),
            _ => Failure::io(format!("cannot open `{}`", context.path.display()), &error),
        }
    })
}

fn refused(error: &DeviceError) -> Failure {
    Failure::new("the GPU driver refused a copy").because(error.to_string()).hint(
        "check the kernel log (`dmesg`) and `nvidia-smi` for errors of the GPU; then measure again",
    )
}

impl Backend for PlainBackend {
    fn start(&mut self, place: usize, call: Call<'_>) -> Result<()> {
        match call.direction {
            Direction::Read => self.read(place, call.offsets)?,
            Direction::Write => self.write(place, call.offsets)?,
        }
        let bytes = (self.request_size * call.offsets.len()) as u64;
        self.moved[usize::from(call.direction == Direction::Write)] += bytes;
        self.order.push_back(place);
        Ok(())
    }

    fn wait(&mut self) -> Result<Done> {
        let place = self.order.pop_front().expect("a call is in flight");
        self.finish(place)?;
        Ok(Done { place, at: Instant::now() })
    }

    fn wait_until(&mut self, _until: Instant) -> Result<Option<Done>> {
        // Only copies are in flight, and the oldest ends soon.
        self.wait().map(Some)
    }

    fn sync(&mut self) -> Result<()> {
        sync(&self.file, &self.path)
    }

    fn flush(&mut self) -> Result<()> {
        flush(&self.file, &self.path)
    }

    fn holds(
        &mut self,
        place: usize,
        at: u64,
        len: u64,
        expected: &Expected<'_>,
        offset: u64,
    ) -> Result<bool> {
        let place = &self.places[place];
        let buffer = place.gpu.as_ref().map_or(&place.pinned, |gpu| &gpu.buffer);
        expected.is_in(buffer, at, len, offset)
    }

    fn routes(&self) -> Vec<Taken> {
        self.plain.taken(self.moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_was_refused_is_told_with_its_remedy() {
        let (name, detail) = ("CUDA_ERROR_ILLEGAL_ADDRESS".into(), String::new());
        let failure = refused(&DeviceError { call: "cuMemcpyHtoDAsync", code: 700, name, detail });
        assert!(failure.causes[0].contains("ILLEGAL_ADDRESS"), "{failure:?}");
        assert!(failure.hint.unwrap().contains("`dmesg`"));
    }
}

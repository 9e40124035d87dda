//! The engine: opens files, owns the queues and the threads, and starts transfers.
//!
//! Its only global state is the driver libraries that the process has loaded, so a process may
//! have several engines. Threads, rings and pinned memory are created by the first transfer that
//! needs them. They are freed with the last handle: an [`Engine`], a [`File`] or a [`Transfer`].

mod affinity;
mod drives;
mod file;
mod interrupt;
mod links;
mod many;
pub(crate) mod notes;
mod ordered;
mod overdue;
pub(crate) mod readers;
mod request;
mod several;
mod small;
mod start;
#[cfg(test)]
mod tests;
mod threads;
mod transfer;
mod unwind;

use small::ring::ColdReads;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use file::File;
use forebay_base::lock::Lock;
use forebay_base::process::{Home, Housed, ProcessLocal};
use forebay_cufile::CuFileProvider;
use forebay_topology::{Neighbours, System};
pub use many::{BlockRead, ManyOutcome, ManyTransfer, Piece, PieceResult};
pub use request::{At, Pieces, Request};
use rustix::io::Errno;
pub use transfer::Transfer;

use self::threads::ReaderTools;
use crate::error::{Error, Operation, Place, Result, SystemError, refuse_child};
use crate::events;
use crate::file::{Handle, OpenOptions};
use crate::gpu::{self, Device, DeviceId, GpuSelector};
use crate::memory::Buffer;
pub(crate) use crate::options::RequestOptions;
use crate::options::{DirectIo, Options};
use crate::queue::{Core, Limits, Parking, Planner, PreadRing, Reader, Scheduler, Wakeup};
use crate::staging::Arena;
use crate::statistics::Statistics;
use crate::transfer::State;

/// Open windows per transfer to or from host memory: enough to keep the readers and a drive's ring
/// busy while the next window is planned.
const HOST_WINDOWS: u32 = 4;

/// Moves bytes between files and memory. Clones share one engine.
///
/// It belongs to the process that created it. In a forked child every call that would move bytes,
/// open or allocate fails with [`Error::Forked`], and dropping it does nothing; the parent is not
/// affected. A child may create a new engine.
///
/// ```
/// use std::time::Duration;
///
/// use forebay::{Engine, Options, Quiesced};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = Engine::new(Options::default())?;
/// let mut buffer = engine.allocate_pinned(100_000)?; // `allocate` is memory of a GPU
/// let file = engine.open_borrowed_fd(std::fs::File::open(&path).unwrap())?; // or `open_fd`
/// file.read(&mut buffer).exact().run()?;
/// for note in engine.notes() {
///     println!("{note}"); // such as: io_uring is not allowed
/// }
/// let options = engine.options().clone();
/// drop(file);
/// let ended = engine.quiesce(Duration::from_secs(5))?; // before a snapshot
/// assert!(matches!(ended, Quiesced::Ended));
/// let engine = Engine::new(options)?;
/// # engine.open_fd(std::fs::File::open(&path).unwrap())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) inner: ProcessLocal<Inner>,
}

// Every transfer changes the count of handles: no field that is read shares its cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Inner {
    pub(crate) home: Home,
    options: Options,
    pub(crate) core: Arc<Core>,
    readers: readers::ReaderCounts,
    pub(crate) tools: ReaderTools,
    threads: threads::Threads,
    links: links::Links,
    /// The ring of small cold reads, once one was made; `None` in it if they take the general path.
    cold: OnceLock<Option<Arc<ColdReads>>>,
    drives: Arc<drives::KnownDrives>,
    notes: Arc<Lock<Vec<String>>>,
    several: several::Several,
    keepers: ordered::Keepers,
    pub(crate) direct: CuFileProvider,
}

/// How often, and how many times, a blocking caller checks whether a reader has opened a window of
/// its transfer. After these 20 ms it opens windows itself. With 15 other transfers of 64 MiB
/// readers need up to 5 ms.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
const CHECKS_MAX: usize = 4;

impl Engine {
    /// Creates an engine with these limits. No thread is started yet.
    ///
    /// # Errors
    /// [`Error::BadOption`] if the limits contradict each other.
    pub fn new(options: Options) -> Result<Self> {
        options.check()?;
        let (readers, shares) = readers::shared(&options);
        let threads =
            threads::Threads::new(options.threads, shares, System::live().numa_nodes().len());
        let limits = Limits {
            slot_size: options.slot_size,
            segment: options.segment_size,
            in_flight: options.in_flight,
            readers: readers.one,
            readers_of_host: readers.of_host,
            cache: System::live().last_level_cache().unwrap_or(u64::MAX),
            pool: shares.pool,
            host_windows: HOST_WINDOWS,
        };
        let bell = Arc::<Parking>::default();
        let core = Arc::new_cyclic(|core| {
            let pool = threads.pool(core, options.segment_size);
            let bell = Wakeup::List(Arc::clone(&bell));
            let (pool, closers) = (Wakeup::Pool(pool), threads.closers(core));
            Core::new(Scheduler::new(limits), bell, pool, closers)
        });
        events::engine_made(&options, readers.one);
        let arena = Arc::new(Arena::new(options.slot_size, options.arena_size));
        core.leaks_on_failure(Arc::clone(&arena) as _);
        let engine = Self {
            inner: ProcessLocal::new(Inner {
                home: Home::here(),
                core: Arc::clone(&core),
                readers,
                threads,
                tools: ReaderTools {
                    planner: Planner { segment: options.segment_size },
                    arena,
                    core,
                    bell,
                    affinity: Arc::new(affinity::ReaderAffinity::new(readers.one)),
                    // Unit tests count slots, and run next to other engines.
                    neighbours: Arc::new(match cfg!(test) {
                        true => Neighbours::none(),
                        false => Neighbours::new(),
                    }),
                },
                links: links::Links::default(),
                cold: OnceLock::new(),
                drives: Arc::new(drives::KnownDrives::new()),
                notes: Arc::default(),
                several: several::Several::default(),
                keepers: ordered::Keepers::default(),
                direct: CuFileProvider::new(options.probe.clone(), events::note),
                options,
            }),
        };
        Ok(engine)
    }

    /// The limits that it was created with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The GPU selected by `wanted`, added to this engine; `None` if it selects host memory.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it is not available; a simulated GPU with other settings than the one
    /// in the engine.
    pub fn device(&self, wanted: &GpuSelector) -> Result<Option<Arc<dyn Device>>> {
        self.check_process(Operation::Open)?;
        let Some(device) = gpu::open(wanted)? else { return Ok(None) };
        // If a GPU is opened twice, for example by two threads, users see one.
        let known = self.bring_in(&device)?;
        if Arc::ptr_eq(&known, &device) {
            return Ok(Some(known));
        }
        same_settings(wanted, known).map(Some)
    }

    pub(crate) fn home(&self) -> &Home {
        &self.inner.home
    }

    /// Allocates memory on a GPU of this engine.
    ///
    /// # Errors
    /// [`Error::NoDevice`] for a GPU that is not in the engine; errors of the GPU.
    pub fn allocate(&self, device: DeviceId, len: u64) -> Result<Buffer> {
        self.check_process(Operation::Allocate)?;
        Buffer::on_device(self.inner.tools.arena.couriers(), self.known(device)?, len)
    }

    /// Allocates host memory on huge pages, touched, and pinned for every kind of GPU in the
    /// engine. GPUs lost to this process are skipped.
    ///
    /// # Errors
    /// Errors of the host or the GPU; [`Error::MemoryLimit`] if a control group has no room for it.
    pub fn allocate_pinned(&self, len: u64) -> Result<Buffer> {
        self.check_process(Operation::Allocate)?;
        let made = self.pinned(len);
        match &made {
            Ok(_) => events::memory_made(len, None),
            Err(error) => events::memory_refused(error),
        }
        made
    }

    fn pinned(&self, len: u64) -> Result<Buffer> {
        let (mut memory, _) = self.inner.tools.arena.room().map(len, 0, None)?;
        for device in &self.inner.links.devices() {
            match memory.register(device) {
                // A lost GPU must not block allocations for the remaining ones.
                Err(Error::Device { source, .. }) if source.is_loss() => {}
                registered => registered?,
            }
        }
        Ok(Buffer::host(memory))
    }

    /// Bytes of a pinned block that a call can borrow at any limit of pinned memory.
    fn block_len(&self) -> u64 {
        self.inner.tools.arena.room().account().block_len()
    }

    /// Opens an existing file for reading.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NotAFile`] for a folder, a FIFO, a socket.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, &OpenOptions::default())
    }

    /// Opens a file with these options.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(&self, path: impl AsRef<Path>, how: &OpenOptions) -> Result<File> {
        // Opening would succeed and all later calls fail, so report the mistake here.
        let place = || Some(Place::whole(path.as_ref()));
        refuse_child(&self.inner.home, Operation::Open, place)?;
        Ok(self.file(Handle::open(path.as_ref(), how)?))
    }

    /// Takes ownership of an open descriptor. It is closed with the file, or here after an error.
    ///
    /// Regular files and block devices are accepted, also those without a name (`memfd`,
    /// `O_TMPFILE`, removed files). The file can be read, written or both like the descriptor. The
    /// descriptor's position and flags, which duplicates share, are neither used nor changed. With
    /// `O_APPEND` or `O_DIRECT` the file is opened again through `/proc/self/fd`, and
    /// [`File::reopened`] gives the reason. Closing a file of an engine releases the process's
    /// `fcntl` locks on it, as every `close` does; `flock` locks stay until the given descriptor is
    /// closed.
    ///
    /// # Errors
    /// [`Error::NotAFile`] for a folder, a pipe, a socket. [`Error::BadRequest`] for a descriptor
    /// that can neither read nor write, and for one with unsuitable flags if the file cannot be
    /// opened again. [`Error::Io`].
    pub fn open_fd(&self, fd: impl Into<OwnedFd>) -> Result<File> {
        refuse_child(&self.inner.home, Operation::Open, || None)?;
        Ok(self.file(Handle::from_fd(fd.into())?))
    }

    /// Like [`open_fd`](Self::open_fd), for a descriptor that the caller keeps: a duplicate is
    /// closed with the file.
    ///
    /// # Errors
    /// As for [`open_fd`](Self::open_fd).
    pub fn open_borrowed_fd(&self, fd: impl AsFd) -> Result<File> {
        refuse_child(&self.inner.home, Operation::Open, || None)?;
        Ok(self.file(Handle::from_borrowed(fd.as_fd())?))
    }

    fn file(&self, handle: Handle) -> File {
        handle.emit_opened();
        // Queries that may need a server are made here, because starting a transfer must not wait
        // for them.
        if handle.opens_slowly() {
            handle.residency_source();
            if self.inner.options.direct_io == DirectIo::Auto {
                let _ = handle.o_direct(); // the error is kept for the call that needs it
            }
        }
        File::new(Arc::new(handle), self.clone())
    }

    /// Notes for a report about this engine: io_uring refused, memory not pinned, and so on.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        if let Err(error) = self.check_process(Operation::Inspect) {
            return vec![error.to_string()];
        }
        let mut notes = self.inner.notes.lock().clone();
        notes.extend(self.inner.threads.kernel.refusal().map(notes::unbounded));
        notes.extend(self.inner.core.failure().map(|error| error.to_string()));
        notes.extend(self.inner.core.ring_failure().map(notes::ring_lost));
        notes.extend(self.inner.tools.arena.misplaced().map(notes::misplaced));
        notes.extend(self.inner.tools.arena.refused());
        notes.extend(self.inner.tools.affinity.refusal().map(notes::unseated));
        let refused = self.inner.links.refused_lanes().into_iter();
        notes.extend(refused.map(|(gpu, error)| notes::no_lane(gpu, &error)));
        notes
    }

    /// How long the stages of all transfers have taken so far; empty in a forked child.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        match self.home().is_here() {
            true => Statistics {
                pinned: self.inner.tools.arena.room().account().used(),
                ..self.inner.core.lock().statistics()
            },
            false => Statistics::default(),
        }
    }

    pub(crate) fn cancel(&self, state: &Arc<State>) {
        if !self.inner.home.is_here() {
            return; // the transfer belongs to the parent process
        }
        state.emit_cancel();
        state.request_stop();
        self.inner.core.with(|scheduler| scheduler.cancel(state.key(), state));
    }

    /// Works as a reader for one transfer while there is something to do for it, then waits. The
    /// caller's thread is already awake, and readers would have to be woken. Calls `between` after
    /// each piece.
    fn help(&self, state: &Arc<State>, between: &mut dyn FnMut()) {
        if state.key() == usize::MAX {
            return; // the scheduler does not know it
        }
        self.help_now(state, between);
        let core = &self.inner.core;
        for _ in 0..CHECKS_MAX {
            if !core.lock().is_left_to_readers(state) || state.wait_for(CHECK_INTERVAL).is_some() {
                return;
            }
        }
        // By now other transfers have had their turn, or the readers hang in their files.
        core.with(|scheduler| scheduler.insist(state));
        self.help_now(state, between);
    }

    /// Works as a reader for one transfer until there is nothing to do for it. Bytes that a ring
    /// reads need no reader.
    fn help_now(&self, state: &Arc<State>, between: &mut dyn FnMut()) {
        let Inner { core, tools, .. } = &*self.inner;
        let Some(work) = core.with(|scheduler| scheduler.take_work_of(state)) else { return };
        let mut reader = Reader::new(PreadRing::new(tools.planner.segment));
        reader.begin(work, core, tools);
        loop {
            between();
            if !reader.step_for(core, tools, state) {
                return;
            }
        }
    }

    /// Starts the readers of all GPUs in use; fails if too many ended transfers cannot free their
    /// resources.
    fn start_readers(&self) -> Result<()> {
        let inner = &self.inner;
        if inner.core.is_stuck() {
            return Err(Error::Resource {
                what: "next transfer",
                source: SystemError::of(Errno::BUSY),
            });
        }
        inner.tools.look_for_neighbours(Instant::now());
        let readers::ReaderCounts { one, all, .. } = inner.readers;
        inner.threads.start_readers(&inner.tools, (one * inner.links.ready()).clamp(one, all))
    }
}

/// Pause between two checks for other handles.
const NAP: Duration = Duration::from_millis(1);

/// The state of an engine after [`Engine::quiesce`].
#[derive(Debug)]
pub enum Quiesced {
    /// All rings are closed, all threads have ended, and its pinned memory is freed.
    Ended,
    /// Clones, files or transfers keep the engine running.
    InUse(Engine),
    /// The engine ended, but a thread still waits for a drive, a server or a GPU.
    Hangs,
}

/// An open file without an engine.
#[derive(Debug)]
pub struct DetachedFile(pub(crate) Arc<Handle>);

impl Engine {
    /// Ends the engine once this is its last handle, so that the process can be snapshotted. Waits
    /// at most `bound` for clones, files and transfers. [`Engine::new`] with the same
    /// [`options`](Self::options) resumes. Memory that the caller allocated stays.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn quiesce(mut self, bound: Duration) -> Result<Quiesced> {
        self.check_process(Operation::Wait)?;
        let start = Instant::now();
        loop {
            self.inner = match ProcessLocal::into_inner(self.inner) {
                Ok(inner) => {
                    let threads = inner.threads.clone();
                    drop(inner);
                    let ended = threads.have_ended();
                    return Ok(if ended { Quiesced::Ended } else { Quiesced::Hangs });
                }
                Err(shared) => shared,
            };
            if start.elapsed() >= bound {
                return Ok(Quiesced::InUse(self));
            }
            std::thread::sleep(NAP);
        }
    }
}

impl DetachedFile {
    /// As [`File::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(self) -> Result<()> {
        if self.0.writable() { self.0.flush() } else { Ok(()) }
    }
}

impl Housed for Inner {
    fn home(&self) -> &Home {
        &self.home
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.stop();
        self.cold.get().iter().flat_map(|reads| reads.iter()).for_each(|reads| reads.finish());
        // Jobs there may hold the core, and with it themselves.
        self.core.finish_aside();
        let have_ended = self.threads.wait();
        events::engine_ended(have_ended);
        if have_ended {
            self.tools.arena.couriers().clear(); // callers' memory keeps them
        }
    }
}

fn bad_request(operation: Operation, place: crate::error::Place, reason: String) -> Error {
    Error::BadRequest { operation, place, reason }
}

/// Returns the engine's GPU, or fails if other settings are requested for a simulated one.
fn same_settings(wanted: &GpuSelector, known: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
    let GpuSelector::Sim(config) = wanted else { return Ok(known) };
    let (requested, has) = (config.to_string(), &known.info().driver);
    let is_plain = *config == Default::default(); // any settings are accepted
    if is_plain || requested == *has {
        return Ok(known);
    }
    let expected = format!(
        "`{has}`, the settings of this engine's simulated GPU, or `sim` to use that GPU: create \
         another engine for other settings"
    );
    Err(Error::bad_option("gpu", requested, expected))
}

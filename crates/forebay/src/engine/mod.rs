//! The engine: opens files, owns the queues and the threads, and starts transfers.
//!
//! It keeps no state outside itself but the driver libraries that the process has loaded, so a
//! process may have several. Threads, rings and pinned memory come with the first transfer that
//! needs them, and go with the last handle: an [`Engine`], a [`File`] or a [`Transfer`].

#[cfg(test)]
#[expect(unsafe_code, reason = "lends memory of simulated GPUs")]
mod beside;
mod borrow;
mod close;
mod drives;
mod file;
mod identity;
mod interrupt;
mod learn;
mod lent;
mod links;
mod many;
mod notes;
mod ordered;
mod overdue;
mod peers;
mod readers;
mod seats;
#[cfg(test)]
#[expect(unsafe_code, reason = "stands between the engine and a device's unsafe calls")]
mod silent;
mod small;
mod start;
#[cfg(test)]
mod tests;
mod threads;
mod trace;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use file::{File, OpenOptions, RequestOptions};
pub use learn::Found;
pub(crate) use many::BlockRead;
pub use many::{ManyOutcome, ManyTransfer, Piece, PieceResult};
use rustix::io::Errno;

use self::threads::ReaderTools;
use crate::direct::Providers;
use crate::error::{Error, Operation, Place, Result};
use crate::events;
use crate::file::Handle;
use crate::gpu::{self, Device, DeviceId, GpuSelector};
use crate::lock::Lock;
use crate::memory::{Buffer, HostMemory};
use crate::options::{DirectIo, Options};
use crate::process::{Home, Housed, Kept};
use crate::queue::{Bell, Chore, Core, Idlers, Limits, Planner, PreadRing, Reader, Scheduler};
use crate::staging::Arena;
use crate::topology::System;
use crate::transfer::{State, Transfer};

/// Windows of one transfer to or from host memory that are open at once: enough to keep the
/// readers and a drive's ring busy while the next is planned.
const HOST_WINDOWS: u32 = 4;

/// Moves bytes between files and memory. Clones share one engine.
///
/// It belongs to the process that made it. In a process that is forked from that one, every call
/// that would move bytes, open or allocate fails with [`Error::Forked`], and dropping it does
/// nothing; the parent's goes on undisturbed. A child may make an engine of its own.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Kept<Inner>,
}

#[derive(Debug)]
struct Inner {
    home: Home,
    options: Options,
    core: Arc<Core>,
    /// How many readers there are at first.
    readers: usize,
    tools: ReaderTools,
    threads: threads::Threads,
    links: links::Links,
    drives: Arc<drives::Drives>,
    notes: Arc<Lock<Vec<String>>>,
    keepers: ordered::Keepers,
    providers: Providers,
}

/// How often, and how many times, a caller looks whether readers have begun with its transfer
/// before it does so itself. Beside 15 others of 64 MiB it takes them up to 5 ms.
const LOOKS_EVERY: Duration = Duration::from_millis(5);
const PATIENCE: usize = 4;

impl Engine {
    /// An engine with these limits. Nothing is started yet.
    ///
    /// # Errors
    /// [`Error::BadOption`] where the limits do not fit together.
    pub fn new(options: Options) -> Result<Self> {
        options.check()?;
        let (readers, shares) = readers::shared(&options);
        let threads =
            threads::Threads::new(options.threads, shares, System::live().numa_nodes().len());
        let limits = Limits {
            slot_size: options.slot_size,
            segment: options.segment_size,
            in_flight: options.in_flight,
            readers,
            pool: shares.pool,
            host_windows: HOST_WINDOWS,
        };
        let bell = Arc::<Idlers>::default();
        let core = Arc::new_cyclic(|core| {
            let pool = threads.pool(core, options.segment_size);
            let readers = Bell::List(Arc::clone(&bell));
            let (pool, closers) = (Bell::Pool(pool), threads.closers(core));
            Core::new(Scheduler::new(limits), readers, pool, closers)
        });
        events::engine_made(&options, readers);
        let arena = Arc::new(Arena::new(options.slot_size, options.arena_size));
        core.leaks_on_failure(Arc::clone(&arena) as _);
        let engine = Self {
            inner: Kept::new(Inner {
                home: Home::here(),
                core: Arc::clone(&core),
                readers,
                threads,
                tools: ReaderTools {
                    planner: Planner { segment: options.segment_size },
                    arena,
                    core,
                    bell,
                    seats: Arc::new(seats::Seats::new(readers)),
                },
                links: links::Links::default(),
                drives: Arc::new(drives::Drives::new(&options)),
                notes: Arc::default(),
                keepers: ordered::Keepers::default(),
                providers: Providers::new(),
                options,
            }),
        };
        Ok(engine)
    }

    /// The limits that it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The GPU that `wanted` names, brought into this engine; `None` where it names host memory.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where it cannot be had; a simulated GPU with other settings than the
    /// one that the engine has.
    pub fn device(&self, wanted: &GpuSelector) -> Result<Option<Arc<dyn Device>>> {
        self.check(Operation::Open)?;
        let Some(device) = gpu::open(wanted)? else { return Ok(None) };
        // The same GPU opened twice, by two threads at once for example, is one to its users.
        let known = self.bring_in(&device)?;
        if Arc::ptr_eq(&known, &device) {
            return Ok(Some(known));
        }
        same_settings(wanted, known).map(Some)
    }

    /// Brings in a device that the caller made, a simulated one of a test for example.
    ///
    /// # Errors
    /// The device's.
    pub fn add_device(&self, device: &Arc<dyn Device>) -> Result<()> {
        self.check(Operation::Open)?;
        self.link(device).map(drop)
    }

    /// Refuses a forked child: the locks may be held by threads that it does not have.
    fn check(&self, operation: Operation) -> Result<()> {
        self.inner.home.check(operation, || None)
    }

    pub(crate) fn home(&self) -> &Home {
        &self.inner.home
    }

    /// Memory on a GPU of this engine.
    ///
    /// # Errors
    /// [`Error::NoDevice`] for a GPU that was not brought in; the GPU's own.
    pub fn allocate(&self, device: DeviceId, len: u64) -> Result<Buffer> {
        self.check(Operation::Allocate)?;
        let known = self.known(device).ok_or_else(|| Error::NoDevice {
            wanted: device.to_string(),
            reason: "it was not brought into this engine".into(),
        })?;
        Buffer::on_device(known, len)
    }

    /// Host memory on huge pages, touched, and pinned for every kind of GPU brought in so far; not
    /// for one that is lost to this process.
    ///
    /// # Errors
    /// The host's or the GPU's; [`Error::MemoryLimit`] where a control group has no room for it.
    pub fn allocate_pinned(&self, len: u64) -> Result<Buffer> {
        self.check(Operation::Allocate)?;
        let made = self.pinned(len);
        match &made {
            Ok(_) => events::memory_made(len, None),
            Err(error) => events::memory_refused(error),
        }
        made
    }

    fn pinned(&self, len: u64) -> Result<Buffer> {
        let fail = Error::HostMemory { len, source: Errno::NOMEM };
        let bytes = usize::try_from(len).map_err(|_| fail)?;
        let turn = self.inner.tools.arena.room().enter(len, 0)?;
        let mut memory = HostMemory::map(bytes)?;
        drop(turn);
        for device in &self.inner.links.devices() {
            match memory.register(device) {
                // A GPU that is gone keeps nobody from the others.
                Err(Error::Device { source, .. }) if source.is_loss() => {}
                registered => registered?,
            }
        }
        Ok(Buffer::host(memory))
    }

    /// Opens an existing file for reading.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NotAFile`] for a folder, a FIFO, a socket.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, &OpenOptions::default())
    }

    /// Opens a file as `how` says.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(&self, path: impl AsRef<Path>, how: &OpenOptions) -> Result<File> {
        // It could be opened, and nothing else: so it is said where the mistake is made.
        let place = || Some(Place::whole(path.as_ref()));
        self.inner.home.check(Operation::Open, place)?;
        Ok(self.file(Handle::open(path.as_ref(), &how.into())?))
    }

    /// The file of a descriptor that somebody has opened and hands over: it is closed with the
    /// file, or here where there is an error.
    ///
    /// Regular files and block devices will do, also those without a name (`memfd`, `O_TMPFILE`,
    /// removed ones). The file can be read, written or both as the descriptor can. Its position and
    /// its flags, which duplicates share, are neither used nor changed: for a descriptor with
    /// `O_APPEND` or `O_DIRECT` the file is opened once more by `/proc/self/fd`, and
    /// [`File::reopened`] says why. Closing a file of an engine frees the process's own `fcntl`
    /// locks on it, as every `close` does; those of `flock` stay until the given descriptor goes.
    ///
    /// # Errors
    /// [`Error::NotAFile`] for a folder, a pipe, a socket; [`Error::BadRequest`] for a descriptor
    /// that can neither read nor write, and for one whose flags are in the way where the file
    /// cannot be opened again; [`Error::Io`].
    pub fn open_fd(&self, fd: impl Into<OwnedFd>) -> Result<File> {
        self.inner.home.check(Operation::Open, || None)?;
        Ok(self.file(Handle::from_fd(fd.into())?))
    }

    /// As [`open_fd`](Self::open_fd), for a descriptor that stays the caller's: a duplicate is
    /// closed with the file.
    ///
    /// # Errors
    /// As [`open_fd`](Self::open_fd).
    pub fn open_borrowed_fd(&self, fd: impl AsFd) -> Result<File> {
        self.inner.home.check(Operation::Open, || None)?;
        Ok(self.file(Handle::from_borrowed(fd.as_fd())?))
    }

    fn file(&self, handle: Handle) -> File {
        handle.tell_opened();
        // What may ask a server is asked here, since a transfer must begin without it.
        if handle.opens_slowly() {
            handle.residency_source();
            if self.inner.options.direct_io == DirectIo::Auto {
                let _ = handle.direct(); // the error is kept for the call that needs it
            }
        }
        File::new(Arc::new(handle), self.clone())
    }

    /// What a report should say about this engine: io_uring refused, memory not pinned, and so on.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        if let Err(error) = self.check(Operation::Inspect) {
            return vec![error.to_string()];
        }
        let mut notes = self.inner.notes.lock().clone();
        notes.extend(self.inner.threads.kernel().refusal().map(notes::unbounded));
        notes.extend(self.inner.core.failure().map(|error| error.to_string()));
        notes.extend(self.inner.core.ring_failure().map(notes::ring_lost));
        notes.extend(self.inner.tools.arena.misplaced().map(notes::misplaced));
        notes.extend(self.inner.tools.arena.refused());
        notes.extend(self.inner.tools.seats.refusal().map(notes::unseated));
        let refused = self.inner.links.refused_lanes().into_iter();
        notes.extend(refused.map(|(gpu, error)| notes::no_lane(gpu, &error)));
        notes
    }

    /// Waits until one of `transfers`, all of this engine, has ended, and returns its index; `None`
    /// where the bound expires first or the slice is empty. In a forked child all have ended.
    #[must_use]
    pub fn wait_any(&self, transfers: &[Transfer], bound: Duration) -> Option<usize> {
        let ended = || transfers.iter().position(Transfer::is_done);
        if transfers.is_empty() {
            return None;
        }
        ended().or_else(|| {
            self.inner.core.wait_for_end(bound, || ended().is_some());
            ended()
        })
    }

    /// Ends a transfer that the scheduler does not know.
    fn end(&self, state: Arc<State>, result: Result<u64>) {
        self.inner.core.end(state, result);
    }

    fn keepers(&self) -> &ordered::Keepers {
        &self.inner.keepers
    }

    pub(crate) fn cancel(&self, state: &Arc<State>) {
        if !self.inner.home.is_here() {
            return; // the parent's transfer is none of a child's business
        }
        state.tell_cancel();
        state.ask_to_stop();
        self.inner.core.with(|scheduler| scheduler.cancel(state.key(), state));
    }

    /// Works as a reader for one transfer as long as there is something to do for it, then waits:
    /// the caller's thread is awake, and the others have to be woken.
    pub(crate) fn help(&self, state: &Arc<State>) {
        self.help_and(state, &mut || {});
    }

    /// The same, with `between` run after each piece.
    fn help_and(&self, state: &Arc<State>, between: &mut dyn FnMut()) {
        let Inner { core, tools, .. } = &*self.inner;
        let mut reader = Reader::new(PreadRing::new(tools.planner.segment));
        while reader.step_for(core, tools, state) {
            between();
        }
        for _ in 0..PATIENCE {
            if !core.lock().is_left_to_readers(state) || state.wait_for(LOOKS_EVERY).is_some() {
                return;
            }
        }
        // Others have their turn before, or the readers hang in their files.
        core.with(|scheduler| scheduler.insist(state));
        while reader.step_for(core, tools, state) {
            between();
        }
    }

    /// Starts the readers, once; refuses a transfer where too many that ended cannot let go.
    fn start_readers(&self) -> Result<()> {
        let inner = &self.inner;
        if inner.core.is_stuck() {
            return Err(Error::Resource { what: "next transfer", source: Errno::BUSY });
        }
        inner.threads.start_readers(&inner.tools, inner.readers)
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
        if self.drives.has_any() {
            // The user's folder may lie on a server that hangs.
            let (drives, core) = (Arc::clone(&self.drives), Arc::clone(&self.core));
            self.core.aside(Chore::Close, move || drives.remember(&core));
        }
        // What waits there may hold the core, and so itself.
        self.core.finish_aside();
        events::engine_ended(self.threads.wait());
    }
}

pub(crate) fn resource(what: &'static str, error: &std::io::Error) -> Error {
    let source = Errno::from_io_error(error).unwrap_or(Errno::AGAIN);
    Error::Resource { what, source }
}

fn bad_request(operation: Operation, place: crate::error::Place, reason: String) -> Error {
    Error::BadRequest { operation, place, reason }
}

/// A GPU that the engine has, unless it is a simulated one and other settings are wanted.
fn same_settings(wanted: &GpuSelector, known: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
    let GpuSelector::Sim(config) = wanted else { return Ok(known) };
    let (asked, has) = (config.to_string(), &known.info().driver);
    let is_plain = *config == Default::default(); // whatever it is
    if is_plain || asked == *has {
        return Ok(known);
    }
    Err(Error::BadOption {
        name: "gpu".into(),
        value: asked,
        expected: format!(
            "`{has}`, as the engine has its simulated GPU already, or `sim` for the same: another \
             engine may have another"
        ),
    })
}

//! The engine's threads: how many there are, how they start, how they end.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Lock, woken};
use forebay_topology::Neighbours;
use rustix::io::Errno;

use super::affinity::ReaderAffinity;
use super::notes;
use crate::error::{Error, Operation, Result, SystemError};
use crate::events;
use crate::gpu::Device;
use crate::memory::Parts;
use crate::options::{Options, RingChoice};
use crate::queue::{
    Chore, Claim, Closers, Core, EACH_MAX, KernelThreads, Parking, Plan, Planner, Pool, PreadRing,
    Reader, RingWorker, Slot, Tools, UringRing, Waker, Wakeup, Workers,
};
use crate::staging::{Arena, Cells, Submitter};

/// How long dropping the last handle waits for the threads to end. They end immediately unless a
/// drive or a GPU hangs; then they stay, with their resources, until it responds.
const END_BOUND: Duration = Duration::from_secs(2);

/// How the limit on threads is divided. Besides these fields, 1 in 32 is reserved for GPU threads,
/// a single thread per GPU. 1 in 64 closes files, and 1 in 64 frees memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadShares {
    /// Threads that read cached bytes.
    pub(super) readers: usize,
    /// Rings, with a thread per ring. Every drive gets a separate ring while any remain; drives
    /// that share a ring share only the thread that submits and reaps.
    rings: usize,
    /// Threads that wait for drives without a ring.
    pub(super) pool: usize,
    /// Threads that the kernel starts for rings; at least 1 per ring.
    kernel: usize,
    /// Threads that close files; the same number frees memory.
    closers: usize,
}

impl ThreadShares {
    /// Divides at most `most` threads, with `readers` readers if they fit.
    pub(super) fn of(most: usize, readers: usize) -> Self {
        let quarter = (most / 4).max(1);
        let (readers, rings) = (readers.min(quarter), (most / 8).max(1));
        let closers = (most / 64).max(1);
        let rest = most.saturating_sub(readers + rings + (most / 32).max(1) + 2 * closers);
        let pool = rest.saturating_sub(rings).clamp(1, 2 * quarter);
        let kernel = rest.saturating_sub(pool).clamp(rings, quarter.max(rings));
        Self { readers, rings, pool, kernel, closers }
    }
}

/// What readers need to plan windows, to allocate slots and to spawn further readers.
#[derive(Debug, Clone)]
pub(crate) struct ReaderTools {
    pub(super) planner: Planner,
    pub(crate) arena: Arc<Arena>,
    pub(super) core: Arc<Core>,
    /// Wakes the readers.
    pub(super) bell: Arc<Parking>,
    /// CPU affinity of the readers.
    pub(super) affinity: Arc<ReaderAffinity>,
    pub(super) neighbours: Arc<Neighbours>,
}

impl ReaderTools {
    /// Publishes the links in use, and passes the number that other processes of the host use to
    /// the scheduler.
    pub(super) fn look_for_neighbours(&self, now: Instant) {
        look(&self.neighbours, &self.core, now);
    }
}

fn look(neighbours: &Neighbours, core: &Core, now: Instant) {
    let note = |link| neighbours.note(link);
    let elsewhere = neighbours.look(now, || core.lock().links_in_use().for_each(note));
    let set = |links| core.with(|scheduler| scheduler.set_links_elsewhere(links));
    elsewhere.into_iter().for_each(set);
}

impl Tools for ReaderTools {
    fn plan(&self, claim: &Claim) -> Plan {
        self.look_for_neighbours(Instant::now());
        self.planner.plan(claim)
    }

    fn grow(&self, link: usize) -> Vec<Slot> {
        // If no more memory is available, the existing slots must suffice.
        let grown = self.arena.grow(link);
        self.arena.report_grown(link, &grown);
        grown.unwrap_or_default()
    }
}

/// The threads of an engine. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Threads {
    alive: Arc<Alive>,
    shares: ThreadShares,
    readers: Arc<Lock<StartedReaders>>,
    /// The kernel's rings, and the number of drives per ring.
    served: Arc<Lock<Vec<(usize, usize)>>>,
    pub(super) kernel: Arc<KernelThreads>,
}

/// Readers that run, and the number that was wanted last.
#[derive(Debug, Default)]
struct StartedReaders {
    started: usize,
    wanted: usize,
}

/// The quota that a thread counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quota {
    /// The shared quota.
    Shared,
    /// A reserved quota, which the caller keeps to.
    Reserved,
}

#[derive(Debug)]
struct Alive {
    /// Limit on threads of the shared quota.
    most: usize,
    /// Indexed by [`Quota`].
    count: Lock<[usize; 2]>,
    none: Condvar,
}

thread_local! {
    /// The engine of this thread, as the address of its counts; 0 for a thread of the caller.
    static ENGINE: Cell<usize> = const { Cell::new(0) };
}

/// Removes its thread from the count when it ends, also after a panic.
struct Leave(Arc<Alive>, Quota);

impl Drop for Leave {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        count[self.1 as usize] -= 1;
        if *count == [0, 0] {
            self.0.none.notify_all();
        }
    }
}

impl Threads {
    /// Allows at most `most` threads at a time, including the kernel's, divided by `shares`, on a
    /// machine with this many NUMA `nodes`.
    pub(super) fn new(most: usize, shares: ThreadShares, nodes: usize) -> Self {
        let most = most.saturating_sub(shares.kernel + 2 * shares.closers);
        Self {
            alive: Arc::new(Alive { most, count: Lock::default(), none: Condvar::new() }),
            shares,
            readers: Arc::default(),
            served: Arc::default(),
            kernel: KernelThreads::new(shares.kernel, shares.rings, nodes),
        }
    }

    fn spawn(
        &self,
        name: String,
        what: &'static str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        self.spawn_as(Quota::Shared, name, what, run)
    }

    fn spawn_as(
        &self,
        quota: Quota,
        name: String,
        what: &'static str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let mut count = self.alive.count.lock();
        if quota == Quota::Shared && count[quota as usize] >= self.alive.most {
            return Err(Error::Resource { what, source: SystemError::of(Errno::AGAIN) });
        }
        count[quota as usize] += 1;
        drop(count);
        let leave = Leave(Arc::clone(&self.alive), quota);
        // The thread is not joined: its last act is to remove itself from the count.
        let thread = Builder::new().name(name).spawn(move || {
            ENGINE.set(Arc::as_ptr(&leave.0).addr());
            let _leave = leave;
            run();
        });
        thread.map(drop).map_err(|error| Error::resource(what, &error))
    }

    /// Waits for all threads to end, for a bounded time; returns whether they ended. A thread that
    /// dropped the last handle does not wait, for example in a callback.
    pub(super) fn wait(&self) -> bool {
        if ENGINE.get() == Arc::as_ptr(&self.alive).addr() {
            return true;
        }
        let waited =
            self.alive
                .none
                .wait_timeout_while(self.alive.count.lock(), END_BOUND, |count| *count != [0, 0]);
        !woken(waited).1.timed_out()
    }

    pub(super) fn have_ended(&self) -> bool {
        *self.alive.count.lock() == [0, 0]
    }

    /// Starts the thread for small cold reads that are not waited for.
    pub(super) fn start_cold(&self, run: impl FnOnce() + Send + 'static) -> Result<()> {
        self.spawn_as(Quota::Reserved, "forebay-cold".to_owned(), "threads for cold reads", run)
    }

    /// Starts readers up to this number, which was not wanted before; at least 1 must run.
    pub(super) fn start_readers(&self, tools: &ReaderTools, count: usize) -> Result<()> {
        let mut readers = self.readers.lock();
        if readers.wanted >= count {
            return Ok(());
        }
        if readers.started == 0 {
            tools.affinity.allow();
        }
        let mut refusal = None;
        while refusal.is_none() && readers.started < count {
            match self.spawn_reader(tools, readers.started) {
                Err(error) if readers.started == 0 => return Err(error),
                Err(error) => refusal = Some(error),
                Ok(()) => readers.started += 1,
            }
        }
        readers.wanted = count; // a thread that was refused is not tried for each transfer
        let count = readers.started;
        drop(readers);
        events::readers_started(count);
        refusal.iter().for_each(|error| events::thread_refused("reader", error));
        Ok(())
    }

    fn spawn_reader(&self, tools: &ReaderTools, index: usize) -> Result<()> {
        let tools = tools.clone();
        self.spawn(format!("forebay-read-{index}"), "reader threads", move || {
            let _registered = tools.affinity.register();
            let ring = PreadRing::new(tools.planner.segment);
            Reader::new(ring).run(&tools.core, &tools, &tools.bell);
        })
    }

    /// Starts the submitter of a GPU; returns the link, which `number` creates once nothing can
    /// fail any more.
    pub(super) fn start_submitter(
        &self,
        tools: &ReaderTools,
        device: &Arc<dyn Device>,
        arena: &Arc<Arena>,
        cells: &Arc<Cells>,
        number: impl FnOnce(Wakeup) -> usize,
    ) -> Result<usize> {
        let failed = |source| Error::of_device(Operation::Copy, device.id(), 0, source);
        let submitter = Submitter::new(usize::MAX, Arc::clone(device), Arc::clone(cells));
        let submitter = submitter.map_err(failed)?;
        let (sender, receiver) = sync_channel::<usize>(1);
        let (core, neighbours) = (Arc::clone(&tools.core), Arc::clone(&tools.neighbours));
        let arena = Arc::clone(arena);
        self.spawn(format!("forebay-copy-{}", device.id().index), "copy thread", move || {
            let Ok(link) = receiver.recv() else { return };
            let look = |now| look(&neighbours, &core, now);
            submitter.serving(link, arena).run(&core, look);
        })?;
        let link = number(Wakeup::List(Arc::clone(&cells.bell)));
        sender.send(link).unwrap_or(());
        Ok(link)
    }

    /// The threads that close files and free memory. A panic in a job fails the engine, because its
    /// resources may be half freed.
    pub(super) fn closers(&self, core: &Weak<Core>) -> Arc<Closers> {
        let (threads, core) = (self.clone(), core.clone());
        Arc::new_cyclic(|closers: &Weak<Closers>| {
            let closers = closers.clone();
            let start = move |chore| {
                let closers = closers.upgrade().ok_or(Errno::AGAIN)?;
                let (name, what) = match chore {
                    Chore::Close => ("forebay-close", "threads that close files"),
                    Chore::Free => ("forebay-free", "threads that free memory"),
                };
                let core = core.clone();
                let run = move || {
                    let ended = catch_unwind(AssertUnwindSafe(|| closers.run(chore)));
                    if let (Err(panic), Some(core)) = (ended, core.upgrade()) {
                        core.guard(|| resume_unwind(panic));
                    }
                };
                let started = threads.spawn_as(Quota::Reserved, name.to_owned(), what, run);
                started.map_err(errno_of)
            };
            Closers::new(self.shares.closers, Box::new(start))
        })
    }

    /// The threads that wait for drives, started when first needed.
    pub(super) fn pool(&self, core: &Weak<Core>, segment: u64) -> Arc<Pool> {
        let (threads, planner) = (self.clone(), Planner { segment });
        Arc::new_cyclic(|pool: &Weak<Pool>| {
            // The core owns the pool, so the pool must not own the core or itself.
            let (core, pool) = (core.clone(), pool.clone());
            let start = move |number| {
                let (Some(core), Some(pool)) = (core.upgrade(), pool.upgrade()) else {
                    return Err(Errno::AGAIN);
                };
                let run = move || {
                    let ring = PreadRing::new(segment);
                    RingWorker::woken(Workers::Pool, ring).run(&core, planner, Some(&pool));
                };
                let started = threads.spawn(format!("forebay-wait-{number}"), "drive threads", run);
                started.map_err(errno_of)
            };
            Pool::new(self.shares.pool, Box::new(start))
        })
    }

    /// Creates a ring for a drive, if allowed; otherwise returns a note for reports.
    pub(super) fn give_ring(
        &self,
        core: &Arc<Core>,
        drive: usize,
        options: &Options,
        parts: &Arc<Parts>,
    ) -> Result<Option<String>> {
        if options.ring == RingChoice::Pread {
            return Ok(None);
        }
        let mut served = self.served.lock();
        // If no further ring is available, the ring with the fewest drives serves the new drive
        // too.
        let spare = served.iter().min_by_key(|(_, drives)| *drives).map(|(ring, _)| *ring);
        let started = match spare {
            Some(ring) if served.len() == self.shares.rings => Ok(Ok(ring)),
            _ => self.start_uring(core, options, parts),
        };
        let ring = match (started, spare) {
            (Ok(Ok(ring)), _) | (Ok(Err(_)) | Err(_), Some(ring)) => ring,
            (Err(error), None) => return Err(error),
            (Ok(Err(errno)), None) if options.ring == RingChoice::Uring => {
                return Err(Error::Resource { what: "io_uring", source: SystemError::of(errno) });
            }
            (Ok(Err(errno)), None) => {
                let most = options.depth.unwrap_or(EACH_MAX).min(EACH_MAX).min(self.shares.pool);
                return Ok(Some(notes::no_ring(errno, most)));
            }
        };
        match served.iter_mut().find(|(known, _)| *known == ring) {
            Some((_, drives)) => *drives += 1,
            None => served.push((ring, 1)),
        }
        core.with(|scheduler| scheduler.attach(drive, ring));
        Ok(None)
    }

    /// The inner result is the kernel's response to creating the ring.
    fn start_uring(
        &self,
        core: &Arc<Core>,
        options: &Options,
        parts: &Arc<Parts>,
    ) -> Result<Result<usize, Errno>> {
        let waker = match Waker::new() {
            Ok(waker) => waker,
            Err(errno) => return Ok(Err(errno)),
        };
        let segment = options.segment_size;
        let planner = Planner { segment };
        let (answer, answered) = sync_channel(1);
        let (core, parts, kernel) = (Arc::clone(core), Arc::clone(parts), Arc::clone(&self.kernel));
        self.spawn("forebay-ring".into(), "ring thread", move || {
            // Created on the thread that uses it: the kernel may restrict the ring to a single
            // issuer.
            let ring = match UringRing::new(segment, waker.clone(), parts, kernel) {
                Ok(ring) => ring,
                Err(errno) => return answer.send(Err(errno)).unwrap_or(()),
            };
            let index = core.add_ring(Wakeup::Ring(waker));
            answer.send(Ok(index)).unwrap_or(());
            events::ring_made(index);
            RingWorker::new(Workers::Ring(index), ring).run(&core, planner, None);
        })?;
        Ok(answered.recv().unwrap_or(Err(Errno::AGAIN)))
    }
}

/// The reason why a thread could not be started.
fn errno_of(error: Error) -> Errno {
    match error {
        Error::Resource { source, .. } => Errno::from_raw_os_error(source.0),
        _ => Errno::AGAIN,
    }
}

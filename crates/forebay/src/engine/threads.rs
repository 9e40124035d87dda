//! The engine's threads: how many there are, how they start, how they end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Weak};
use std::thread::Builder;
use std::time::Duration;

use rustix::io::Errno;

use super::seats::Seats;
use super::{notes, resource};
use crate::error::{Error, Operation, Result};
use crate::events;
use crate::gpu::Device;
use crate::lock::{Lock, woken};
use crate::memory::Parts;
use crate::options::{Options, RingChoice};
use crate::queue::{
    Bell, Chore, Claim, Closers, Core, Crew, EACH_MAX, Idlers, KernelThreads, Plan, Planner, Pool,
    PreadRing, Reader, RingWorker, Slot, Tools, UringRing, Waker,
};
use crate::staging::{Arena, Submitter};

/// How long the last handle waits for the threads to end. They end at once unless a drive or a GPU
/// hangs; then they stay, with what they hold, until it answers.
const END_BOUND: Duration = Duration::from_secs(2);

/// How the bound on threads is divided; what is left is for a thread for each GPU: one in 32. Of
/// those that close files there is one in 64, and of those that free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    /// Threads that read what is in memory.
    pub(super) readers: usize,
    /// Rings, with a thread each. A drive has a ring of its own as long as there are any left; two
    /// that share one share only the thread that submits and reaps.
    rings: usize,
    /// Threads that wait for drives where no ring does.
    pub(super) pool: usize,
    /// Threads that the kernel starts for rings; each has one at least.
    kernel: usize,
    /// Threads that close files, and as many that free memory.
    closers: usize,
}

impl Shares {
    /// Of at most `most` threads, with `readers` readers if they fit.
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

/// What readers plan and grow with, and what others are started with.
#[derive(Debug, Clone)]
pub(super) struct ReaderTools {
    pub(super) planner: Planner,
    pub(super) arena: Arc<Arena>,
    pub(super) core: Arc<Core>,
    /// Wakes the readers.
    pub(super) bell: Arc<Idlers>,
    /// Where readers run.
    pub(super) seats: Arc<Seats>,
}

impl Tools for ReaderTools {
    fn plan(&self, claim: &Claim) -> Plan {
        self.planner.plan(claim)
    }

    fn grow(&self, link: usize) -> Vec<Slot> {
        // Where no more memory can be had, the slots that there are must do.
        let grown = self.arena.grow(link);
        self.arena.tell_grown(link, &grown);
        grown.unwrap_or_default()
    }
}

/// See the module's own text. Clones count together.
#[derive(Debug, Clone)]
pub(super) struct Threads {
    alive: Arc<Alive>,
    shares: Shares,
    readers_started: Arc<Lock<usize>>,
    /// The kernel's rings, and how many drives each serves.
    served: Arc<Lock<Vec<(usize, usize)>>>,
    kernel: Arc<KernelThreads>,
}

/// Out of which quota a thread comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quota {
    /// The one that all share.
    Shared,
    /// What was set aside for it: whoever starts it keeps to that.
    Reserved,
}

#[derive(Debug)]
struct Alive {
    /// How many there may be that share.
    most: usize,
    /// By [`Quota`].
    count: Lock<[usize; 2]>,
    none: Condvar,
}

/// Counts its thread out when it ends, by a panic as well.
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
    /// At most `most` at a time, the kernel's among them, divided by `shares`; on a machine of so
    /// many NUMA `nodes`.
    pub(super) fn new(most: usize, shares: Shares, nodes: usize) -> Self {
        let most = most.saturating_sub(shares.kernel + 2 * shares.closers);
        Self {
            alive: Arc::new(Alive { most, count: Lock::default(), none: Condvar::new() }),
            shares,
            readers_started: Arc::default(),
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
            return Err(Error::Resource { what, source: Errno::AGAIN });
        }
        count[quota as usize] += 1;
        drop(count);
        let leave = Leave(Arc::clone(&self.alive), quota);
        // The thread is not joined: its last act is to count itself out.
        let thread = Builder::new().name(name).spawn(move || {
            let _leave = leave;
            run();
        });
        thread.map(drop).map_err(|error| resource(what, &error))
    }

    /// What the kernel may start beside them.
    pub(super) fn kernel(&self) -> &KernelThreads {
        &self.kernel
    }

    /// Waits for all threads to end, for a bounded time; whether they have.
    pub(super) fn wait(&self) -> bool {
        let waited =
            self.alive
                .none
                .wait_timeout_while(self.alive.count.lock(), END_BOUND, |count| *count != [0, 0]);
        !woken(waited).1.timed_out()
    }

    /// Starts `count` readers at the first call; at least one must start.
    pub(super) fn start_readers(&self, tools: &ReaderTools, count: usize) -> Result<()> {
        let mut started = self.readers_started.lock();
        if *started > 0 {
            return Ok(());
        }
        tools.seats.allow();
        let mut refusal = None;
        while refusal.is_none() && *started < count {
            match self.spawn_reader(tools, *started) {
                Err(error) if *started == 0 => return Err(error),
                Err(error) => refusal = Some(error),
                Ok(()) => *started += 1,
            }
        }
        events::readers_started(*started);
        drop(started);
        refusal.iter().for_each(|error| events::thread_refused("reader", error));
        Ok(())
    }

    fn spawn_reader(&self, tools: &ReaderTools, index: usize) -> Result<()> {
        let tools = tools.clone();
        self.spawn(format!("forebay-read-{index}"), "reader threads", move || {
            let _seat = tools.seats.sit();
            let ring = PreadRing::new(tools.planner.segment);
            Reader::new(ring).run(&tools.core, &tools, &tools.bell);
        })
    }

    /// Starts the submitter of a GPU; returns its link, which `number` makes once nothing can fail
    /// any more.
    pub(super) fn start_submitter(
        &self,
        core: &Arc<Core>,
        device: &Arc<dyn Device>,
        arena: &Arc<Arena>,
        number: impl FnOnce(Bell) -> usize,
    ) -> Result<usize> {
        let submitter = Submitter::new(usize::MAX, Arc::clone(device));
        let submitter = submitter.map_err(|source| Error::Device {
            operation: Operation::Copy,
            device: device.id(),
            len: 0,
            place: None,
            source,
        })?;
        let bell = Arc::<Idlers>::default();
        let (tell, told) = sync_channel::<usize>(1);
        let (core, arena, own) = (Arc::clone(core), Arc::clone(arena), Arc::clone(&bell));
        self.spawn(format!("forebay-copy-{}", device.id().index), "copy thread", move || {
            let Ok(link) = told.recv() else { return };
            submitter.serving(link, arena).run(&core, &own);
        })?;
        let link = number(Bell::List(bell));
        tell.send(link).unwrap_or(());
        Ok(link)
    }

    /// The threads that close files and free memory. A job that panics fails the engine: what it
    /// was to give back may be half given back.
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

    /// The threads that wait for drives, each started when it is first needed.
    pub(super) fn pool(&self, core: &Weak<Core>, segment: u64) -> Arc<Pool> {
        let (threads, planner) = (self.clone(), Planner { segment });
        Arc::new_cyclic(|pool: &Weak<Pool>| {
            // The pool is the core's, so it may keep neither the core nor itself.
            let (core, pool) = (core.clone(), pool.clone());
            let start = move |number| {
                let (Some(core), Some(pool)) = (core.upgrade(), pool.upgrade()) else {
                    return Err(Errno::AGAIN);
                };
                let run = move || {
                    let ring = PreadRing::new(segment);
                    RingWorker::called(Crew::Pool, ring).run(&core, planner, Some(&pool));
                };
                let started = threads.spawn(format!("forebay-wait-{number}"), "drive threads", run);
                started.map_err(errno_of)
            };
            Pool::new(self.shares.pool, Box::new(start))
        })
    }

    /// Gives a drive a ring, where it may have one; returns what a report should say where it may
    /// not.
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
        // Who serves the fewest drives serves one more, where no other can be had.
        let spare = served.iter().min_by_key(|(_, drives)| *drives).map(|(ring, _)| *ring);
        let started = match spare {
            Some(ring) if served.len() == self.shares.rings => Ok(Ok(ring)),
            _ => self.start_uring(core, options, parts),
        };
        let ring = match (started, spare) {
            (Ok(Ok(ring)), _) | (Ok(Err(_)) | Err(_), Some(ring)) => ring,
            (Err(error), None) => return Err(error),
            (Ok(Err(errno)), None) if options.ring == RingChoice::Uring => {
                return Err(Error::Resource { what: "io_uring", source: errno });
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

    /// The inner result is the kernel's answer to the ring.
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
            // Made on the thread that uses it: the kernel may hold the ring to one issuer.
            let ring = match UringRing::new(segment, waker.clone(), parts, kernel) {
                Ok(ring) => ring,
                Err(errno) => return answer.send(Err(errno)).unwrap_or(()),
            };
            let index = core.add_ring(Bell::Ring(waker));
            answer.send(Ok(index)).unwrap_or(());
            events::ring_made(index);
            RingWorker::new(Crew::Ring(index), ring).run(&core, planner, None);
        })?;
        Ok(answered.recv().unwrap_or(Err(Errno::AGAIN)))
    }
}

/// Why a thread could not be started.
fn errno_of(error: Error) -> Errno {
    match error {
        Error::Resource { source, .. } => source,
        _ => Errno::AGAIN,
    }
}

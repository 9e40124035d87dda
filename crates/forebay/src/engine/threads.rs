//! The engine's threads: how many there are, how they start, how they end.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Builder;
use std::time::Duration;

use rustix::io::Errno;

use super::resource;
use crate::error::{Error, Operation, Result};
use crate::gpu::Device;
use crate::memory::Parts;
use crate::options::{Options, RingChoice};
use crate::queue::{
    Bell, Claim, Core, Crew, Depth, Idlers, Plan, Planner, Pool, PreadRing, Reader, RingWorker,
    Slot, Tools, UringRing, Waker,
};
use crate::staging::{Arena, Submitter};

/// How long the last handle waits for the threads to end. They end at once unless a drive or a GPU
/// hangs; then they stay, with what they hold, until it answers.
const END_BOUND: Duration = Duration::from_secs(2);

/// Threads of one drive's pool at most: each holds one request, and where io_uring is refused a
/// drive needs as many in flight from threads as from a ring. On a virtio drive with 2 cores, 4
/// threads gave 0.95 of the ring's rate, 8 gave 0.97, 32 gave 0.98. Each may need a huge page to
/// bounce through, which bounds them: 32 would take 64 MiB.
const POOL_MAX: usize = 24;

/// What readers plan and grow with, and what others are started with.
#[derive(Debug, Clone)]
pub(super) struct ReaderTools {
    pub(super) planner: Planner,
    pub(super) arena: Arc<Arena>,
    pub(super) core: Arc<Core>,
    /// Wakes the readers.
    pub(super) bell: Arc<Idlers>,
    pub(super) threads: Threads,
}

impl Tools for ReaderTools {
    fn plan(&self, claim: &Claim) -> Plan {
        self.planner.plan(claim)
    }

    fn grow(&self, link: usize) -> Vec<Slot> {
        // Where no more memory can be had, the slots that there are must do.
        self.arena.grow(link).unwrap_or_default()
    }

    fn hire(&self) -> bool {
        self.threads.start_reader(self).is_ok()
    }
}

/// See the module's own text. Clones count together.
#[derive(Debug, Clone)]
pub(super) struct Threads {
    alive: Arc<Alive>,
    readers_started: Arc<Mutex<usize>>,
}

#[derive(Debug)]
struct Alive {
    /// How many there may be.
    most: usize,
    count: Mutex<usize>,
    none: Condvar,
}

impl Alive {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts its thread out when it ends, by a panic as well.
struct Leave(Arc<Alive>);

impl Drop for Leave {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

impl Threads {
    /// At most `most` at a time.
    pub(super) fn new(most: usize) -> Self {
        let alive = Alive { most, count: Mutex::new(0), none: Condvar::new() };
        Self { alive: Arc::new(alive), readers_started: Arc::default() }
    }

    fn spawn(
        &self,
        name: String,
        what: &'static str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let mut count = self.alive.lock();
        if *count >= self.alive.most {
            return Err(Error::Resource { what, source: Errno::AGAIN });
        }
        *count += 1;
        drop(count);
        let leave = Leave(Arc::clone(&self.alive));
        // The thread is not joined: its last act is to count itself out.
        let thread = Builder::new().name(name).spawn(move || {
            let _leave = leave;
            run();
        });
        thread.map(drop).map_err(|error| resource(what, &error))
    }

    /// Waits for all threads to end, for a bounded time.
    pub(super) fn wait(&self) {
        let waited =
            self.alive.none.wait_timeout_while(self.alive.lock(), END_BOUND, |count| *count > 0);
        drop(waited);
    }

    /// Starts the first readers, `count` of them, at the first call; at least one must start.
    pub(super) fn start_readers(&self, tools: &ReaderTools, count: usize) -> Result<()> {
        let mut started = self.readers_started();
        if *started > 0 {
            return Ok(());
        }
        while *started < count {
            match self.spawn_reader(tools, *started) {
                Err(error) if *started == 0 => return Err(error),
                Err(_) => break,
                Ok(()) => *started += 1,
            }
        }
        tools.core.with(|scheduler| scheduler.hired(*started));
        Ok(())
    }

    /// Starts one more.
    fn start_reader(&self, tools: &ReaderTools) -> Result<()> {
        let mut started = self.readers_started();
        self.spawn_reader(tools, *started)?;
        *started += 1;
        Ok(())
    }

    fn readers_started(&self) -> MutexGuard<'_, usize> {
        self.readers_started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn_reader(&self, tools: &ReaderTools, index: usize) -> Result<()> {
        let tools = tools.clone();
        self.spawn(format!("forebay-read-{index}"), "reader threads", move || {
            let ring = PreadRing::new(tools.planner.segment);
            Reader::new(ring).run(&tools.core, &tools, &tools.bell);
        })
    }

    /// Starts the submitter of a GPU; returns its link.
    pub(super) fn start_submitter(
        &self,
        core: &Arc<Core>,
        device: &Arc<dyn Device>,
        arena: &Arc<Arena>,
        slots_max: usize,
    ) -> Result<usize> {
        let bell = Arc::<Idlers>::default();
        let link = core.add_link(slots_max, Bell::List(Arc::clone(&bell)));
        let submitter =
            Submitter::new(link, Arc::clone(device)).map_err(|source| Error::Device {
                operation: Operation::Copy,
                device: device.id(),
                len: 0,
                place: None,
                source,
            })?;
        let (core, arena) = (Arc::clone(core), Arc::clone(arena));
        self.spawn(format!("forebay-copy-{link}"), "copy thread", move || {
            submitter.with_arena(arena).run(&core, &bell);
        })?;
        Ok(link)
    }

    /// Adds a drive, whose pool starts its threads when they are first needed.
    pub(super) fn add_drive(&self, core: &Arc<Core>, depth: Depth, segment: u64) -> usize {
        let (threads, place) = (self.clone(), Arc::<OnceLock<usize>>::default());
        let pool = Arc::new_cyclic(|pool: &Weak<Pool>| {
            // The pool is the core's, so it may keep neither the core nor itself.
            let (core, pool, place) = (Arc::downgrade(core), pool.clone(), Arc::clone(&place));
            let start = move |number| {
                let (core, pool) = (core.upgrade(), pool.upgrade());
                let (Some(core), Some(pool), Some(&drive)) = (core, pool, place.get()) else {
                    return Err(Errno::AGAIN);
                };
                let name = format!("forebay-{drive}-{number}");
                let run = move || {
                    let ring = PreadRing::new(segment);
                    RingWorker::called(Crew::Pool(drive), ring).run(&core, Some(&pool));
                };
                threads.spawn(name, "drive threads", run).map_err(|error| match error {
                    Error::Resource { source, .. } => source,
                    _ => Errno::AGAIN,
                })
            };
            Pool::new(POOL_MAX, Box::new(start))
        });
        let drive = core.add_drive(depth, Bell::Pool(pool));
        *place.get_or_init(|| drive)
    }

    /// Starts the ring of a drive, where it may have one; returns what a report should say where
    /// it may not.
    pub(super) fn start_ring(
        &self,
        core: &Arc<Core>,
        drive: usize,
        options: &Options,
        parts: &Arc<Parts>,
    ) -> Result<Option<String>> {
        if options.ring == RingChoice::Pread {
            return Ok(None);
        }
        match self.start_uring(core, drive, options, parts)? {
            Ok(()) => Ok(None),
            Err(errno) if options.ring == RingChoice::Uring => {
                Err(Error::Resource { what: "io_uring", source: errno })
            }
            Err(errno) => Ok(Some(format!(
                "io_uring is refused here ({errno}): up to {} threads read each drive instead",
                options.depth_max().min(POOL_MAX)
            ))),
        }
    }

    /// The inner result is the kernel's answer to the ring.
    fn start_uring(
        &self,
        core: &Arc<Core>,
        drive: usize,
        options: &Options,
        parts: &Arc<Parts>,
    ) -> Result<Result<(), Errno>> {
        let waker = match Waker::new() {
            Ok(waker) => waker,
            Err(errno) => return Ok(Err(errno)),
        };
        let (depth, segment) = (options.depth_max(), options.segment_size);
        let (answer, answered) = sync_channel(1);
        let (core, parts) = (Arc::clone(core), Arc::clone(parts));
        self.spawn("forebay-ring".into(), "ring thread", move || {
            // Made on the thread that uses it: the kernel may hold the ring to one issuer.
            let ring = match UringRing::new(depth, segment, waker.clone(), parts) {
                Ok(ring) => ring,
                Err(errno) => return answer.send(Err(errno)).unwrap_or(()),
            };
            core.add_ring(drive, Bell::Ring(waker));
            answer.send(Ok(())).unwrap_or(());
            RingWorker::new(Crew::Ring(drive), ring).run(&core, None);
        })?;
        Ok(answered.recv().unwrap_or(Err(Errno::AGAIN)))
    }
}

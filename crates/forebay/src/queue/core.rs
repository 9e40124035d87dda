//! The scheduler behind its lock, and the primitives that wake waiting threads.

use std::any::Any;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock, TryLockError, Weak};
use std::time::Duration;

use forebay_base::lock::{Lock, Mutex, MutexGuard, woken};
use rustix::io::Errno;

use super::closers::{Chore, Closers};
use super::op::now_ns;
use super::parking::{Parking, Pool, Waker};
use super::scheduler::{Effects, Scheduler};
use super::spans;
use super::writers::Writers;
use crate::error::Error;
use crate::events;
use crate::trace::{Recorder, Trace};
use crate::transfer::State;
use crate::tune::DepthLimits;

/// Spins before blocking on the lock. It is held for about a microsecond, and a thread that blocks
/// on it resumes only after 50.
const LOCK_TRIES: usize = 200;

/// Closing files or freeing memory counts as hung after this long without progress.
const STUCK_AFTER: Duration = Duration::from_secs(3);

/// Maximum number of readers of an engine (`FOREBAY_READERS`).
const READERS_MAX: usize = 1024;

/// How to wake a parked thread.
#[derive(Debug, Clone)]
pub(crate) enum Wakeup {
    /// Parked in a list of threads of its kind.
    List(Arc<Parking>),
    /// Waiting in a ring.
    Ring(Waker),
    /// Parked in a pool, or not started yet.
    Pool(Arc<Pool>),
    /// Stepped by a test.
    #[cfg(test)]
    Counted(Arc<AtomicUsize>),
}

impl Wakeup {
    /// Wakes a thread.
    fn wake(&self) {
        match self {
            Self::List(parking) => parking.wake(),
            Self::Ring(waker) => waker.wake(),
            Self::Pool(pool) => pool.wake(),
            #[cfg(test)]
            Self::Counted(rung) => {
                rung.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Starts a thread that is not started yet.
    fn start(&self) -> Result<(), Errno> {
        match self {
            Self::Pool(pool) => return pool.start(),
            other => other.wake(),
        }
        Ok(())
    }

    /// Number of threads that are started on first use.
    fn unstarted(&self) -> usize {
        match self {
            Self::Pool(pool) => pool.most(),
            _ => 0,
        }
    }
}

#[cfg(test)]
thread_local! {
    static SECTIONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Number of times that this thread locked a scheduler.
#[cfg(test)]
pub(crate) fn sections_of_this_thread() -> u64 {
    SECTIONS.get()
}

/// State shared by all threads of an engine.
#[derive(Debug)]
pub(crate) struct Core {
    scheduler: Mutex<Scheduler>,
    readers: Wakeup,
    pool: Wakeup,
    /// Time of the last refused pool thread, in ns; 0 if none. A reader tries again.
    refused_ns: AtomicU64,
    rings: RwLock<Vec<Wakeup>>,
    links: RwLock<Vec<Wakeup>>,
    closers: Arc<Closers>,
    recorder: Recorder,
    writers: Arc<Writers>,
    /// The kernel's error of the first ring that failed.
    ring_failure: OnceLock<Errno>,
    failure: EngineFailure,
}

/// Transfers that the scheduler does not know.
pub(crate) trait Outside: std::fmt::Debug + Send + Sync {
    /// Accepts no further transfer, and returns those that have not ended.
    fn close(&self) -> Vec<Arc<State>>;
}

/// Why the engine failed, and the memory to leak.
#[derive(Debug, Default)]
pub(super) struct EngineFailure {
    pub(super) cause: OnceLock<Arc<str>>,
    /// The memory of the slots.
    pub(super) memory: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Transfers that the scheduler does not know.
    pub(super) outside: Lock<Vec<Weak<dyn Outside>>>,
}

impl Core {
    /// `readers` wakes readers, `pool` wakes threads that wait for drives, and `closers` release
    /// what ended transfers owned.
    pub(crate) fn new(
        mut scheduler: Scheduler,
        readers: Wakeup,
        pool: Wakeup,
        closers: Arc<Closers>,
    ) -> Self {
        scheduler.add_unstarted(pool.unstarted());
        Self {
            writers: Arc::clone(&scheduler.writers),
            scheduler: Mutex::new(scheduler),
            readers,
            pool,
            refused_ns: AtomicU64::new(0),
            rings: RwLock::new(Vec::new()),
            links: RwLock::new(Vec::new()),
            closers,
            recorder: Recorder::default(),
            ring_failure: OnceLock::new(),
            failure: EngineFailure::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Scheduler> {
        #[cfg(test)]
        SECTIONS.set(SECTIONS.get() + 1);
        for _ in 0..LOCK_TRIES {
            match self.scheduler.try_lock() {
                Ok(held) => return held,
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                Err(TryLockError::Poisoned(_)) => break,
            }
        }
        if let Ok(held) = self.scheduler.lock() {
            return held;
        }
        self.fail("a thread panicked while it changed the scheduler's state");
        self.lock_anyhow()
    }

    /// The scheduler, even if a thread panicked while holding the lock.
    pub(super) fn lock_anyhow(&self) -> MutexGuard<'_, Scheduler> {
        self.scheduler.lock().unwrap_or_else(|poisoned| {
            self.scheduler.clear_poison();
            poisoned.into_inner()
        })
    }

    pub(super) fn failed(&self) -> &EngineFailure {
        &self.failure
    }

    /// Wakes all parked threads, regardless of the scheduler's counts.
    pub(super) fn wake_all(&self) {
        (0..READERS_MAX).for_each(|_| self.readers.wake());
        (0..self.pool.unstarted()).for_each(|_| self.pool.wake());
        for wakeups in [&self.rings, &self.links] {
            let wakeups = woken(wakeups.read());
            wakeups.iter().for_each(Wakeup::wake);
        }
    }

    /// Runs `step` under the lock, then its side effects without the lock.
    pub(crate) fn with<T>(&self, step: impl FnOnce(&mut Scheduler) -> T) -> T {
        let (answer, effects) = self.hold(step);
        self.act(effects);
        answer
    }

    /// Runs `step` under the lock; the caller must pass the effects to [`act`](Self::act) soon.
    pub(crate) fn hold<T>(&self, step: impl FnOnce(&mut Scheduler) -> T) -> (T, Effects) {
        let mut scheduler = self.lock();
        let answer = step(&mut scheduler);
        (answer, scheduler.take_effects())
    }

    /// Runs side effects. Must not be called under the lock. Events are emitted last, so that
    /// subscribers delay no waiting thread.
    pub(crate) fn act(&self, effects: Effects) {
        // Threads that could not be started have effects of their own. Each may end a transfer that
        // thousands wait for, so this must not recurse.
        let (mut next, mut more) = (Some(effects), Vec::new());
        while let Some(mut effects) = next {
            (0..effects.readers).for_each(|_| self.readers.wake());
            if !effects.rings.is_empty() {
                let wakeups = woken(self.rings.read());
                effects.rings.iter().for_each(|&ring| wakeups[ring].wake());
            }
            (0..effects.pool).for_each(|_| self.pool.wake());
            let mut refused = Vec::new();
            for _ in 0..effects.starts {
                if let Err(errno) = self.pool.start() {
                    more.push(self.hold(|scheduler| scheduler.cannot_start(errno)).1);
                    if self.refused_ns.swap(now_ns(), Ordering::AcqRel) == 0 {
                        self.readers.wake();
                    }
                    refused.push(errno);
                }
            }
            if !effects.links.is_empty() {
                let wakeups = woken(self.links.read());
                effects.links.iter().for_each(|&link| wakeups[link].wake());
            }
            effects.gates.iter().for_each(|gate| gate.notify());
            effects.finished.reverse();
            while let Some((state, result)) = effects.finished.pop() {
                spans::ended(&self.recorder, &state, result.is_err());
                self.end(state, result);
            }
            spans::slots(&self.recorder, std::mem::take(&mut effects.slots));
            for errno in &refused {
                events::thread_refused("thread that waits for drives", errno);
            }
            for (path, reason) in &effects.refused {
                events::direct_refused(path, reason, true);
            }
            next = more.pop();
        }
    }

    /// Whether ops may wait for a thread of the pool that could not be started.
    pub(super) fn lacks_threads(&self) -> bool {
        self.refused_ns.load(Ordering::Acquire) != 0
    }

    /// Tries to start a thread of the pool again, if the last attempt was `every` ago.
    pub(super) fn start_threads(&self, every: Duration) {
        let (refused, now) = (self.refused_ns.load(Ordering::Acquire), now_ns());
        let is_due = refused != 0 && u128::from(now.saturating_sub(refused)) >= every.as_nanos();
        let set = |from, to| {
            self.refused_ns.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if is_due && set(refused, now) {
            self.with(Scheduler::wake_more_of_pool);
            set(now, 0); // unless it was refused again
        }
    }

    /// Ends a transfer that the scheduler does not know, or does not know any more.
    pub(crate) fn end(&self, state: Arc<State>, result: Result<u64, Error>) {
        let unused = state.finish(result);
        // What only it owned is released on a helper thread, since this thread is needed for the
        // data path.
        let waited_for = Arc::downgrade(&state);
        // Memory first: closing a file may hang.
        if let Some(state) = Arc::into_inner(state).filter(State::owns_memory) {
            self.closers.push(Chore::Free, move || drop(state));
        }
        let Some(mut files) = unused else { return };
        let memory = std::mem::take(&mut files.memory);
        if !memory.is_empty() {
            self.closers.push(Chore::Free, move || drop(memory));
        }
        if files.has_files() {
            self.closers.push(Chore::Close, move || {
                drop(files);
                waited_for.upgrade().iter().for_each(|state| state.closed());
            });
        }
    }

    /// The recorder of its threads' spans.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Starts recording.
    pub(crate) fn start_trace(&self) {
        self.recorder.start(now_ns());
        self.lock().trace_slots(true);
    }

    /// Stops recording and returns the trace.
    pub(crate) fn end_trace(&self) -> Trace {
        self.lock().trace_slots(false);
        self.recorder.end(now_ns())
    }

    /// Runs a job that may block forever on a thread for this kind of `chore`.
    pub(crate) fn aside(&self, chore: Chore, job: impl FnOnce() + Send + 'static) {
        self.closers.push(chore, job);
    }

    /// True if no further transfer may begin: too many ended transfers have files and memory that
    /// cannot be released because a drive, server or GPU hangs.
    pub(crate) fn is_stuck(&self) -> bool {
        self.closers.is_stuck(STUCK_AFTER)
    }

    /// Makes sure that all remaining jobs run: the engine has ended, and no more will follow.
    pub(crate) fn finish_aside(&self) {
        self.closers.finish();
    }

    /// Adds a drive: see [`Scheduler::add_drive`].
    pub(crate) fn add_drive(&self, limits: DepthLimits, hardware: &[usize]) -> usize {
        self.lock().add_drive(limits, hardware)
    }

    /// Adds a ring whose worker is woken by `wakeup`.
    pub(crate) fn add_ring(&self, wakeup: Wakeup) -> usize {
        self.add(&self.rings, wakeup, Scheduler::add_ring)
    }

    /// Moves the work of a failed ring to threads.
    pub(super) fn lose_ring(&self, ring: usize, errno: Errno) {
        self.with(|scheduler| scheduler.lose_ring(ring));
        self.note_ring_failure(errno);
    }

    /// Notes that the kernel accepts no more requests of a ring.
    pub(crate) fn note_ring_failure(&self, errno: Errno) {
        if self.ring_failure.set(errno).is_ok() {
            events::refused("requests by io_uring", errno);
        }
    }

    /// The kernel's error of the first ring that failed.
    pub(crate) fn ring_failure(&self) -> Option<Errno> {
        self.ring_failure.get().copied()
    }

    /// Adds a link whose submitter is woken by `wakeup`.
    pub(crate) fn add_link(&self, slots_max: usize, wakeup: Wakeup) -> usize {
        self.add(&self.links, wakeup, |scheduler| scheduler.add_link(slots_max))
    }

    /// Adds a wake-up under the number that `add` returns.
    fn add(
        &self,
        wakeups: &RwLock<Vec<Wakeup>>,
        wakeup: Wakeup,
        add: impl FnOnce(&mut Scheduler) -> usize,
    ) -> usize {
        loop {
            // After a panic this closes the engine and wakes all threads, for which it must not
            // hold `wakeups`.
            drop(self.lock());
            let mut wakeups = woken(wakeups.write());
            if let Ok(mut scheduler) = self.scheduler.lock() {
                wakeups.push(wakeup);
                return add(&mut scheduler);
            }
        }
    }

    /// Makes all threads end once nothing is in flight.
    pub(crate) fn stop(&self) {
        self.with(Scheduler::stop);
    }
}

/// A caller's write in flight; it ends on drop.
#[derive(Debug)]
pub(crate) struct SmallWrite<'a> {
    core: &'a Core,
    file: (u64, u64),
}

impl<'a> SmallWrite<'a> {
    /// Begins a write. `None` if a direct write to the file is in flight or waiting.
    pub(crate) fn begin(core: &'a Core, file: (u64, u64)) -> Option<Self> {
        core.writers.begin(file).then(|| Self { core, file })
    }
}

impl Drop for SmallWrite<'_> {
    fn drop(&mut self) {
        if self.core.writers.end(self.file) {
            self.core.with(|scheduler| scheduler.start_next_writes(self.file));
        }
    }
}

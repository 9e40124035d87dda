//! The scheduler behind its lock, and how those who wait for it are woken.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use super::idlers::Idlers;
use super::scheduler::{Effects, Scheduler};
use super::uring::Waker;

/// Tries to get the lock before sleeping on it. It is held for about a microsecond, and a thread
/// that sleeps on it is back only after 50.
const LOCK_TRIES: usize = 200;

/// Readers that one thread wakes; each of them wakes as many more while there is work. So ten are
/// awake after three wake-ups' time, not ten.
const WAKE_AT_ONCE: usize = 2;

/// How the workers of a drive are told of work.
#[derive(Debug, Clone)]
pub(crate) enum Bell {
    /// They sleep on a list.
    List(Arc<Idlers>),
    /// It waits in a ring.
    Ring(Waker),
}

/// What all threads of an engine share.
#[derive(Debug)]
pub(crate) struct Core {
    scheduler: Mutex<Scheduler>,
    pub(crate) readers: Idlers,
    drives: RwLock<Vec<Bell>>,
    links: RwLock<Vec<Arc<Idlers>>>,
    stopping: AtomicBool,
    ends: Ends,
}

/// Lets callers wait for the end of any transfer.
#[derive(Debug, Default)]
struct Ends {
    waiting: AtomicUsize,
    count: Mutex<u64>,
    bell: Condvar,
}

impl Core {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        Self {
            scheduler: Mutex::new(scheduler),
            readers: Idlers::default(),
            drives: RwLock::new(Vec::new()),
            links: RwLock::new(Vec::new()),
            stopping: AtomicBool::new(false),
            ends: Ends::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Scheduler> {
        for _ in 0..LOCK_TRIES {
            match self.scheduler.try_lock() {
                Ok(held) => return held,
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                Err(TryLockError::Poisoned(_)) => break,
            }
        }
        // A panic under the lock is a bug of ours; what follows still drains what it can.
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `step` under the lock, then tells those whom it concerns.
    pub(crate) fn with<T>(&self, step: impl FnOnce(&mut Scheduler) -> T) -> T {
        let mut scheduler = self.lock();
        let answer = step(&mut scheduler);
        let effects = scheduler.take_effects();
        drop(scheduler);
        self.act(effects);
        answer
    }

    /// Tells those whom it concerns. Not under the lock.
    pub(crate) fn act(&self, effects: Effects) {
        if effects.readers > 0 {
            self.readers.wake(effects.readers.min(WAKE_AT_ONCE));
        }
        if !effects.drives.is_empty() {
            let bells = self.drives.read().unwrap_or_else(PoisonError::into_inner);
            for &drive in &effects.drives {
                match &bells[drive] {
                    Bell::List(idlers) => idlers.wake(1),
                    Bell::Ring(waker) => waker.wake(),
                }
            }
        }
        if !effects.links.is_empty() {
            let bells = self.links.read().unwrap_or_else(PoisonError::into_inner);
            effects.links.iter().for_each(|&link| bells[link].wake(1));
        }
        if effects.finished.is_empty() {
            return;
        }
        for (state, result) in effects.finished {
            state.finish(result);
        }
        self.ends.tell();
        if self.is_stopping() {
            self.wake_all(); // it may have been the last thing that they waited for
        }
    }

    /// Adds a drive whose workers are woken by `bell`.
    pub(crate) fn add_drive(&self, bell: Bell) -> usize {
        let mut bells = self.drives.write().unwrap_or_else(PoisonError::into_inner);
        bells.push(bell);
        self.with(Scheduler::add_drive)
    }

    /// Adds a link, and where its submitter sleeps.
    pub(crate) fn add_link(&self, slots_max: usize) -> (usize, Arc<Idlers>) {
        let idlers = Arc::new(Idlers::default());
        let mut bells = self.links.write().unwrap_or_else(PoisonError::into_inner);
        bells.push(Arc::clone(&idlers));
        (self.with(|s| s.add_link(slots_max)), idlers)
    }

    /// Sleeps until `ready` is true, asked again whenever a transfer has ended; at most `bound`.
    pub(crate) fn wait_for_end(&self, bound: Duration, ready: impl Fn() -> bool) {
        self.ends.wait(bound, ready);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Asks all threads to end once nothing is in flight.
    pub(crate) fn stop(&self) {
        // Under the lock, so that nobody checks before and falls asleep after.
        let scheduler = self.lock();
        self.stopping.store(true, Ordering::Release);
        drop(scheduler);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.readers.wake_all();
        for bell in &*self.drives.read().unwrap_or_else(PoisonError::into_inner) {
            match bell {
                Bell::List(idlers) => idlers.wake_all(),
                Bell::Ring(waker) => waker.wake(),
            }
        }
        for idlers in &*self.links.read().unwrap_or_else(PoisonError::into_inner) {
            idlers.wake_all();
        }
    }
}

impl Ends {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        // Either this sees the waiter, or the waiter sees the end that came before this.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.lock() += 1;
            self.bell.notify_all();
        }
    }

    fn wait(&self, bound: Duration, ready: impl Fn() -> bool) {
        let until = Instant::now().checked_add(bound);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut count = self.lock();
        while !ready() {
            let left = until.map_or(bound, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            let waited = self.bell.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(count);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

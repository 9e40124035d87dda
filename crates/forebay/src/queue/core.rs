//! The scheduler behind its lock, and the bells that wake those who wait for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use super::scheduler::{Effects, Scheduler};
use super::uring::Waker;

/// How a sleeping thread is told of work.
#[derive(Debug, Clone)]
pub(crate) enum Bell {
    /// It waits for the scheduler's lock.
    Condvar(Arc<Condvar>),
    /// It waits in a ring.
    Ring(Waker),
}

impl Bell {
    fn ring(&self) {
        match self {
            Self::Condvar(bell) => bell.notify_one(),
            Self::Ring(waker) => waker.wake(),
        }
    }
}

/// What all threads of an engine share.
#[derive(Debug)]
pub(crate) struct Core {
    scheduler: Mutex<Scheduler>,
    readers: Condvar,
    readers_asleep: AtomicUsize,
    drives: RwLock<Vec<Bell>>,
    links: RwLock<Vec<Arc<Condvar>>>,
    stopping: AtomicBool,
}

impl Core {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        Self {
            scheduler: Mutex::new(scheduler),
            readers: Condvar::new(),
            readers_asleep: AtomicUsize::new(0),
            drives: RwLock::new(Vec::new()),
            links: RwLock::new(Vec::new()),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Scheduler> {
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

    pub(crate) fn act(&self, effects: Effects) {
        let sleepers = self.readers_asleep.load(Ordering::Relaxed);
        if effects.readers >= sleepers && sleepers > 1 {
            self.readers.notify_all(); // one system call instead of many
        } else {
            (0..effects.readers.min(sleepers)).for_each(|_| self.readers.notify_one());
        }
        if !effects.drives.is_empty() {
            let bells = self.drives.read().unwrap_or_else(PoisonError::into_inner);
            effects.drives.iter().for_each(|&drive| bells[drive].ring());
        }
        if !effects.links.is_empty() {
            let bells = self.links.read().unwrap_or_else(PoisonError::into_inner);
            effects.links.iter().for_each(|&link| bells[link].notify_one());
        }
        let ended = !effects.finished.is_empty();
        for (state, result) in effects.finished {
            state.finish(result);
        }
        if ended && self.is_stopping() {
            self.ring_all(); // it may have been the last thing that they waited for
        }
    }

    /// Adds a drive whose workers are woken by `bell`.
    pub(crate) fn add_drive(&self, bell: Bell) -> usize {
        let mut bells = self.drives.write().unwrap_or_else(PoisonError::into_inner);
        bells.push(bell);
        self.with(Scheduler::add_drive)
    }

    /// Adds a link and the bell of its submitter.
    pub(crate) fn add_link(&self, slots_max: usize) -> (usize, Arc<Condvar>) {
        let bell = Arc::new(Condvar::new());
        let mut bells = self.links.write().unwrap_or_else(PoisonError::into_inner);
        bells.push(Arc::clone(&bell));
        (self.with(|s| s.add_link(slots_max)), bell)
    }

    /// Puts a reader to sleep until there is work for one.
    pub(crate) fn reader_waits<'a>(
        &self,
        scheduler: MutexGuard<'a, Scheduler>,
    ) -> MutexGuard<'a, Scheduler> {
        self.readers_asleep.fetch_add(1, Ordering::Relaxed);
        let woken = self.readers.wait(scheduler).unwrap_or_else(PoisonError::into_inner);
        self.readers_asleep.fetch_sub(1, Ordering::Relaxed);
        woken
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
        self.ring_all();
    }

    fn ring_all(&self) {
        self.readers.notify_all();
        for bell in &*self.drives.read().unwrap_or_else(PoisonError::into_inner) {
            match bell {
                Bell::Condvar(bell) => bell.notify_all(),
                Bell::Ring(waker) => waker.wake(),
            }
        }
        for bell in &*self.links.read().unwrap_or_else(PoisonError::into_inner) {
            bell.notify_all();
        }
    }
}

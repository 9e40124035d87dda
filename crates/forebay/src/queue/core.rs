//! The scheduler behind its lock, and the bells that wake those who wait for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use super::scheduler::{Crew, Effects, Scheduler};
use super::uring::Waker;

/// How a sleeping thread is told of work.
#[derive(Debug, Clone)]
pub(crate) enum Bell {
    /// It waits for the scheduler's lock.
    Condvar(Arc<Condvar>),
    /// It waits in a ring.
    Ring(Waker),
    /// It is stepped by a test.
    #[cfg(test)]
    Counted(Arc<std::sync::atomic::AtomicUsize>),
}

impl Bell {
    fn ring(&self) {
        match self {
            Self::Condvar(bell) => bell.notify_one(),
            Self::Ring(waker) => waker.wake(),
            #[cfg(test)]
            Self::Counted(rung) => {
                rung.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }

    fn ring_times(&self, times: usize, all: bool) {
        match self {
            Self::Condvar(bell) if all && times > 1 => bell.notify_all(), // one call instead of many
            _ => (0..times).for_each(|_| self.ring()),
        }
    }
}

/// What all threads of an engine share.
#[derive(Debug)]
pub(crate) struct Core {
    scheduler: Mutex<Scheduler>,
    readers: Bell,
    drives: RwLock<Vec<Bell>>,
    links: RwLock<Vec<Bell>>,
}

impl Core {
    /// For readers that are woken by `readers`.
    pub(crate) fn new(scheduler: Scheduler, readers: Bell) -> Self {
        Self {
            scheduler: Mutex::new(scheduler),
            readers,
            drives: RwLock::new(Vec::new()),
            links: RwLock::new(Vec::new()),
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

    fn act(&self, effects: Effects) {
        self.readers.ring_times(effects.readers, effects.all_readers);
        if !effects.drives.is_empty() {
            let bells = self.drives.read().unwrap_or_else(PoisonError::into_inner);
            effects.drives.iter().for_each(|&drive| bells[drive].ring());
        }
        if !effects.links.is_empty() {
            let bells = self.links.read().unwrap_or_else(PoisonError::into_inner);
            effects.links.iter().for_each(|&link| bells[link].ring());
        }
        for (state, result) in effects.finished {
            state.finish(result);
        }
    }

    /// Adds a drive whose workers are woken by `bell`.
    pub(crate) fn add_drive(&self, bell: Bell) -> usize {
        let mut bells = self.drives.write().unwrap_or_else(PoisonError::into_inner);
        bells.push(bell);
        self.lock().add_drive()
    }

    /// Adds a link whose submitter is woken by `bell`.
    pub(crate) fn add_link(&self, slots_max: usize, bell: Bell) -> usize {
        let mut bells = self.links.write().unwrap_or_else(PoisonError::into_inner);
        bells.push(bell);
        self.lock().add_link(slots_max)
    }

    /// Blocks one of `crew`, who was counted in as asleep, until it is called.
    pub(crate) fn wait(&self, crew: Crew, bell: &Condvar) {
        let mut scheduler = self.lock();
        while !scheduler.is_called(crew) {
            scheduler = bell.wait(scheduler).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks all threads to end once nothing is in flight.
    pub(crate) fn stop(&self) {
        self.with(Scheduler::stop);
    }
}

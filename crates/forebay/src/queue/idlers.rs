//! Threads that have nothing to do, each asleep on a lock of its own.
//!
//! One lock for all would have those who wake at once wait for it, one after the other, each
//! wake-up 50 µs after the last on an idle virtual machine.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// One thread's bed.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    called: Mutex<bool>,
    bell: Condvar,
}

impl Sleeper {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until called; at once where the call came first.
    pub(crate) fn sleep(&self) {
        let mut called = self.lock();
        while !*called {
            called = self.bell.wait(called).unwrap_or_else(PoisonError::into_inner);
        }
        *called = false;
    }

    fn call(&self) {
        *self.lock() = true;
        self.bell.notify_one();
    }
}

/// Those of one kind who sleep.
#[derive(Debug, Default)]
pub(crate) struct Idlers {
    asleep: Mutex<Vec<Arc<Sleeper>>>,
}

impl Idlers {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.asleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a thread on the list. To be called while the scheduler is locked and has no work for
    /// it, so that whoever pushes work later finds it here.
    pub(crate) fn enlist(&self, sleeper: &Arc<Sleeper>) {
        self.lock().push(Arc::clone(sleeper));
    }

    /// Wakes up to `count`, the last to fall asleep first: its core is the warmest.
    pub(crate) fn wake(&self, count: usize) {
        for _ in 0..count {
            let Some(sleeper) = self.lock().pop() else { return };
            sleeper.call();
        }
    }

    /// Wakes all.
    pub(crate) fn wake_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        all.iter().for_each(|sleeper| sleeper.call());
    }
}

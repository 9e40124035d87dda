//! Threads of one kind that are started when they are first needed.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::idlers::Idlers;

/// Starts the thread of this number.
type Start = Box<dyn Fn(usize) -> Result<(), Errno> + Send + Sync>;

/// See the module's own text.
pub(crate) struct Pool {
    idlers: Idlers,
    started: Mutex<usize>,
    most: usize,
    start: Start,
}

impl Pool {
    /// Of at most `most` threads, each made by `start`.
    pub(crate) fn new(most: usize, start: Start) -> Self {
        Self { idlers: Idlers::default(), started: Mutex::new(0), most, start }
    }

    /// How many threads there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Wakes a thread that sleeps, or starts one. Where no more can be had, whoever is about to
    /// sleep is called, and the others look for work before they sleep.
    ///
    /// # Errors
    /// Where there is no thread at all.
    pub(super) fn call(&self) -> Result<(), Errno> {
        if self.idlers.wake_one() {
            return Ok(());
        }
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if *started < self.most {
            match (self.start)(*started) {
                Ok(()) => {
                    *started += 1;
                    return Ok(());
                }
                Err(errno) if *started == 0 => return Err(errno),
                Err(_) => {}
            }
        }
        self.idlers.call();
        Ok(())
    }

    /// Sleeps until called.
    pub(crate) fn sleep(&self) {
        self.idlers.sleep();
    }

    /// Wakes all that sleep, and lets nobody sleep again.
    pub(super) fn close(&self) {
        self.idlers.close();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({:?} of {})", self.started, self.most)
    }
}

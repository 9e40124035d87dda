//! Threads of one kind that are started when they are first needed.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::idlers::Idlers;

/// Starts the thread of this number.
type Start = Box<dyn Fn(usize) -> Result<(), Errno> + Send + Sync>;

/// A thread that was called and could not be started.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) errno: Errno,
    /// Whether the pool has others, which will come to what this one was called for.
    pub(super) others: bool,
}

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

    /// Wakes a thread that sleeps, or starts one.
    ///
    /// # Errors
    /// Where no more threads can be had.
    pub(super) fn call(&self) -> Result<(), Missing> {
        if self.idlers.wake_one() {
            return Ok(());
        }
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if *started == self.most {
            self.idlers.call(); // one is about to sleep
            return Ok(());
        }
        (self.start)(*started).map_err(|errno| Missing { errno, others: *started > 0 })?;
        *started += 1;
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

//! Threads of one kind that are started when they are first needed.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::idlers::Idlers;

/// Starts the thread of this number.
type Start = Box<dyn Fn(usize) -> Result<(), Errno> + Send + Sync>;

/// See the module's own text.
pub(crate) struct Pool {
    idlers: Idlers,
    started: AtomicUsize,
    most: usize,
    start: Start,
}

impl Pool {
    /// Of at most `most` threads, each made by `start`.
    pub(crate) fn new(most: usize, start: Start) -> Self {
        Self { idlers: Idlers::default(), started: AtomicUsize::new(0), most, start }
    }

    /// How many threads there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Starts one more thread.
    ///
    /// # Errors
    /// Where it cannot be had.
    pub(super) fn start(&self) -> Result<(), Errno> {
        (self.start)(self.started.fetch_add(1, Ordering::Relaxed))
    }

    /// Wakes a thread that sleeps, or is about to.
    pub(super) fn call(&self) {
        self.idlers.call();
    }

    /// Sleeps until called.
    pub(crate) fn sleep(&self) {
        self.idlers.sleep();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({:?} of {})", self.started, self.most)
    }
}

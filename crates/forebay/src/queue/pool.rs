//! Threads of one kind that are started on first use.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::parking::Parking;

/// Starts the thread with this number.
type Start = Box<dyn Fn(usize) -> Result<(), Errno> + Send + Sync>;

/// Started threads park here; further threads are started up to a maximum.
pub(crate) struct Pool {
    parking: Parking,
    started: AtomicUsize,
    most: usize,
    start: Start,
}

impl Pool {
    /// At most `most` threads, each started by `start`.
    pub(crate) fn new(most: usize, start: Start) -> Self {
        Self { parking: Parking::default(), started: AtomicUsize::new(0), most, start }
    }

    /// Maximum number of threads.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Starts one more thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(super) fn start(&self) -> Result<(), Errno> {
        (self.start)(self.started.fetch_add(1, Ordering::Relaxed))
    }

    /// Wakes a thread that is parked or about to park.
    pub(super) fn wake(&self) {
        self.parking.wake();
    }

    /// Parks until woken.
    pub(crate) fn park(&self) {
        self.parking.park();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({:?} of {})", self.started, self.most)
    }
}

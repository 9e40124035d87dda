//! Idle threads, parked on separate locks.
//!
//! A shared lock would serialise woken threads, 50 µs apart on an idle virtual machine. A thread
//! that waits in a ring is woken by an eventfd.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::lock::{Condvar, Lock, woken};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Parked threads of a kind. A wake-up without a parked thread is kept for the next thread that
/// parks.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    parked: Lock<Vec<Arc<ParkedThread>>>,
    /// Kept wake-ups. Grows under the lock only.
    pending: AtomicUsize,
}

#[derive(Debug, Default)]
struct ParkedThread {
    is_woken: Lock<bool>,
    bell: Condvar,
}

impl Parking {
    /// Wakes the thread that parked last, whose core is the warmest.
    pub(crate) fn wake(&self) {
        let mut parked = self.parked.lock();
        match parked.pop() {
            Some(thread) => {
                drop(parked);
                *thread.is_woken.lock() = true;
                thread.bell.notify_one();
            }
            None => drop(self.pending.fetch_add(1, Ordering::AcqRel)),
        }
    }

    /// Consumes a pending wake-up without parking; false if none is pending.
    pub(crate) fn take_pending(&self) -> bool {
        let less = |pending: usize| pending.checked_sub(1);
        self.pending.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// Parks until woken.
    pub(crate) fn park(&self) {
        if let Some(thread) = self.enter() {
            thread.wait();
        }
    }

    /// Parks until woken, at most for `bound`.
    pub(crate) fn park_for(&self, bound: Duration) {
        let Some(thread) = self.enter() else { return };
        let sleeps = |is_woken: &mut bool| !*is_woken;
        let waited = thread.bell.wait_timeout_while(thread.is_woken.lock(), bound, sleeps);
        if !woken(waited).1.timed_out() {
            return;
        }
        let mut parked = self.parked.lock();
        match parked.iter().position(|parked| Arc::ptr_eq(parked, &thread)) {
            Some(at) => drop(parked.remove(at)),
            None => {
                drop(parked);
                thread.wait(); // it is being woken
            }
        }
    }

    /// Adds the calling thread; `None` if a wake-up is pending.
    fn enter(&self) -> Option<Arc<ParkedThread>> {
        let mut parked = self.parked.lock();
        if self.take_pending() {
            return None;
        }
        let thread = Arc::new(ParkedThread::default());
        parked.push(Arc::clone(&thread));
        Some(thread)
    }
}

impl ParkedThread {
    fn wait(&self) {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            is_woken = woken(self.bell.wait(is_woken));
        }
    }
}

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
    /// At most `most` threads, started by `start`.
    pub(crate) fn new(most: usize, start: Start) -> Self {
        Self { parking: Parking::default(), started: AtomicUsize::new(0), most, start }
    }

    /// Maximum number of threads.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Starts a further thread.
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

/// An eventfd that wakes the thread waiting in a ring.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC).map(|fd| Self(Arc::new(fd)))
    }

    /// The descriptor that a ring reads to notice a wake-up.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn wake(&self) {
        // A write fails only if the counter is at its maximum, and then a wake-up is pending
        // already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wake_up_resumes_one_thread_and_none_is_lost() {
        let parking = &Parking::default();
        parking.wake();
        parking.park(); // the wake-up came first
        parking.park_for(Duration::from_nanos(1));
        assert!(parking.parked.lock().is_empty());
        parking.wake();
        assert!(parking.take_pending() && !parking.take_pending());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..1000).for_each(|_| parking.park()));
                let bound = Duration::from_secs(100); // only separates late from never
                scope.spawn(move || (0..1000).for_each(|_| parking.park_for(bound)));
            }
            (0..4000).for_each(|_| parking.wake());
        });
        assert!(parking.parked.lock().is_empty() && !parking.take_pending());
    }
}

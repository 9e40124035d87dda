//! A completion queue: the ends of many transfers, for a thread that waits for the next.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Lock, woken};
use forebay_base::process::Home;

thread_local! {
    /// Reads started while ends are still unread; `None` once the queue was drained.
    static STARTED: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Whether a read that this thread starts is submitted immediately. While ends are still unread,
/// only the first, the second and every fourth read are, with the reads before it: the drive stays
/// busy, and many reads share a system call.
pub(crate) fn goes_at_once() -> bool {
    let Some(started) = STARTED.get() else { return true };
    STARTED.set(Some(started + 1));
    started < 2 || started % 4 == 3
}

/// The ends of the transfers that report to it ([`Transfer::report_to`]), in their order. A thread
/// that keeps many transfers in flight waits here for the next one that ends.
///
/// It costs less than a callback ([`Transfer::on_end`]): while small reads from a drive are in
/// flight, the waiting thread takes their completions from the kernel itself. While it has more
/// ends to take here, small reads that it starts reach the drive together, when it next waits.
///
/// [`Transfer::report_to`]: crate::Transfer::report_to
/// [`Transfer::on_end`]: crate::Transfer::on_end
///
/// ```
/// use forebay::{Completions, Engine, Options};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = Engine::new(Options::default())?;
/// let (file, completions) = (engine.open(&path)?, Completions::new());
/// let mut transfers = Vec::new();
/// for tag in 0..8 {
///     let transfer = file.read(engine.allocate_pinned(4096)?).at(tag * 4096).start()?;
///     transfer.report_to(&completions, tag);
///     transfers.push(transfer);
/// }
/// for _ in 0..8 {
///     let tag = completions.wait(None).expect("a transfer");
///     assert!(transfers[tag as usize].is_done());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Completions(pub(super) Arc<Queue>);

pub(super) struct Queue {
    home: Home,
    ended: Lock<Ended>,
    bell: Condvar,
    /// Reaps small drive reads.
    reaper: OnceLock<Arc<dyn Reaper>>,
}

#[derive(Debug, Default)]
struct Ended {
    tags: VecDeque<u64>,
    /// Number of threads that wait without a notification, and with a pending notification: a
    /// wake-up costs a system call, so transfers that end before the thread runs share it.
    waiting: usize,
    notified: usize,
    /// Number of threads that reap, or are about to.
    reaping: usize,
}

impl Completions {
    /// A queue without transfers.
    #[must_use]
    pub fn new() -> Self {
        let (ended, bell, reaper) = (Lock::default(), Condvar::new(), OnceLock::new());
        Self(Arc::new(Queue { home: Home::here(), ended, bell, reaper }))
    }

    /// Waits for the next transfer to end, until `until` or without a timeout, and returns its tag.
    /// `None` after the timeout, and immediately in a forked child. Never returns if no transfer
    /// reports here and there is no timeout.
    #[must_use]
    pub fn wait(&self, until: Option<Instant>) -> Option<u64> {
        let queue = &*self.0;
        if !queue.home.is_here() {
            return None;
        }
        loop {
            if let Some(reaper) = queue.reaper.get().filter(|_| queue.is_empty())
                && reaper.has_reads()
                && reaper.is_free()
            {
                queue.ended.lock().reaping += 1;
                reaper.reap(until, &|| !queue.is_empty());
                queue.ended.lock().reaping -= 1;
            }
            let reaper = queue.reaper.get();
            reaper.iter().filter(|_| queue.is_empty()).for_each(|reaper| reaper.submit());
            let mut ended = queue.ended.lock();
            reaper.iter().for_each(|reaper| reaper.add_waiting());
            ended.waiting += 1;
            let waits = |ended: &mut Ended| {
                let reaper = queue.reaper.get(); // perhaps since this wait began
                let may_reap = reaper.is_some_and(|reaper| reaper.has_reads() && reaper.is_free());
                let waits = ended.tags.is_empty() && !may_reap;
                if waits && ended.notified > 0 {
                    ended.notified -= 1; // its tag is already read: sleep again
                    ended.waiting += 1;
                }
                waits
            };
            let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
            let (mut ended, _) = woken(queue.bell.wait_timeout_while(ended, left, waits));
            // Any notified thread may be counted here: the counts are equal.
            match ended.notified {
                0 => ended.waiting -= 1,
                _ => ended.notified -= 1,
            }
            reaper.iter().for_each(|reaper| reaper.remove_waiting());
            let tag = ended.tags.pop_front();
            STARTED.set((!ended.tags.is_empty()).then(|| STARTED.get().unwrap_or(0)));
            if tag.is_some() || until.is_some_and(|until| Instant::now() >= until) {
                return tag;
            }
        }
    }
}

impl Default for Completions {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.ended.lock().tags.is_empty()
    }

    /// Sets the reaper of this queue's transfers; false if the queue already reaps a different
    /// ring.
    pub(super) fn reaps_with(&self, reaper: &Arc<dyn Reaper>) -> bool {
        Arc::ptr_eq(self.reaper.get_or_init(|| Arc::clone(reaper)), reaper)
    }

    pub(super) fn push(&self, tag: u64) {
        let mut ended = self.ended.lock();
        ended.tags.push_back(tag);
        let (waits, reaps) = (ended.notifies(), ended.reaping > 0);
        drop(ended);
        if waits {
            self.bell.notify_one();
        }
        if reaps {
            self.reaper.get().iter().for_each(|reaper| reaper.interrupt());
        }
    }

    /// Wakes a waiting thread to reap; false if no thread waits.
    pub(super) fn wake_to_reap(&self) -> bool {
        let waits = self.ended.lock().notifies();
        if waits {
            self.bell.notify_one();
        }
        waits
    }
}

impl Ended {
    /// Whether there is a thread to notify, which is counted as notified then.
    fn notifies(&mut self) -> bool {
        let waits = self.waiting > 0;
        self.waiting -= usize::from(waits);
        self.notified += usize::from(waits);
        waits
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ended.fmt(f)
    }
}

/// Timeout of a wait that is repeated until it is over.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Reaps a ring's completions; a single thread at a time holds this role.
pub(crate) trait Reaper: Send + Sync {
    /// Whether the role is free.
    fn is_free(&self) -> bool;
    /// Whether reads are in flight.
    fn has_reads(&self) -> bool;
    /// If the role is free, reaps until `until` or until `is_over`.
    fn reap(&self, until: Option<Instant>, is_over: &dyn Fn() -> bool);
    /// Submits pending requests.
    fn submit(&self);
    /// Makes the reaping thread check `is_over`.
    fn interrupt(&self);
    /// Counts a thread that waits and does not reap.
    fn add_waiting(&self);
    /// Counts it no longer.
    fn remove_waiting(&self);
    /// Makes a thread of the engine reap, because the caller does not wait.
    fn leave_to_thread(&self);
}

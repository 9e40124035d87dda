//! Processor time of threads that only read counters: it is no cost of the work that they observe.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// In nanoseconds.
static TOTAL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What this thread has added, in nanoseconds.
    static ADDED: Cell<u64> = const { Cell::new(0) };
}

/// Adds the processor time that the calling thread has used since it last did so. The time that
/// it has used so far.
pub fn add() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(used.tv_sec).unwrap_or(0);
    let used = Duration::from_secs(seconds) + Duration::from_nanos(used.tv_nsec.unsigned_abs());
    let nanos = u64::try_from(used.as_nanos()).unwrap_or(u64::MAX);
    let before = ADDED.replace(nanos);
    TOTAL.fetch_add(nanos.saturating_sub(before), Ordering::Relaxed);
    used
}

/// The time of all such threads of this process so far.
#[must_use]
pub fn total() -> Duration {
    Duration::from_nanos(TOTAL.load(Ordering::Relaxed))
}

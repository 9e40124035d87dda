//! CPU time of threads that only read counters, so that it is not charged to the observed work.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::ClockId;

use crate::process::processor_time;

/// Total in nanoseconds.
static TOTAL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Time added by this thread, in nanoseconds.
    static ADDED: Cell<u64> = const { Cell::new(0) };
}

/// Adds the CPU time that the calling thread used since its last call to this function. Returns
/// all CPU time that it used.
pub fn add() -> Duration {
    let used = processor_time(ClockId::ThreadCPUTime);
    let nanos = u64::try_from(used.as_nanos()).unwrap_or(u64::MAX);
    let before = ADDED.replace(nanos);
    TOTAL.fetch_add(nanos.saturating_sub(before), Ordering::Relaxed);
    used
}

/// Total CPU time of all such threads of this process so far.
pub fn total() -> Duration {
    Duration::from_nanos(TOTAL.load(Ordering::Relaxed))
}

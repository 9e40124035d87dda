//! The library's counters in this process: their level, and when counting must stop.

#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::c_int;
use std::time::Duration;

use forebay_base::lock::Lock;
use forebay_base::process::Home;
use forebay_base::timeout::within;

use super::failure::Answer;
use super::table::Table;

/// The library's statistics level, if it reports one.
pub(super) fn level_of(table: &Table) -> Option<c_int> {
    let mut level = 0;
    // SAFETY: the output outlives the call.
    let status = unsafe { table.get_stats_level?(&raw mut level) };
    status.checked("").is_ok().then_some(level)
}

/// `cuFileStatsStop`.
type StatsStop = unsafe extern "C" fn() -> Answer;

/// Libraries that count, with the process they belong to; a forked child ignores them.
static COUNTING: Lock<Vec<(Home, StatsStop)>> = Lock::new(Vec::new());

/// Maximum time for libraries to stop counting. Another hanging call may hold a lock that they
/// need.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// Makes a library stop counting when the process ends. Version 1.15 crashes at exit if it still
/// counts per GPU (`docs/internals.md#cufile`).
pub(super) fn stop_at_end(stop: StatsStop) {
    extern "C" fn stop_all() {
        // A thread that holds the lock now will never release it.
        let Some(counting) = COUNTING.try_lock() else { return };
        let here = counting.iter().filter(|(home, _)| home.is_here());
        let here: Vec<StatsStop> = here.map(|(_, stop)| *stop).collect();
        if here.is_empty() {
            return;
        }
        let stops = move || {
            for stop in here {
                // SAFETY: the function has no preconditions, and the library is never unloaded.
                let _ = unsafe { stop() };
            }
        };
        let _ = within(STOP_WITHIN, "forebay-stop", stops);
    }
    let mut counting = COUNTING.lock();
    if counting.is_empty() {
        // SAFETY: the function exists as long as the process. Handlers run in reverse order, so
        // ours runs before the library's, which was registered earlier.
        let _ = unsafe { libc::atexit(stop_all) };
    }
    counting.push((Home::here(), stop));
}

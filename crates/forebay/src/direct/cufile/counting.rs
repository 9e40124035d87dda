//! What the library counts in this process: how much, and when it has to stop.

#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::c_int;
use std::time::Duration;

use super::failure::Answer;
use super::table::Table;
use crate::aside::within;
use crate::lock::Lock;
use crate::process::Home;

/// How much it counts, where the library tells.
pub(super) fn level_of(table: &Table) -> Option<c_int> {
    let mut level = 0;
    // SAFETY: the output outlives the call.
    let told = unsafe { table.get_stats_level?(&raw mut level) };
    told.checked("").is_ok().then_some(level)
}

/// `cuFileStatsStop`.
type StatsStop = unsafe extern "C" fn() -> Answer;

/// Libraries that count in a process, which is told from its children.
static COUNTING: Lock<Vec<(Home, StatsStop)>> = Lock::new(Vec::new());

/// How long libraries may take to stop. A call that hangs may hold what they need.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// Has a library stop to count as the process ends: 1.15 crashes there where it still counts for
/// each GPU (`docs/internals/cufile.md`).
pub(super) fn stop_at_end(stop: StatsStop) {
    extern "C" fn stop_all() {
        // Whoever holds the lock now will not let go of it.
        let Some(counting) = COUNTING.try_lock() else { return };
        let here = counting.iter().filter(|(home, _)| home.is_here());
        let here: Vec<StatsStop> = here.map(|(_, stop)| *stop).collect();
        if here.is_empty() {
            return;
        }
        let stops = move || {
            for stop in here {
                // SAFETY: the function needs nothing, and the library is never unloaded.
                let _ = unsafe { stop() };
            }
        };
        let _ = within(STOP_WITHIN, "forebay-stop", stops);
    }
    let mut counting = COUNTING.lock();
    if counting.is_empty() {
        // SAFETY: the function is there as long as the process is. What is registered last runs
        // first: before the library's own, which was there already.
        let _ = unsafe { libc::atexit(stop_all) };
    }
    counting.push((Home::here(), stop));
}

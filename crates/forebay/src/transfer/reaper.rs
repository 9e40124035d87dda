//! The role of a thread that takes the completions of a ring.

use std::time::{Duration, Instant};

/// Timeout of a wait that is repeated until it is over.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Takes the completions of a ring: the role of one thread at a time.
pub(crate) trait Reaper: Send + Sync {
    /// Whether the role is free.
    fn is_free(&self) -> bool;
    /// Whether the ring has reads.
    fn has_reads(&self) -> bool;
    /// Takes the role, if it is free, and completions until `until` or until `is_over`.
    fn reap(&self, until: Option<Instant>, is_over: &dyn Fn() -> bool);
    /// Hands requests to the kernel that wait for it.
    fn submit(&self);
    /// Makes the thread with the role look at its condition.
    fn interrupt(&self);
    /// Counts a thread that waits without the role.
    fn add_waiting(&self);
    /// Counts it no longer.
    fn remove_waiting(&self);
    /// Makes a thread of the engine take completions, since the caller does not wait.
    fn leave_to_thread(&self);
}

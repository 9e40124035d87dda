//! How many readers an engine begins with, and may have: what the process may use of the machine.

use super::threads::Shares;
use crate::options::Options;
use crate::topology::System;
use crate::tune::{ReaderLimits, Readers};

impl Options {
    /// Threads with which an engine of these limits begins to read what is in memory: `readers`,
    /// or what this process may use, of which one core in eight is left, from 2 to 12; in either
    /// case no more than `threads` leaves to readers.
    #[must_use]
    pub fn readers_at_first(&self) -> usize {
        let readers = number(self);
        readers.at_most(Shares::of(self.threads, readers.most()).readers).start()
    }
}

/// As many as were set, or as are found within what the process may use.
pub(super) fn number(options: &Options) -> Readers {
    if let Some(count) = options.readers {
        return Readers::Fixed(count);
    }
    let quota = System::live().cpu_quota();
    Readers::Found(ReaderLimits::of(cores(), quota))
}

/// Cores that the kernel lets this thread run on.
///
/// `available_parallelism` counts the same, but lowers it to a control group's quota, rounded down,
/// and only where the group's tree is in its usual place. It answers where there are more cores
/// than the call's set holds.
pub(super) fn cores() -> usize {
    match rustix::thread::sched_getaffinity(None) {
        Ok(cores) => usize::try_from(cores.count()).unwrap_or(1),
        Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

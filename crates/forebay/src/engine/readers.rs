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
        shared(self).0.start()
    }
}

/// How many readers there may be beside all other threads, and what those have.
pub(super) fn shared(options: &Options) -> (Readers, Shares) {
    let readers = number(options);
    let shares = Shares::of(options.threads, readers.most());
    (readers.at_most(shares.readers), shares)
}

/// As many as were set, or as are found within what the process may use.
fn number(options: &Options) -> Readers {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_begins_with_no_more_readers_than_its_threads_allow() {
        let of = |readers, threads| {
            let options = Options { readers, threads, ..Options::default() };
            options.readers_at_first()
        };
        let plenty = Options::default().threads;
        assert_eq!(of(Some(5), plenty), 5);
        assert_eq!((of(Some(5), 8), of(Some(1), 8)), (2, 1));
        assert_eq!(of(None, 8), 2);
        assert!((2..=12).contains(&of(None, plenty)));
    }
}

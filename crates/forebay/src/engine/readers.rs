//! The number of reader threads of an engine, from the resources that the process may use.

use forebay_topology::System;

use super::threads::ThreadShares;
use crate::options::Options;
use crate::queue::READERS_LEAST;

/// Default maximum number of readers of a GPU. 8 fill 56 GB/s on a link of 55.5, but only while
/// nothing else uses the memory. Layers of 200 MB arrived at 52.0 GB/s with 10 and at 54.0 with 12
/// on a machine with other load, and equally fast on an idle machine (H200, 2026-11-25,
/// `1a6b24e2`).
const MOST: usize = 12;

/// The cores divided by this are reserved for threads that copy, plan and compute. With 16 readers
/// on 16 cores layers need 1.16 to 1.27 times as long as with 14; with 8 on 8, 1.1 to 1.2 times as
/// long as with 7 (the same runs).
const LEFT: usize = 8;

/// Numbers of readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReaderCounts {
    /// For a single GPU.
    pub(crate) one: usize,
    /// For all GPUs of this engine together.
    pub(super) all: usize,
    /// For all GPUs of the host together.
    pub(super) of_host: usize,
}

/// The numbers of readers, and the shares of all other threads.
pub(super) fn shared(options: &Options) -> (ReaderCounts, ThreadShares) {
    let (one, all, of_host) = match options.readers {
        Some(number) => (number, number, usize::MAX),
        None => {
            let all = of_cores(cores(), System::live().cpu_quota());
            (all.min(MOST), all, all)
        }
    };
    let shares = ThreadShares::of(options.threads, all);
    let [one, all] = [one, all].map(|number| number.min(shares.readers));
    (ReaderCounts { one, all, of_host }, shares)
}

/// The numbers of readers of an engine with these limits.
pub(crate) fn counts(options: &Options) -> ReaderCounts {
    shared(options).0
}

/// The default for `cores`, of which a control group may use a quota in thousandths of a core. It
/// is rounded to the nearest core: threads above the quota stop for the rest of its period while
/// they hold slots.
fn of_cores(cores: usize, quota_thousandths: Option<u64>) -> usize {
    let quota = quota_thousandths.map_or(u64::MAX, |quota| quota.saturating_add(500) / 1000);
    let cores = cores.min(usize::try_from(quota).unwrap_or(usize::MAX));
    (cores - cores / LEFT).max(READERS_LEAST)
}

/// Number of cores that the kernel lets this thread run on.
///
/// `available_parallelism` counts the same, but limits it to a control group's quota, rounded down,
/// and only if the group's tree is in its usual place. It is the fallback for more cores than the
/// call's set holds.
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
    fn a_core_in_eight_is_left() {
        let found = [1, 2, 4, 8, 12, 16, 64].map(|cores| of_cores(cores, None));
        assert_eq!(found, [2, 2, 4, 7, 11, 14, 56]);
        let found = [0, 400, 1500, 3499, 3500, 64_000].map(|quota| of_cores(16, Some(quota)));
        assert_eq!(found, [2, 2, 2, 3, 4, 14]);
    }

    #[test]
    fn an_engine_begins_with_no_more_readers_than_its_threads_allow() {
        let of = |readers, threads| {
            let options = Options { readers, threads, ..Options::default() };
            options.reader_count()
        };
        let plenty = Options::default().threads;
        assert_eq!(of(Some(5), plenty), 5);
        assert_eq!((of(Some(5), 8), of(Some(1), 8)), (2, 1));
        assert_eq!(of(None, 8), 2);
        assert!((2..=12).contains(&of(None, plenty)));
    }
}

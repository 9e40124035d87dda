//! What a root has done.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::Histogram;
use forebay_base::lock::Lock;

use crate::work::{End, Why};

/// What one root of a store has done in this process, since the store was opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RootStatistics {
    /// The folder.
    pub path: PathBuf,
    /// Blocks that were read.
    pub hits: u64,
    /// Requested blocks that were not read, by reason.
    pub missed: Vec<(Why, u64)>,
    /// Blocks that were written.
    pub stored: u64,
    /// Blocks that were to be written and were there already.
    pub present: u64,
    /// Blocks that were not written, by reason.
    pub dropped: Vec<(Why, u64)>,
    /// Blocks that left to make room.
    pub evicted: u64,
    /// Bytes of blocks that were read.
    pub bytes_read: u64,
    /// Bytes of blocks that were written.
    pub bytes_written: u64,
    /// Time from the call until a thread took the request.
    pub queued: Histogram,
    /// Time from the call until the end of a read block.
    pub load: Histogram,
    /// Time from the call until the end of a written block.
    pub store: Histogram,
    /// The last error of the root, for reading and for writing.
    pub last_error: Option<String>,
}

/// The changing form of [`RootStatistics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    hits: AtomicU64,
    stored: AtomicU64,
    present: AtomicU64,
    evicted: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    missed: [AtomicU64; Why::ALL.len()],
    dropped: [AtomicU64; Why::ALL.len()],
    times: Lock<Times>,
}

#[derive(Debug, Clone, Default)]
struct Times {
    queued: Histogram,
    load: Histogram,
    store: Histogram,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    pub(crate) fn evicted(&self, blocks: u64) {
        self.evicted.fetch_add(blocks, Ordering::Relaxed);
    }

    pub(crate) fn queued(&self, time: Duration) {
        self.times.lock().queued.add(ns(time));
    }

    pub(crate) fn loaded(&self, end: End, len: u64, time: Duration) {
        match end {
            End::Done => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                self.bytes_read.fetch_add(len, Ordering::Relaxed);
                self.times.lock().load.add(ns(time));
            }
            End::Present => {}
            End::Not(why) => {
                self.missed[why as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn saved(&self, end: End, len: u64, time: Duration) {
        match end {
            End::Done => {
                self.stored.fetch_add(1, Ordering::Relaxed);
                self.bytes_written.fetch_add(len, Ordering::Relaxed);
                self.times.lock().store.add(ns(time));
            }
            End::Present => {
                self.present.fetch_add(1, Ordering::Relaxed);
            }
            End::Not(why) => {
                self.dropped[why as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn now(&self, path: PathBuf, last_error: Option<String>) -> RootStatistics {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let by_reason = |counters: &[AtomicU64]| {
            let all = Why::ALL.iter().zip(counters).map(|(&why, count)| (why, of(count)));
            all.filter(|(_, count)| *count > 0).collect()
        };
        let Times { queued, load, store } = self.times.lock().clone();
        RootStatistics {
            path,
            hits: of(&self.hits),
            missed: by_reason(&self.missed),
            stored: of(&self.stored),
            present: of(&self.present),
            dropped: by_reason(&self.dropped),
            evicted: of(&self.evicted),
            bytes_read: of(&self.bytes_read),
            bytes_written: of(&self.bytes_written),
            queued,
            load,
            store,
            last_error,
        }
    }
}

//! Counters of a root.

use std::path::PathBuf;
use std::time::Duration;

use forebay::Histogram;
use forebay_base::lock::Lock;

use crate::work::{End, Why};

/// Counters of a store's root in this process, since the store was opened.
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
    /// Evicted blocks.
    pub evicted: u64,
    /// Bytes of blocks that were read.
    pub bytes_read: u64,
    /// Bytes of blocks that were written.
    pub bytes_written: u64,
    /// Time from the call until a thread began the request.
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
pub(crate) struct Counters(Lock<RootStatistics>);

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    pub(crate) fn evicted(&self, blocks: u64) {
        self.0.lock().evicted += blocks;
    }

    pub(crate) fn queued(&self, time: Duration) {
        self.0.lock().queued.add(ns(time));
    }

    /// Counts the end of a read or a write.
    pub(crate) fn ended(&self, is_read: bool, end: End, len: u64, time: Duration) {
        let mut counts = self.0.lock();
        let RootStatistics { hits, missed, stored, present, dropped, .. } = &mut *counts;
        let (done, not_done) = if is_read { (hits, missed) } else { (stored, dropped) };
        match end {
            End::Done => *done += 1,
            End::Present => *present += 1,
            End::Not(why) => match not_done.iter_mut().find(|(it, _)| *it == why) {
                Some((_, count)) => *count += 1,
                None => not_done.push((why, 1)),
            },
        }
        if end == End::Done {
            let RootStatistics { bytes_read, bytes_written, load, store, .. } = &mut *counts;
            let (bytes, times) = if is_read { (bytes_read, load) } else { (bytes_written, store) };
            *bytes += len;
            times.add(ns(time));
        }
    }

    pub(crate) fn now(&self, path: PathBuf, last_error: Option<String>) -> RootStatistics {
        RootStatistics { path, last_error, ..self.0.lock().clone() }
    }
}

//! Durations of stages, measured while statistics are enabled. There is no clock here: the time is
//! that of the last completion, or the time that a worker passed in.

use crate::statistics::Statistics;

/// The statistics, and the current time.
#[derive(Debug)]
pub(super) struct StageTimes {
    /// `None` if statistics are disabled.
    counted: Option<Box<Statistics>>,
    now_ns: u64,
}

impl Default for StageTimes {
    fn default() -> Self {
        Self { counted: Some(Box::default()), now_ns: 0 }
    }
}

impl StageTimes {
    /// Enables statistics, or disables and clears them.
    pub(super) fn keep(&mut self, keep: bool) {
        match (keep, &self.counted) {
            (true, None) => self.counted = Some(Box::default()),
            (false, Some(_)) => self.counted = None,
            _ => {}
        }
    }

    /// The statistics so far.
    pub(super) fn statistics(&self) -> Statistics {
        self.counted.as_deref().cloned().unwrap_or_default()
    }

    /// Sets the current time; an earlier time is ignored.
    pub(super) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Records the duration of a file request. A request that was never made (`at_ns` 0) is not
    /// recorded.
    pub(super) fn count_file(&mut self, took_ns: u64, at_ns: u64) {
        self.set_now(at_ns);
        if let Some(counted) = self.counted.as_mut().filter(|_| at_ns > 0) {
            counted.file.add(took_ns);
        }
    }

    pub(super) fn count_copy(&mut self, took_ns: u64) {
        if let Some(counted) = &mut self.counted {
            counted.copy.add(took_ns);
        }
    }

    /// Records how long a transfer, which gets its slot now, has waited since `since_ns`.
    pub(super) fn count_slot_wait(&mut self, since_ns: u64) {
        if let Some(counted) = &mut self.counted {
            counted.slot_wait.add(self.now_ns.saturating_sub(since_ns));
        }
    }

    /// Records how long a window's bytes, whose copy begins now, have waited since `since_ns`.
    pub(super) fn count_link_wait(&mut self, since_ns: u64) {
        if let Some(counted) = &mut self.counted {
            counted.link_wait.add(self.now_ns.saturating_sub(since_ns));
        }
    }
}

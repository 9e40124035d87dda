//! Durations of stages, measured while statistics are enabled. There is no clock here: the time is
//! that of the last completion, or the time that a worker passed in.

use super::Scheduler;
use crate::queue::op::WindowKey;
use crate::statistics::Statistics;

/// The statistics, and the current time.
#[derive(Debug)]
pub(super) struct Stages {
    /// `None` if statistics are disabled.
    counted: Option<Box<Statistics>>,
    now_ns: u64,
}

impl Default for Stages {
    fn default() -> Self {
        Self { counted: Some(Box::default()), now_ns: 0 }
    }
}

impl Scheduler {
    /// Enables statistics, or disables and clears them.
    pub(crate) fn keep_statistics(&mut self, keep: bool) {
        match (keep, &self.stages.counted) {
            (true, None) => self.stages.counted = Some(Box::default()),
            (false, Some(_)) => self.stages.counted = None,
            _ => {}
        }
    }

    /// The statistics so far.
    pub(crate) fn statistics(&self) -> Statistics {
        self.stages.counted.as_deref().cloned().unwrap_or_default()
    }

    /// Sets the current time; an earlier time is ignored.
    pub(crate) fn tell_time(&mut self, now_ns: u64) {
        self.stages.now_ns = self.stages.now_ns.max(now_ns);
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.stages.now_ns
    }

    /// Records the duration of a file request. A request that was never made (`at_ns` 0) is not
    /// recorded.
    pub(super) fn count_file(&mut self, took_ns: u64, at_ns: u64) {
        self.tell_time(at_ns);
        if let Some(counted) = self.stages.counted.as_mut().filter(|_| at_ns > 0) {
            counted.file.add(took_ns);
        }
    }

    pub(super) fn count_copy(&mut self, took_ns: u64) {
        if let Some(counted) = &mut self.stages.counted {
            counted.copy.add(took_ns);
        }
    }

    /// Records how long a transfer waited for the slot that it gets now.
    pub(super) fn count_slot_wait(&mut self, transfer: usize) {
        let since = self.transfers[transfer].waits_since_ns;
        if let Some(counted) = &mut self.stages.counted {
            counted.slot_wait.add(self.stages.now_ns.saturating_sub(since));
        }
    }

    /// Records how long a window's bytes waited for the copy that begins now.
    pub(super) fn count_link_wait(&mut self, window: WindowKey) {
        let since = self.windows[window].filled_ns;
        if let Some(counted) = &mut self.stages.counted {
            counted.link_wait.add(self.stages.now_ns.saturating_sub(since));
        }
    }
}

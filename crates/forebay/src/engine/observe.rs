//! Traces of an engine's activity, recorded on request, and how long its stages take.

use super::Engine;
use crate::statistics::Statistics;
use crate::trace::Trace;

impl Engine {
    /// Starts recording the activity of the engine's threads, slots and links; an earlier recording
    /// is dropped. While it is off, each trace point costs one load; while it is on, at most half a
    /// million spans are kept (40 MB).
    pub fn start_trace(&self) {
        if self.home().is_here() {
            self.inner.core.start_trace();
        }
    }

    /// Stops recording and returns the trace, without operations that are still running. It is
    /// empty in a forked child.
    #[must_use]
    pub fn end_trace(&self) -> Trace {
        if !self.home().is_here() {
            return Trace::default();
        }
        self.inner.core.end_trace()
    }

    /// How long the stages of all transfers have taken so far; empty in a forked child.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        match self.home().is_here() {
            true => self.inner.core.lock().statistics(),
            false => Statistics::default(),
        }
    }

    /// Turns counting of stage times on, or turns it off and clears the counts. Counting is on by
    /// default: it costs a few additions for each request and copy.
    pub fn keep_statistics(&self, keep: bool) {
        if self.home().is_here() {
            self.inner.core.lock().keep_statistics(keep);
        }
    }
}

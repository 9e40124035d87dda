//! Traces of an engine's activity, recorded on request, and how long its stages take.

use super::Engine;
use super::call::Call;
use crate::error::Result;
use crate::events;
use crate::queue::now_ns;
use crate::statistics::Statistics;
use crate::trace::{Span, Trace, What};
use crate::transfer::Outcome;

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

    /// Does a small transfer on this thread, if possible, and reports it to traces and subscribers.
    #[inline]
    pub(super) fn move_small_traced(&self, call: &Call<'_>) -> Option<Result<Outcome>> {
        if self.inner.core.failure().is_some() {
            return None; // the general path reports the failure
        }
        let done = self.move_small(call);
        done.iter().for_each(|done| self.trace_small(call, done));
        done
    }

    /// Records a small transfer that has just ended, and emits its event.
    fn trace_small(&self, call: &Call<'_>, done: &Result<Outcome>) {
        let bytes = (call.offset, call.span.len);
        events::small_ended(call.direction.name(), call.file.path(), bytes, done);
        self.inner.core.recorder().note_small(|| {
            let took = done.as_ref().map_or(0, |outcome| outcome.elapsed.as_nanos());
            let end_ns = now_ns();
            let start_ns = end_ns.saturating_sub(u64::try_from(took).unwrap_or(0));
            Span { start_ns, end_ns, what: What::Small { name: call.direction.name(), bytes } }
        });
    }
}

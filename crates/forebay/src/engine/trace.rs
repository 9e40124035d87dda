//! What an engine did, recorded while somebody asks for it, and how long its stages take.

use super::Engine;
use super::start::Call;
use crate::error::Result;
use crate::events;
use crate::queue::now_ns;
use crate::statistics::Statistics;
use crate::trace::{Span, Trace, What};
use crate::transfer::Outcome;

impl Engine {
    /// Begins to record what the engine's threads, slots and links do; what was recorded before is
    /// dropped. While nothing is recorded that costs a load at each place where something could be;
    /// while it is, half a million spans are kept at most (40 MB).
    pub fn start_trace(&self) {
        if self.home().is_here() {
            self.inner.core.start_trace();
        }
    }

    /// Ends that, and hands over what was recorded: nothing in a forked child. What is still on its
    /// way is left out.
    #[must_use]
    pub fn end_trace(&self) -> Trace {
        if !self.home().is_here() {
            return Trace::default();
        }
        self.inner.core.end_trace()
    }

    /// How long the stages of all transfers have taken so far; nothing in a forked child.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        match self.home().is_here() {
            true => self.inner.core.lock().statistics(),
            false => Statistics::default(),
        }
    }

    /// Counts how long stages take, or does so no more and forgets what was counted. An engine
    /// counts from the beginning: it costs a few additions for each request and copy.
    pub fn keep_statistics(&self, keep: bool) {
        if self.home().is_here() {
            self.inner.core.lock().keep_statistics(keep);
        }
    }

    /// Makes a small transfer here and now, if it can be, and says so to all who want to know.
    #[inline]
    pub(super) fn move_small_traced(&self, call: &Call<'_>) -> Option<Result<Outcome>> {
        if self.inner.core.failure().is_some() {
            return None; // the long way refuses it
        }
        let done = self.move_small(call);
        done.iter().for_each(|done| self.trace_small(call, done));
        done
    }

    /// Records a small transfer that has just ended, and tells subscribers of it.
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

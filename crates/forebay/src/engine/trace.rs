//! What an engine did, recorded while somebody asks for it.

use super::Engine;
use super::start::Call;
use crate::error::Result;
use crate::queue::now_ns;
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

    /// Records a small transfer that has just ended.
    pub(super) fn trace_small(&self, call: &Call<'_>, done: &Result<Outcome>) {
        self.inner.core.recorder().note_small(|| {
            let took = done.as_ref().map_or(0, |outcome| outcome.elapsed.as_nanos());
            let (end_ns, bytes) = (now_ns(), (call.offset, call.span.len));
            let start_ns = end_ns.saturating_sub(u64::try_from(took).unwrap_or(0));
            Span { start_ns, end_ns, what: What::Small { name: call.direction.name(), bytes } }
        });
    }
}

//! The handle by which a caller waits for bytes on their way, stops them, or lets go of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Outcome, RouteShare, Stages, State};
use crate::engine::Engine;
use crate::error::{Error, Operation, Result};
use crate::memory::Buffer;

/// Bytes on their way. Dropping it cancels what has not begun; what is in flight drains in the
/// background, and the memory that it owns is given back only then.
///
/// A forked child has no share in it: waiting fails with [`Error::Forked`] there, and dropping it
/// cancels nothing.
#[derive(Debug)]
pub struct Transfer {
    state: Arc<State>,
    engine: Engine,
    /// Whether it is to end with this handle.
    pub(crate) cancels: bool,
}

impl Transfer {
    pub(crate) fn new(state: Arc<State>, engine: Engine) -> Self {
        Self { state, engine, cancels: true }
    }

    /// Lets go of it without cancelling: it goes on, and its memory is given back when it has
    /// ended. How it ended only subscribers of events are told.
    pub fn detach(mut self) {
        self.cancels = false;
    }

    /// The buffers of a transfer that has ended, once; none before, and none that a copy may still
    /// touch.
    #[must_use]
    pub fn reclaim(&self) -> Vec<Buffer> {
        if !self.engine.home().is_here() || !self.state.is_done() {
            return Vec::new();
        }
        self.state.wait_for_all().1
    }

    /// Waits for the end. The buffer that the transfer owned comes back, after an error as well.
    ///
    /// # Errors
    /// The first error of the transfer; all in flight has drained by then. Only
    /// [`Error::CopyNotOver`] comes without the buffer, and before any other.
    pub fn wait(self) -> (Result<Outcome>, Option<Buffer>) {
        if let Some(error) = self.forked() {
            return (Err(error), None);
        }
        let end = self.state.wait();
        self.state.wait_for_closing();
        end
    }

    /// As [`wait`](Self::wait), of a transfer that owns several buffers.
    pub(crate) fn wait_for_all(&self) -> (Result<Outcome>, Vec<Buffer>) {
        if let Some(error) = self.forked() {
            return (Err(error), Vec::new());
        }
        let end = self.state.wait_for_all();
        self.state.wait_for_closing();
        end
    }

    /// Waits for the end, at most for `bound`. When the bound expires the transfer is cancelled,
    /// and its memory stays with the engine until nothing can touch it any more: it never comes
    /// back from this call.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or the first error of the transfer.
    pub fn wait_at_most(self, bound: Duration) -> (Result<Outcome>, Option<Buffer>) {
        if let Some(error) = self.forked() {
            return (Err(error), None);
        }
        let waited = self.state.wait_for(bound);
        match (waited, self.state.place()) {
            (None, Some(place)) => {
                (Err(Error::TimedOut { place, bound, done: self.state.done() }), None)
            }
            // It may have ended just now.
            _ => self.state.wait(),
        }
    }

    /// Waits for the end for at most `bound`, and leaves the transfer as it is: `None` where it is
    /// still on its way.
    #[must_use]
    pub fn wait_for(&self, bound: Duration) -> Option<Result<Outcome>> {
        if let Some(error) = self.forked() {
            return Some(Err(error));
        }
        self.state.wait_for(bound)
    }

    /// Has `step` run when it has ended: by the thread that ends it, or by this one where it has
    /// already. Other transfers wait for that thread, so the step may not wait for anything, nor
    /// call a GPU's driver, nor let go of the last handle of an engine: it wakes somebody, for
    /// example. Its panic there is passed over. In a forked child nothing ever runs it.
    pub fn on_end(&self, step: impl FnOnce() + Send + 'static) {
        if self.engine.home().is_here() {
            self.state.on_end(step);
        }
    }

    /// Whether it has ended; in a forked child it has, and waiting says why.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.engine.home().is_here() || self.state.is_done()
    }

    /// How it ended; `None` while it is on its way.
    pub(crate) fn ended(&self) -> Option<Result<Outcome>> {
        self.state.ended.load(Ordering::Acquire).then(|| self.state.wait_for(Duration::ZERO))?
    }

    /// What it shares with the engine.
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Stops it: nothing new starts, what is in flight drains, and waiting reports
    /// [`Error::Cancelled`] unless it had ended before.
    pub fn cancel(&self) {
        self.engine.cancel(&self.state);
    }

    /// Bytes done so far, and bytes asked for.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.state.done(), self.state.wanted)
    }

    /// Bytes by route and reason so far.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteShare> {
        self.state.routes()
    }

    /// Why bytes do not go straight between drive and GPU, as far as is known by now: see
    /// [`Outcome::not_direct`].
    #[must_use]
    pub fn not_direct(&self) -> Option<Arc<str>> {
        self.state.not_direct.get().cloned()
    }

    /// Time by stage so far.
    #[must_use]
    pub fn stages(&self) -> Stages {
        self.state.stages()
    }
}

impl Transfer {
    /// What a forked child is told instead of the end, which its parent waits for.
    fn forked(&self) -> Option<Error> {
        let home = self.engine.home();
        (!home.is_here()).then(|| home.refusal(Operation::Wait, self.state.place_unlocked()))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.cancels && !self.is_done() {
            self.cancel();
        }
    }
}

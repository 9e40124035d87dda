//! Memory that a caller lends to a blocking call. However the call ends, the loan ends only after
//! the last access.
//!
//! If the engine's code panics on the caller's thread, the scheduler waits for work that this
//! thread will never do. So the panic fails the engine, and the call returns the memory when no
//! thread and no drive accesses it any more.

use std::sync::Arc;

use super::Engine;
use crate::transfer::State;

/// The callback that decides whether to continue.
pub(super) type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// Fails the engine if the thread unwinds past it, and waits until nothing accesses the memory of a
/// transfer. It is created before the scheduler knows the transfer.
pub(super) struct OnUnwind<'a> {
    engine: &'a Engine,
    /// `None`: there is no transfer yet.
    state: Option<Arc<State>>,
    /// Whether it waits for the end of the transfer, whose memory the caller lent.
    drains: bool,
    /// Whether the thread was already unwinding when the call began.
    was_panicking: bool,
}

impl<'a> OnUnwind<'a> {
    pub(super) fn new(engine: &'a Engine, state: Option<&Arc<State>>) -> Self {
        let was_panicking = std::thread::panicking();
        Self { engine, state: state.cloned(), drains: false, was_panicking }
    }

    /// Also waits for the end of the transfer if the call returns.
    pub(super) fn drained(engine: &'a Engine, state: &Arc<State>) -> Self {
        let mut guard = Self::new(engine, Some(state));
        guard.drains = true;
        guard
    }
}

impl Drop for OnUnwind<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() || self.was_panicking {
            self.state.iter().filter(|_| self.drains).for_each(|state| state.wait_drained());
            return;
        }
        let core = &self.engine.inner.core;
        core.fail("a call panicked on its caller's thread");
        let Some(state) = &self.state else { return };
        if let Some(error) = core.failure()
            && !state.is_done()
        {
            // The scheduler did not know it yet.
            state.give_memory_up(&error);
            core.end(Arc::clone(state), Err(error));
        }
        state.wait_untouched();
    }
}

//! Calls of the simulated driver that do not return, as where a queue is full behind work that
//! never ends.

use std::sync::Condvar;

use crate::lock::{Lock, woken};

/// A call of the driver that a test lets hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimCall {
    /// Marking a stream of the caller.
    RecordOnCaller,
    /// Queueing copies to the GPU.
    CopyToDevice,
}

/// Which call hangs, and how many threads are in it.
#[derive(Debug, Default)]
pub(super) struct Hang {
    state: Lock<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    call: Option<SimCall>,
    threads: usize,
}

impl Hang {
    /// Lets this call hang from now on, and no other.
    pub(super) fn set(&self, call: Option<SimCall>) {
        self.state.lock().call = call;
        self.changed.notify_all();
    }

    /// How many threads are in a call that hangs.
    pub(super) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Returns once this call does not hang.
    pub(super) fn pass(&self, call: SimCall) {
        let mut state = self.state.lock();
        if state.call != Some(call) {
            return;
        }
        state.threads += 1;
        while state.call == Some(call) {
            state = woken(self.changed.wait(state));
        }
        state.threads -= 1;
    }
}

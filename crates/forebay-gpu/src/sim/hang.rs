//! Makes calls of the simulated driver hang, as they do when a queue is full behind work that never
//! ends.

use forebay_base::lock::{Condvar, Lock, woken};

/// A driver call that a test can make hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimCall {
    /// Recording an event on a caller's stream.
    RecordOnCaller,
    /// Queueing copies to the GPU.
    CopyToDevice,
}

/// The call that hangs, and the number of threads in it.
#[derive(Debug, Default)]
pub(super) struct Hang {
    state: Lock<HangState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct HangState {
    call: Option<SimCall>,
    threads: usize,
}

impl Hang {
    /// Makes this call hang from now on, and no other.
    pub(super) fn set(&self, call: Option<SimCall>) {
        self.state.lock().call = call;
        self.changed.notify_all();
    }

    /// Number of threads in a hanging call.
    pub(super) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Returns as soon as this call does not hang.
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

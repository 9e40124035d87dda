//! Counts the ops that may touch a transfer's memory, independently of the scheduler. If the
//! scheduler's state is lost, this decides when the memory can be returned.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::State;
use crate::error::Error;
use crate::gpu::DeviceError;

/// Interval between two checks of a transfer of a failed engine.
const LOOKS_EVERY: Duration = Duration::from_millis(1);

/// Held by an op while a thread or the kernel may touch its memory.
#[derive(Debug)]
pub(crate) struct Touch(Arc<State>);

impl Touch {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        state.touches.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Clone for Touch {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Touch {
    fn drop(&mut self) {
        self.0.touches.fetch_sub(1, Ordering::Release);
    }
}

impl State {
    fn is_untouched(&self) -> bool {
        self.touches.load(Ordering::Acquire) == 0
    }

    /// Blocks until no thread and no op in the kernel touches the memory.
    pub(crate) fn wait_untouched(&self) {
        while !self.is_untouched() {
            std::thread::sleep(LOOKS_EVERY);
        }
    }

    /// Gives up the memory of a transfer whose engine has failed, if it may still be touched. Owned
    /// buffers never come back, and later calls refuse borrowed memory. It is unknown which GPU
    /// copies are over.
    pub(crate) fn give_memory_up(&self, error: &Error) {
        let mut shares = self.keep.lock();
        if self.is_untouched() && !shares.keep.iter().any(crate::memory::Keep::is_on_gpu) {
            return;
        }
        let (name, detail) = ("ENGINE_FAILED".into(), error.to_string());
        let source = DeviceError { call: "engine", code: -1, name, detail };
        for keep in std::mem::take(&mut shares.keep) {
            keep.lose(&source);
            keep.set_adrift();
            std::mem::forget(keep);
        }
        drop(shares);
        let owned = std::mem::take(&mut self.end.lock().buffers);
        drop(owned);
    }
}

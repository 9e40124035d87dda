//! Reads precede writes: while a root's blocks are read, a single thread writes.

use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Lock, woken};

use crate::work::Side;

/// How long after a read the next read is expected. It would wait for all writes that the drive
/// received by then.
const EXPECTED: Duration = Duration::from_millis(20);

/// What a root's threads do now.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    state: Lock<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    loading: usize,
    loaded: Option<Instant>,
    storing: usize,
}

/// Blocks that are being read or written.
#[derive(Debug)]
pub(crate) struct Moving<'a>(&'a Traffic, Side);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        match self.1 {
            Side::Load => (state.loading, state.loaded) = (state.loading - 1, Some(Instant::now())),
            Side::Store => {
                state.storing -= 1;
                self.0.bell.notify_one();
            }
        }
    }
}

impl State {
    fn may_store(&self) -> bool {
        let is_expected = || self.loaded.is_some_and(|at| at.elapsed() < EXPECTED);
        self.storing == 0 || self.loading == 0 && !is_expected()
    }
}

impl Traffic {
    /// Counts blocks that are being read.
    pub(crate) fn load(&self) -> Moving<'_> {
        self.state.lock().loading += 1;
        Moving(self, Side::Load)
    }

    /// Counts a block that is to be written now; `None` if it must wait.
    pub(crate) fn store(&self) -> Option<Moving<'_>> {
        let mut state = self.state.lock();
        state.may_store().then(|| {
            state.storing += 1;
            Moving(self, Side::Store)
        })
    }

    /// Waits until a block may be written, or some milliseconds.
    pub(crate) fn wait(&self) {
        let state = self.state.lock();
        let waits = |state: &mut State| !state.may_store();
        drop(woken(self.bell.wait_timeout_while(state, EXPECTED, waits)));
    }
}

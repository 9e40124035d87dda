//! The turn of a stream: the right of a thread to decide what is copied or filled, to queue that
//! at the driver, and to record it. The state is unlocked during driver calls, so a slow or hanging
//! call delays only the threads that wait for the turn.
//!
//! Lock order: the turn, then `Shared::state`, then `Group::homes`, then the mapper's locks. No
//! driver call and no file access happens under the last three. `Mapper::giving` is held while
//! pages are unpinned; only closing a stream waits for it, for at most the watchdog time.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use forebay::Result;

use forebay_base::lock::MutexGuard;

use super::shared::{Shared, State, Turn, closed, panicked};

/// Interval for checking whether a stream was closed too long ago to wait for the turn.
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// The turn, with the state locked. Dropping it releases both.
pub(super) struct Submit<'a> {
    shared: &'a Shared,
    /// `None` only during a driver call.
    state: Option<MutexGuard<'a, State>>,
}

impl Shared {
    /// Waits for the turn.
    ///
    /// # Errors
    /// The stream was closed longer ago than the watchdog time while a different thread holds the
    /// turn.
    pub(super) fn submit(&self) -> Result<Submit<'_>> {
        let bound = self.engine.options().watchdog;
        let mut state = self.lock();
        while state.turn == Turn::Taken {
            if state.closed.is_some_and(|since| since.elapsed() > bound) {
                return Err(closed());
            }
            state = self.wait(&self.turned, state, LOOKS_EVERY.min(bound)).0;
        }
        state.turn = Turn::Taken;
        Ok(Submit { shared: self, state: Some(state) })
    }
}

impl<'a> Submit<'a> {
    /// Calls the driver, or accesses files, with the state unlocked.
    pub(super) fn unlocked<R>(&mut self, call: impl FnOnce() -> R) -> R {
        self.state = None;
        let result = call();
        self.state = Some(self.shared.lock());
        result
    }

    /// Collects the times of layers that the GPU finished.
    pub(super) fn gather(&mut self) {
        let mut times = std::mem::take(&mut self.times);
        let times = self.unlocked(|| {
            times.gather();
            times
        });
        self.times = times;
    }

    /// Gives up the turn until data arrives, for at most `bound`; returns true if that elapsed.
    ///
    /// # Errors
    /// Those of [`Shared::submit`].
    pub(super) fn wait(mut self, bound: Duration) -> Result<(Self, bool)> {
        let shared = self.shared;
        let mut state = self.state.take().expect("it is locked between calls of the driver");
        state.turn = Turn::Free;
        std::mem::forget(self); // it holds neither any more
        shared.turned.notify_one();
        let (state, is_late) = shared.wait(&shared.came, state, bound);
        drop(state);
        Ok((shared.submit()?, is_late))
    }
}

impl Deref for Submit<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("it is locked between calls of the driver")
    }
}

impl DerefMut for Submit<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("it is locked between calls of the driver")
    }
}

impl Drop for Submit<'_> {
    fn drop(&mut self) {
        let mut state = self.state.take().unwrap_or_else(|| {
            // A driver call panicked; its effect is not recorded.
            let mut state = self.shared.lock();
            state.lost.get_or_insert_with(panicked);
            state
        });
        state.turn = Turn::Free;
        drop(state);
        self.shared.turned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::tests::stream;
    use super::*;

    fn panics(call: impl FnOnce()) {
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    }

    #[test]
    fn a_panic_under_the_lock_or_in_a_call_of_the_driver_ends_the_stream() {
        let under_the_lock: fn(&Shared) = |shared| {
            let _held = shared.lock();
            panic!("under the lock")
        };
        let in_a_call: fn(&Shared) =
            |shared| shared.submit().unwrap().unlocked(|| panic!("in a call"));
        for breaks in [under_the_lock, in_a_call] {
            let stream = stream();
            panics(|| breaks(&stream.shared));
            let message = stream.shared.lock().check_open().unwrap_err().to_string();
            assert!(message.contains("panicked"), "{message}");
            stream.close().unwrap();
        }
    }

    #[test]
    fn after_a_panic_under_the_lock_of_what_is_kept_nothing_of_it_is_given_back() {
        let stream = stream();
        panics(|| {
            let _held = stream.shared.group.homes();
            panic!("under the lock")
        });
        assert!(stream.shared.group.homes().stuck);
        stream.close().unwrap();
    }
}

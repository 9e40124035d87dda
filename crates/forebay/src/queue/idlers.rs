//! Idle threads, each parked on its own lock.
//!
//! With one shared lock, threads woken together would get it one after the other, each a wake-up
//! later than the one before: 50 µs on an idle virtual machine.

use std::sync::{Arc, Condvar};

use forebay_base::lock::{Lock, woken};

/// Parked threads of one kind. A wake-up without a parked thread is kept for the next one.
#[derive(Debug, Default)]
pub(crate) struct Idlers {
    state: Lock<IdlerState>,
}

#[derive(Debug, Default)]
struct IdlerState {
    asleep: Vec<Arc<Bed>>,
    calls: usize,
}

#[derive(Debug, Default)]
struct Bed {
    called: Lock<bool>,
    bell: Condvar,
}

impl Bed {
    fn call(&self) {
        *self.called.lock() = true;
        self.bell.notify_one();
    }
}

impl Idlers {
    /// Wakes one thread: the last to park, whose core is the warmest.
    pub(crate) fn call(&self) {
        let mut state = self.state.lock();
        match state.asleep.pop() {
            Some(bed) => {
                drop(state);
                bed.call();
            }
            None => state.calls += 1,
        }
    }

    /// Parks until woken.
    pub(crate) fn sleep(&self) {
        let mut state = self.state.lock();
        if state.calls > 0 {
            state.calls -= 1;
            return;
        }
        let bed = Arc::new(Bed::default());
        state.asleep.push(Arc::clone(&bed));
        drop(state);
        let mut called = bed.called.lock();
        while !*called {
            called = woken(bed.bell.wait(called));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_wakes_one_and_none_is_lost() {
        let idlers = Idlers::default();
        idlers.call();
        idlers.sleep(); // the wake-up came first
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| idlers.sleep()));
            }
            (0..4000).for_each(|_| idlers.call());
        });
        let state = idlers.state.lock();
        assert!(state.asleep.is_empty() && state.calls == 0);
    }
}

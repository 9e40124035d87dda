//! Threads that have nothing to do, each asleep on a lock of its own.
//!
//! With one lock for all, those who are called at once wait for it one after the other, each a
//! wake-up later than the last: 50 µs on an idle virtual machine.

use std::sync::{Arc, Condvar};

use crate::lock::{Lock, woken};

/// Where threads of one kind sleep. A call that comes before its sleeper is kept for it.
#[derive(Debug, Default)]
pub(crate) struct Idlers {
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
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
    /// Calls one: the last to fall asleep, whose core is the warmest.
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

    /// Sleeps until called.
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
        idlers.sleep(); // the call came first
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

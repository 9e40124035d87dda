//! How a caller waits for the end: asleep, awake when it is near, or asking whether to go on.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{End, Outcome, State};
use crate::error::Result;
use crate::lock::woken;
use crate::memory::Buffer;

/// The most that a waiting thread is awake for before an end that it expects.
const AWAKE_MAX: Duration = Duration::from_millis(1);

/// When a waiting thread looks for the first time how a transfer gets on.
const FIRST_LOOK: Duration = Duration::from_micros(500);

/// A wait that is repeated until it is over.
const LONG: Duration = Duration::from_secs(3600);

/// How long the end of a transfer waits for its file to be closed, which hangs where a server does.
const CLOSING_MAX: Duration = Duration::from_millis(250);

impl State {
    /// Blocks until the transfer has drained, as [`wait`](Self::wait) does, but is awake when a GPU
    /// transfer's end is near: waking a thread whose core sleeps took up to 200 µs on a virtual
    /// machine, 4 % of 256 MiB. What is spent awake is a fifth of the time waited for, and at most
    /// 1 ms.
    pub(crate) fn wait_awake(&self) -> (Result<Outcome>, Option<Buffer>) {
        let ended = self.wait_near_end(LONG, &mut || true);
        debug_assert!(ended, "it goes on until it has ended");
        self.wait()
    }

    /// As [`wait_awake`](Self::wait_awake), but asks every so often whether to go on; whether it
    /// has ended.
    pub(crate) fn wait_near_end(&self, every: Duration, go_on: &mut dyn FnMut() -> bool) -> bool {
        let mut asked = Instant::now();
        loop {
            let (elapsed, done) = (self.started.elapsed(), self.done());
            let awake = (elapsed / 5).min(AWAKE_MAX);
            let left = match (self.wanted.saturating_sub(done), done) {
                (_, 0) => awake + elapsed.max(FIRST_LOOK),
                (left, done) => elapsed.mul_f64(float(left) / float(done)),
            };
            if left > awake {
                let pause = every.saturating_sub(asked.elapsed());
                if self.wait_for((left - awake).min(pause)).is_some() {
                    return true;
                }
                // Where little is left and does not come all pauses are short.
                if asked.elapsed() >= every {
                    if !go_on() {
                        return false;
                    }
                    asked = Instant::now();
                }
                continue;
            }
            let until = Instant::now() + awake;
            while Instant::now() < until {
                if self.ended.load(Ordering::Acquire) {
                    return true;
                }
                std::thread::yield_now();
            }
            return self.wait_while(every, go_on);
        }
    }

    /// Waits for the end, and asks every so often whether to go on; whether it has ended.
    pub(crate) fn wait_while(&self, every: Duration, go_on: &mut dyn FnMut() -> bool) -> bool {
        loop {
            if self.wait_for(every).is_some() {
                return true;
            }
            if !go_on() {
                return false;
            }
        }
    }

    /// Blocks until the transfer has drained.
    pub(crate) fn wait(&self) -> (Result<Outcome>, Option<Buffer>) {
        let (result, mut buffers) = self.wait_for_all();
        (result, buffers.pop())
    }

    /// The same, of a transfer that owns several buffers.
    pub(crate) fn wait_for_all(&self) -> (Result<Outcome>, Vec<Buffer>) {
        let mut end = self.end.lock();
        loop {
            if let Some(result) = end.result.clone() {
                return (result, std::mem::take(&mut end.buffers));
            }
            end.waiting += 1;
            end = woken(self.bell.wait(end));
            end.waiting -= 1;
        }
    }

    /// Blocks until the transfer has drained; at once where it has.
    pub(crate) fn wait_drained(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let waited = self.wait_for(LONG);
            drop(waited);
        }
        self.wait_untouched(); // it has ended early where the engine has failed
    }

    pub(crate) fn wait_for(&self, bound: Duration) -> Option<Result<Outcome>> {
        let pending = |end: &mut End| end.result.is_none();
        let mut end = self.end.lock();
        end.waiting += 1;
        let (mut end, _) = woken(self.bell.wait_timeout_while(end, bound, pending));
        end.waiting -= 1;
        end.result.clone()
    }

    /// Waits a moment for the files of an ended transfer to be closed.
    pub(super) fn wait_for_closing(&self) {
        let waited = self.bell.wait_timeout_while(self.end.lock(), CLOSING_MAX, |end| end.closing);
        drop(waited);
    }
}

/// `bytes` for a ratio; what is lost above 2^53 does not matter to one.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::file::{Handle, OpenHow};
    use crate::units::{ByteRange, GIB};

    /// Where nearly all has come, the rest is expected at any moment, for minutes.
    #[test]
    fn a_waiting_caller_is_asked_also_when_the_end_seems_near() {
        let file = Handle::open("/proc/version", &OpenHow::default()).expect("it is there");
        let range = ByteRange::at(0, GIB);
        let mut state = State::new(Arc::new(file), range, Vec::new(), Vec::new());
        let long_ago = Instant::now().checked_sub(Duration::from_secs(20));
        state.started = long_ago.expect("a machine that has run for a while");
        for left in [GIB, GIB / 2, GIB / 1000, GIB / 10_000, 1, 0] {
            state.done = (GIB - left).into();
            let (start, mut asked) = (Instant::now(), 0);
            let ended = state.wait_near_end(Duration::from_millis(10), &mut || {
                asked += 1;
                // Whoever is asked too late need not wait for as long as that can take.
                asked < 5 && start.elapsed() < Duration::from_secs(5)
            });
            assert!(!ended && asked == 5, "{left} bytes left: asked {asked} times");
        }
    }
}

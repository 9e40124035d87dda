//! Waiting for the end of a transfer: parked, polling when it is near, or checking whether to
//! continue.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_base::lock::woken;

use super::{End, Outcome, State};
use crate::error::Result;
use crate::memory::Buffer;

/// Longest time that a waiting thread polls before an expected end.
const AWAKE_MAX: Duration = Duration::from_millis(1);

/// When a waiting thread checks a transfer's progress for the first time.
const FIRST_LOOK: Duration = Duration::from_micros(500);

/// Timeout of a wait that is repeated until it is over.
const LONG: Duration = Duration::from_secs(3600);

/// How long a finished transfer waits for its file to be closed; closing hangs if a server does.
const CLOSING_MAX: Duration = Duration::from_millis(250);

impl State {
    /// Blocks until the transfer has drained. If it `polls`, it does so when the end of a GPU
    /// transfer is near. Waking a thread on an idle core took up to 200 µs on a virtual
    /// machine, 4 % of the time for 256 MiB. Polling takes at most a fifth of the waiting time, and
    /// at most 1 ms.
    pub(crate) fn wait_awake(&self, polls: bool) -> Result<Outcome> {
        let ended = !polls || self.wait_near_end(LONG, &mut || true);
        debug_assert!(ended, "it goes on until it has ended");
        self.wait_for_all().0
    }

    /// The result; `None` while the transfer is in progress. Takes no lock until then.
    pub(crate) fn ended(&self) -> Option<Result<Outcome>> {
        self.ended.load(Ordering::Acquire).then(|| self.wait_for(Duration::ZERO))?
    }

    /// Like [`wait_awake`](Self::wait_awake), but calls `go_on` about once per `every`. Returns
    /// whether the transfer has ended.
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
                // If little is left and does not arrive, all pauses are short, so check the elapsed
                // time.
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

    /// Waits for the end and calls `go_on` once per `every`. Returns whether the transfer has
    /// ended.
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

    /// Like [`wait`](Self::wait), for a transfer that owns several buffers.
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

    /// Blocks until the transfer has drained; returns at once if it has.
    pub(crate) fn wait_drained(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let waited = self.wait_for(LONG);
            drop(waited);
        }
        self.wait_untouched(); // a failed engine ends transfers early
    }

    pub(crate) fn wait_for(&self, bound: Duration) -> Option<Result<Outcome>> {
        let pending = |end: &mut End| end.result.is_none();
        let mut end = self.end.lock();
        end.waiting += 1;
        let (mut end, _) = woken(self.bell.wait_timeout_while(end, bound, pending));
        end.waiting -= 1;
        end.result.clone()
    }

    /// Waits briefly for the files of a finished transfer to be closed.
    pub(crate) fn wait_for_closing(&self) {
        let waited = self.bell.wait_timeout_while(self.end.lock(), CLOSING_MAX, |end| end.closing);
        drop(waited);
    }
}

/// Converts `bytes` for a ratio; the precision lost above 2^53 does not matter.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::file::{Handle, OpenOptions};
    use forebay_base::units::{ByteRange, GIB};

    /// When nearly all bytes have arrived, the end is expected at any moment, here for minutes.
    #[test]
    fn a_waiting_caller_is_asked_also_when_the_end_seems_near() {
        let file = Handle::open("/proc/version", &OpenOptions::default()).expect("it is there");
        let range = ByteRange::at(0, GIB);
        let mut state = State::new(Arc::new(file), range, Vec::new(), Vec::new());
        let long_ago = Instant::now().checked_sub(Duration::from_secs(20));
        state.started = long_ago.expect("a machine that has run for a while");
        for left in [GIB, GIB / 2, GIB / 1000, GIB / 10_000, 1, 0] {
            state.done = (GIB - left).into();
            let (start, mut asked) = (Instant::now(), 0);
            let ended = state.wait_near_end(Duration::from_millis(10), &mut || {
                asked += 1;
                // Bounds the test if `go_on` is called too late.
                asked < 5 && start.elapsed() < Duration::from_secs(5)
            });
            assert!(!ended && asked == 5, "{left} bytes left: asked {asked} times");
        }
    }
}

//! A circuit breaker per direction of a root: after failures the root rests, then a single call
//! probes it. Other calls miss immediately instead of waiting for a drive that hangs.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_base::lock::Lock;

/// Failures in a row after which a root rests, and for how long.
const FAILURES_MAX: usize = 3;
const REST: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Health(Lock<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: State,
    /// When an index or a drive last answered.
    answered: Option<Instant>,
    last: Option<String>,
}

#[derive(Debug)]
enum State {
    /// After so many failures in a row.
    Works(usize),
    RestsUntil(Instant),
    /// Some blocks of a call probe it. The deadline is needed for a thread that hangs.
    ProbedUntil(Instant),
}

impl Default for State {
    fn default() -> Self {
        Self::Works(0)
    }
}

impl Health {
    /// Whether a thread may start some blocks of a call with this deadline.
    pub(crate) fn admits(&self, deadline: Instant) -> bool {
        let mut inner = self.0.lock();
        match inner.state {
            State::Works(_) => true,
            State::RestsUntil(until) | State::ProbedUntil(until) if Instant::now() >= until => {
                inner.state = State::ProbedUntil(deadline);
                true
            }
            _ => false,
        }
    }

    /// False while it rests: lookups miss, and blocks that were admitted end. Afterwards a lookup
    /// finds blocks again, and the first call that follows probes the drive.
    pub(crate) fn is_good(&self) -> bool {
        !matches!(self.0.lock().state, State::RestsUntil(until) if Instant::now() < until)
    }

    /// The index answered. It may be in memory while the drive hangs.
    pub(crate) fn answered(&self) {
        self.0.lock().answered = Some(Instant::now());
    }

    pub(crate) fn worked(&self) {
        let mut inner = self.0.lock();
        inner.answered = Some(Instant::now());
        inner.state = State::Works(0);
    }

    /// Some blocks have ended. If a probe neither worked nor failed, the next call probes.
    pub(crate) fn probed(&self) {
        let mut inner = self.0.lock();
        if matches!(inner.state, State::ProbedUntil(_)) {
            inner.state = State::RestsUntil(Instant::now());
        }
    }

    pub(crate) fn failed(&self, root: &Path, error: String) {
        tracing::warn!(target: "forebay::blocks", root = %root.display(), error, "request failed");
        let mut inner = self.0.lock();
        inner.state = match inner.state {
            State::Works(failures) if failures + 1 < FAILURES_MAX => State::Works(failures + 1),
            _ => State::RestsUntil(Instant::now() + REST),
        };
        inner.last = Some(error);
    }

    /// A call timed out with waiting blocks. If nothing answered since it
    /// started, the root's threads hang in the kernel, where none of them can report it.
    pub(crate) fn late(&self, root: &Path, started: Instant) {
        if self.0.lock().answered.is_none_or(|answered| answered < started) {
            self.failed(root, format!("no answer in {:?}", started.elapsed()));
        }
    }

    pub(crate) fn last(&self) -> Option<String> {
        self.0.lock().last.clone()
    }
}

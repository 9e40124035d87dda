//! Whether a direction of a root works. After failures it is left alone, and then tried by one
//! call at a time, so that the others do not wait for a drive that hangs.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_base::lock::Lock;

/// Failures in a row after which a root is left alone, and for how long.
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
    /// Some blocks of one call try it. A thread that hangs may never say how they ended.
    TriedUntil(Instant),
}

impl Default for State {
    fn default() -> Self {
        Self::Works(0)
    }
}

impl Health {
    /// Whether some blocks of a call may be tried, until `deadline`.
    pub(crate) fn admits(&self, deadline: Instant) -> bool {
        let mut inner = self.0.lock();
        match inner.state {
            State::Works(_) => true,
            State::RestsUntil(until) | State::TriedUntil(until) if Instant::now() >= until => {
                inner.state = State::TriedUntil(deadline);
                true
            }
            _ => false,
        }
    }

    /// Whether blocks that were admitted may be tried.
    pub(crate) fn is_good(&self) -> bool {
        !matches!(self.0.lock().state, State::RestsUntil(_))
    }

    /// An index answered, which may be in memory while the drive hangs.
    pub(crate) fn answered(&self) {
        self.0.lock().answered = Some(Instant::now());
    }

    pub(crate) fn worked(&self) {
        let mut inner = self.0.lock();
        inner.answered = Some(Instant::now());
        inner.state = State::Works(0);
    }

    /// What was tried has ended. If it neither worked nor failed, the next call tries.
    pub(crate) fn tried(&self) {
        let mut inner = self.0.lock();
        if matches!(inner.state, State::TriedUntil(_)) {
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

    /// A call ends that began at `started` and whose blocks still wait. If nothing has answered
    /// since then, the root's threads hang in the kernel, and none of them can say so.
    pub(crate) fn late(&self, root: &Path, started: Instant) {
        if self.0.lock().answered.is_none_or(|answered| answered < started) {
            self.failed(root, format!("no answer in {:?}", started.elapsed()));
        }
    }

    pub(crate) fn last(&self) -> Option<String> {
        self.0.lock().last.clone()
    }
}

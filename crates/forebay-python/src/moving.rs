//! Waits for the transfers behind Python's futures, and handles signals during the wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Error, ManyOutcome, ManyTransfer, Outcome, Transfer};
use pyo3::prelude::*;

use crate::failure::raised;

/// Time between two checks for signals.
const CHECKS_EVERY: Duration = Duration::from_millis(50);

/// How long an interrupted wait waits for requests in flight.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// One transfer of the engine, or one of many pieces.
pub(crate) trait Moving: Sync {
    /// The result type.
    type End: Send;

    /// The transfer, to query and to cancel.
    fn transfer(&self) -> &Transfer;

    /// Waits for the end, at most for `bound`.
    fn wait_for(&self, bound: Duration) -> Option<Result<Self::End, Error>>;
}

impl Moving for Transfer {
    type End = Outcome;

    fn transfer(&self) -> &Transfer {
        self
    }

    fn wait_for(&self, bound: Duration) -> Option<Result<Outcome, Error>> {
        self.wait_for(bound)
    }
}

impl Moving for ManyTransfer {
    type End = Arc<ManyOutcome>;

    fn transfer(&self) -> &Transfer {
        self.transfer()
    }

    fn wait_for(&self, bound: Duration) -> Option<Result<Arc<ManyOutcome>, Error>> {
        self.wait_for(bound)
    }
}

/// Waits for the outcome, at most for `bound`; `None` if that expires first. A signal whose handler
/// raises cancels the transfer.
pub(crate) fn end<M: Moving>(
    py: Python<'_>,
    moving: &M,
    bound: Option<Duration>,
) -> PyResult<Option<Result<M::End, Error>>> {
    let until = bound.and_then(|bound| Instant::now().checked_add(bound));
    // Giving the interpreter up and getting it back takes longer than a small read.
    if !moving.transfer().reaps()
        && moving.transfer().is_done()
        && let Some(end) = moving.wait_for(Duration::ZERO)
    {
        drop(moving.transfer().reclaim());
        return Ok(Some(end));
    }
    loop {
        let now = Instant::now();
        let left = until.map_or(CHECKS_EVERY, |until| until.saturating_duration_since(now));
        let end = py.detach(|| moving.wait_for(left.min(CHECKS_EVERY)));
        if let Some(end) = end {
            // Returns the transfer's memory to its owner.
            drop(moving.transfer().reclaim());
            return Ok(Some(end));
        }
        py.check_signals().inspect_err(|_| give_up(py, moving))?;
        if left <= CHECKS_EVERY && until.is_some() {
            return Ok(None);
        }
    }
}

/// Waits for the outcome without a bound.
pub(crate) fn outcome<M: Moving>(py: Python<'_>, moving: &M) -> PyResult<M::End> {
    raised(py, end(py, moving, None)?.expect("there is no bound"))
}

/// Cancels it, and waits briefly for requests in flight.
fn give_up<M: Moving>(py: Python<'_>, moving: &M) {
    py.detach(|| {
        moving.transfer().cancel();
        let _ = moving.transfer().wait_for(DRAIN_MAX);
    });
}

/// Calls `step` with a transfer: without the interpreter if that ends other callers' transfers.
pub(crate) fn query<T: Send>(
    py: Python<'_>,
    transfer: &Transfer,
    step: impl FnOnce(&Transfer) -> T + Send,
) -> T {
    if transfer.reaps() { py.detach(|| step(transfer)) } else { step(transfer) }
}

/// Cancels it; returns whether there was something to cancel.
pub(crate) fn cancel<M: Moving>(py: Python<'_>, moving: &M) -> bool {
    py.detach(|| {
        let is_moving = !moving.transfer().is_done();
        moving.transfer().cancel();
        is_moving
    })
}

/// Whether it has ended; if so, its memory is returned to its owner.
pub(crate) fn is_done(py: Python<'_>, transfer: &Transfer) -> bool {
    let is_done = query(py, transfer, Transfer::is_done);
    if is_done {
        drop(transfer.reclaim());
    }
    is_done
}

/// Whether it was cancelled before its end.
pub(crate) fn is_cancelled<M: Moving>(py: Python<'_>, moving: &M) -> bool {
    let end = query(py, moving.transfer(), ended);
    matches!(end, Some(Err(Error::Cancelled { .. })))
}

/// The result, if it has ended.
pub(crate) fn ended(transfer: &Transfer) -> Option<Result<Outcome, Error>> {
    transfer.is_done().then(|| transfer.wait_for(Duration::ZERO)).flatten()
}

/// A timeout in seconds, as given by Python.
pub(crate) fn bound(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(timeout) = timeout else { return Ok(None) };
    Ok(Some(Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::MAX)))
}

/// The exception for an expired timeout.
pub(crate) fn late(timeout: Option<f64>) -> PyErr {
    let seconds = timeout.unwrap_or_default();
    let text = format!("the transfer has not ended within {seconds} s; it continues");
    pyo3::exceptions::PyTimeoutError::new_err(text)
}

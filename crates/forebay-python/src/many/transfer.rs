//! Many reads or writes in progress, as a future.

use std::sync::Arc;

use forebay::{Error, ManyOutcome};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use super::result::ManyResult;
use crate::callbacks;
use crate::ended;
use crate::failure::{exception, raised};
use crate::moving::{self, bound, late};
use crate::transfer::{report, report_so_far};
use crate::waiting::Apart;
use crate::whole;

/// Many reads or writes in progress. The memory they use is kept alive until all have finished;
/// dropping the transfer does not stop it.
#[pyclass(frozen, module = "forebay", weakref)]
pub(crate) struct ManyTransfer {
    /// None if there was nothing to do.
    moving: Option<Apart<Going>>,
    /// The result, once it has been requested.
    reported: PyOnceLock<Py<ManyResult>>,
    /// Whether the error of the first failed request is raised.
    check: bool,
}

/// A transfer that continues when this is dropped.
struct Going(Option<forebay::ManyTransfer>);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(forebay::ManyTransfer::detach);
    }
}

impl callbacks::Future for ManyTransfer {
    fn is_over(&self, py: Python<'_>) -> bool {
        self.done(py)
    }

    fn on_end(&self, py: Python<'_>, step: impl FnOnce() + Send + 'static) {
        match self.inner() {
            Some(transfer) => moving::query(py, transfer, |transfer| transfer.on_end(step)),
            None => step(),
        }
    }

    fn reclaim(&self) {
        drop(self.inner().map(forebay::Transfer::reclaim));
    }
}

impl ManyTransfer {
    pub(crate) fn new(moving: forebay::ManyTransfer, check: bool) -> Self {
        Self { moving: Some(Apart::new(Going(Some(moving)))), reported: PyOnceLock::new(), check }
    }

    /// A transfer without requests.
    pub(super) fn nothing(py: Python<'_>, outcome: ManyOutcome) -> PyResult<Self> {
        let reported = PyOnceLock::new();
        let result = Py::new(py, ManyResult { outcome: Arc::new(outcome) })?;
        reported.set(py, result).expect("it is set once");
        Ok(Self { moving: None, reported, check: false })
    }

    fn moving(&self) -> Option<&forebay::ManyTransfer> {
        let going = self.moving.as_ref()?;
        Some(going.0.as_ref().expect("present until it is dropped"))
    }

    fn inner(&self) -> Option<&forebay::Transfer> {
        self.moving().map(forebay::ManyTransfer::transfer)
    }

    /// The result, after at most `timeout` seconds.
    fn end(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Result<Py<ManyResult>, Error>> {
        let bound = bound(timeout)?;
        let (Some(moving), None) = (self.moving(), self.reported.get(py)) else {
            return Ok(Ok(self.result_reported(py)));
        };
        match moving::end(py, moving, bound)? {
            Some(Ok(outcome)) => {
                let reported = || Py::new(py, ManyResult { outcome });
                self.reported.get_or_try_init(py, reported)?;
                Ok(Ok(self.result_reported(py)))
            }
            Some(Err(error)) => Ok(Err(error)),
            None => Err(late(timeout)),
        }
    }

    fn result_reported(&self, py: Python<'_>) -> Py<ManyResult> {
        self.reported.get(py).expect("it has been set").clone_ref(py)
    }

    /// The error of the first failed request, if it should be raised.
    fn failure<'a>(&self, outcome: &'a ManyOutcome) -> Option<&'a Error> {
        if self.check { super::first_failure(outcome) } else { None }
    }

    /// The result, or the exception to raise.
    pub(super) fn outcome(&self, py: Python<'_>) -> PyResult<Py<ManyResult>> {
        if let Some(moving) = self.moving() {
            moving::outcome(py, moving)?;
        }
        self.result(py, None)
    }
}

#[pymethods]
impl ManyTransfer {
    /// Waits for the end and returns the result of each request, as the blocking call does. After
    /// `timeout` seconds, `TimeoutError` is raised, and the transfer continues. A signal whose
    /// handler raises, such as Ctrl-C, cancels it.
    #[pyo3(signature = (timeout = None))]
    fn result(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::timeout)] timeout: Option<f64>,
    ) -> PyResult<Py<ManyResult>> {
        let result = raised(py, self.end(py, timeout)?)?;
        match self.failure(&result.get().outcome) {
            Some(error) => Err(exception(py, error)),
            None => Ok(result),
        }
    }

    /// Waits for the end as `result` does, and returns the exception that it would raise, or
    /// `None`.
    #[pyo3(signature = (timeout = None))]
    fn exception(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::timeout)] timeout: Option<f64>,
    ) -> PyResult<Option<PyErr>> {
        Ok(match self.end(py, timeout)? {
            Ok(result) => self.failure(&result.get().outcome).map(|error| exception(py, error)),
            Err(error) => Some(exception(py, &error)),
        })
    }

    /// Whether it has ended. Then its memory is free again.
    fn done(&self, py: Python<'_>) -> bool {
        self.inner().is_none_or(|transfer| moving::is_done(py, transfer))
    }

    /// Whether it is in progress.
    fn running(&self, py: Python<'_>) -> bool {
        !self.done(py)
    }

    /// Whether it was cancelled before its end.
    fn cancelled(&self, py: Python<'_>) -> bool {
        self.moving().is_some_and(|moving| moving::is_cancelled(py, moving))
    }

    /// Cancels it: nothing new starts, and requests in flight drain. Returns whether there was
    /// something to cancel.
    fn cancel(&self, py: Python<'_>) -> bool {
        self.moving().is_some_and(|moving| moving::cancel(py, moving))
    }

    /// Bytes done so far, and bytes requested.
    fn progress(&self, py: Python<'_>) -> (u64, u64) {
        let query = |transfer| moving::query(py, transfer, forebay::Transfer::progress);
        self.inner().map_or((0, 0), query)
    }

    /// Calls `callback` with the transfer when it has ended: from a dedicated thread, or
    /// immediately if it has already ended.
    fn add_done_callback(this: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        callbacks::add(this, callback)
    }

    fn __await__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        ended::awaited(this)
    }

    /// The outcome of all requests so far: bytes by route, with the reason, and time by stage.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if let Some(reported) = self.reported.get(py) {
            return report(py, &reported.get().outcome.whole);
        }
        let inner = self.inner().expect("a transfer without requests has its result");
        match moving::query(py, inner, moving::ended) {
            Some(Ok(whole)) => report(py, &whole),
            _ => report_so_far(py, inner),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (done, requested) = self.progress(py);
        let state = if self.done(py) { "ended" } else { "in progress" };
        format!("<forebay.ManyTransfer {state}, {done} of {requested} bytes>")
    }
}

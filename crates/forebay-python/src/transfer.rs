//! A transfer in progress, as a future.

use std::time::Duration;

use forebay::{Outcome, Stages};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::callbacks;
use crate::ended;
use crate::engine::{Engine, routes};
use crate::failure::{exception, raised};
use crate::moving::{self, bound, late};
use crate::waiting::Apart;
use crate::whole;

/// A transfer in progress. The memory it uses is kept alive until it has finished; dropping it does
/// not stop it, unlike in Rust, where the transfer owns its memory.
#[pyclass(frozen, module = "forebay", weakref)]
pub(crate) struct Transfer {
    transfer: Apart<Going>,
    /// Dropped after the transfer, whose handle of the engine is then not the last.
    _engine: Py<Engine>,
}

/// A transfer that continues when this is dropped.
struct Going(Option<forebay::Transfer>);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(forebay::Transfer::detach);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // Giving the interpreter up and getting it back takes longer than a small read.
        if !self.inner().reaps() && self.inner().is_done() {
            drop(self.transfer.take());
        }
    }
}

impl Transfer {
    pub(crate) fn new(transfer: forebay::Transfer, engine: Py<Engine>) -> Self {
        Self { transfer: Apart::new(Going(Some(transfer))), _engine: engine }
    }

    fn inner(&self) -> &forebay::Transfer {
        self.transfer.0.as_ref().expect("present until it is dropped")
    }

    /// Waits for the outcome.
    pub(crate) fn outcome(&self, py: Python<'_>) -> PyResult<Outcome> {
        moving::outcome(py, self.inner())
    }
}

impl callbacks::Future for Transfer {
    fn is_over(&self, py: Python<'_>) -> bool {
        self.done(py)
    }

    fn on_end(&self, py: Python<'_>, step: impl FnOnce() + Send + 'static) {
        moving::query(py, self.inner(), |transfer| transfer.on_end(step));
    }

    fn reclaim(&self) {
        drop(self.inner().reclaim());
    }
}

#[pymethods]
impl Transfer {
    /// Waits for the end and returns how many bytes were moved. After `timeout` seconds,
    /// `TimeoutError` is raised, and the transfer continues. A signal whose handler raises, such as
    /// Ctrl-C, cancels it.
    #[pyo3(signature = (timeout = None))]
    fn result(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::timeout)] timeout: Option<f64>,
    ) -> PyResult<u64> {
        match moving::end(py, self.inner(), bound(timeout)?)? {
            Some(end) => Ok(raised(py, end)?.bytes),
            None => Err(late(timeout)),
        }
    }

    /// Waits for the end as `result` does, and returns the error, or `None`.
    #[pyo3(signature = (timeout = None))]
    fn exception(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::timeout)] timeout: Option<f64>,
    ) -> PyResult<Option<PyErr>> {
        match moving::end(py, self.inner(), bound(timeout)?)? {
            Some(end) => Ok(end.err().map(|error| exception(py, &error))),
            None => Err(late(timeout)),
        }
    }

    /// Whether it has ended. Then its memory is free again.
    fn done(&self, py: Python<'_>) -> bool {
        moving::is_done(py, self.inner())
    }

    /// Whether it is in progress.
    fn running(&self, py: Python<'_>) -> bool {
        !self.done(py)
    }

    /// Whether it was cancelled before its end.
    fn cancelled(&self, py: Python<'_>) -> bool {
        moving::is_cancelled(py, self.inner())
    }

    /// Cancels it: nothing new starts, and requests in flight drain. Returns whether there was
    /// something to cancel.
    fn cancel(&self, py: Python<'_>) -> bool {
        moving::cancel(py, self.inner())
    }

    /// Bytes done so far, and bytes requested.
    fn progress(&self, py: Python<'_>) -> (u64, u64) {
        moving::query(py, self.inner(), forebay::Transfer::progress)
    }

    /// Calls `callback` with the transfer when it has ended: from a dedicated thread, or
    /// immediately if it has already ended.
    fn add_done_callback(this: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        callbacks::add(this, callback)
    }

    fn __await__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        ended::awaited(this)
    }

    /// The outcome so far: bytes by route, with the reason, and time by stage. `not_direct` says
    /// why bytes did not take the direct route, if there may be one.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner();
        match moving::query(py, inner, moving::ended) {
            Some(Ok(outcome)) => report(py, &outcome),
            _ => report_so_far(py, inner),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (done, requested) = self.progress(py);
        let state = if self.done(py) { "ended" } else { "in progress" };
        format!("<forebay.Transfer {state}, {done} of {requested} bytes>")
    }
}

/// The outcome of a transfer, as plain data.
pub(crate) fn report<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    known.set_item("bytes", outcome.bytes)?;
    known.set_item("routes", routes(py, &outcome.routes)?)?;
    known.set_item("not_direct", outcome.not_direct.as_deref())?;
    known.set_item("seconds", stages(py, outcome.stages, Some(outcome.elapsed))?)?;
    Ok(known)
}

/// The outcome of a transfer that has failed, or has not ended yet.
pub(crate) fn report_so_far<'py>(
    py: Python<'py>,
    transfer: &forebay::Transfer,
) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    known.set_item("bytes", transfer.progress().0)?;
    known.set_item("routes", routes(py, &transfer.routes())?)?;
    known.set_item("not_direct", transfer.not_direct().as_deref())?;
    known.set_item("seconds", stages(py, transfer.stages(), None)?)?;
    Ok(known)
}

fn stages<'py>(
    py: Python<'py>,
    stages: Stages,
    elapsed: Option<Duration>,
) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    known.set_item("probe", stages.probe.as_secs_f64())?;
    known.set_item("file", stages.file.as_secs_f64())?;
    known.set_item("copy", stages.copy.as_secs_f64())?;
    known.set_item("elapsed", elapsed.map(|elapsed| elapsed.as_secs_f64()))?;
    Ok(known)
}

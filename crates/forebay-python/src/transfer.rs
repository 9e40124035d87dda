//! Bytes on their way, as a future.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use forebay::{Error, Outcome, Stages};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::engine::routes;
use crate::failure::{exception, raised};
use crate::hanging;
use crate::per_process::PerProcess;
use crate::waiting::Apart;

/// Time between two questions for signals.
const ASKS_EVERY: Duration = Duration::from_millis(50);

/// Bytes on their way. What they move to or from is kept until they have arrived; a transfer that
/// nobody has any more goes on.
#[pyclass(frozen, module = "forebay", weakref)]
pub(crate) struct Transfer {
    transfer: Apart<Going>,
}

/// Goes on where it is dropped.
struct Going(Option<forebay::Transfer>);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(forebay::Transfer::detach);
    }
}

impl Transfer {
    pub(crate) fn new(transfer: forebay::Transfer) -> Self {
        Self { transfer: Apart::new(Going(Some(transfer))) }
    }

    fn inner(&self) -> &forebay::Transfer {
        self.transfer.0.as_ref().expect("there until it is dropped")
    }

    /// How it ended, at most after `bound`; `None` where that expires before. Whoever interrupts
    /// the wait cancels it.
    fn end(
        &self,
        py: Python<'_>,
        bound: Option<Duration>,
    ) -> PyResult<Option<Result<Outcome, Error>>> {
        let until = bound.and_then(|bound| Instant::now().checked_add(bound));
        loop {
            let now = Instant::now();
            let left = until.map_or(ASKS_EVERY, |until| until.saturating_duration_since(now));
            let end = py.detach(|| self.inner().wait_for(left.min(ASKS_EVERY)));
            if let Some(end) = end {
                // What it moved bytes to or from is its owner's alone again.
                drop(self.inner().reclaim());
                return Ok(Some(end));
            }
            py.check_signals().inspect_err(|_| self.give_up(py))?;
            if left <= ASKS_EVERY && until.is_some() {
                return Ok(None);
            }
        }
    }

    /// What it did.
    pub(crate) fn outcome(&self, py: Python<'_>) -> PyResult<Outcome> {
        raised(py, self.end(py, None)?.expect("there is no bound"))
    }

    /// Cancels it, and waits a moment for what is in flight.
    fn give_up(&self, py: Python<'_>) {
        py.detach(|| {
            self.inner().cancel();
            let _ = self.inner().wait_for(Duration::from_secs(1));
        });
    }
}

#[pymethods]
impl Transfer {
    /// Waits for the end and returns how many bytes arrived. Where `timeout` seconds are over
    /// before, `TimeoutError` is raised, and the transfer goes on. A signal whose handler raises,
    /// as Ctrl-C's does, cancels it.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        match self.end(py, bound(timeout)?)? {
            Some(end) => Ok(raised(py, end)?.bytes),
            None => Err(late(timeout)),
        }
    }

    /// Waits for the end as `result` does, and returns what went wrong, or `None`.
    #[pyo3(signature = (timeout = None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyErr>> {
        match self.end(py, bound(timeout)?)? {
            Some(end) => Ok(end.err().map(|error| exception(py, &error))),
            None => Err(late(timeout)),
        }
    }

    /// Whether it has ended.
    fn done(&self) -> bool {
        self.inner().is_done()
    }

    /// Whether it is on its way.
    fn running(&self) -> bool {
        !self.done()
    }

    /// Whether it was cancelled before it had ended.
    fn cancelled(&self) -> bool {
        self.done()
            && matches!(self.inner().wait_for(Duration::ZERO), Some(Err(Error::Cancelled { .. })))
    }

    /// Stops it: nothing new starts, and what is in flight drains. Whether there was something to
    /// stop.
    fn cancel(&self, py: Python<'_>) -> bool {
        let moving = !self.done();
        py.detach(|| self.inner().cancel());
        moving
    }

    /// Bytes done so far, and bytes asked for.
    fn progress(&self) -> (u64, u64) {
        self.inner().progress()
    }

    /// Calls `callback` with the transfer when it has ended: from a thread that does nothing else,
    /// or at once where it has ended already.
    fn add_done_callback(this: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        let job = Job { callback, transfer: this.clone().unbind() };
        call_back(this.py())?; // imported here, and not by the thread
        if this.get().done() {
            return run(this.py(), job);
        }
        let jobs = jobs()?;
        // Whoever ends it wakes that thread; the interpreter is its affair.
        this.get().inner().on_end(move || drop(jobs.send(job)));
        Ok(())
    }

    fn __await__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("forebay._awaiting")?.getattr("steps")?.call1((this,))
    }

    /// What it has done so far: bytes by route, with the reason, and time by stage.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner();
        let end = inner.is_done().then(|| inner.wait_for(Duration::ZERO)).flatten();
        match end {
            Some(Ok(outcome)) => report(py, &outcome),
            _ => {
                let known = PyDict::new(py);
                known.set_item("bytes", inner.progress().0)?;
                known.set_item("routes", routes(py, &inner.routes())?)?;
                known.set_item("seconds", stages(py, inner.stages(), None)?)?;
                Ok(known)
            }
        }
    }

    fn __repr__(&self) -> String {
        let (done, asked) = self.inner().progress();
        let state = if self.done() { "ended" } else { "on its way" };
        format!("<forebay.Transfer {state}, {done} of {asked} bytes>")
    }
}

fn bound(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(timeout) = timeout else { return Ok(None) };
    Ok(Some(Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::MAX)))
}

fn late(timeout: Option<f64>) -> PyErr {
    let seconds = timeout.unwrap_or_default();
    let text = format!("the transfer has not ended within {seconds} s; it goes on");
    pyo3::exceptions::PyTimeoutError::new_err(text)
}

/// What a transfer did, as plain data.
pub(crate) fn report<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    known.set_item("bytes", outcome.bytes)?;
    known.set_item("routes", routes(py, &outcome.routes)?)?;
    known.set_item("seconds", stages(py, outcome.stages, Some(outcome.elapsed))?)?;
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

/// A callback whose transfer has ended.
struct Job {
    callback: Py<PyAny>,
    transfer: Py<Transfer>,
}

/// The way to the thread that runs callbacks, which is started with the first of a process.
fn jobs() -> PyResult<&'static Sender<Job>> {
    static JOBS: PerProcess<Sender<Job>> = PerProcess::new();
    let start = || {
        let (sender, receiver) = channel::<Job>();
        std::thread::Builder::new().name("forebay-callback".into()).spawn(move || {
            Python::try_attach(|py| call_back_all(py, receiver));
        })?;
        Ok(sender)
    };
    Ok(JOBS.get_or_make(start)?)
}

/// Runs callbacks until the process ends. The thread stays known to the interpreter meanwhile, as
/// the one of `logs` does.
fn call_back_all(py: Python<'_>, mut jobs: Receiver<Job>) {
    let next = |jobs: Receiver<Job>| jobs.recv().ok().map(|job| (job, jobs));
    while let Some((job, rest)) = py.detach(move || next(jobs)) {
        jobs = rest;
        if let Err(error) = run(py, job) {
            error.write_unraisable(py, None);
        }
    }
}

/// Runs a callback, and lets go of it and of its transfer while the interpreter is at hand.
fn run(py: Python<'_>, job: Job) -> PyResult<()> {
    let Job { callback, transfer } = job;
    // What it moved bytes to or from is its owner's alone again.
    drop(transfer.get().inner().reclaim());
    let both = [callback.into_bound(py), transfer.into_bound(py).into_any()];
    let arguments = PyTuple::new(py, [PyList::new(py, both)?])?;
    hanging::call(call_back(py)?, &arguments);
    Ok(())
}

/// What calls back in Python.
fn call_back(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CALL_BACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CALL_BACK.import(py, "forebay._threads", "call_back")
}

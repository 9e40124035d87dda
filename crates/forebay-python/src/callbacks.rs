//! Runs the callbacks of Python's futures, on a dedicated thread.

use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_base::per_process::PerProcess;
use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use crate::hanging;

/// A Python future.
pub(crate) trait Future: PyClass<Frozen = True> + Sync {
    /// Whether it has ended.
    fn is_over(&self, py: Python<'_>) -> bool;

    /// Runs `step` when it has ended.
    fn on_end(&self, py: Python<'_>, step: impl FnOnce() + Send + 'static);

    /// Returns the memory of an ended one to its owner.
    fn reclaim(&self);
}

/// Calls `callback` with `future` when its transfer has ended; immediately if it already has, or if
/// there is none.
pub(crate) fn add<F: Future>(future: &Bound<'_, F>, callback: Py<PyAny>) -> PyResult<()> {
    let py = future.py();
    if !callback.bind(py).is_callable() {
        return Err(PyTypeError::new_err("`callback` must be callable"));
    }
    let job = Job { callback, future: future.clone().into_any().unbind(), reclaim: reclaim::<F> };
    call_back(py)?; // import it here, not on the callback thread
    if future.get().is_over(py) {
        return run(py, job);
    }
    let jobs = jobs()?;
    // The thread that ends the transfer does not attach to the interpreter: it wakes the callback
    // thread.
    future.get().on_end(py, move || drop(jobs.send(job)));
    Ok(())
}

/// A callback to run once its transfer has ended.
struct Job {
    callback: Py<PyAny>,
    future: Py<PyAny>,
    reclaim: fn(&Bound<'_, PyAny>),
}

fn reclaim<F: Future>(future: &Bound<'_, PyAny>) {
    if let Ok(future) = future.cast::<F>() {
        future.get().reclaim();
    }
}

/// The channel to the thread that runs callbacks, which starts with the first one of a process.
fn jobs() -> PyResult<&'static Sender<Job>> {
    static JOBS: PerProcess<Sender<Job>> = PerProcess::new();
    let start = || -> std::io::Result<_> {
        let (sender, receiver) = channel::<Job>();
        std::thread::Builder::new().name("forebay-callback".into()).spawn(move || {
            Python::try_attach(|py| call_back_all(py, receiver));
        })?;
        Ok(sender)
    };
    Ok(JOBS.get_or_make(start)?)
}

/// Runs callbacks until the process ends. The thread keeps its Python thread state while it waits,
/// like that of `logs`.
fn call_back_all(py: Python<'_>, mut jobs: Receiver<Job>) {
    let next = |jobs: Receiver<Job>| jobs.recv().ok().map(|job| (job, jobs));
    while let Some((first, rest)) = py.detach(move || next(jobs)) {
        // All that have ended by now, while this thread is attached.
        for job in std::iter::once(first).chain(rest.try_iter()) {
            if let Err(error) = run(py, job) {
                error.write_unraisable(py, None);
            }
        }
        jobs = rest;
    }
}

/// Runs a callback, and drops it and its future while attached to the interpreter.
fn run(py: Python<'_>, job: Job) -> PyResult<()> {
    let Job { callback, future, reclaim } = job;
    let future = future.into_bound(py);
    reclaim(&future);
    let both = [callback.into_bound(py), future];
    let arguments = PyTuple::new(py, [PyList::new(py, both)?])?;
    hanging::notify(call_back(py)?, &arguments);
    Ok(())
}

/// The Python function that runs callbacks.
fn call_back(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CALL_BACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    hanging::once(&CALL_BACK, py, "forebay._threads", "call_back")
}

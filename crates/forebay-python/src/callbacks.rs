//! What is called back when a transfer has ended: by a thread that does nothing else.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

/// Calls `callback` with `future`, which stands for `transfer`, when that has ended; at once where
/// it has, or where there is none.
pub(crate) fn add(
    transfer: Option<&forebay::Transfer>,
    future: &Bound<'_, PyAny>,
    callback: Py<PyAny>,
) -> PyResult<()> {
    let Some(transfer) = transfer.filter(|transfer| !transfer.is_done()) else {
        call(future.py(), &callback, future);
        return Ok(());
    };
    let jobs = jobs()?;
    let job = Job { callback, transfer: future.clone().unbind() };
    // Whoever ends it wakes that thread; the interpreter is its affair.
    transfer.on_end(move || drop(jobs.send(job)));
    Ok(())
}

/// A callback whose transfer has ended.
struct Job {
    callback: Py<PyAny>,
    transfer: Py<PyAny>,
}

/// The way to the thread that runs callbacks, which is started with the first of a process.
fn jobs() -> PyResult<Sender<Job>> {
    static JOBS: Mutex<Option<(u32, Sender<Job>)>> = Mutex::new(None);
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    // Threads are not inherited by a forked child.
    let this = std::process::id();
    if let Some((process, sender)) = &*jobs
        && *process == this
    {
        return Ok(sender.clone());
    }
    let (sender, receiver) = channel::<Job>();
    std::thread::Builder::new().name("forebay-callback".into()).spawn(move || {
        for job in receiver {
            let run = |py: Python<'_>| call(py, &job.callback, job.transfer.bind(py));
            if Python::try_attach(run).is_none() {
                std::mem::forget(job); // the interpreter has ended
            }
        }
    })?;
    // The parent's way is left as it is: its thread is not ours to end.
    std::mem::forget(jobs.replace((this, sender.clone())));
    Ok(sender)
}

fn call(py: Python<'_>, callback: &Py<PyAny>, transfer: &Bound<'_, PyAny>) {
    if let Err(error) = callback.bind(py).call1((transfer,)) {
        error.write_unraisable(py, Some(callback.bind(py)));
    }
}

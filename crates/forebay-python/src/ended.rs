//! Ends that threads of the engine report, for one Python thread that waits at an event file. The
//! reporting threads do not attach to the interpreter.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use forebay_base::lock::Lock;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rustix::event::{EventfdFlags, eventfd};

use crate::blocks::BlockCall;
use crate::callbacks::Future;
use crate::hanging;
use crate::many::ManyTransfer;
use crate::transfer::Transfer;

/// Ends in their order, and the event file that is readable while there are any.
pub(crate) struct Ended<T> {
    ends: Lock<VecDeque<T>>,
    event: OwnedFd,
}

impl<T> Ended<T> {
    pub(crate) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { ends: Lock::default(), event })
    }

    pub(crate) fn add(&self, end: T) {
        let mut ends = self.ends.lock();
        ends.push_back(end);
        let is_first = ends.len() == 1;
        drop(ends);
        if is_first {
            // Fails only after 2^64 ends.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// All ends since the last call.
    pub(crate) fn take(&self) -> VecDeque<T> {
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        std::mem::take(&mut *self.ends.lock())
    }

    pub(crate) fn event_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

/// The futures of an event loop whose transfers have ended.
#[pyclass(frozen, module = "forebay._forebay", weakref)]
pub(crate) struct Awaits(Arc<Ended<Py<PyAny>>>);

#[pymethods]
impl Awaits {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Arc::new(Ended::new()?)))
    }

    /// A descriptor that is readable while futures can be taken.
    fn fileno(&self) -> RawFd {
        self.0.event_fd()
    }

    /// Adds `future` when `transfer` has ended.
    fn add(&self, transfer: &Bound<'_, PyAny>, future: Py<PyAny>) -> PyResult<()> {
        let (py, ended) = (transfer.py(), Arc::clone(&self.0));
        let step = move || ended.add(future);
        if let Ok(transfer) = transfer.cast::<Transfer>() {
            transfer.get().on_end(py, step);
        } else if let Ok(transfer) = transfer.cast::<ManyTransfer>() {
            transfer.get().on_end(py, step);
        } else if let Ok(call) = transfer.cast::<BlockCall>() {
            call.get().on_end(py, step);
        } else {
            return Err(PyTypeError::new_err("`transfer` must be a transfer"));
        }
        Ok(())
    }

    /// The futures added since the last call.
    fn take(&self) -> Vec<Py<PyAny>> {
        self.0.take().into()
    }
}

/// The steps of an `await` of a transfer.
pub(crate) fn awaited<'py, F: Future>(transfer: &Bound<'py, F>) -> PyResult<Bound<'py, PyAny>> {
    static STEPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let steps = hanging::once(&STEPS, transfer.py(), "forebay._awaiting", "steps")?;
    hanging::call(steps, (transfer,))
}

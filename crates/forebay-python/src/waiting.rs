//! Waiting without the interpreter, and signals meanwhile.

use std::ops::Deref;

use pyo3::prelude::*;

/// What may wait when it is dropped, for a drive or a GPU: that is done without the interpreter,
/// although it is Python that drops it.
pub(crate) struct Apart<T: Send>(Option<T>);

impl<T: Send> Apart<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl<T: Send> Drop for Apart<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // Where the interpreter is ending nobody else wants it, and the value goes by itself.
        Python::try_attach(|py| py.detach(move || drop(value)));
    }
}

/// Runs `step` without the interpreter. It is given what it is to ask now and then: whether to go
/// on, which a signal answers with no. What the signal's handler raised is raised here then,
/// whatever came of the step.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    step: impl FnOnce(&mut dyn FnMut() -> bool) -> T + Send,
) -> PyResult<T> {
    let (done, raised) = py.detach(|| {
        let mut raised = None;
        let done = step(&mut || {
            raised = Python::attach(|py| py.check_signals().err());
            raised.is_none()
        });
        (done, raised)
    });
    match raised {
        Some(raised) => Err(raised),
        None => Ok(done),
    }
}

//! Waiting without the interpreter, and signals meanwhile.

use pyo3::prelude::*;

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

//! Calls into Python from threads that may outlive the interpreter.
//!
//! Before Python 3.14, a thread that attaches to the interpreter after its end is ended by
//! `pthread_exit`, which unwinds its stack. PyO3's values on it would then be released to an
//! interpreter that is gone, and the process would crash. Such a thread parks here instead, until
//! the process has ended. PyO3 does the same when it attaches by itself.

#![expect(unsafe_code, reason = "declares calls that may be unwound, which PyO3 does not")]

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};

mod raw {
    use pyo3::ffi::PyObject;

    unsafe extern "C-unwind" {
        pub(super) fn PyImport_Import(name: *mut PyObject) -> *mut PyObject;
        pub(super) fn PyObject_CallObject(
            function: *mut PyObject,
            arguments: *mut PyObject,
        ) -> *mut PyObject;
        pub(super) fn PyErr_WriteUnraisable(place: *mut PyObject);
    }
}

/// Parks forever when it is dropped, which happens only when its thread is unwound.
struct Hang;

impl Drop for Hang {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Runs a call that may be unwound.
fn hang<T>(call: impl FnOnce() -> T) -> T {
    let hang = Hang;
    let returned = call();
    std::mem::forget(hang);
    returned
}

/// Imports a module.
pub(crate) fn import<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let name = PyString::new(py, name);
    // SAFETY: the name is alive, and this thread is attached.
    let module = hang(|| unsafe { raw::PyImport_Import(name.as_ptr()) });
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, module) }
}

/// Calls a Python function.
pub(crate) fn call<'py, A>(
    function: &Bound<'py, PyAny>,
    arguments: A,
) -> PyResult<Bound<'py, PyAny>>
where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
{
    let py = function.py();
    let arguments = arguments.into_pyobject(py).map_err(Into::into)?;
    // SAFETY: both objects are alive, and this thread is attached.
    let returned =
        hang(|| unsafe { raw::PyObject_CallObject(function.as_ptr(), arguments.as_ptr()) });
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, returned) }
}

/// Calls a function of a module.
pub(crate) fn call_in<'py, A>(
    py: Python<'py>,
    module: &str,
    function: &str,
    arguments: A,
) -> PyResult<Bound<'py, PyAny>>
where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
{
    call(&import(py, module)?.getattr(function)?, arguments)
}

/// An object of a module, which is imported once.
pub(crate) fn once<'py>(
    cell: &'static PyOnceLock<Py<PyAny>>,
    py: Python<'py>,
    module: &str,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    let found = || PyResult::Ok(import(py, module)?.getattr(name)?.unbind());
    Ok(cell.get_or_try_init(py, found)?.bind(py))
}

/// Calls a Python function; exceptions go to `sys.unraisablehook`. Everything that the function
/// should release must be released within the call.
pub(crate) fn notify(function: &Bound<'_, PyAny>, arguments: &Bound<'_, PyTuple>) {
    if let Err(error) = call(function, arguments.clone()) {
        error.restore(function.py());
        // SAFETY: this thread is attached; the current exception is consumed.
        hang(|| unsafe { raw::PyErr_WriteUnraisable(function.as_ptr()) });
    }
}

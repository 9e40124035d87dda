//! Calls into Python from threads that may outlive the interpreter.
//!
//! Before Python 3.14, a thread that attaches to the interpreter after its end is ended by
//! `pthread_exit`, which unwinds its stack. PyO3's values on it would then be released to an
//! interpreter that is gone, and the process would crash. Such a thread parks here instead, until
//! the process has ended. PyO3 does the same when it attaches by itself.

#![expect(unsafe_code, reason = "declares calls that may be unwound, which PyO3 does not")]

use pyo3::prelude::*;
use pyo3::types::PyTuple;

mod raw {
    use pyo3::ffi::PyObject;

    unsafe extern "C-unwind" {
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

/// Calls a Python function; exceptions go to `sys.unraisablehook`. Everything that the function
/// should release must be released within the call.
pub(crate) fn call(function: &Bound<'_, PyAny>, arguments: &Bound<'_, PyTuple>) {
    let py = function.py();
    let hang = Hang;
    // SAFETY: both objects are alive, and this thread is attached.
    let returned = unsafe { raw::PyObject_CallObject(function.as_ptr(), arguments.as_ptr()) };
    // SAFETY: a new reference, or null with an exception set.
    let returned = unsafe { Bound::from_owned_ptr_or_opt(py, returned) };
    if returned.is_none() {
        // SAFETY: this thread is attached; the current exception is consumed.
        unsafe { raw::PyErr_WriteUnraisable(function.as_ptr()) };
    }
    std::mem::forget(hang);
}

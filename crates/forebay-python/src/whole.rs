//! Arguments that are a whole number of bytes. Errors for values out of range name the argument.

use forebay::Error;
use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyInt;

use crate::failure::exception;
use crate::hanging;

/// An offset in a file.
pub(crate) fn offset(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole("offset", value)
}

/// A number of bytes of a target or a source, if given.
pub(crate) fn size(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    given("size", value)
}

/// How many bytes of a file.
pub(crate) fn length(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole("length", value)
}

/// The length, if given.
pub(crate) fn length_given(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    given("length", value)
}

/// How much memory.
pub(crate) fn nbytes(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole("nbytes", value)
}

fn given(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() { Ok(None) } else { whole(name, value).map(Some) }
}

/// An address.
pub(crate) fn address(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    within("address", value, "an address, from 0 to 2**64 - 1")
}

fn whole(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    within(name, value, "a whole number of bytes, from 0 to 2**64 - 1")
}

/// A time limit in seconds, if given.
pub(crate) fn timeout(value: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    let expected = "a number of seconds";
    match within("timeout", value, expected)? {
        Some(timeout) if f64::is_nan(timeout) => Err(refused("timeout", value, expected)),
        timeout => Ok(timeout),
    }
}

/// A number that the type `T` holds.
pub(crate) fn within<'py, T: FromPyObjectOwned<'py>>(
    name: &str,
    value: &Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<T> {
    value.extract::<T>().map_err(|error: T::Error| {
        let error: PyErr = error.into();
        // The caller reports a value that is not a number.
        let is_too_large = error.is_instance_of::<PyOverflowError>(value.py());
        if is_too_large { refused(name, value, expected) } else { error }
    })
}

/// The error for a number that an argument does not take.
pub(crate) fn refused(name: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    exception(value.py(), &Error::bad_option(name, shown(value), expected))
}

/// A whole number as Python prints it; if it has more digits than that prints, its length.
fn shown(value: &Bound<'_, PyAny>) -> String {
    let number = || value.call_method0(intern!(value.py(), "__index__"));
    let Ok(number) = number() else { return value.to_string() };
    match number.str() {
        Ok(text) => text.to_string(),
        Err(_) => match number.call_method0(intern!(value.py(), "bit_length")) {
            Ok(bits) => format!("a number of {bits} bits"),
            Err(_) => value.to_string(),
        },
    }
}

/// Whether an object is a whole number of any library; an array that converts to one does not
/// count.
pub(crate) fn is_number(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static INTEGRAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if object.is_instance_of::<PyInt>() {
        return Ok(true);
    }
    if object.getattr_opt(intern!(object.py(), "__index__"))?.is_none() {
        return Ok(false);
    }
    object.is_instance(hanging::once(&INTEGRAL, object.py(), "numbers", "Integral")?)
}

/// An object as text; whole numbers of any library as Python writes its own.
pub(crate) fn text_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let number = object.call_method0(intern!(object.py(), "__index__"));
    Ok(number.unwrap_or_else(|_| object.clone()).str()?.to_string())
}

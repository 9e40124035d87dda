//! Arguments that are one whole number of bytes: those that no engine can hold are refused by their
//! names.

use forebay::Error;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::failure::exception;

/// Where in a file.
pub(crate) fn offset(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole("offset", value)
}

/// How many of a target's or a source's bytes, where that is given.
pub(crate) fn size(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    given("size", value)
}

/// How many bytes of a file.
pub(crate) fn length(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole("length", value)
}

/// The same, where that is given.
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

fn whole(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value.extract().map_err(|error: PyErr| {
        // What is no number is named by whoever calls this.
        if !error.is_instance_of::<PyOverflowError>(value.py()) {
            return error;
        }
        let refused = Error::BadOption {
            name: name.into(),
            value: value.to_string(),
            expected: "a whole number of bytes, from 0 to 2**64 - 1".into(),
        };
        exception(value.py(), &refused)
    })
}

//! Errors of the engine as exceptions of Python, whose classes `forebay._errors` defines.

use std::path::PathBuf;

use forebay::error::SystemError;
use forebay::{Error, Operation, Place, Route};
use pyo3::exceptions::PyRuntimeError;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::hanging;

/// Converts an engine error to a Python exception.
pub(crate) fn raised<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|error| exception(py, &error))
}

/// Makes PyO3 raise an `Error` of ours for each panic. Its own exception is no `Exception`, so it
/// would end programs that handle errors.
pub(crate) fn convert_panics(module: &Bound<'_, PyModule>) -> PyResult<()> {
    #[cfg(debug_assertions)]
    module.setattr("_panic", wrap_pyfunction!(panic, module)?)?;
    let class = module.py().get_type::<PanicException>();
    class.setattr("__new__", wrap_pyfunction!(of_panic, module)?)
}

/// The exception for the text of a panic.
#[pyfunction]
fn of_panic<'py>(
    _class: &Bound<'py, PyAny>,
    text: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    hanging::call_in(text.py(), "forebay._errors", "of_panic", (text,))
}

/// Panics, for tests.
#[cfg(debug_assertions)]
#[pyfunction]
fn panic(text: &str) {
    panic!("{text}");
}

/// An exception with a note that says which request it is about.
pub(crate) fn noted(py: Python<'_>, error: PyErr, note: &str) -> PyErr {
    drop(error.value(py).call_method1("add_note", (note,)));
    error
}

/// The exception for an error.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error).unwrap_or_else(|failed| {
        let also = PyRuntimeError::new_err(error.with_causes());
        also.set_cause(py, Some(failed));
        also
    })
}

fn make(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let about = PyDict::new(py);
    about.set_item("message", error.with_causes())?;
    if let Error::Layer { layer, .. } = error {
        about.set_item("layer", layer)?;
    }
    // A layer's error is raised as its underlying error.
    let error = error.without_layer();
    about.set_item("kind", kind(error))?;
    about.set_item("errno", error.errno())?;
    about.set_item("hint", hint(error))?;
    about.set_item("route", route(error).map(|route| route.to_string()))?;
    let path = match error {
        Error::NotAFile { path, .. } => Some(path.as_os_str()),
        other => place(other).map(|place| place.path.as_os_str()),
    };
    about.set_item("path", path.filter(|path| !path.is_empty()))?;
    if let Some(place) = place(error) {
        about.set_item("offset", place.offset)?;
        about.set_item("length", place.len)?;
    }
    if let Some(bytes) = bytes(error) {
        about.set_item("bytes", bytes)?;
    }
    let made = hanging::call_in(py, "forebay._errors", "make", (about,))?;
    Ok(PyErr::from_value(made))
}

/// The hint; in Python's terms if the engine's own names flags of the command.
fn hint(error: &Error) -> Option<String> {
    match error {
        Error::NoDevice { .. } => {
            Some("`device=\"cpu\"` is host memory, `device=\"sim\"` a simulated GPU".into())
        }
        other => other.hint(),
    }
}

/// The engine's hint for an error number of the system that Python raised for a path.
#[pyfunction]
pub(crate) fn system_hint(number: i32, path: PathBuf) -> Option<String> {
    let (operation, place) = (Operation::Open, Place::whole(path));
    Error::Io { operation, place, source: SystemError(number) }.hint()
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::EndOfFile { .. } => "end_of_file",
        Error::FileChanged { .. } => "file_truncated",
        Error::FileOverwritten { .. } => "file_changed",
        Error::RouteUnavailable { .. } => "route",
        Error::NoDevice { .. } => "no_device",
        Error::NotAFile { kind: "folder", .. } => "folder",
        Error::BadOption { .. }
        | Error::BadState { .. }
        | Error::BadRequest { .. }
        | Error::NotDeviceMemory { .. } => "request",
        Error::Device { .. } | Error::CopyNotOver { .. } => "device",
        Error::HostMemory { .. } | Error::MemoryLimit { .. } => "memory",
        Error::TimedOut { .. } => "timed_out",
        Error::Cancelled { .. } => "cancelled",
        Error::Forked { .. } => "forked",
        _ => "system",
    }
}

fn route(error: &Error) -> Option<Route> {
    match error {
        Error::RouteUnavailable { route, .. } => Some(*route),
        _ => None,
    }
}

fn place(error: &Error) -> Option<&Place> {
    match error {
        Error::Io { place, .. }
        | Error::EndOfFile { place, .. }
        | Error::FileChanged { place, .. }
        | Error::FileOverwritten { place }
        | Error::StaleCache { place }
        | Error::NoProgress { place, .. }
        | Error::RouteUnavailable { place, .. }
        | Error::TimedOut { place, .. }
        | Error::Cancelled { place, .. }
        | Error::BadRequest { place, .. } => Some(place),
        Error::Device { place, .. }
        | Error::CopyNotOver { place, .. }
        | Error::Forked { place, .. } => place.as_deref(),
        _ => None,
    }
}

/// Bytes moved before the failure.
fn bytes(error: &Error) -> Option<u64> {
    match error {
        Error::EndOfFile { got, .. } | Error::FileChanged { got, .. } => Some(*got),
        Error::TimedOut { done, .. } | Error::Cancelled { done, .. } => Some(*done),
        _ => None,
    }
}

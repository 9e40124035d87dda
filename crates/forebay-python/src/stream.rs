//! The streams that a caller names, of any library.

use forebay::gpu::CallerStream;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

/// What a call is ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ordering {
    /// It waits, on the host, for the work that the target's own library has queued on it.
    Ready,
    /// Nothing: the caller sees to it.
    None,
    /// This stream, and the host goes on.
    Stream(CallerStream),
}

/// What a caller gave as `stream=`: nothing means `"current"`, which `None` does not.
pub(crate) enum Given<'py> {
    /// Nothing.
    Current,
    /// Something.
    Stream(Bound<'py, PyAny>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(object: pyo3::Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Stream(object.to_owned()))
    }
}

impl Given<'_> {
    /// What the call is ordered by.
    pub(crate) fn ordering(&self) -> PyResult<Ordering> {
        match self {
            Self::Current => Ok(Ordering::Ready),
            Self::Stream(stream) => ordering(stream),
        }
    }
}

/// What `stream=` means: `"current"`, `None`, a stream of torch, cupy, numba or CUDA's own Python
/// library, or a raw one as a number.
fn ordering(stream: &Bound<'_, PyAny>) -> PyResult<Ordering> {
    let py = stream.py();
    if stream.is_none() {
        return Ok(Ordering::None);
    }
    if stream.is(py.Ellipsis()) {
        return Ok(Ordering::Ready); // what help shows as the default
    }
    if let Ok(word) = stream.cast::<PyString>() {
        return match word.to_cow()?.as_ref() {
            "current" => Ok(Ordering::Ready),
            _ => Err(unknown(stream)),
        };
    }
    if stream.is_instance_of::<PyInt>() {
        return Ok(Ordering::Stream(CallerStream(stream.extract()?)));
    }
    if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let (_, handle): (i64, u64) = protocol.call0()?.extract()?;
        return Ok(Ordering::Stream(CallerStream(handle)));
    }
    // Torch's, cupy's and numba's names for the same number.
    for name in [intern!(py, "cuda_stream"), intern!(py, "ptr"), intern!(py, "handle")] {
        if let Some(handle) = stream.getattr_opt(name)? {
            let handle = handle.getattr_opt(intern!(py, "value"))?.unwrap_or(handle);
            // A null pointer of `ctypes` is `None`: the default stream.
            let number = if handle.is_none() { 0 } else { handle.extract()? };
            return Ok(Ordering::Stream(CallerStream(number)));
        }
    }
    Err(unknown(stream))
}

fn unknown(stream: &Bound<'_, PyAny>) -> PyErr {
    let kind = stream.get_type().name().map_or("?".into(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "`stream` cannot be a `{kind}`: give a stream of torch or cupy, a raw one as a number, \
         `\"current\"`, or `None`"
    ))
}

//! Callers' streams, of any library.

#![expect(unsafe_code, reason = "queues on callers' streams")]

use forebay::gpu::CallerStream;
use forebay::{Request, ToStart};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::hanging;
use crate::whole;

/// The order of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ordering {
    /// The call waits on the host for the work that the memory's own library has queued on it.
    Ready,
    /// No order: the caller ensures it.
    None,
    /// After the work queued on this stream, without blocking the host.
    Stream(CallerStream),
}

impl Ordering {
    /// Sets the stream of a request, if there is one.
    pub(crate) fn order<Of, M: ToStart>(self, request: Request<'_, Of, M>) -> Request<'_, Of, M> {
        let Self::Stream(stream) = self else { return request };
        // SAFETY: the caller promises that the stream is alive and belongs to that GPU.
        unsafe { request.on(stream) }
    }
}

/// The caller's `stream=`: omitting it means `"current"`, unlike `None`.
pub(crate) enum Given<'py> {
    /// Omitted.
    Current,
    /// A value, `None` included.
    Stream(Bound<'py, PyAny>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(object: pyo3::Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Stream(object.to_owned()))
    }
}

impl<'py> Given<'py> {
    /// Marks an object as used by the stream of a call, if its library supports that
    /// (`record_stream` of torch). Once the object is freed, the library reuses the memory only
    /// after the work queued on that stream, even if the object was made on another one.
    pub(crate) fn mark(&self, ordering: Ordering, object: &Bound<'py, PyAny>) -> PyResult<()> {
        let (Self::Stream(stream), Ordering::Stream(number)) = (self, ordering) else {
            return Ok(());
        };
        let Some(record) = object.getattr_opt(intern!(object.py(), "record_stream"))? else {
            return Ok(());
        };
        record.call1((as_its_own(object, stream, number)?,)).map(drop)
    }

    /// The order of the call.
    pub(crate) fn ordering(&self) -> PyResult<Ordering> {
        match self {
            Self::Current => Ok(Ordering::Ready),
            Self::Stream(stream) => ordering(stream),
        }
    }
}

/// The number of a caller's compute stream; `None` is the default stream.
pub(crate) fn number(stream: &Bound<'_, PyAny>) -> PyResult<CallerStream> {
    match ordering(stream)? {
        Ordering::Stream(number) => Ok(number),
        Ordering::None => Ok(CallerStream(0)),
        Ordering::Ready => Err(unknown(stream)),
    }
}

/// The meaning of `stream=`: `"current"`, `None`, a stream of torch, cupy, numba or CUDA's own
/// Python library, or a raw one as a number.
fn ordering(stream: &Bound<'_, PyAny>) -> PyResult<Ordering> {
    let py = stream.py();
    if stream.is_none() {
        return Ok(Ordering::None);
    }
    if stream.is(py.Ellipsis()) {
        return Ok(Ordering::Ready); // the default that `help` shows
    }
    if let Ok(word) = stream.cast::<PyString>() {
        return match word.to_cow()?.as_ref() {
            "current" => Ok(Ordering::Ready),
            _ => Err(unknown(stream)),
        };
    }
    if whole::is_number(stream)? {
        let expected = "a stream's address, from 0 to 2**64 - 1";
        return Ok(Ordering::Stream(CallerStream(whole::within("stream", stream, expected)?)));
    }
    if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let (_, handle): (i64, u64) = protocol.call0()?.extract()?;
        return Ok(Ordering::Stream(CallerStream(handle)));
    }
    // The names of the same number in torch, cupy and numba.
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

/// A stream as the object's own library represents it: torch accepts no others.
fn as_its_own<'py>(
    object: &Bound<'py, PyAny>,
    stream: &Bound<'py, PyAny>,
    CallerStream(number): CallerStream,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if stream.hasattr(intern!(py, "cuda_stream"))? {
        return Ok(stream.clone()); // it is torch's
    }
    let modules = hanging::import(py, "sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(torch) = modules.get_item("torch")? else { return Ok(stream.clone()) };
    if !object.is_instance(&torch.getattr("Tensor")?)? {
        return Ok(stream.clone());
    }
    let (cuda, device) = (torch.getattr("cuda")?, object.getattr(intern!(py, "device"))?);
    match number {
        0 | 1 => cuda.call_method1("default_stream", (device,)),
        _ => cuda.call_method1("ExternalStream", (number, device)),
    }
}

fn unknown(stream: &Bound<'_, PyAny>) -> PyErr {
    let kind = stream.get_type().name().map_or("?".into(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "`stream` cannot be `{kind}`: give a stream of torch or cupy, a raw stream as a number, \
         `\"current\"`, or `None`"
    ))
}

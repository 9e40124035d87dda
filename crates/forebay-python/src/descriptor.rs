//! Open files that Python code uses by their numbers.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::file::path_of;
use crate::hanging;
use crate::replace::close;
use crate::waiting::Apart;

/// An open file, as by `os.open`. The object owns the descriptor from the beginning: an exception
/// at any moment, such as by Ctrl-C, closes it.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Descriptor(Apart<Mutex<Option<OwnedFd>>>);

#[pymethods]
impl Descriptor {
    /// Raises `OSError`.
    #[new]
    #[pyo3(signature = (path, flags, mode = 0o666))]
    fn new(path: &Bound<'_, PyAny>, flags: u32, mode: u32) -> PyResult<Self> {
        let (py, given) = (path.py(), path);
        let path = path_of(given)?;
        let flags = OFlags::from_bits_retain(flags) | OFlags::CLOEXEC;
        loop {
            match py.detach(|| openat(CWD, &path, flags, Mode::from_raw_mode(mode))) {
                Ok(file) => return Ok(Self(Apart::new(Mutex::new(Some(file))))),
                Err(Errno::INTR) => py.check_signals()?,
                Err(errno) => {
                    let number = errno.raw_os_error();
                    let text = hanging::call_in(py, "os", "strerror", (number,))?.unbind();
                    return Err(PyOSError::new_err((number, text, given.clone().unbind())));
                }
            }
        }
    }

    /// Its number; -1 once it is closed.
    #[getter]
    fn number(&self) -> RawFd {
        self.lock().as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Closes it, once.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(file) = self.lock().take() else { return Ok(()) };
        py.detach(|| close(file)).map_err(|errno| std::io::Error::from(errno).into())
    }

    fn __enter__(&self) -> RawFd {
        self.number()
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let text = "cannot copy or pickle an open file: open it again by its path";
        Err(PyTypeError::new_err(text))
    }
}

impl Descriptor {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Memory of the engine, for Python: bytes on a GPU or pinned on the host. Libraries use it by
//! DLPack, `__cuda_array_interface__` or the buffer protocol.

#![expect(
    unsafe_code,
    reason = "fills in the fields of the buffer protocol, orders callers' streams"
)]

use std::ffi::c_int;
use std::ops::Deref;

use forebay::gpu::{CallerStream, DeviceId};
use forebay_layers::LayerMemory;
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dlpack;
use crate::waiting::{Apart, interruptible};

/// Memory of an engine, on a GPU or pinned on the host.
#[pyclass(frozen, module = "forebay", weakref)]
pub(crate) struct Buffer {
    buffer: Apart<Memory>,
}

/// The owner of the memory.
enum Memory {
    Own(forebay::Buffer),
    Layer(LayerMemory),
}

impl Deref for Memory {
    type Target = forebay::Buffer;

    fn deref(&self) -> &forebay::Buffer {
        match self {
            Self::Own(buffer) => buffer,
            Self::Layer(memory) => memory,
        }
    }
}

impl Buffer {
    pub(crate) fn new(buffer: forebay::Buffer) -> Self {
        Self { buffer: Apart::new(Memory::Own(buffer)) }
    }

    pub(crate) fn of_layer(memory: LayerMemory) -> Self {
        Self { buffer: Apart::new(Memory::Layer(memory)) }
    }

    pub(crate) fn id(&self) -> Option<DeviceId> {
        self.buffer.device()
    }

    /// Waits for a layer's bytes; other memory is always ready.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let Memory::Layer(memory) = &*self.buffer else { return Ok(()) };
        let waited = interruptible(py, |go_on| memory.wait_while(go_on))?;
        crate::failure::raised(py, waited).map(drop)
    }

    /// Makes a stream, given by DLPack's number, wait for a layer's bytes. Other memory needs no
    /// order: its users wait for the transfer, or order the access themselves.
    fn order(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Memory::Layer(memory) = &*self.buffer else { return Ok(()) };
        // `None` means the default stream, and -1 that the consumer orders it itself.
        let number = stream.map(|stream| stream.extract::<i64>()).transpose()?.unwrap_or(0);
        let Ok(number) = u64::try_from(number) else { return Ok(()) };
        // SAFETY: by DLPack the consumer's stream is alive, and one of the array's device.
        let ordered = py.detach(|| unsafe { memory.order(CallerStream(number)) });
        crate::failure::raised(py, ordered)
    }

    /// First address and length. Fails in a forked child, which does not have this memory, and
    /// during an abandoned call.
    pub(crate) fn extent(&self) -> PyResult<(u64, u64)> {
        if self.buffer.device().is_none()
            && let Err(error) = self.buffer.check()
        {
            return Err(PyBufferError::new_err(error.to_string()));
        }
        Ok((self.buffer.address(), self.buffer.len()))
    }
}

#[pymethods]
impl Buffer {
    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.buffer.len()
    }

    /// Address of its first byte, on the host or on its GPU.
    #[getter]
    fn address(&self) -> u64 {
        self.buffer.address()
    }

    /// Its device: `cpu`, `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.buffer.device().map_or("cpu".to_owned(), |device| device.to_string())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.buffer.len())?)
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Buffer of {} bytes on {}>", self.buffer.len(), self.device())
    }

    /// A handle by which another process of this host maps this memory of a GPU.
    fn _shared(&self, py: Python<'_>) -> PyResult<[u8; 64]> {
        let shared = py.detach(|| self.buffer.shared());
        crate::failure::raised(py, shared)
    }

    /// A copy of its bytes, as `bytes`.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
        self.extent()?;
        self.wait(py)?;
        let len = usize::try_from(self.buffer.len())?;
        let mut failed = Ok(());
        let made = pyo3::types::PyBytes::new_with(py, len, |bytes| {
            failed = py.detach(|| self.buffer.download(0, bytes));
            Ok(())
        })?;
        crate::failure::raised(py, failed)?;
        Ok(made)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_of(self.buffer.device())
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        this: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyTuple>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = this.get();
        own.order(this.py(), stream)?;
        if dl_device.is_some_and(|device| device != own.__dlpack_device__()) || copy == Some(true) {
            return Err(PyBufferError::new_err("a `Buffer` is exported in place, without a copy"));
        }
        let versioned = dlpack::wants_version(max_version)?;
        dlpack::capsule(this.as_any(), own.extent()?, own.id(), versioned)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.buffer.device().is_none() {
            return Err(PyAttributeError::new_err("__cuda_array_interface__"));
        }
        self.wait(py)?; // the interface names no stream
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("data", (self.buffer.address(), false))?;
        interface.set_item("shape", (self.buffer.len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("strides", py.None())?;
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    /// # Safety
    /// Called by Python, with room for a view at `view`.
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let own = this.get();
        if own.buffer.device().is_some() {
            // SAFETY: the caller's view.
            unsafe { (*view).obj = std::ptr::null_mut() };
            let text =
                format!("the buffer is on {}: copy it to the host by `.tobytes()`", own.device());
            return Err(PyBufferError::new_err(text));
        }
        let (address, len) = own.extent()?;
        // SAFETY: the view is Python's, and the memory lives as long as the object, which the view
        // keeps alive.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                this.as_ptr(),
                address as *mut _,
                isize::try_from(len)?,
                0,
                flags,
            )
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}

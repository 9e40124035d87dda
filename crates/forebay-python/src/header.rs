//! The header of a safetensors file, for Python: its tensors become objects when they are needed.

#![expect(unsafe_code, reason = "reads a new array without a copy")]

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_safetensors::{Error, Index, LENGTH};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyDict, PyList, PyString, PyTuple};

use crate::failure::raised;
use crate::file::File;
use crate::hanging;
use crate::memory::{self, Use};
use crate::waiting::{interruptible, parsed};

/// The tensors of a safetensors file by name, in the order of their bytes.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Header {
    header: forebay_safetensors::Header,
    path: Py<PyAny>,
    /// The class of a tensor, `forebay.safetensors._header.Stored`.
    stored: Py<PyAny>,
}

#[pymethods]
impl Header {
    /// Reads and checks the header of a file. The caller converts a `ValueError`, whose text is
    /// the reason why the file is not valid.
    #[staticmethod]
    fn read(
        py: Python<'_>,
        file: &Bound<'_, File>,
        path: Py<PyAny>,
        stored: Py<PyAny>,
    ) -> PyResult<Self> {
        let size = file.get().size(py)?;
        let head = filled(file, 0, LENGTH.min(size))?;
        let mut length = [0; 8];
        let found = head.to_vec();
        length[..found.len()].copy_from_slice(&found);
        let length = forebay_safetensors::Header::length(&length, found.len() as u64, size);
        let text = filled(file, LENGTH, invalid(length)? as u64)?;
        // SAFETY: no other code has a reference to the array, so nothing changes it, and the parser
        // keeps it.
        let bytes: &'static [u8] = unsafe { &*std::ptr::from_ref(text.as_bytes()) };
        let kept = text.unbind();
        let header = parsed(py, bytes.len(), move || {
            let _kept = kept;
            forebay_safetensors::Header::parse(bytes, size)
        });
        Ok(Self { header: invalid(header?)?, path, stored })
    }

    /// Checks the header in the bytes of a whole file.
    #[staticmethod]
    fn of(
        py: Python<'_>,
        data: PyBackedBytes,
        path: Py<PyAny>,
        stored: Py<PyAny>,
    ) -> PyResult<Self> {
        let mut head = [0; 8];
        let found = data.len().min(8);
        head[..found].copy_from_slice(&data[..found]);
        let size = data.len() as u64;
        let length = forebay_safetensors::Header::length(&head, found as u64, size);
        let end = 8 + invalid(length)?;
        let header =
            parsed(py, end, move || forebay_safetensors::Header::parse(&data[8..end], size));
        Ok(Self { header: invalid(header?)?, path, stored })
    }

    fn __len__(&self) -> usize {
        self.header.len()
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        name.extract::<&str>().is_ok_and(|name| self.header.get(name).is_some())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.header.names())?.try_iter()?.into_any())
    }

    /// The number of a tensor in the order of their bytes; `None` if there is none.
    fn place(&self, name: &Bound<'_, PyString>) -> Option<usize> {
        self.header.place(name.to_str().ok()?)
    }

    /// The tensor of a number.
    fn at<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.header.at(place);
        let tensor = tensor.ok_or_else(|| PyIndexError::new_err("no tensor has this number"))?;
        let shape = PyTuple::new(py, &tensor.shape)?;
        let (dtype, path, view) = (tensor.dtype.name(), self.path.bind(py), py.None());
        let about = (tensor.name, dtype, shape, tensor.offset, tensor.nbytes, view, path);
        hanging::call(self.stored.bind(py), about)
    }

    /// The strings under `__metadata__`, or `None`.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(pairs) = self.header.metadata() else { return Ok(None) };
        let made = PyDict::new(py);
        for (key, value) in pairs {
            made.set_item(key, value)?;
        }
        Ok(Some(made))
    }
}

/// Reads bytes of a file into a new array.
pub(crate) fn filled<'py>(
    file: &Bound<'py, File>,
    offset: u64,
    length: u64,
) -> PyResult<Bound<'py, PyByteArray>> {
    let (py, own) = (file.py(), file.get());
    let array = PyByteArray::new_with(py, usize::try_from(length).unwrap_or(0), |_| Ok(()))?;
    if length > 0 {
        let file = own.file()?;
        let mut lent = memory::lend(file.engine(), array.as_any(), Use::Target, None)?;
        let read = interruptible(py, |go_on| {
            file.read(&mut lent.buffer).at(offset).exact().while_(go_on).run()
        });
        raised(py, read?)?;
    }
    Ok(array)
}

fn invalid<T>(result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The index of a model in several files.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct ModelIndex(Index);

#[pymethods]
impl ModelIndex {
    /// Parses an index. Raises `ValueError`, whose text is the reason why it is not one.
    #[new]
    fn new(py: Python<'_>, text: PyBackedBytes) -> PyResult<Self> {
        let index = parsed(py, text.len(), move || Index::parse(&text))?;
        index.map(Self).map_err(PyValueError::new_err)
    }

    /// The names of the files.
    fn files(&self) -> &[String] {
        self.0.files()
    }

    /// The names of the tensors of a file, by its number.
    fn names(this: Bound<'_, Self>, file: usize) -> NamesOf {
        NamesOf { index: this.unbind(), file, at: AtomicUsize::new(0) }
    }

    /// Whether a tensor is in a file, by its number. Raises `ValueError` for a name that the index
    /// has twice.
    fn has(&self, py: Python<'_>, name: &str, file: usize) -> PyResult<bool> {
        let found = py.detach(|| self.0.file_of(name));
        Ok(found.map_err(PyValueError::new_err)? == Some(file))
    }
}

/// Yields names of an index.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct NamesOf {
    index: Py<ModelIndex>,
    file: usize,
    at: AtomicUsize,
}

#[pymethods]
impl NamesOf {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self) -> Option<&str> {
        let at = self.at.fetch_add(1, Ordering::Relaxed);
        self.index.get().0.name(self.file, at)
    }
}

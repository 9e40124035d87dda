//! Arrays of whole numbers, of whatever library has the buffer protocol.

#![expect(unsafe_code, reason = "reads what an exporter says is there")]

use std::ffi::CStr;
use std::mem::MaybeUninit;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// Numbers from zero up.
pub(crate) struct Numbers {
    name: String,
    view: Box<ffi::Py_buffer>,
    /// Bytes of one, and whether it may be below zero.
    size: usize,
    is_signed: bool,
    len: usize,
}

impl Drop for Numbers {
    fn drop(&mut self) {
        // SAFETY: got once, given back once, in a thread that is attached: it stays in the call.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}

impl Numbers {
    /// The numbers of an array, or of a list.
    pub(crate) fn of(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        // SAFETY: the object is alive.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            // A list or another sequence, once.
            let kind = py.import("array")?.getattr("array")?;
            let array = kind.call1(("q", object)).or_else(|_| kind.call1(("Q", object)));
            let array = array.map_err(|error| {
                let text = format!("`{name}` is not an array of whole numbers from zero up");
                let better = PyTypeError::new_err(text);
                better.set_cause(py, Some(error));
                better
            })?;
            return Self::of(name, &array);
        }
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // SAFETY: the object is alive and the view has room; it is filled in where this succeeds.
        let view = unsafe {
            let flags = ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_FORMAT;
            if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) != 0 {
                return Err(PyErr::fetch(py));
            }
            view.assume_init()
        };
        let mut numbers = Self { name: name.to_owned(), view, size: 0, is_signed: false, len: 0 };
        let format = if numbers.view.format.is_null() {
            c"B"
        } else {
            // SAFETY: a text of the exporter's, which lives as long as the view.
            unsafe { CStr::from_ptr(numbers.view.format) }
        };
        let format = format.to_str().unwrap_or_default().trim_start_matches(['@', '=', '<']);
        numbers.is_signed = matches!(format, "b" | "h" | "i" | "l" | "q" | "n");
        let is_whole = numbers.is_signed || matches!(format, "B" | "H" | "I" | "L" | "Q" | "N");
        numbers.size = usize::try_from(numbers.view.itemsize).unwrap_or(0);
        if !is_whole || !matches!(numbers.size, 1 | 2 | 4 | 8) || numbers.view.ndim > 1 {
            let text = format!(
                "`{name}` is no array of whole numbers in one dimension: its items are `{format}`"
            );
            return Err(PyTypeError::new_err(text));
        }
        numbers.len = usize::try_from(numbers.view.len).unwrap_or(0) / numbers.size;
        Ok(numbers)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// One of them.
    pub(crate) fn get(&self, index: usize) -> PyResult<u64> {
        assert!(index < self.len, "number {index} of {}", self.len);
        let at = self.view.buf.cast::<u8>();
        // SAFETY: inside the exporter's bytes, by the check above; its items need not be aligned.
        let number = unsafe {
            let at = at.add(index * self.size);
            match (self.size, self.is_signed) {
                (8, false) => return Ok(at.cast::<u64>().read_unaligned()),
                (8, true) => at.cast::<i64>().read_unaligned(),
                (4, false) => i64::from(at.cast::<u32>().read_unaligned()),
                (4, true) => i64::from(at.cast::<i32>().read_unaligned()),
                (2, false) => i64::from(at.cast::<u16>().read_unaligned()),
                (2, true) => i64::from(at.cast::<i16>().read_unaligned()),
                (_, false) => i64::from(at.read()),
                (_, true) => i64::from(at.cast::<i8>().read()),
            }
        };
        u64::try_from(number).map_err(|_| {
            PyValueError::new_err(format!("`{}[{index}]` is {number}: below zero", self.name))
        })
    }
}

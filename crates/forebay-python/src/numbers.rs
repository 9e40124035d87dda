//! Arrays of whole numbers, of any library with the buffer protocol.
//!
//! They are read in place. A copy would be more memory that the kernel has to clear, which is most
//! of the cost of a call with 100,000 requests.

#![expect(unsafe_code, reason = "reads memory as its exporter describes it")]

use std::ffi::CStr;
use std::mem::MaybeUninit;

use forebay::Error;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::failure::exception;
use crate::hanging;

/// The numbers of an array or a list, none of them negative.
pub(crate) struct Numbers<'a> {
    name: &'a str,
    view: View,
    kind: Kind,
    len: usize,
}

/// The type of an item.
#[derive(Debug, Clone, Copy)]
enum Kind {
    U64,
    I64,
    U32,
    I32,
    U16,
    I16,
    U8,
    I8,
}

impl<'a> Numbers<'a> {
    /// The numbers of `object`, which the caller knows as `name`.
    pub(crate) fn of(name: &'a str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        // SAFETY: the object is alive.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            return Self::in_view(name, View::of(object)?);
        }
        // A list or another sequence.
        let kind = hanging::import(py, "array")?.getattr("array")?;
        let array = || {
            // An iterator has its items once, for both attempts.
            let items = py.get_type::<PyList>().call1((object,))?;
            kind.call1(("q", &items)).or_else(|_| kind.call1(("Q", &items)))
        };
        let array = array().map_err(|error| {
            let expected = "an array of whole numbers from 0 to 2**64 - 1, one for each request";
            if error.is_instance_of::<PyOverflowError>(py) {
                let value = "a list with another number";
                return exception(py, &Error::bad_option(name, value, expected));
            }
            let better = PyTypeError::new_err(format!("`{name}` must be {expected}"));
            better.set_cause(py, Some(error));
            better
        })?;
        Self::in_view(name, View::of(&array)?)
    }

    fn in_view(name: &'a str, view: View) -> PyResult<Self> {
        let format = view.format();
        let is_signed = matches!(format, "b" | "h" | "i" | "l" | "q" | "n");
        let is_whole = is_signed || matches!(format, "B" | "H" | "I" | "L" | "Q" | "N");
        let kind = match (view.0.itemsize, is_signed) {
            _ if !is_whole || view.0.ndim > 1 => None,
            (8, false) => Some(Kind::U64),
            (8, true) => Some(Kind::I64),
            (4, false) => Some(Kind::U32),
            (4, true) => Some(Kind::I32),
            (2, false) => Some(Kind::U16),
            (2, true) => Some(Kind::I16),
            (1, false) => Some(Kind::U8),
            (1, true) => Some(Kind::I8),
            _ => None,
        };
        let kind = kind.ok_or_else(|| {
            let text =
                format!("`{name}` must be a flat array of whole numbers: its items are `{format}`");
            PyTypeError::new_err(text)
        })?;
        let bytes = if view.0.buf.is_null() { 0 } else { view.0.len };
        let len = usize::try_from(bytes / view.0.itemsize).unwrap_or(0);
        Ok(Self { name, view, kind, len })
    }

    /// The caller's name for them.
    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    /// How many numbers there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number at `index`, which must exist.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> PyResult<u64> {
        let number = match self.kind {
            Kind::U64 => return Ok(u64::from_ne_bytes(self.item(index))),
            Kind::I64 => i64::from_ne_bytes(self.item(index)),
            Kind::U32 => u32::from_ne_bytes(self.item(index)).into(),
            Kind::I32 => i32::from_ne_bytes(self.item(index)).into(),
            Kind::U16 => u16::from_ne_bytes(self.item(index)).into(),
            Kind::I16 => i16::from_ne_bytes(self.item(index)).into(),
            Kind::U8 => u8::from_ne_bytes(self.item(index)).into(),
            Kind::I8 => i8::from_ne_bytes(self.item(index)).into(),
        };
        u64::try_from(number).map_err(|_| {
            let (name, expected) = (format!("{}[{index}]", self.name), "no negative numbers");
            Python::attach(|py| {
                exception(py, &Error::bad_option(name, number.to_string(), expected))
            })
        })
    }

    /// The bytes of an item.
    #[inline]
    fn item<const N: usize>(&self, index: usize) -> [u8; N] {
        assert!(index < self.len, "the caller checks the index");
        // Other threads may write to it concurrently. So it is read once, through a pointer: a race
        // changes only the number, which is checked afterwards.
        //
        // SAFETY: the view has `len` contiguous items of this size as long as it exists.
        unsafe { self.view.0.buf.cast::<[u8; N]>().add(index).read_volatile() }
    }
}

/// A Python buffer view; released when it is dropped, which is within the call.
struct View(Box<ffi::Py_buffer>);

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: acquired once, released once, in an attached thread.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

impl View {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        let flags = ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_FORMAT;
        // SAFETY: the object is alive and the view has room; it is filled in where this succeeds.
        unsafe {
            if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) != 0 {
                return Err(PyErr::fetch(object.py()));
            }
            Ok(Self(view.assume_init()))
        }
    }

    /// The format of its items, in the letters of Python's `struct`.
    fn format(&self) -> &str {
        let format = if self.0.format.is_null() {
            c"B"
        } else {
            // SAFETY: the exporter's string, which lives as long as the view.
            unsafe { CStr::from_ptr(self.0.format) }
        };
        format.to_str().unwrap_or_default().trim_start_matches(['@', '=', '<'])
    }
}

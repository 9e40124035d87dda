//! Arrays of whole numbers, of whatever library has the buffer protocol.

#![expect(unsafe_code, reason = "reads what an exporter says is there")]

use std::ffi::CStr;
use std::mem::MaybeUninit;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// The numbers of an array or a list, each from zero up.
pub(crate) fn numbers(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let py = object.py();
    // SAFETY: the object is alive.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
        return View::of(object)?.numbers(name);
    }
    // A list or another sequence.
    let kind = py.import("array")?.getattr("array")?;
    let array = kind.call1(("q", object)).or_else(|_| kind.call1(("Q", object)));
    let array = array.map_err(|error| {
        let text = format!("`{name}` is not an array of whole numbers from zero up");
        let better = PyTypeError::new_err(text);
        better.set_cause(py, Some(error));
        better
    })?;
    View::of(&array)?.numbers(name)
}

/// What an exporter shows of itself; given back when it is dropped, which stays in the call.
struct View(Box<ffi::Py_buffer>);

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: got once, given back once, in a thread that is attached.
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

    fn numbers(&self, name: &str) -> PyResult<Vec<u64>> {
        let format = if self.0.format.is_null() {
            c"B"
        } else {
            // SAFETY: a text of the exporter's, which lives as long as the view.
            unsafe { CStr::from_ptr(self.0.format) }
        };
        let format = format.to_str().unwrap_or_default().trim_start_matches(['@', '=', '<']);
        let is_signed = matches!(format, "b" | "h" | "i" | "l" | "q" | "n");
        let is_whole = is_signed || matches!(format, "B" | "H" | "I" | "L" | "Q" | "N");
        if !is_whole || self.0.ndim > 1 {
            let text = format!(
                "`{name}` is no array of whole numbers in one dimension: its items are `{format}`"
            );
            return Err(PyTypeError::new_err(text));
        }
        let all = match (self.0.itemsize, is_signed) {
            (8, false) => Ok(self.items(u64::from_ne_bytes)),
            (8, true) => checked(self.items(i64::from_ne_bytes)),
            (4, false) => checked(self.items(u32::from_ne_bytes)),
            (4, true) => checked(self.items(i32::from_ne_bytes)),
            (2, false) => checked(self.items(u16::from_ne_bytes)),
            (2, true) => checked(self.items(i16::from_ne_bytes)),
            (_, false) => checked(self.items(u8::from_ne_bytes)),
            (_, true) => checked(self.items(i8::from_ne_bytes)),
        };
        all.map_err(|(index, number)| {
            PyValueError::new_err(format!("`{name}[{index}]` is {number}: below zero"))
        })
    }

    /// All items, each from its bytes.
    fn items<const N: usize, T>(&self, item: impl Fn([u8; N]) -> T) -> Vec<T> {
        let len = usize::try_from(self.0.len).unwrap_or(0);
        if self.0.buf.is_null() || len == 0 {
            return Vec::new();
        }
        // Others may write to them meanwhile, so they are read through a pointer, each once: that
        // changes numbers, which are checked afterwards, and nothing else.
        let first = self.0.buf.cast::<[u8; N]>();
        (0..len / N)
            // SAFETY: so many bytes are there, in one piece, as long as the view is.
            .map(|index| item(unsafe { first.add(index).read_volatile() }))
            .collect()
    }
}

/// The same numbers, or the first below zero and its place.
fn checked<T: Copy + Into<i64>>(all: Vec<T>) -> Result<Vec<u64>, (usize, i64)> {
    let number = |(index, number): (usize, T)| {
        let number = number.into();
        u64::try_from(number).map_err(|_| (index, number))
    };
    all.into_iter().enumerate().map(number).collect()
}

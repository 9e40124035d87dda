//! Requests as tuples, each with its file and its memory.

use std::collections::HashMap;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyTuple};

use super::{How, Requests, Wanted, place};
use crate::failure::noted;
use crate::file::File;
use crate::whole;

/// Requests as tuples, whose memory is an object, or an address on `device`. All are of `file` if
/// it is given.
pub(super) fn by_tuples<'py>(
    how: &How<'_, 'py>,
    requests: &Bound<'py, PyAny>,
    device: Option<&Bound<'py, PyAny>>,
    file: Option<&Bound<'py, File>>,
) -> PyResult<Requests> {
    let mut parsed = Requests::default();
    let (mut files, mut memory) = (Numbered::default(), Numbered::default());
    let (mut ranges, mut names_address) = (Vec::new(), false);
    let first = usize::from(file.is_none());
    let bad_tuple = || {
        let kinds = [
            "a request is `(offset, length, memory)`",
            "a request is `(file, offset, length, memory)`",
        ];
        PyTypeError::new_err(kinds[first])
    };
    file.into_iter().try_for_each(|file| parsed.add_file(file))?;
    // Objects are compared by address, so all stay alive until the end.
    let mut kept: Vec<Bound<'py, PyTuple>> = Vec::new();
    for request in PyIterator::from_object(requests)? {
        let request = request?.cast_into::<PyTuple>().map_err(|_| bad_tuple())?;
        if request.len() != first + 3 {
            return Err(bad_tuple());
        }
        let mut number = 0;
        if first > 0 {
            let file = request.get_item(0)?;
            let is_new;
            (number, is_new) = files.number(&file);
            if is_new {
                parsed.add_file(file.cast::<File>().map_err(|_| bad_tuple())?)?;
            }
        }
        let named = |error: PyErr| {
            if error.is_instance_of::<PyTypeError>(requests.py()) { bad_tuple() } else { error }
        };
        let offset = whole::offset(&request.get_item(first)?).map_err(named)?;
        let len = whole::length(&request.get_item(first + 1)?).map_err(named)?;
        let object = request.get_item(first + 2)?;
        let (memory, at) = if whole::is_number(&object)? {
            let address = whole::address(&object)?;
            if len > 0 {
                ranges.push((address, len));
            }
            names_address = true;
            (Wanted::BY_ADDRESS, address)
        } else {
            let (number, is_new) = memory.number(&object);
            if is_new {
                let index = parsed.wanted.len();
                parsed.found.push(how.find(&object).map_err(|error| {
                    noted(requests.py(), error, &format!("in `requests[{index}]`"))
                })?);
            }
            (place(number)?, 0)
        };
        parsed.wanted.push(Wanted { file: place(number)?, memory, offset, len, at });
        kept.push(request);
    }
    if names_address {
        parsed.add_ranges(requests.py(), ranges, device)?;
    }
    Ok(parsed)
}

/// Objects in order of first appearance.
#[derive(Default)]
struct Numbered {
    known: HashMap<usize, usize>,
    last: Option<(usize, usize)>,
}

impl Numbered {
    /// An object's number, and whether it is new.
    fn number(&mut self, object: &Bound<'_, PyAny>) -> (usize, bool) {
        let key = object.as_ptr() as usize;
        if let Some((same, number)) = self.last
            && same == key
        {
            return (number, false);
        }
        let next = self.known.len();
        let number = *self.known.entry(key).or_insert(next);
        self.last = Some((key, number));
        (number, number == next)
    }
}

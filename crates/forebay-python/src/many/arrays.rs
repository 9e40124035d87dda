//! Requests as arrays of one length: of offsets, lengths, and either places in one object or
//! addresses on one device.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use super::{Asked, How, Wanted};
use crate::engine::Engine;
use crate::file::File;
use crate::numbers::numbers;

/// The keywords of a call.
pub(super) struct Arrays<'a, 'py> {
    pub(super) files: Option<&'a Bound<'py, PyAny>>,
    pub(super) file_of: Option<&'a Bound<'py, PyAny>>,
    pub(super) offsets: Option<&'a Bound<'py, PyAny>>,
    pub(super) lengths: Option<&'a Bound<'py, PyAny>>,
    pub(super) target: Option<&'a Bound<'py, PyAny>>,
    pub(super) at: Option<&'a Bound<'py, PyAny>>,
    pub(super) addresses: Option<&'a Bound<'py, PyAny>>,
    pub(super) device: Option<&'a Bound<'py, PyAny>>,
}

/// Requests as arrays of one length.
pub(super) fn by_arrays<'py>(
    engine: &Bound<'py, Engine>,
    how: &How<'_, 'py>,
    files: &Bound<'py, PyAny>,
    arrays: &Arrays<'_, 'py>,
) -> PyResult<Asked> {
    let mut asked = Asked::default();
    if let Ok(one) = files.cast::<File>() {
        asked.files.push(one.get().file()?);
    } else {
        for file in PyIterator::from_object(files)? {
            asked.files.push(file?.cast::<File>()?.get().file()?);
        }
    }
    let needed = |name: &str, given: Option<&Bound<'py, PyAny>>| {
        let given = given.ok_or_else(|| PyTypeError::new_err(format!("`{name}=` is missing")))?;
        numbers(name, given)
    };
    let offsets = needed("offsets", arrays.offsets)?;
    let lengths = needed("lengths", arrays.lengths)?;
    let file_of = arrays.file_of.map(|given| numbers("file_of", given)).transpose()?;
    let (by_address, count) = (arrays.target.is_none(), offsets.len());
    let (name, places) = match by_address {
        true => ("addresses", needed("addresses", arrays.addresses)?),
        false => ("at", needed("at", arrays.at)?),
    };
    same_len("lengths", &lengths, count)?;
    same_len(name, &places, count)?;
    let file_of = asked.file_of(file_of, count)?;
    let memory = if by_address { Wanted::BY_ADDRESS } else { 0 };
    let each = offsets.iter().zip(&lengths).zip(&places).enumerate();
    asked.wanted = each
        .map(|(index, ((&offset, &len), &at))| {
            let file = file_of.as_ref().map_or(0, |file_of| file_of[index]);
            Wanted { file, memory, offset, len, at }
        })
        .collect();
    match arrays.target {
        Some(target) => asked.lent.push(how.lend(engine, target)?),
        None => {
            let ranges = asked.wanted.iter().map(|wanted| (wanted.at, wanted.len));
            let ranges = ranges.filter(|range| range.1 > 0).collect();
            asked.add_ranges(engine, ranges, arrays.device)?;
        }
    }
    Ok(asked)
}

fn same_len(name: &str, numbers: &[u64], count: usize) -> PyResult<()> {
    if numbers.len() == count {
        return Ok(());
    }
    let text = format!("`{name}` has {} numbers, and `offsets` {count}", numbers.len());
    Err(PyValueError::new_err(text))
}

impl Asked {
    /// The number of each request's file; `None` where all have the first.
    fn file_of(&self, given: Option<Vec<u64>>, count: usize) -> PyResult<Option<Vec<u32>>> {
        let files = self.files.len();
        let Some(given) = given else {
            return match files {
                1 => Ok(None),
                _ if files == count => Ok(Some((0..).take(count).collect())),
                _ => Err(PyValueError::new_err(
                    "`files=` holds one file, one for each request, or those that `file_of=` names",
                )),
            };
        };
        same_len("file_of", &given, count)?;
        let number = |(index, number): (usize, u64)| {
            let known = u32::try_from(number).ok().filter(|_| number < files as u64);
            known.ok_or_else(|| {
                let text = format!("`file_of[{index}]` is {number}: there are {files} files");
                PyValueError::new_err(text)
            })
        };
        given.into_iter().enumerate().map(number).collect::<PyResult<_>>().map(Some)
    }
}

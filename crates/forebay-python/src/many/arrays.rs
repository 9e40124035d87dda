//! Requests as arrays of one length: of offsets, lengths, and either places in one object or in
//! several that are joined, or addresses on one device.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};

use super::{How, Requests, Wanted, place};
use crate::file::File;
use crate::numbers::Numbers;

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
    how: &How<'_, 'py>,
    files: &Bound<'py, PyAny>,
    arrays: &Arrays<'_, 'py>,
) -> PyResult<Requests> {
    let mut parsed = Requests::default();
    if let Ok(one) = files.cast::<File>() {
        parsed.files.push(one.get().file()?);
    } else {
        for file in PyIterator::from_object(files)? {
            parsed.files.push(file?.cast::<File>()?.get().file()?);
        }
    }
    let needed = |name: &'static str, given: Option<&Bound<'py, PyAny>>| {
        let given = given.ok_or_else(|| PyTypeError::new_err(format!("`{name}=` is missing")))?;
        Numbers::of(name, given)
    };
    let offsets = needed("offsets", arrays.offsets)?;
    let lengths = needed("lengths", arrays.lengths)?;
    let file_of = arrays.file_of.map(|given| Numbers::of("file_of", given)).transpose()?;
    let (by_address, count) = (arrays.target.is_none(), offsets.len());
    let places = match by_address {
        true => needed("addresses", arrays.addresses)?,
        false => needed("at", arrays.at)?,
    };
    same_len(&lengths, count)?;
    same_len(&places, count)?;
    let file_of = parsed.file_of(file_of, count)?;
    let memory = if by_address { Wanted::BY_ADDRESS } else { 0 };
    parsed.wanted.reserve_exact(count);
    for index in 0..count {
        let (offset, len, at) = (offsets.get(index)?, lengths.get(index)?, places.get(index)?);
        parsed.wanted.push(Wanted { file: file_of.get(index)?, memory, offset, len, at });
    }
    match arrays.target {
        Some(target) => match target.cast::<PyList>() {
            Ok(several) => parsed.find_joined(how, several)?,
            Err(_) => parsed.found.push(how.find(target)?),
        },
        None => {
            let ranges = parsed.wanted.iter().map(|wanted| (wanted.at, wanted.len));
            let ranges = ranges.filter(|range| range.1 > 0).collect();
            parsed.add_ranges(files.py(), ranges, arrays.device)?;
        }
    }
    Ok(parsed)
}

fn same_len(numbers: &Numbers<'_>, count: usize) -> PyResult<()> {
    if numbers.len() == count {
        return Ok(());
    }
    let (name, len) = (numbers.name(), numbers.len());
    let text = format!("`{name}` has {len} numbers, but `offsets` has {count}");
    Err(PyValueError::new_err(text))
}

/// Which file each request is for.
enum FileOf<'a> {
    /// All for the first.
    First,
    /// Each for its own.
    Own,
    /// By index, among this many files.
    Named(Numbers<'a>, usize),
}

impl FileOf<'_> {
    #[inline]
    fn get(&self, index: usize) -> PyResult<u32> {
        match self {
            Self::First => Ok(0),
            Self::Own => place(index),
            Self::Named(numbers, files) => {
                let number = numbers.get(index)?;
                let known = u32::try_from(number).ok().filter(|_| number < *files as u64);
                known.ok_or_else(|| {
                    let text = format!("`file_of[{index}]` is {number}: there are {files} files");
                    PyValueError::new_err(text)
                })
            }
        }
    }
}

impl Requests {
    /// Finds several memories. The places of the pieces count through all of them.
    fn find_joined<'py>(
        &mut self,
        how: &How<'_, 'py>,
        several: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let (mut begins, mut end) = (Vec::with_capacity(several.len()), 0_u64);
        for target in several {
            let found = how.find(&target)?;
            if found.range.1 == 0 {
                continue; // it counts as host memory, also if it is on a GPU
            }
            begins.push(end);
            end = end.checked_add(found.range.1).ok_or_else(|| {
                PyValueError::new_err("the memory in the list has more than 2^64 bytes in all")
            })?;
            self.found.push(found);
        }
        for wanted in &mut self.wanted {
            let after = begins.partition_point(|&begin| begin <= wanted.at);
            let empty = || PyValueError::new_err("the memory in the list has no bytes");
            let index = after.checked_sub(1).ok_or_else(empty)?;
            (wanted.memory, wanted.at) = (place(index)?, wanted.at - begins[index]);
        }
        Ok(())
    }

    fn file_of<'a>(&self, given: Option<Numbers<'a>>, count: usize) -> PyResult<FileOf<'a>> {
        let files = self.files.len();
        let Some(given) = given else {
            return match files {
                1 => Ok(FileOf::First),
                _ if files == count => Ok(FileOf::Own),
                _ => Err(PyValueError::new_err(
                    "`files=` takes one file, one for each request, or those of `file_of=`",
                )),
            };
        };
        same_len(&given, count)?;
        Ok(FileOf::Named(given, files))
    }
}

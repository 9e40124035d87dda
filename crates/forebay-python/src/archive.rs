//! The directory of a zip that `torch.save` wrote.
//!
//! Readers of zips find the directory in different ways, so one file may have two contents. Only
//! what torch's writer makes is accepted: the first entry is at the start of the file, the
//! directory and its end adjoin and end the file, there is no comment, all entries are in one
//! folder, and no two names differ in case only. The layout is that of PKWARE's APPNOTE 6.3.

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::file::File;
use crate::header::filled;
use crate::waiting::parsed;

/// Bytes of the fixed parts: the end, the locator and record of large zips, a directory's entry,
/// and the header before an entry.
const END: usize = 22;
const LOCATOR: usize = 20;
const RECORD: usize = 56;
const CENTRAL: usize = 46;
const LOCAL: u64 = 30;

/// Most bytes of a directory, as of a header of safetensors.
const DIRECTORY_MAX: u64 = 100_000_000;

/// The value of a field whose number is in the record for large zips.
const ELSEWHERE: u64 = 0xffff_ffff;

const SEVERAL: &str = "it is a part of several files";

/// The entries of a zip.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Archive {
    directory: Vec<u8>,
    /// In the order of the directory.
    entries: Vec<Entry>,
    /// Numbers of entries, in the order of their names.
    by_name: Vec<u32>,
    /// Where each header begins, in order, and where the directory begins.
    begins: Vec<u64>,
}

struct Entry {
    name: Range<u32>,
    header: u64,
    size: u64,
    /// Its bytes in the file.
    packed: u64,
    /// Neither compressed nor encrypted.
    is_plain: bool,
}

#[pymethods]
impl Archive {
    /// Reads the directory of a file. Raises `ValueError`, whose text is the reason to refuse it.
    #[new]
    fn new(py: Python<'_>, file: &Bound<'_, File>) -> PyResult<Self> {
        let size = file.get().size(py)?;
        let tail = size.min((END + LOCATOR + RECORD) as u64);
        let tail = filled(file, size - tail, tail)?.to_vec();
        let (place, count) = place(&tail, size).map_err(PyValueError::new_err)?;
        let length = place.end - place.start;
        if length > DIRECTORY_MAX {
            let reason = format!("its directory would have {length} bytes");
            return Err(PyValueError::new_err(reason));
        }
        let directory = filled(file, place.start, length)?.to_vec();
        parsed(py, directory.len(), move || Self::parse(directory, place.start, count))?
            .map_err(PyValueError::new_err)
    }

    /// Reads the directory in the last bytes of a zip of `size` bytes.
    #[staticmethod]
    fn of(tail: &[u8], size: u64) -> PyResult<Self> {
        Self::within(tail, size).map_err(PyValueError::new_err)
    }

    /// The name of the folder that all entries are in, from the first of them.
    fn root(&self) -> String {
        let first = self.entries.first().map_or("", |entry| self.name(entry));
        first.split('/').next().unwrap_or_default().into()
    }

    /// Where the header of an entry begins, how many bytes the entry has, and where the next header
    /// begins; `None` if there is no such entry.
    ///
    /// Raises `ValueError` if it is compressed or encrypted.
    fn entry(&self, name: &str) -> PyResult<Option<(u64, u64, u64)>> {
        let Some(entry) = self.find(name) else { return Ok(None) };
        if !entry.is_plain {
            return Err(PyValueError::new_err(compressed(name)));
        }
        let next = self.begins.partition_point(|&begin| begin <= entry.header);
        Ok(Some((entry.header, entry.size, self.begins[next])))
    }
}

impl Archive {
    fn within(tail: &[u8], size: u64) -> Result<Self, String> {
        let (place, count) = place(tail, size)?;
        let outside = || format!("its directory of {} bytes is too long", place.end - place.start);
        let begin = size.checked_sub(tail.len() as u64).ok_or_else(outside)?;
        let inside = |at: u64| usize::try_from(at.checked_sub(begin)?).ok();
        let within = inside(place.start).zip(inside(place.end)).ok_or_else(outside)?;
        let directory = tail.get(within.0..within.1).ok_or_else(outside)?;
        Self::parse(directory.to_vec(), place.start, count)
    }

    fn parse(directory: Vec<u8>, begin: u64, count: u64) -> Result<Self, String> {
        let mut entries = Vec::new();
        let mut at = 0;
        while at < directory.len() {
            let fixed = directory.get(at..at + CENTRAL).ok_or("its directory is truncated")?;
            if &fixed[..4] != b"PK\x01\x02" {
                return Err("its directory is broken".into());
            }
            let (flags, method) = (number(fixed, 8, 2), number(fixed, 10, 2));
            let lengths = [28, 30, 32].map(|field| usize::from(u16_at(fixed, field)));
            let name = at + CENTRAL..at + CENTRAL + lengths[0];
            let more = name.end..name.end + lengths[1];
            let (text, more) = (directory.get(name.clone()), directory.get(more));
            let (text, more) = text.zip(more).ok_or("its directory is truncated")?;
            let text = std::str::from_utf8(text).map_err(|_| "a name in it is no text")?;
            if text.contains(['\0', '\\']) {
                return Err("a name in it has a character that names do not have".into());
            }
            if number(fixed, 34, 2) != 0 {
                return Err(SEVERAL.into());
            }
            let is_plain = method == 0 && flags & 1 == 0;
            let (packed, size, header) = sizes(fixed, more)?;
            if is_plain && packed != size {
                return Err(format!("its entry `{text}` has two sizes"));
            }
            at = name.end + lengths[1] + lengths[2];
            let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            let name = place(name.start)..place(name.end);
            entries.push(Entry { name, header, size, packed, is_plain });
        }
        if at != directory.len() {
            return Err("its directory is truncated".into());
        }
        if entries.len() as u64 != count {
            return Err(format!("its directory has {} entries, not {count}", entries.len()));
        }
        let mut begins: Vec<u64> = entries.iter().map(|entry| entry.header).collect();
        begins.sort_unstable();
        begins.push(begin);
        if begins[0] != 0 {
            return Err("it does not begin with its first entry".into());
        }
        let mut archive = Self { directory, entries, by_name: Vec::new(), begins };
        archive.check_places()?;
        archive.sort()?;
        let folder = format!("{}/", archive.root());
        let mut names = archive.entries.iter().map(|entry| archive.name(entry));
        if let Some(name) = names.find(|name| !name.starts_with(&folder)) {
            return Err(format!("its entry `{name}` is not in the folder `{folder}`"));
        }
        // A program of TorchScript has compressed entries; the caller refuses it by its name.
        let is_program = archive.find(&format!("{}/constants.pkl", archive.root())).is_some();
        match archive.entries.iter().find(|entry| !entry.is_plain && !is_program) {
            Some(entry) => Err(compressed(archive.name(entry))),
            None => Ok(archive),
        }
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        let name_of = |&number: &u32| self.name(&self.entries[number as usize]).cmp(name);
        let place = self.by_name.binary_search_by(name_of).ok()?;
        self.entries.get(self.by_name[place] as usize)
    }

    /// Refuses entries that overlap.
    fn check_places(&self) -> Result<(), String> {
        for entry in &self.entries {
            let next = self.begins.partition_point(|&begin| begin <= entry.header);
            let end = entry.header.checked_add(LOCAL).and_then(|end| end.checked_add(entry.packed));
            let fits = self.begins.get(next).zip(end).is_some_and(|(&next, end)| end <= next);
            if !fits || next > 0 && self.begins[next - 1] != entry.header {
                return Err(format!("its entry `{}` overlaps the next one", self.name(entry)));
            }
        }
        match self.begins.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err("two of its entries are at one place".into()),
            false => Ok(()),
        }
    }

    /// Sorts the names, and refuses those that a reader may take for each other.
    fn sort(&mut self) -> Result<(), String> {
        let mut numbers: Vec<u32> = (0..).zip(&self.entries).map(|(number, _)| number).collect();
        let name = |number: u32| self.name(&self.entries[number as usize]);
        let lower = |number: u32| name(number).bytes().map(|byte| byte.to_ascii_lowercase());
        numbers.sort_unstable_by(|&one, &other| lower(one).cmp(lower(other)));
        if let Some(pair) = numbers.windows(2).find(|pair| lower(pair[0]).eq(lower(pair[1]))) {
            return Err(format!("two of its entries have the name `{}`", name(pair[0])));
        }
        numbers.sort_unstable_by(|&one, &other| name(one).cmp(name(other)));
        self.by_name = numbers;
        Ok(())
    }

    fn name(&self, entry: &Entry) -> &str {
        let bytes = &self.directory[entry.name.start as usize..entry.name.end as usize];
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// Where the directory is and how many entries it has, from the last bytes of a file of `size`
/// bytes.
fn place(tail: &[u8], size: u64) -> Result<(Range<u64>, u64), String> {
    let at = tail.len().checked_sub(END).ok_or("it is too short")?;
    let end = &tail[at..];
    if &end[..4] != b"PK\x05\x06" || number(end, 20, 2) != 0 {
        return Err("its end is not that of a zip, or has a comment".into());
    }
    let (mut length, mut begin) = (number(end, 12, 4), number(end, 16, 4));
    let mut count = number(end, 10, 2);
    if number(end, 8, 2) != count || number(end, 4, 4) != 0 {
        return Err(SEVERAL.into());
    }
    let mut until = size.checked_sub(END as u64).ok_or("it is too short")?;
    let locator = at.checked_sub(LOCATOR).map(|start| &tail[start..at]);
    match locator.filter(|locator| &locator[..4] == b"PK\x06\x07") {
        Some(locator) => {
            until = until.checked_sub((LOCATOR + RECORD) as u64).ok_or("it is too short")?;
            let record = at.checked_sub(LOCATOR + RECORD).map(|start| &tail[start..]);
            let record = record.filter(|record| {
                &record[..4] == b"PK\x06\x06"
                    && number(record, 4, 8) == RECORD as u64 - 12
                    && number(locator, 8, 8) == until
                    && number(record, 24, 8) == number(record, 32, 8)
            });
            let record = record.ok_or("the records at its end do not adjoin")?;
            let large = (number(record, 40, 8), number(record, 48, 8));
            let agrees = |own: u64, large: u64| own == large || own == ELSEWHERE;
            let entries = number(record, 32, 8);
            let is_count = count == entries || count == u64::from(u16::MAX);
            if !agrees(length, large.0) || !agrees(begin, large.1) || !is_count {
                return Err("its records have two places or sizes of its directory".into());
            }
            ((length, begin), count) = (large, entries);
        }
        None if length == ELSEWHERE || begin == ELSEWHERE => {
            return Err("it has no record of its directory".into());
        }
        None => {}
    }
    match begin.checked_add(length) {
        Some(end) if end == until => Ok((begin..end, count)),
        _ => Err("its directory is not before its end, or bytes are before its start".into()),
    }
}

fn compressed(name: &str) -> String {
    format!("its entry `{name}` is compressed or encrypted")
}

/// The packed size, the size, and the place of an entry.
fn sizes(fixed: &[u8], more: &[u8]) -> Result<(u64, u64, u64), String> {
    let mut found = [number(fixed, 24, 4), number(fixed, 20, 4), number(fixed, 42, 4)];
    if !found.contains(&ELSEWHERE) {
        return Ok((found[1], found[0], found[2]));
    }
    let mut rest = more;
    while rest.len() >= 4 {
        let (id, length) = (number(rest, 0, 2), usize::from(u16_at(rest, 2)));
        let field = rest.get(4..4 + length).ok_or("its directory is broken")?;
        if id == 1 {
            // The size, the packed size and the place, as far as they are not in the entry.
            let mut numbers = field.chunks_exact(8);
            for own in found.iter_mut().filter(|own| **own == ELSEWHERE) {
                *own = number(numbers.next().ok_or("its directory is broken")?, 0, 8);
            }
            return Ok((found[1], found[0], found[2]));
        }
        rest = &rest[4 + length..];
    }
    Err("its directory is broken".into())
}

/// A number of `width` bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut number = [0; 8];
    number[..width].copy_from_slice(&bytes[at..at + width]);
    u64::from_le_bytes(number)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

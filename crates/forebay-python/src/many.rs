//! Many reads or writes in one call, given as tuples or as arrays.
//!
//! Tuples name their memory each; arrays are of offsets, lengths, and either places in one object
//! or addresses on one device. What they come to is one call of the engine, without the
//! interpreter.

#![expect(unsafe_code, reason = "borrows memory by the addresses that a caller gives")]

use std::collections::HashMap;

use forebay::{Buffer, Direction, ManyOutcome, Piece, RequestOptions};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyIterator, PyTuple};

use crate::engine::Engine;
use crate::failure::{exception, raised};
use crate::file::{File, options};
use crate::memory::{self, Lent, Use, offset_of};
use crate::numbers::numbers;
use crate::stream::{Given, Ordering};
use crate::transfer::report;
use crate::waiting::interruptible;

/// A piece, before the files and the memory that it names are at hand.
struct Wanted {
    file: usize,
    offset: u64,
    len: u64,
    /// The memory, by its place in the call's list.
    memory: usize,
    /// Where it begins there.
    at: u64,
}

/// What a call is about.
#[derive(Default)]
struct Asked {
    files: Vec<forebay::File>,
    lent: Vec<Lent>,
    wanted: Vec<Wanted>,
}

/// The keywords of a call.
struct Arrays<'a, 'py> {
    files: Option<&'a Bound<'py, PyAny>>,
    file_of: Option<&'a Bound<'py, PyAny>>,
    offsets: Option<&'a Bound<'py, PyAny>>,
    lengths: Option<&'a Bound<'py, PyAny>>,
    target: Option<&'a Bound<'py, PyAny>>,
    at: Option<&'a Bound<'py, PyAny>>,
    addresses: Option<&'a Bound<'py, PyAny>>,
    device: Option<&'a Bound<'py, PyAny>>,
}

/// What many reads or writes came to, each by its place in the call.
#[pyclass(frozen, module = "forebay", sequence)]
pub(crate) struct ManyResult {
    outcome: ManyOutcome,
}

#[pymethods]
impl ManyResult {
    /// Bytes of all.
    #[getter]
    fn bytes(&self) -> u64 {
        self.outcome.results.iter().filter_map(|result| result.as_ref().ok()).sum()
    }

    /// Bytes of each; `None` where it failed.
    #[getter]
    fn counts(&self) -> Vec<Option<u64>> {
        self.outcome.results.iter().map(|result| result.as_ref().ok().copied()).collect()
    }

    /// What went wrong, by the place of the request that it went wrong with.
    #[getter]
    fn errors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (index, result) in self.outcome.results.iter().enumerate() {
            if let Err(error) = result {
                all.set_item(index, exception(py, error).into_value(py))?;
            }
        }
        Ok(all)
    }

    fn __len__(&self) -> usize {
        self.outcome.results.len()
    }

    /// Bytes of one, or what went wrong with it.
    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<u64> {
        let len = self.outcome.results.len();
        let at =
            if index < 0 { len.checked_add_signed(index) } else { usize::try_from(index).ok() };
        let result = at.and_then(|at| self.outcome.results.get(at));
        let result = result.ok_or_else(|| PyIndexError::new_err("no such request"))?;
        raised(py, result.clone())
    }

    /// What all of them did: bytes by route, with the reason, and time by stage.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        report(py, &self.outcome.whole)
    }

    fn __repr__(&self) -> String {
        let failed = self.outcome.results.iter().filter(|result| result.is_err()).count();
        let len = self.outcome.results.len();
        format!("<forebay.ManyResult of {len}, {} bytes, {failed} failed>", self.bytes())
    }
}

#[pymethods]
impl Engine {
    /// Reads many pieces of files in one call: tuples `(file, offset, length, target)`, or arrays.
    #[pyo3(signature = (
        requests = None, *, files = None, file_of = None, offsets = None, lengths = None,
        target = None, at = None, addresses = None, device = None, exact = true, check = true,
        stream = Given::Current, route = None, urgent = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn read_many<'py>(
        this: &Bound<'py, Self>,
        requests: Option<&Bound<'py, PyAny>>,
        files: Option<&Bound<'py, PyAny>>,
        file_of: Option<&Bound<'py, PyAny>>,
        offsets: Option<&Bound<'py, PyAny>>,
        lengths: Option<&Bound<'py, PyAny>>,
        target: Option<&Bound<'py, PyAny>>,
        at: Option<&Bound<'py, PyAny>>,
        addresses: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        exact: bool,
        check: bool,
        stream: Given<'_>,
        route: Option<&str>,
        urgent: bool,
    ) -> PyResult<ManyResult> {
        let options = options(route, exact, None, urgent)?;
        let ordering = stream.ordering()?;
        let arrays = Arrays { files, file_of, offsets, lengths, target, at, addresses, device };
        let asked = asked(this, Use::Target, requests, &arrays)?;
        run(this, Direction::Read, asked, &options, ordering, check)
    }

    /// Writes many pieces to files in one call: tuples `(file, offset, length, source)`, or arrays.
    #[pyo3(signature = (
        requests = None, *, files = None, file_of = None, offsets = None, lengths = None,
        source = None, at = None, addresses = None, device = None, sync = None, check = true,
        stream = Given::Current, urgent = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn write_many<'py>(
        this: &Bound<'py, Self>,
        requests: Option<&Bound<'py, PyAny>>,
        files: Option<&Bound<'py, PyAny>>,
        file_of: Option<&Bound<'py, PyAny>>,
        offsets: Option<&Bound<'py, PyAny>>,
        lengths: Option<&Bound<'py, PyAny>>,
        source: Option<&Bound<'py, PyAny>>,
        at: Option<&Bound<'py, PyAny>>,
        addresses: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        sync: Option<&str>,
        check: bool,
        stream: Given<'_>,
        urgent: bool,
    ) -> PyResult<ManyResult> {
        let options = options(None, false, sync, urgent)?;
        let ordering = stream.ordering()?;
        let arrays =
            Arrays { files, file_of, offsets, lengths, target: source, at, addresses, device };
        let asked = asked(this, Use::Source, requests, &arrays)?;
        run(this, Direction::Write, asked, &options, ordering, check)
    }
}

#[pymethods]
impl File {
    /// Reads many ranges of the file in one call: tuples `(offset, length, target)`.
    #[pyo3(signature = (
        requests, *, device = None, exact = true, check = true, stream = Given::Current,
        route = None, urgent = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn readv<'py>(
        this: &Bound<'py, Self>,
        requests: &Bound<'py, PyAny>,
        device: Option<&Bound<'py, PyAny>>,
        exact: bool,
        check: bool,
        stream: Given<'_>,
        route: Option<&str>,
        urgent: bool,
    ) -> PyResult<ManyResult> {
        let options = options(route, exact, None, urgent)?;
        let (ordering, engine) = (stream.ordering()?, this.get().engine.bind(this.py()));
        let asked = by_tuples(engine, Use::Target, requests, device, Some(this))?;
        run(engine, Direction::Read, asked, &options, ordering, check)
    }

    /// Writes many ranges of the file in one call: tuples `(offset, length, source)`.
    #[pyo3(signature = (
        requests, *, device = None, sync = None, check = true, stream = Given::Current,
        urgent = false
    ))]
    fn writev<'py>(
        this: &Bound<'py, Self>,
        requests: &Bound<'py, PyAny>,
        device: Option<&Bound<'py, PyAny>>,
        sync: Option<&str>,
        check: bool,
        stream: Given<'_>,
        urgent: bool,
    ) -> PyResult<ManyResult> {
        let options = options(None, false, sync, urgent)?;
        let (ordering, engine) = (stream.ordering()?, this.get().engine.bind(this.py()));
        let asked = by_tuples(engine, Use::Source, requests, device, Some(this))?;
        run(engine, Direction::Write, asked, &options, ordering, check)
    }
}

fn asked<'py>(
    engine: &Bound<'py, Engine>,
    usage: Use,
    requests: Option<&Bound<'py, PyAny>>,
    arrays: &Arrays<'_, 'py>,
) -> PyResult<Asked> {
    match (requests, arrays.files) {
        (Some(requests), None) => by_tuples(engine, usage, requests, arrays.device, None),
        (None, Some(files)) => by_arrays(engine, usage, files, arrays),
        _ => Err(PyTypeError::new_err(
            "give tuples `(file, offset, length, memory)`, or `files=` and arrays",
        )),
    }
}

/// Requests as tuples, whose memory is an object, or an address on `device`; those of one file
/// where it is given.
fn by_tuples<'py>(
    engine: &Bound<'py, Engine>,
    usage: Use,
    requests: &Bound<'py, PyAny>,
    device: Option<&Bound<'py, PyAny>>,
    file: Option<&Bound<'py, File>>,
) -> PyResult<Asked> {
    let mut asked = Asked::default();
    let (mut files, mut memory) = (Numbered::default(), Numbered::default());
    let mut ranges = Vec::new();
    let first = usize::from(file.is_none());
    let bad_tuple = || {
        let kinds = [
            "a request is `(offset, length, memory)`",
            "a request is `(file, offset, length, memory)`",
        ];
        PyTypeError::new_err(kinds[first])
    };
    file.into_iter().try_for_each(|file| asked.add_file(file))?;
    // Objects are told apart by where they are, so they live until all have been looked at.
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
                asked.add_file(file.cast::<File>().map_err(|_| bad_tuple())?)?;
            }
        }
        let offset = offset_of(request.get_item(first)?.extract()?)?;
        let len: u64 = request.get_item(first + 1)?.extract()?;
        let object = request.get_item(first + 2)?;
        let (memory, at) = if object.is_instance_of::<PyInt>() {
            let address: u64 = object.extract()?;
            ranges.push((address, len));
            (usize::MAX, address)
        } else {
            let (number, is_new) = memory.number(&object);
            if is_new {
                asked.lent.push(memory::lend(&engine.get().engine, &object, usage, None)?);
            }
            (number, 0)
        };
        asked.wanted.push(Wanted { file: number, offset, len, memory, at });
        kept.push(request);
    }
    if !ranges.is_empty() {
        asked.add_ranges(engine, &ranges, device)?;
    }
    Ok(asked)
}

/// Objects in the order in which they came.
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

/// Requests as arrays of one length.
fn by_arrays<'py>(
    engine: &Bound<'py, Engine>,
    usage: Use,
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
    let memory = if by_address { usize::MAX } else { 0 };
    let each = offsets.iter().zip(&lengths).zip(&places).enumerate();
    asked.wanted = each
        .map(|(index, ((&offset, &len), &at))| {
            let file = file_of.as_ref().map_or(0, |file_of| file_of[index]);
            Wanted { file, offset, len, memory, at }
        })
        .collect();
    match arrays.target {
        Some(target) => asked.lent.push(memory::lend(&engine.get().engine, target, usage, None)?),
        None => {
            let ranges: Vec<_> =
                asked.wanted.iter().map(|wanted| (wanted.at, wanted.len)).collect();
            asked.add_ranges(engine, &ranges, arrays.device)?;
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
    fn add_file(&mut self, file: &Bound<'_, File>) -> PyResult<()> {
        self.files.push(file.get().file()?);
        Ok(())
    }

    /// The number of each request's file; `None` where all have the first.
    fn file_of(&self, given: Option<Vec<u64>>, count: usize) -> PyResult<Option<Vec<usize>>> {
        let files = self.files.len();
        let Some(given) = given else {
            return match files {
                1 => Ok(None),
                _ if files == count => Ok(Some((0..count).collect())),
                _ => Err(PyValueError::new_err(
                    "`files=` holds one file, one for each request, or those that `file_of=` names",
                )),
            };
        };
        same_len("file_of", &given, count)?;
        let number = |(index, number): (usize, u64)| {
            usize::try_from(number).ok().filter(|&number| number < files).ok_or_else(|| {
                let text = format!("`file_of[{index}]` is {number}: there are {files} files");
                PyValueError::new_err(text)
            })
        };
        given.into_iter().enumerate().map(number).collect::<PyResult<_>>().map(Some)
    }

    /// The memory of those that name it by its address: from the first to the last of them.
    fn add_ranges(
        &mut self,
        engine: &Bound<'_, Engine>,
        ranges: &[(u64, u64)],
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = engine.py();
        let device = device.ok_or_else(|| {
            PyTypeError::new_err("`device=` is missing: addresses lie on one, or on `cpu`")
        })?;
        let device = memory::device_named(device)?;
        let some: Vec<(u64, u64)> = ranges.iter().copied().filter(|range| range.1 > 0).collect();
        let inner = &engine.get().engine;
        let buffer = if some.is_empty() {
            // SAFETY: no byte.
            unsafe { inner.borrow_host_memory(0, 0) }
        } else if device.is_some() {
            // SAFETY: the memory is the caller's to keep, and no byte outside the ranges is asked
            // for.
            let borrowed = py.detach(|| unsafe { inner.borrow_device_ranges(&some) });
            raised(py, borrowed)?
        } else {
            let (least, most) = extent(&some)?;
            // SAFETY: as above.
            unsafe { inner.borrow_host_memory(least, most - least) }
        };
        if buffer.device() != device && !some.is_empty() {
            let is = buffer.device().map_or("cpu".to_owned(), |device| device.to_string());
            let text = format!("the addresses are those of {is}, which is not `device=`");
            return Err(PyValueError::new_err(text));
        }
        let (least, number) = (buffer.address(), self.lent.len());
        for wanted in self.wanted.iter_mut().filter(|wanted| wanted.memory == usize::MAX) {
            wanted.memory = number;
            wanted.at = if wanted.len == 0 { 0 } else { wanted.at - least };
        }
        self.lent.push(Lent::unordered(buffer));
        Ok(())
    }
}

/// First address of ranges, and the one behind the last.
fn extent(ranges: &[(u64, u64)]) -> PyResult<(u64, u64)> {
    let (mut least, mut most) = (u64::MAX, 0);
    for &(address, len) in ranges {
        let end = address.checked_add(len).filter(|_| address > 0);
        let end = end.ok_or_else(|| {
            PyValueError::new_err(format!("there is no memory of {len} bytes at {address:#x}"))
        })?;
        (least, most) = (least.min(address), most.max(end));
    }
    Ok((least, most))
}

fn run(
    engine: &Bound<'_, Engine>,
    direction: Direction,
    asked: Asked,
    options: &RequestOptions,
    ordering: Ordering,
    check: bool,
) -> PyResult<ManyResult> {
    let (py, this) = (engine.py(), engine.get());
    if let Ordering::Stream(_) = ordering {
        let text = "many requests cannot be ordered on a stream: wait for it first, or give `None`";
        return Err(PyTypeError::new_err(text));
    }
    this.make_all_ready(py, asked.lent.iter(), ordering)?;
    let Asked { files, lent, wanted } = asked;
    let mut buffers: Vec<Buffer> = lent.into_iter().map(|lent| lent.buffer).collect();
    let done = interruptible(py, |go_on| {
        let piece = |wanted: &Wanted| Piece {
            file: &files[wanted.file],
            offset: wanted.offset,
            len: wanted.len,
            target: wanted.memory,
            at: wanted.at,
        };
        let pieces: Vec<Piece<'_>> = wanted.iter().map(piece).collect();
        match direction {
            Direction::Read => this.engine.read_many_while(&pieces, &mut buffers, options, go_on),
            Direction::Write => this.engine.write_many_while(&pieces, &buffers, options, go_on),
        }
    })?;
    let outcome = raised(py, done)?;
    if check && let Some(Err(error)) = outcome.results.iter().find(|result| result.is_err()) {
        return Err(exception(py, error));
    }
    Ok(ManyResult { outcome })
}

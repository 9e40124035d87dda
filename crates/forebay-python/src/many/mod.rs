//! Many reads or writes in one call, given as tuples or as arrays.
//!
//! Each tuple names its memory. Arrays hold offsets, lengths, and either positions in one object
//! or addresses on one device. Both become one call of the engine, without the interpreter. `calls`
//! has Python's calls, `tuples` and `arrays` parse the arguments, `addresses` borrows memory by
//! address, `transfer` is the pending call, and `result` the outcome of each request.

mod addresses;
mod arrays;
mod calls;
mod result;
mod transfer;
mod tuples;

use std::sync::Arc;

use forebay::{Error, ManyOutcome, Piece, RequestOptions};
use pyo3::prelude::*;

use crate::engine::{Engine, lend};
use crate::failure::{exception, raised};
use crate::file::{File, options};
use crate::memory::{self, Found, Use};
use crate::stream::{Given, Ordering};
use crate::waiting::{InUse, interruptible};
pub(crate) use result::ManyResult;
pub(crate) use transfer::ManyTransfer;

/// A piece, before its files and its memory are resolved.
struct Wanted {
    file: u32,
    /// The index of the memory in the call's list.
    memory: u32,
    offset: u64,
    len: u64,
    /// The offset of its first byte in the memory. With `BY_ADDRESS` it is an address, until
    /// `add_ranges` borrows the memory.
    at: u64,
}

impl Wanted {
    /// Instead of the memory's index: the memory is given by its address.
    const BY_ADDRESS: u32 = u32::MAX;
}

/// An index into the files or the memory of a call.
fn place(place: usize) -> PyResult<u32> {
    u32::try_from(place).ok().filter(|&place| place < Wanted::BY_ADDRESS).ok_or_else(|| {
        pyo3::exceptions::PyValueError::new_err("too many files or memory objects in one call")
    })
}

/// The requests of a call.
#[derive(Default)]
struct Requests {
    files: Vec<InUse>,
    found: Vec<Found>,
    wanted: Vec<Wanted>,
}

/// The options of a call.
struct How<'a, 'py> {
    usage: Use,
    options: RequestOptions,
    stream: &'a Given<'py>,
    ordering: Ordering,
    /// Whether the error of the first failed request is raised.
    check: bool,
}

impl<'a, 'py> How<'a, 'py> {
    fn reading(
        route: Option<&str>,
        exact: bool,
        check: bool,
        stream: &'a Given<'py>,
        urgent: bool,
    ) -> PyResult<Self> {
        let (options, ordering) = (options(route, exact, None, urgent)?, stream.ordering()?);
        Ok(Self { usage: Use::Target, options, stream, ordering, check })
    }

    fn writing(
        sync: Option<&str>,
        check: bool,
        stream: &'a Given<'py>,
        urgent: bool,
    ) -> PyResult<Self> {
        let (options, ordering) = (options(None, false, sync, urgent)?, stream.ordering()?);
        Ok(Self { usage: Use::Source, options, stream, ordering, check })
    }

    /// Finds the bytes of an object.
    fn find(&self, object: &Bound<'py, PyAny>) -> PyResult<Found> {
        let found = memory::find(object, self.usage, None)?;
        if found.on_gpu {
            self.stream.mark(self.ordering, object)?;
        }
        Ok(found)
    }
}

impl Requests {
    fn add_file(&mut self, file: &Bound<'_, File>) -> PyResult<()> {
        self.files.push(file.get().file()?);
        Ok(())
    }

    /// Runs the requests and waits for the end.
    fn run(self, engine: &Bound<'_, Engine>, how: &How<'_, '_>) -> PyResult<Py<ManyResult>> {
        let (py, live) = (engine.py(), engine.get().engine.live(engine.py())?);
        if let Ordering::Stream(_) = how.ordering {
            return self.start(engine, how)?.outcome(py);
        }
        let Self { files, found, wanted } = self;
        let (usage, options, ordering) = (how.usage, how.options, how.ordering);
        let done = interruptible(py, |go_on| {
            let mut buffers = lend(&live, found, ordering, go_on)?;
            let pieces = pieces(&files, wanted);
            let request = match usage {
                Use::Target => live.read_many(&pieces, &mut buffers),
                Use::Source => live.write_many(&pieces, &buffers),
            };
            let outcome = request.options(options).while_(go_on).run();
            outcome.map(|outcome| (outcome, buffers)) // dropped with the interpreter's lock
        })?;
        let (outcome, _) = raised(py, done)?;
        match first_failure(&outcome) {
            Some(error) if how.check => Err(exception(py, error)),
            _ => Py::new(py, ManyResult { outcome: Arc::new(outcome) }),
        }
    }

    /// Runs the requests for several targets, and waits for the end.
    fn run_to_all(self, engine: &Bound<'_, Engine>, how: &How<'_, '_>) -> PyResult<Py<ManyResult>> {
        let (py, live) = (engine.py(), engine.get().engine.live(engine.py())?);
        let Self { files, found, wanted } = self;
        let (options, ordering) = (how.options, how.ordering);
        let done = interruptible(py, |go_on| {
            let mut buffers = lend(&live, found, ordering, go_on)?;
            let pieces = pieces(&files, wanted);
            let read =
                live.read_many_to_all(&pieces, &mut buffers).options(options).while_(go_on).run();
            read.map(|outcome| (outcome, buffers)) // dropped with the interpreter's lock
        })?;
        let (outcome, _) = raised(py, done)?;
        Py::new(py, ManyResult { outcome: Arc::new(outcome) })
    }

    /// Starts the requests.
    fn start(self, engine: &Bound<'_, Engine>, how: &How<'_, '_>) -> PyResult<ManyTransfer> {
        let (py, live) = (engine.py(), engine.get().engine.live(engine.py())?);
        if self.wanted.is_empty() {
            let nowhere: &[forebay::Buffer] = &[];
            let nothing = raised(py, live.write_many(&[], nowhere).run())?;
            return ManyTransfer::nothing(py, nothing);
        }
        let Self { files, found, wanted } = self;
        let (usage, options, ordering) = (how.usage, how.options, how.ordering);
        let started = interruptible(py, |go_on| {
            let buffers = lend(&live, found, ordering, go_on)?;
            let pieces = pieces(&files, wanted);
            let request = match usage {
                Use::Target => live.read_many(&pieces, buffers),
                Use::Source => live.write_many(&pieces, buffers),
            };
            ordering.order(request.options(options)).start()
        })?;
        Ok(ManyTransfer::new(raised(py, started)?, how.check))
    }
}

/// The requests of a call, in the engine's form.
fn pieces(files: &[InUse], wanted: Vec<Wanted>) -> Vec<Piece<'_>> {
    let piece = |wanted: Wanted| Piece {
        file: &files[wanted.file as usize],
        offset: wanted.offset,
        len: wanted.len,
        target: wanted.memory as usize,
        at: wanted.at,
    };
    wanted.into_iter().map(piece).collect()
}

/// The error of the first failed request.
fn first_failure(outcome: &ManyOutcome) -> Option<&Error> {
    outcome.results.iter().find_map(|result| result.as_ref().err()).map(|error| &**error)
}

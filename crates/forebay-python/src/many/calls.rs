//! Python's calls for many reads or writes.

use forebay::Direction;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::arrays::{Arrays, by_arrays};
use super::tuples::by_tuples;
use super::{Asked, ManyResult, run};
use crate::engine::Engine;
use crate::file::{File, options};
use crate::memory::Use;
use crate::stream::Given;

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

//! Python's calls for many reads or writes.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::arrays::{Arrays, by_arrays};
use super::tuples::by_tuples;
use super::{How, ManyResult, ManyTransfer, Requests};
use crate::engine::Engine;
use crate::file::File;
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
        stream: Given<'py>,
        route: Option<&str>,
        urgent: bool,
    ) -> PyResult<Py<ManyResult>> {
        let how = How::reading(route, exact, check, &stream, urgent)?;
        let arrays = Arrays { files, file_of, offsets, lengths, target, at, addresses, device };
        parsed(&how, requests, &arrays)?.run(this, &how)
    }

    /// Reads pieces of files to the same places of several targets of one length, each on a GPU:
    /// each byte is read once. The pieces are given as arrays, in the order of their places.
    #[pyo3(signature = (*, files, file_of = None, offsets, lengths, targets, at))]
    fn read_many_to_all<'py>(
        this: &Bound<'py, Self>,
        files: &Bound<'py, PyAny>,
        file_of: Option<&Bound<'py, PyAny>>,
        offsets: &Bound<'py, PyAny>,
        lengths: &Bound<'py, PyAny>,
        targets: Vec<Bound<'py, PyAny>>,
        at: &Bound<'py, PyAny>,
    ) -> PyResult<Py<ManyResult>> {
        let how = How::reading(None, true, true, &Given::Current, false)?;
        let [offsets, lengths, at] = [offsets, lengths, at].map(Some);
        let (target, device) = (targets.first(), None);
        let arrays =
            Arrays { files: None, file_of, offsets, lengths, target, at, addresses: None, device };
        let mut parsed = by_arrays(&how, files, &arrays)?;
        for target in targets.iter().skip(1) {
            parsed.found.push(how.find(target)?);
        }
        parsed.run_to_all(this, &how)
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
        stream: Given<'py>,
        urgent: bool,
    ) -> PyResult<Py<ManyResult>> {
        let how = How::writing(sync, check, &stream, urgent)?;
        let target = source;
        let arrays = Arrays { files, file_of, offsets, lengths, target, at, addresses, device };
        parsed(&how, requests, &arrays)?.run(this, &how)
    }

    /// Like `read_many`, without waiting.
    #[pyo3(signature = (
        requests = None, *, files = None, file_of = None, offsets = None, lengths = None,
        target = None, at = None, addresses = None, device = None, exact = true, check = true,
        stream = Given::Current, route = None, urgent = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn start_read_many<'py>(
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
        stream: Given<'py>,
        route: Option<&str>,
        urgent: bool,
    ) -> PyResult<ManyTransfer> {
        let how = How::reading(route, exact, check, &stream, urgent)?;
        let arrays = Arrays { files, file_of, offsets, lengths, target, at, addresses, device };
        parsed(&how, requests, &arrays)?.start(this, &how)
    }

    /// Like `write_many`, without waiting.
    #[pyo3(signature = (
        requests = None, *, files = None, file_of = None, offsets = None, lengths = None,
        source = None, at = None, addresses = None, device = None, sync = None, check = true,
        stream = Given::Current, urgent = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn start_write_many<'py>(
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
        stream: Given<'py>,
        urgent: bool,
    ) -> PyResult<ManyTransfer> {
        let how = How::writing(sync, check, &stream, urgent)?;
        let target = source;
        let arrays = Arrays { files, file_of, offsets, lengths, target, at, addresses, device };
        parsed(&how, requests, &arrays)?.start(this, &how)
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
        stream: Given<'py>,
        route: Option<&str>,
        urgent: bool,
    ) -> PyResult<Py<ManyResult>> {
        let how = How::reading(route, exact, check, &stream, urgent)?;
        let engine = this.get().engine.bind(this.py());
        by_tuples(&how, requests, device, Some(this))?.run(engine, &how)
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
        stream: Given<'py>,
        urgent: bool,
    ) -> PyResult<Py<ManyResult>> {
        let how = How::writing(sync, check, &stream, urgent)?;
        let engine = this.get().engine.bind(this.py());
        by_tuples(&how, requests, device, Some(this))?.run(engine, &how)
    }

    /// Like `readv`, without waiting.
    #[pyo3(signature = (
        requests, *, device = None, exact = true, check = true, stream = Given::Current,
        route = None, urgent = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn start_readv<'py>(
        this: &Bound<'py, Self>,
        requests: &Bound<'py, PyAny>,
        device: Option<&Bound<'py, PyAny>>,
        exact: bool,
        check: bool,
        stream: Given<'py>,
        route: Option<&str>,
        urgent: bool,
    ) -> PyResult<ManyTransfer> {
        let how = How::reading(route, exact, check, &stream, urgent)?;
        let engine = this.get().engine.bind(this.py());
        by_tuples(&how, requests, device, Some(this))?.start(engine, &how)
    }

    /// Like `writev`, without waiting.
    #[pyo3(signature = (
        requests, *, device = None, sync = None, check = true, stream = Given::Current,
        urgent = false
    ))]
    fn start_writev<'py>(
        this: &Bound<'py, Self>,
        requests: &Bound<'py, PyAny>,
        device: Option<&Bound<'py, PyAny>>,
        sync: Option<&str>,
        check: bool,
        stream: Given<'py>,
        urgent: bool,
    ) -> PyResult<ManyTransfer> {
        let how = How::writing(sync, check, &stream, urgent)?;
        let engine = this.get().engine.bind(this.py());
        by_tuples(&how, requests, device, Some(this))?.start(engine, &how)
    }
}

fn parsed<'py>(
    how: &How<'_, 'py>,
    requests: Option<&Bound<'py, PyAny>>,
    arrays: &Arrays<'_, 'py>,
) -> PyResult<Requests> {
    match (requests, arrays.files) {
        (Some(requests), None) => by_tuples(how, requests, arrays.device, None),
        (None, Some(files)) => by_arrays(how, files, arrays),
        _ => Err(PyTypeError::new_err(
            "give tuples `(file, offset, length, memory)`, or `files=` and arrays",
        )),
    }
}

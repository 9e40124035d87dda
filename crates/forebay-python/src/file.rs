//! A file of an engine, for Python: the calls that move its bytes.

#![expect(unsafe_code, reason = "borrows descriptors")]

use std::ffi::OsString;
use std::mem;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay::{OpenOptions, Priority, RequestOptions, SyncMode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList};

use crate::engine::{Engine, lend, make_ready, wait_until_ready};
use crate::failure::{noted, raised};
use crate::hanging;
use crate::memory::{self, Lent, Use};
use crate::moving;
use crate::quiesce::{Opened, lock};
use crate::stream::{Given, Ordering};
use crate::transfer::Transfer;
use crate::waiting::{Apart, InUse, interruptible};
use crate::whole;

/// A file of an engine. Closing it does not stop transfers in progress.
#[pyclass(frozen, module = "forebay", subclass, weakref)]
pub(crate) struct File {
    file: Apart<Arc<Mutex<Opened>>>,
    path: PathBuf,
    mode: String,
    pub(crate) engine: Py<Engine>,
}

/// The arguments that the calls share.
struct Call<'a, 'py> {
    usage: Use,
    memory: &'a Bound<'py, PyAny>,
    offset: u64,
    size: Option<u64>,
    options: RequestOptions,
    stream: &'a Given<'py>,
    ordering: Ordering,
}

impl<'a, 'py> Call<'a, 'py> {
    fn new(
        (usage, memory): (Use, &'a Bound<'py, PyAny>),
        offset: u64,
        size: Option<u64>,
        options: RequestOptions,
        stream: &'a Given<'py>,
    ) -> PyResult<Self> {
        let ordering = stream.ordering()?;
        Ok(Self { usage, memory, offset, size, options, stream, ordering })
    }
}

/// Opens `file`: a path, or a descriptor.
pub(crate) fn opened(
    engine: &Bound<'_, Engine>,
    file: &Bound<'_, PyAny>,
    mode: &str,
) -> PyResult<File> {
    let py = engine.py();
    let how = how(mode)?;
    let inner = engine.get().engine.live(py)?;
    let opened = if whole::is_number(file)? && !file.is_instance_of::<PyBool>() {
        let number: Option<i32> = file.extract().ok().filter(|&number| number >= 0);
        let expected = "a path or an open file descriptor";
        let number = number.ok_or_else(|| whole::refused("file", file, expected))?;
        // SAFETY: the caller's number; the engine reports a closed descriptor as an error.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        py.detach(|| inner.open_borrowed_fd(borrowed))
    } else {
        let path = path_of(file)?;
        if how.truncate {
            hanging::call_in(py, "forebay._mapped", "refuse_cut", (&path, mode))?;
        }
        py.detach(|| inner.open_with(&path, &how))
    };
    let file = raised(py, opened)?;
    let path = file.path().to_owned();
    let (file, mode) = (Apart::new(engine.get().engine.keep(file)), mode.to_owned());
    Ok(File { file, path, mode, engine: engine.clone().unbind() })
}

/// A path, as in `os.fspath`: text, bytes, or a path-like object.
pub(crate) fn path_of(file: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let path = hanging::call_in(file.py(), "os", "fspath", (file,))?;
    let path = match path.cast::<PyBytes>() {
        Ok(bytes) => OsString::from_vec(bytes.as_bytes().to_vec()),
        Err(_) => path.extract::<OsString>()?,
    };
    if path.as_bytes().contains(&0) {
        return Err(PyValueError::new_err("embedded null byte in the path"));
    }
    Ok(path.into())
}

/// Parses Python's modes. Files are always binary, so `b` changes nothing.
fn how(mode: &str) -> PyResult<OpenOptions> {
    let plain: String = mode.chars().filter(|&c| c != 'b').collect();
    let mut how = OpenOptions::default();
    match plain.as_str() {
        "r" => {}
        "r+" => how.write = true,
        "w" | "w+" => (how.write, how.create, how.truncate) = (true, true, true),
        "x" | "x+" => (how.write, how.create_new) = (true, true),
        "rw" => (how.write, how.create) = (true, true),
        _ => {
            let text = format!("unknown mode `{mode}`: use `r`, `r+`, `w`, `w+`, `x`, `x+`, `rw`");
            return Err(PyValueError::new_err(text));
        }
    }
    Ok(how)
}

/// The options of a request.
pub(crate) fn options(
    route: Option<&str>,
    exact: bool,
    sync: Option<&str>,
    urgent: bool,
) -> PyResult<RequestOptions> {
    let bad = |error: forebay::Error| PyValueError::new_err(error.to_string());
    let route = route.map(str::parse).transpose().map_err(bad)?;
    let sync = match sync {
        None => SyncMode::None,
        Some("data") => SyncMode::Data,
        Some("all") => SyncMode::All,
        Some(other) => {
            let text = format!("`sync` cannot be `{other}`: it takes `data`, `all` or `None`");
            return Err(PyValueError::new_err(text));
        }
    };
    let priority = if urgent { Priority::Urgent } else { Priority::Normal };
    Ok(RequestOptions { route, exact, sync, priority, ..RequestOptions::default() })
}

#[pymethods]
impl File {
    /// Its path; for a descriptor, the kernel's name of the file.
    #[getter]
    fn name(&self) -> PathBuf {
        self.path.clone()
    }

    /// The mode in which it was opened.
    #[getter]
    fn mode(&self) -> &str {
        &self.mode
    }

    /// Its engine.
    #[getter]
    fn engine(&self, py: Python<'_>) -> Py<Engine> {
        self.engine.clone_ref(py)
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        matches!(*self.lock(), Opened::Closed)
    }

    /// Its size in bytes now.
    #[getter]
    pub(crate) fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.file()?;
        raised(py, py.detach(|| file.len()))
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<forebay.File {:?}, mode '{}'{closed}>", self.path, self.mode)
    }

    /// Closes it. Transfers in progress continue; closing it again does nothing. For a file opened
    /// for writing, the last error of the file system is raised, and the file is closed anyway.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let file = mem::replace(&mut *self.lock(), Opened::Closed);
        raised(py, py.detach(|| file.close()))
    }

    fn __enter__(this: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        this.get().file()?;
        Ok(this)
    }

    #[pyo3(signature = (_kind = None, value = None, _trace = None))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        match (self.close(py), value) {
            // The exception of the `with` block is raised, with a note.
            (Err(error), Some(value)) => {
                let note = format!("closing failed as well: {}", error.value(py));
                value.call_method1("add_note", (note,)).map(drop)
            }
            (closed, _) => closed,
        }
    }

    /// Reads bytes from `offset` into a target, all of it or its first `size` bytes, and returns
    /// how many were read. If the file ends early, `EndOfFile` is raised, unless `exact` is false.
    ///
    /// `stream` orders the call. Omitted or `"current"`: the call waits for the work that the
    /// target's library has queued on it. A stream of a GPU: the transfer begins after the work
    /// queued there. `None`: no order. `route` requires one of `direct`, `staged`, `cached` and
    /// `host`. `urgent` requests go ahead of other reads.
    #[pyo3(signature = (
        target, offset = 0, *, size = None, exact = true, stream = Given::Current, route = None,
        urgent = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn read_into(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::offset)] offset: u64,
        #[pyo3(from_py_with = whole::size)] size: Option<u64>,
        exact: bool,
        stream: Given<'_>,
        route: Option<&str>,
        urgent: bool,
    ) -> PyResult<u64> {
        let options = options(route, exact, None, urgent)?;
        let call = Call::new((Use::Target, target), offset, size, options, &stream)?;
        Ok(self.run(py, &call)?.bytes)
    }

    /// Reads the same bytes into all targets, a list of equally long memory on GPUs, and returns
    /// how many. Every byte is read once. The keywords are those of `read_into`, without `stream`
    /// and `route`.
    #[pyo3(signature = (targets, offset = 0, *, size = None, exact = true, urgent = false))]
    fn read_into_all<'py>(
        &self,
        py: Python<'py>,
        targets: &Bound<'py, PyList>,
        #[pyo3(from_py_with = whole::offset)] offset: u64,
        #[pyo3(from_py_with = whole::size)] size: Option<u64>,
        exact: bool,
        urgent: bool,
    ) -> PyResult<u64> {
        let options = options(None, exact, None, urgent)?;
        let call = Call::new((Use::Target, targets), offset, size, options, &Given::Current)?;
        let file = self.file()?;
        let find = |memory| memory::find(&memory, call.usage, call.size);
        let found = targets.iter().map(find).collect::<PyResult<Vec<_>>>();
        let found = self.about_memory(py, &call, found)?;
        let ordering = call.ordering;
        let read = interruptible(py, |go_on| {
            let mut buffers = lend(file.engine(), found, ordering, go_on)?;
            file.read_to_all(&mut buffers).at(offset).options(options).while_(go_on).run()
        });
        Ok(self.moved(py, &call, read?)?.bytes)
    }

    /// Writes a source, all of it or its first `size` bytes, at `offset`, and returns how many
    /// bytes were written. With `sync="data"` or `"all"` they are then on the drive. With
    /// `past_cache` they bypass the page cache (O_DIRECT) if the file allows it; large writes do so
    /// by default where that is faster. The other keywords are those of `read_into`.
    #[pyo3(signature = (
        source, offset = 0, *, size = None, sync = None, stream = Given::Current, route = None,
        urgent = false, past_cache = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn write_from(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::offset)] offset: u64,
        #[pyo3(from_py_with = whole::size)] size: Option<u64>,
        sync: Option<&str>,
        stream: Given<'_>,
        route: Option<&str>,
        urgent: bool,
        past_cache: bool,
    ) -> PyResult<u64> {
        let mut options = options(route, false, sync, urgent)?;
        options.past_cache = past_cache;
        let call = Call::new((Use::Source, source), offset, size, options, &stream)?;
        Ok(self.run(py, &call)?.bytes)
    }

    /// Like `read_into` without waiting; the transfer keeps the target alive.
    #[pyo3(signature = (
        target, offset = 0, *, size = None, exact = true, stream = Given::Current, route = None,
        urgent = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn start_read_into(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::offset)] offset: u64,
        #[pyo3(from_py_with = whole::size)] size: Option<u64>,
        exact: bool,
        stream: Given<'_>,
        route: Option<&str>,
        urgent: bool,
    ) -> PyResult<Transfer> {
        let options = options(route, exact, None, urgent)?;
        let call = Call::new((Use::Target, target), offset, size, options, &stream)?;
        self.start(py, &call)
    }

    /// Like `write_from` without waiting; the transfer keeps the source alive.
    #[pyo3(signature = (
        source, offset = 0, *, size = None, sync = None, stream = Given::Current, route = None,
        urgent = false, past_cache = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn start_write_from(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole::offset)] offset: u64,
        #[pyo3(from_py_with = whole::size)] size: Option<u64>,
        sync: Option<&str>,
        stream: Given<'_>,
        route: Option<&str>,
        urgent: bool,
        past_cache: bool,
    ) -> PyResult<Transfer> {
        let mut options = options(route, false, sync, urgent)?;
        options.past_cache = past_cache;
        let call = Call::new((Use::Source, source), offset, size, options, &stream)?;
        self.start(py, &call)
    }

    /// Syncs the file: with all metadata, or only with the metadata that reading needs.
    #[pyo3(signature = (*, data_only = false))]
    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let file = self.file()?;
        raised(py, py.detach(|| if data_only { file.sync_data() } else { file.sync_all() }))
    }

    /// Reserves space for `length` bytes at `offset`; `False` if the file system cannot.
    fn preallocate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::offset)] offset: u64,
        #[pyo3(from_py_with = whole::length)] length: u64,
    ) -> PyResult<bool> {
        let file = self.file()?;
        raised(py, py.detach(|| file.preallocate(offset, length)))
    }

    /// Sets its length in bytes: bytes beyond it are dropped, missing ones are zeros.
    fn truncate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::length)] length: u64,
    ) -> PyResult<()> {
        let file = self.file()?;
        if raised(py, py.detach(|| file.len()))? > length {
            let arguments = (&self.path, &self.mode);
            hanging::call_in(py, "forebay._mapped", "refuse_cut", arguments)?;
        }
        raised(py, py.detach(|| file.set_len(length)))
    }

    /// Counts the bytes of a range that are in the page cache; `unknown` says why it cannot.
    #[pyo3(signature = (offset = 0, length = None))]
    fn residency<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole::offset)] offset: u64,
        #[pyo3(from_py_with = whole::length_given)] length: Option<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let file = self.file()?;
        let found = py.detach(|| file.residency(offset, length.unwrap_or(u64::MAX - offset)));
        residency(py, &raised(py, found)?)
    }

    /// Writes its dirty pages and drops its pages from the page cache; reports what stayed.
    fn evict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let file = self.file()?;
        residency(py, &raised(py, py.detach(|| file.evict()))?)
    }

    /// The storage of the file: its file system, its drive, and why it cannot be read with
    /// O_DIRECT.
    fn about<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (file, known) = (self.file()?, PyDict::new(py));
        known.set_item("file_system", file.file_system())?;
        known.set_item("drive", py.detach(|| file.drive().map(str::to_owned)))?;
        known.set_item("drive_model", py.detach(|| file.drive_model()))?;
        known.set_item("is_rotational", py.detach(|| file.is_rotational()))?;
        let refused = py.detach(|| file.no_direct_io().map(str::to_owned));
        known.set_item("no_direct_io", refused)?;
        known.set_item("reopened", file.reopened())?;
        Ok(known)
    }
}

fn residency<'py>(py: Python<'py>, residency: &forebay::Residency) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    let (resident, len, unknown) = match residency {
        forebay::Residency::Known { resident, len } => (Some(resident), Some(len), None),
        forebay::Residency::Unknown(reason) => (None, None, Some(reason)),
    };
    known.set_item("resident", resident)?;
    known.set_item("length", len)?;
    known.set_item("unknown", unknown)?;
    Ok(known)
}

/// Starts a read that takes some microseconds, which is less than giving the interpreter up and
/// getting it back takes; otherwise returns the memory.
fn at_once(
    file: &forebay::File,
    call: &Call<'_, '_>,
    lent: Lent,
) -> Result<forebay::Transfer, Lent> {
    let is_plain = call.usage == Use::Target
        && !matches!(call.ordering, Ordering::Stream(_))
        && (lent.buffer.device().is_some() || memory::is_present(call.memory, &lent.buffer));
    let Lent { buffer, order } = lent;
    let started = match is_plain {
        true => file.read(buffer).at(call.offset).options(call.options).start_at_once(),
        false => Err(buffer),
    };
    started.map_err(|buffer| Lent { buffer, order })
}

impl File {
    fn lock(&self) -> MutexGuard<'_, Opened> {
        lock(&self.file)
    }

    /// The engine's file, while it is open.
    pub(crate) fn file(&self) -> PyResult<InUse> {
        loop {
            match &*self.lock() {
                Opened::File(file) => return Ok(InUse::new(file.clone())),
                Opened::Detached(_) => {}
                Opened::Closed => {
                    return Err(PyValueError::new_err(format!("{:?} is closed", self.path)));
                }
            }
            let engine = Python::attach(|py| self.engine.get().engine.live(py))?; // may wait
            self.lock().attach(&engine);
        }
    }

    /// Raises an error about the memory of a call.
    fn about_memory<T>(
        &self,
        py: Python<'_>,
        call: &Call<'_, '_>,
        done: PyResult<T>,
    ) -> PyResult<T> {
        let note = || format!("for {:?} at offset {}", self.path, call.offset);
        done.map_err(|error| noted(py, error, &note()))
    }

    fn run(&self, py: Python<'_>, call: &Call<'_, '_>) -> PyResult<forebay::Outcome> {
        let file = self.file()?;
        if let Ordering::Stream(_) = call.ordering {
            return self.start(py, call)?.outcome(py);
        }
        let found = memory::find(call.memory, call.usage, call.size);
        let found = self.about_memory(py, call, found)?;
        let lent = match found.on_gpu {
            true => Err(found),
            false => match at_once(&file, call, found.lend(py, file.engine())?) {
                Ok(transfer) => return moving::outcome(py, &transfer),
                Err(back) => Ok(back),
            },
        };
        let &Call { usage, offset, options, ordering, .. } = call;
        let moved = interruptible(py, |go_on| {
            let mut lent = lent.or_else(|found| found.borrow(file.engine()))?;
            wait_until_ready(file.engine(), [&lent], ordering, go_on)?;
            let request = match usage {
                Use::Target => file.read(&mut lent.buffer),
                Use::Source => file.write(&lent.buffer),
            };
            let moved = request.at(offset).options(options).while_(go_on).run();
            moved.map(|outcome| (outcome, lent)) // which is dropped with the lock
        });
        Ok(self.moved(py, call, moved?)?.0)
    }

    /// The result of a call, or its error, which may be about its memory.
    fn moved<T>(
        &self,
        py: Python<'_>,
        call: &Call<'_, '_>,
        moved: Result<T, forebay::Error>,
    ) -> PyResult<T> {
        let is_memory = matches!(moved, Err(forebay::Error::NotDeviceMemory { .. }));
        let moved = raised(py, moved);
        if is_memory { self.about_memory(py, call, moved) } else { moved }
    }

    fn start(&self, py: Python<'_>, call: &Call<'_, '_>) -> PyResult<Transfer> {
        let file = self.file()?;
        let lent = memory::lend(file.engine(), call.memory, call.usage, call.size);
        let mut lent = self.about_memory(py, call, lent)?;
        make_ready(py, file.engine(), &lent, call.ordering)?;
        match at_once(&file, call, lent) {
            Ok(transfer) => return Ok(Transfer::new(transfer, self.engine.clone_ref(py))),
            Err(back) => lent = back,
        }
        if lent.buffer.device().is_some() {
            call.stream.mark(call.ordering, call.memory)?;
        }
        let (&Call { usage, offset, options, ordering, .. }, buffer) = (call, lent.buffer);
        let started = py.detach(|| {
            let request = match usage {
                Use::Target => file.read(buffer),
                Use::Source => file.write(buffer),
            };
            ordering.order(request.at(offset).options(options)).start()
        });
        Ok(Transfer::new(raised(py, started)?, self.engine.clone_ref(py)))
    }
}

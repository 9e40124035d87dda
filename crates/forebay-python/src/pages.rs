//! A file's pages as memory of Python, and how much memory the process may still use.

#![expect(unsafe_code, reason = "fills in the fields of the buffer protocol")]

use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use forebay::units::ByteRange;
use forebay::{File as EngineFile, Residency};
use forebay_layers::{FilePages, Stamp};
use pyo3::exceptions::PyOSError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustix::process::{Resource, getrlimit};

use crate::failure::raised;
use crate::file::File;
use crate::waiting::{Apart, interruptible};

/// Bytes that are populated by one step; the next step's are read ahead in the meantime.
const STEP: usize = 64 << 20;

/// The first bytes of each step that show whether it is resident. To count the pages of 1 GiB takes
/// up to 2.5 ms, seven times as long as the rest of a load. What is missing between two samples is
/// read when it is used.
const SAMPLE: usize = 256 << 10;

/// The interval of checks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// The pages of a file as private memory: writing to it does not change the file.
#[pyclass(frozen, module = "forebay._forebay", weakref)]
pub(crate) struct Pages {
    mapped: Apart<Arc<Mapped>>,
}

struct Mapped {
    pages: FilePages,
    file: EngineFile,
}

#[pymethods]
impl Pages {
    /// Maps a whole file, which has `size` bytes and is not empty.
    ///
    /// Raises `OSError` if the file system has no mappings, or the kernel cannot populate them.
    #[new]
    fn new(py: Python<'_>, file: &File, size: u64) -> PyResult<Self> {
        let file = file.file()?.into_inner();
        let mapped = py.detach(|| {
            let pages = FilePages::map_private(&file, size)?;
            // The file has been read from its beginning, so this page is there.
            match pages.bring_in(0..1)? {
                true => Ok(Mapped { pages, file }),
                false => Err(io::ErrorKind::Unsupported.into()),
            }
        });
        Ok(Self { mapped: Apart::new(Arc::new(mapped.map_err(refused)?)) })
    }

    fn __len__(&self) -> usize {
        self.mapped.pages.len()
    }

    /// Reads the bytes from `begin` to `end` into the page cache, as far as they are not there,
    /// and as far as memory allows.
    ///
    /// Raises `OSError` if a page cannot be read: a read of the file gives the cause.
    fn fetch(&self, py: Python<'_>, begin: usize, end: usize) -> PyResult<()> {
        let part = begin..end.min(self.mapped.pages.len());
        if part.is_empty() || py.detach(|| self.mapped.seems_resident(&part)) {
            return Ok(());
        }
        let stopped = Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        // A thread that a silent server holds up is left behind; it keeps the mapping.
        let (mapped, is_stopped) = (Arc::clone(&self.mapped), Arc::clone(&stopped));
        let work = move || {
            let _ = send.send(mapped.fetch(part, &is_stopped)); // the caller may have given up
        };
        thread::Builder::new().name("forebay-fetch".into()).spawn(work)?;
        let fetched = interruptible(py, move |go_on| {
            loop {
                match receive.recv_timeout(LOOK) {
                    Ok(fetched) => return fetched,
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(io::Error::other("the thread that reads its pages panicked"));
                    }
                    Err(RecvTimeoutError::Timeout) if go_on() => {}
                    Err(RecvTimeoutError::Timeout) => {
                        stopped.store(true, Ordering::Relaxed);
                        return Ok(());
                    }
                }
            }
        });
        fetched?.map_err(refused)
    }

    /// Starts reading bytes into the page cache, without waiting for them.
    fn read_ahead(&self, py: Python<'_>, begin: usize, end: usize) {
        let part = begin..end.min(self.mapped.pages.len());
        py.detach(|| {
            // The kernel visits resident pages too: 115 µs for 128 MiB (2 cores, 2026-11-30).
            if !part.is_empty() && !self.mapped.seems_resident(&part) {
                self.mapped.pages.read_ahead(part);
            }
        });
    }

    /// # Safety
    /// Called by Python, with room for a view at `view`.
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let pages = &this.get().mapped.pages;
        let (start, len) = (pages.start().as_ptr().cast(), isize::try_from(pages.len())?);
        // SAFETY: the view is Python's. The mapping lives as long as the object, which the view
        // keeps alive; nothing but Python's objects uses it as memory.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}

impl Mapped {
    /// Whether samples of a range are resident, the first and the last bytes among them.
    fn seems_resident(&self, part: &Range<usize>) -> bool {
        let last = part.end.saturating_sub(SAMPLE).max(part.start);
        let mut begins = (part.start..last).step_by(STEP).chain([last]);
        begins.all(|begin| self.is_resident(&(begin..part.end.min(begin + SAMPLE))))
    }

    fn is_resident(&self, part: &Range<usize>) -> bool {
        let range = ByteRange::at(part.start as u64, part.len() as u64);
        match self.file.residency_inside(range) {
            Residency::Known { resident, len } => resident == len,
            Residency::Unknown(_) => false,
        }
    }

    fn fetch(&self, part: Range<usize>, stopped: &AtomicBool) -> io::Result<()> {
        // More would evict what was read first; the rest is read when it is used.
        let room = forebay_topology::System::live().memory_left().map(|left| left.available / 2);
        let room = usize::try_from(room.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let stop = part.end.min(part.start.saturating_add(room));
        for begin in (part.start..stop).step_by(STEP) {
            let end = stop.min(begin + STEP);
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            if !self.is_resident(&(begin..end)) {
                self.pages.read_ahead(end..stop.min(end + STEP));
                self.pages.bring_in(begin..end)?;
            }
        }
        Ok(())
    }
}

fn refused(error: io::Error) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), error.to_string()))
}

/// The state of a file at one moment, to notice later that its bytes may have changed.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct FileStamp(Stamp);

#[pymethods]
impl FileStamp {
    /// The state of a file now.
    #[new]
    fn new(py: Python<'_>, file: &File) -> PyResult<Self> {
        let file = file.file()?;
        Ok(Self(raised(py, py.detach(|| Stamp::of(&file)))?))
    }

    /// Its inode, size and mtime: the same in every process of the host.
    fn identity(&self) -> (u64, i64, (i64, i64)) {
        self.0.facts()
    }

    /// Whether `file` is another file, or its bytes may have changed since then.
    fn is_outdated(&self, py: Python<'_>, file: &File) -> PyResult<bool> {
        Ok(self.0.is_outdated(&Self::new(py, file)?.0))
    }
}

/// How many bytes of memory the process may still use, and the limit that says so; `None` without
/// a limit. Limits are those of control groups, and `RLIMIT_AS`.
#[pyfunction]
pub(crate) fn memory_left(py: Python<'_>) -> PyResult<Option<Bound<'_, PyTuple>>> {
    let least = py.detach(|| {
        let group = forebay_topology::System::live().memory_limit();
        let group = group.map(|limit| (limit.available, limit.file.display().to_string()));
        let space = getrlimit(Resource::As).current.map(|limit| {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
            let pages = pages.split(' ').next().and_then(|count| count.parse::<u64>().ok());
            let used = pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64);
            (limit.saturating_sub(used), "RLIMIT_AS".to_owned())
        });
        group.into_iter().chain(space).min()
    });
    least.map(|(left, limit)| (left, limit).into_pyobject(py)).transpose()
}

//! An engine with its limits, and the memory that it allocates.

#![expect(unsafe_code, reason = "queries callers' streams")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay::gpu::{CallerStream, Device, DeviceId, GpuSelector};
use forebay::{Error, Options, RingChoice};
use forebay_cufile::Program;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList};

use crate::buffer::Buffer;
use crate::failure::{exception, raised};
use crate::file::{File, opened, path_of};
use crate::hanging;
use crate::logs;
use crate::memory::{self, Found, Lent, Order};
use crate::moving::bound;
use crate::quiesce::Resumable;
use crate::stream::Ordering;
use crate::waiting::{Apart, interruptible};
use crate::whole;

/// The program that probes cuFile's driver: this Python with this package. The package's folder may
/// hold the vendor's wheels too.
fn probe(py: Python<'_>) -> PyResult<Option<Program>> {
    let file: Option<PathBuf> = hanging::import(py, "sys")?.getattr("executable")?.extract()?;
    let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else { return Ok(None) };
    let command = hanging::import(py, "forebay._command")?;
    let words: Vec<OsString> = hanging::call(&command.getattr("program")?, ())?.extract()?;
    let packages: OsString = command.getattr("PACKAGE")?.extract()?;
    let mut arguments = words[1..].to_vec();
    arguments.extend(["probe".into(), "--packages".into(), packages]);
    Ok(Some(Program { file, arguments }))
}

/// Moves bytes between files and memory. Keywords set limits, and the defaults need no change:
/// `options()` lists the names, and docs/variables.md of the repository explains them.
#[pyclass(frozen, module = "forebay", subclass, weakref)]
pub(crate) struct Engine {
    pub(crate) engine: Apart<Resumable>,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut limits = raised(py, Options::from_env())?;
        limits.set_probe(probe(py)?);
        for (name, value) in options.into_iter().flatten() {
            set(&mut limits, &name.extract::<String>()?, &value)?;
        }
        logs::follow(py)?;
        let engine = raised(py, py.detach(|| forebay::Engine::new(limits)).map_err(with_keyword))?;
        Ok(Self { engine: Apart::new(Resumable::new(engine)) })
    }

    /// Waits for running calls, at most `timeout` seconds, then closes all rings, frees pinned
    /// memory and ends all threads, so that the process can be snapshotted. The next call resumes.
    /// Open files stay open. If a transfer, a block store or a stream is in use, `TimeoutError` is
    /// raised, and nothing has changed.
    #[pyo3(signature = (timeout = Some(30.0)))]
    fn quiesce(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::timeout)] timeout: Option<f64>,
    ) -> PyResult<()> {
        self.engine.quiesce(py, bound(timeout)?)
    }

    /// Opens a file by its path, or by a descriptor, which stays the caller's.
    #[pyo3(signature = (file, mode = "r"))]
    fn open(this: &Bound<'_, Self>, file: &Bound<'_, PyAny>, mode: &str) -> PyResult<File> {
        opened(this, file, mode)
    }

    /// Allocates `nbytes` bytes on a GPU, or pinned on the host.
    #[pyo3(signature = (nbytes, device = None))]
    fn allocate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::nbytes)] nbytes: u64,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Buffer> {
        let engine = self.engine.live(py)?;
        let device = device_of(py, &engine, device)?;
        let made = py.detach(|| match device {
            Some(device) => engine.allocate(device, nbytes),
            None => engine.allocate_pinned(nbytes),
        });
        Ok(Buffer::new(raised(py, made)?))
    }

    /// Maps memory of a GPU that another process shares by `Buffer._shared`.
    fn _map_shared(
        &self,
        py: Python<'_>,
        handle: [u8; 64],
        device: &Bound<'_, PyAny>,
    ) -> PyResult<Buffer> {
        let engine = self.engine.live(py)?;
        let device = device_of(py, &engine, Some(device))?;
        let device = device.ok_or_else(|| PyValueError::new_err("only GPUs share memory"))?;
        let mapped = py.detach(|| engine.map_shared(device, handle));
        Ok(Buffer::new(raised(py, mapped)?))
    }

    /// Reads a whole file into new memory, by default (`"auto"`) on the first GPU, or on the host
    /// if there is none.
    #[pyo3(signature = (path, device = None))]
    fn read(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Buffer> {
        let path = path_of(path)?;
        let wanted = device.map_or(Ok(GpuSelector::Auto), selector)?;
        let engine = self.engine.live(py)?;
        let device = raised(py, py.detach(|| engine.device(&wanted)))?.map(|device| device.id());
        let file = raised(py, py.detach(|| engine.open(&path)))?;
        // Closes the file as well.
        let read = interruptible(py, move |go_on| file.read_to_end(device).while_(go_on).run())?;
        Ok(Buffer::new(raised(py, read)?.0))
    }

    /// Opens the GPU `name` and returns its properties; `None` for the host, or if `auto` finds no
    /// GPU.
    fn gpu<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let wanted = selector(name)?;
        let engine = self.engine.live(py)?;
        let Some(device) = raised(py, py.detach(|| engine.device(&wanted)))? else {
            return Ok(None);
        };
        let (info, known) = (device.info(), PyDict::new(py));
        known.set_item("device", info.id.to_string())?;
        known.set_item("name", &info.name)?;
        known.set_item("uuid", &info.uuid)?;
        known.set_item("pci_address", &info.pci_address)?;
        known.set_item("driver", &info.driver)?;
        known.set_item("memory", info.memory)?;
        known.set_item("simulated", info.simulated)?;
        Ok(Some(known))
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Engine, slots of {} bytes>", self.engine.options.slot_size)
    }

    /// Notes on this engine, for example that io_uring was refused or memory is not pinned.
    fn notes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let engine = self.engine.live(py)?;
        Ok(py.detach(|| engine.notes()))
    }

    /// How long the stages of all transfers have taken so far, and the engine's pinned memory, as a
    /// `forebay.Statistics`.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let engine = self.engine.live(py)?;
        let counted = py.detach(|| engine.statistics());
        let module = hanging::import(py, "forebay._statistics")?;
        let durations = module.getattr("Durations")?;
        let stage = |stage: &forebay::Histogram| {
            let quantile = |share| stage.quantile(share).map(|time| time.as_secs_f64());
            let (total, longest) = (stage.sum().as_secs_f64(), stage.max().as_secs_f64());
            let [median, p99, p999] = [0.5, 0.99, 0.999].map(quantile);
            hanging::call(&durations, (stage.count(), total, median, p99, p999, longest))
        };
        let [file, slot_wait, link_wait, copy] =
            [&counted.file, &counted.slot_wait, &counted.link_wait, &counted.copy].map(stage);
        let arguments = (file?, slot_wait?, link_wait?, copy?, counted.pinned);
        hanging::call(&module.getattr("Statistics")?, arguments)
    }

    /// Its limits by name.
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let limits = &self.engine.options;
        let known = PyDict::new(py);
        known.set_item("arena_size", limits.arena_size)?;
        known.set_item("slot_size", limits.slot_size)?;
        known.set_item("segment_size", limits.segment_size)?;
        known.set_item("readers", limits.readers)?;
        known.set_item("depth", limits.depth)?;
        known.set_item("in_flight", limits.in_flight)?;
        known.set_item("threads", limits.threads)?;
        known.set_item("small_size", limits.small_size)?;
        known.set_item("direct_io", limits.direct_io == forebay::DirectIo::Auto)?;
        known.set_item(
            "ring",
            match limits.ring {
                RingChoice::Auto => "auto",
                RingChoice::Uring => "uring",
                RingChoice::Pread => "pread",
            },
        )?;
        known.set_item("watchdog", limits.watchdog.as_secs_f64())?;
        Ok(known)
    }
}

/// The GPU that `device` names, opened; `None` is the host.
fn device_of(
    py: Python<'_>,
    engine: &forebay::Engine,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<DeviceId>> {
    let Some(device) = device else { return Ok(None) };
    Ok(gpu_of(py, engine, device)?.map(|device| device.id()))
}

/// The engine's handle of the GPU that `device` names, opened; `None` is the host.
pub(crate) fn gpu_of(
    py: Python<'_>,
    engine: &forebay::Engine,
    device: &Bound<'_, PyAny>,
) -> PyResult<Option<Arc<dyn Device>>> {
    let wanted = selector(device)?;
    raised(py, py.detach(|| engine.device(&wanted)))
}

/// Borrows memory for a call, once the work of its own libraries on it is done.
pub(crate) fn lend(
    engine: &forebay::Engine,
    found: Vec<Found>,
    ordering: Ordering,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<forebay::Buffer>, Error> {
    let lent = found.into_iter().map(|found| found.borrow(engine));
    let lent = lent.collect::<Result<Vec<_>, _>>()?;
    wait_until_ready(engine, &lent, ordering, go_on)?;
    Ok(lent.into_iter().map(|lent| lent.buffer).collect())
}

/// Waits for the work that the memory's own libraries have queued on it, if the call has the
/// order `Ready`.
pub(crate) fn wait_until_ready<'a>(
    engine: &forebay::Engine,
    lent: impl IntoIterator<Item = &'a Lent>,
    ordering: Ordering,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), Error> {
    let mut seen: Vec<(DeviceId, CallerStream)> = Vec::new();
    for one in lent {
        if let (Ordering::Ready, Order::Stream(stream)) = (ordering, one.order)
            && let Some(device) = one.buffer.device()
            && !seen.contains(&(device, stream))
        {
            seen.push((device, stream));
            // SAFETY: the library has just returned the stream, as one of that GPU.
            unsafe { engine.wait_for_stream(device, stream, go_on) }?;
        }
    }
    Ok(())
}

/// Like `wait_until_ready`, for a call that holds the interpreter's lock: gives it up only to
/// wait.
pub(crate) fn make_ready(
    py: Python<'_>,
    engine: &forebay::Engine,
    lent: &Lent,
    ordering: Ordering,
) -> PyResult<()> {
    let (Ordering::Ready, Order::Stream(stream)) = (ordering, lent.order) else {
        return Ok(());
    };
    let Some(gpu) = lent.buffer.gpu() else { return Ok(()) };
    // SAFETY: as above.
    if raised(py, unsafe { engine.is_stream_idle(&**gpu, stream) })? {
        return Ok(());
    }
    raised(py, interruptible(py, |go_on| wait_until_ready(engine, [lent], ordering, go_on))?)
}

/// Parses a device as Python names it: `"cuda"`, `"cuda:1"`, `1`, `"sim"`, `"cpu"`, a UUID, a PCI
/// address, or a device of torch.
fn selector(device: &Bound<'_, PyAny>) -> PyResult<GpuSelector> {
    let is_bool = device.is_instance_of::<PyBool>();
    let text = if is_bool { device.to_string() } else { whole::text_of(device)? };
    let name = match text.as_str() {
        "cpu" | "host" => "none",
        "cuda" => "cuda:0",
        "sim:0" => "sim",
        other => other,
    };
    name.parse().map_err(|error: Error| {
        let error = match error {
            // The command's flag is `--gpu`.
            Error::BadOption { name, .. } if name == "gpu" => {
                Error::bad_option("device", text, memory::DEVICES)
            }
            other => other,
        };
        exception(device.py(), &error)
    })
}

/// Sets one limit.
fn set(limits: &mut Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if value.is_none() {
        return Ok(()); // keeps the default
    }
    if name == "watchdog" {
        let expected = "a time of 0.1 to 3600 seconds";
        let seconds = whole::within::<f64>(name, value, expected)?;
        limits.watchdog = Duration::try_from_secs_f64(seconds)
            .map_err(|_| whole::refused(name, value, expected))?;
        return Ok(());
    }
    let variable = format!("FOREBAY_{}", name.to_uppercase());
    if !Options::VARIABLES.iter().any(|known| known.name == variable) {
        let names = Options::VARIABLES.iter().map(|known| option_name(known.name));
        let names = names.collect::<Vec<_>>().join(", ");
        let text = format!("unknown limit `{name}`: the limits are {names}");
        return Err(PyTypeError::new_err(text));
    }
    let text = match value.extract::<bool>() {
        Ok(on) => switch(name, on).to_owned(),
        Err(_) => whole::text_of(value)?,
    };
    let done = limits.set(&variable, &text).map_err(with_keyword);
    raised(value.py(), done)
}

/// A boolean as the value of a variable.
fn switch(name: &str, on: bool) -> &'static str {
    match (name, on) {
        ("direct_io" | "cufile", true) => "auto",
        (_, true) => "on",
        (_, false) => "off",
    }
}

/// The error with the keyword of `Engine` instead of the variable's name.
fn with_keyword(error: Error) -> Error {
    match error {
        Error::BadOption { name, value, expected } => {
            Error::bad_option(option_name(&name), value, expected)
        }
        other => other,
    }
}

fn option_name(variable: &str) -> String {
    variable.trim_start_matches("FOREBAY_").to_lowercase()
}

/// Bytes by route, as a list of dictionaries.
pub(crate) fn routes<'py>(
    py: Python<'py>,
    shares: &[forebay::RouteShare],
) -> PyResult<Bound<'py, PyList>> {
    let all = PyList::empty(py);
    for share in shares {
        let one = PyDict::new(py);
        one.set_item("route", share.route.to_string())?;
        one.set_item("reason", share.reason.to_string())?;
        one.set_item("bytes", share.bytes)?;
        all.append(one)?;
    }
    Ok(all)
}

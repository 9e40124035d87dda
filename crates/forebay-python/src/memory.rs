//! The bytes of Python's objects: arrays of any library, buffers, plain addresses.
//!
//! Each becomes a buffer of the engine that keeps the object alive until no transfer can access its
//! bytes any more, however a call ends. An engine thread may drop the last reference. It is not
//! attached to the interpreter, so the object is released when another thread next attaches.

#![expect(unsafe_code, reason = "borrows memory of Python's objects, which it keeps alive")]

use std::ffi::CStr;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

use forebay::Error;
use forebay::gpu::{CallerStream, DeviceId, DeviceKind};
use forebay_base::per_process::PerProcess;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyDict, PyString, PyTuple};
use pyo3::{ffi, intern};

use crate::buffer::Buffer;
use crate::dlpack;
use crate::failure::raised;
use crate::hanging;
use crate::whole;

/// The use of an object's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A transfer writes them.
    Target,
    /// A transfer reads them.
    Source,
}

impl Use {
    fn words(self) -> &'static str {
        match self {
            Self::Target => "read into",
            Self::Source => "write from",
        }
    }
}

/// How an object's own library orders work on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// No stream, or an unknown one.
    None,
    /// By this stream.
    Stream(CallerStream),
}

/// An object's bytes, lent to the engine.
pub(crate) struct Lent {
    pub(crate) buffer: forebay::Buffer,
    pub(crate) order: Order,
}

/// The location of an object's bytes, before the engine knows them.
pub(crate) struct Found {
    /// First address and length.
    pub(crate) range: (u64, u64),
    /// The parts of the range that are lent, if not all of it.
    pub(crate) parts: Option<Vec<(u64, u64)>>,
    pub(crate) on_gpu: bool,
    /// The GPU that it reports.
    pub(crate) device: Option<DeviceId>,
    pub(crate) order: Order,
    pub(crate) keep: Py<PyAny>,
}

impl Found {
    fn parts(&self) -> &[(u64, u64)] {
        self.parts.as_deref().unwrap_or(std::slice::from_ref(&self.range))
    }

    fn is_on_host(&self) -> bool {
        !self.on_gpu || self.range.1 == 0
    }

    /// Lends the bytes. Queries the driver and may open the GPU, so the caller does not hold the
    /// interpreter's lock.
    pub(crate) fn borrow(self, engine: &forebay::Engine) -> Result<Lent, Error> {
        let buffer = match self.is_on_host() {
            // SAFETY: the object has these bytes for as long as it is kept. The caller promises
            // that nothing else uses them during the transfer, as for every array in Python.
            true => unsafe { engine.borrow_host_memory(self.range.0, self.range.1) },
            // SAFETY: as above.
            false => unsafe { engine.borrow_device_ranges(self.parts()) }?,
        };
        self.lent(buffer)
    }

    /// Lends the bytes for a call that holds the interpreter's lock: gives it up only if the GPU
    /// has to be opened.
    pub(crate) fn lend(self, py: Python<'_>, engine: &forebay::Engine) -> PyResult<Lent> {
        let lent = if self.is_on_host() {
            self.borrow(engine)
        } else {
            // SAFETY: as in `borrow`.
            match unsafe { engine.borrow_at_once(self.parts()) } {
                Some(buffer) => self.lent(buffer),
                None => py.detach(|| self.borrow(engine)),
            }
        };
        raised(py, lent)
    }

    fn lent(self, buffer: forebay::Buffer) -> Result<Lent, Error> {
        let Self { range: (address, len), device, order, keep, .. } = self;
        if let Some(named) = device.filter(|&named| len > 0 && buffer.device() != Some(named)) {
            let is = buffer.device().map_or("the host".to_owned(), |device| device.to_string());
            let reason = format!("it is on {is}, not on {named}");
            return Err(Error::NotDeviceMemory { address, len, reason });
        }
        Ok(Lent { buffer: buffer.kept_by(keep), order })
    }
}

/// Lends the first `size` bytes of an object, or all of them.
pub(crate) fn lend(
    engine: &forebay::Engine,
    object: &Bound<'_, PyAny>,
    usage: Use,
    size: Option<u64>,
) -> PyResult<Lent> {
    find(object, usage, size)?.lend(object.py(), engine)
}

/// Lends objects on one GPU as parts of a buffer: the driver is queried once for each allocation,
/// and keeps the interpreter's lock. `None` if they are not on one GPU, or if lending them alone
/// says why they are refused.
pub(crate) fn lend_together(engine: &forebay::Engine, found: &mut Vec<Found>) -> Option<Vec<Lent>> {
    let device = found.first()?.device?;
    let is_alike = |it: &Found| it.device == Some(device) && it.parts.is_none() && it.range.1 > 0;
    if !found.iter().all(is_alike) {
        return None;
    }
    let ranges: Vec<_> = found.iter().map(|it| it.range).collect();
    // SAFETY: as in `borrow`.
    let all = unsafe { engine.borrow_at_once(&ranges) }?;
    if all.device() != Some(device) {
        return None;
    }
    let found = std::mem::take(found);
    let orders: Vec<_> = found.iter().map(|it| it.order).collect();
    let all = all.kept_by(found.into_iter().map(|it| it.keep).collect::<Vec<_>>());
    let lent = ranges.iter().zip(orders).map(|(&(address, len), order)| {
        // SAFETY: GPU memory is not accessed as a slice.
        let buffer = unsafe { all.share(address - all.address(), len) };
        Lent { buffer, order }
    });
    Some(lent.collect())
}

/// Finds the first `size` bytes of an object, or all of them.
pub(crate) fn find(object: &Bound<'_, PyAny>, usage: Use, size: Option<u64>) -> PyResult<Found> {
    let mut found = find_all(object, usage)?;
    let (address, len) = found.range;
    if let Some(size) = size {
        if size > len {
            let text = format!("`size` is {size}, but the memory has {len} bytes");
            return Err(PyValueError::new_err(text));
        }
        found.range.1 = size;
    }
    if address == 0 && found.range.1 > 0 {
        return Err(refused(
            usage,
            "it has no memory: it was freed, or never allocated (a fake tensor, an empty storage)",
        ));
    }
    Ok(found)
}

/// `PM_PRESENT`, `PM_FILE` (`Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;

/// The most pages that [`are_present`] looks at.
const PAGES_MAX: usize = 64;

/// Whether a write to an object's host memory waits for no file system. False if that is unknown.
pub(crate) fn is_present(object: &Bound<'_, PyAny>, memory: &forebay::Buffer) -> bool {
    // SAFETY: the object is alive.
    let has_views = || unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0;
    // An array of numpy without a base has its own memory; that of `numpy.memmap` is a mapping.
    let base = || object.getattr_opt(intern!(object.py(), "base"));
    object.is_exact_instance_of::<PyByteArray>()
        || (has_views() && base().is_ok_and(|base| base.is_some_and(|base| base.is_none())))
        || are_present(memory)
}

/// Whether all pages of host memory are there, and none is a file's.
fn are_present(memory: &forebay::Buffer) -> bool {
    static PAGES: PerProcess<Option<File>> = PerProcess::new();
    let Some(pages) = PAGES.get_or_init(|| File::open("/proc/self/pagemap").ok()) else {
        return false;
    };
    let page = rustix::param::page_size() as u64;
    let first = memory.address() / page;
    let count = usize::try_from((memory.address() + memory.len()).div_ceil(page) - first);
    let mut entries = [[0; 8]; PAGES_MAX];
    let Some(entries) = count.ok().and_then(|count| entries.get_mut(..count)) else {
        return false;
    };
    let is_own = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & (PRESENT | OF_FILE) == PRESENT;
    let read = pages.read_exact_at(entries.as_flattened_mut(), first * 8);
    read.is_ok() && entries.iter().all(is_own)
}

fn find_all(object: &Bound<'_, PyAny>, usage: Use) -> PyResult<Found> {
    if let Ok(triple) = object.cast::<PyTuple>() {
        return address_of(triple);
    }
    if let Ok(buffer) = object.cast::<Buffer>() {
        let this = buffer.get();
        let (address, len) = this.extent()?;
        this.wait(object.py())?;
        let (on_gpu, device) = (this.id().is_some(), this.id());
        let keep = object.clone().unbind();
        return Ok(Found {
            range: (address, len),
            parts: None,
            on_gpu,
            device,
            order: Order::None,
            keep,
        });
    }
    // SAFETY: the object is alive.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
        // Some libraries offer the buffer protocol for GPU arrays as well, and then refuse.
        return view_of(object, usage).or_else(|refused| {
            let on_gpu = of_gpu(object, usage)?;
            on_gpu.ok_or(refused)
        });
    }
    if let Some(found) = tensor_of(object)? {
        return Ok(found);
    }
    if let Some(interface) = object.getattr_opt(intern!(object.py(), "__cuda_array_interface__"))? {
        return interface_of(object, &interface, usage);
    }
    if let Some(found) = exchanged(object, usage)? {
        return Ok(found);
    }
    let kind = object.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "cannot {} `{kind}`: give an array or tensor (DLPack, `__cuda_array_interface__`), a \
         buffer such as a `bytearray`, or `(address, length, device)`",
        usage.words()
    )))
}

/// An array that reports to be on a GPU.
fn of_gpu(object: &Bound<'_, PyAny>, usage: Use) -> PyResult<Option<Found>> {
    let py = object.py();
    if let Ok(Some(interface)) = object.getattr_opt(intern!(py, "__cuda_array_interface__")) {
        return interface_of(object, &interface, usage).map(Some);
    }
    if dlpack::is_on_gpu(object)? { exchanged(object, usage) } else { Ok(None) }
}

/// `(address, length, device)`.
fn address_of(triple: &Bound<'_, PyTuple>) -> PyResult<Found> {
    let expected = "plain memory must be `(address, length, device)`";
    let wrong = |_| PyTypeError::new_err(format!("{expected}, not `{triple}`"));
    let (address, len, device) = triple
        .extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)>()
        .map_err(wrong)?;
    let number = |found: PyResult<u64>| {
        found.map_err(|error| match error.is_instance_of::<PyTypeError>(triple.py()) {
            true => wrong(error),
            false => error,
        })
    };
    let (address, len) = (number(whole::address(&address))?, number(whole::length(&len))?);
    if address.checked_add(len).is_none() || (address == 0 && len > 0) {
        let text = format!("invalid address range: {len} bytes at {address:#x}");
        return Err(PyValueError::new_err(text));
    }
    let device = device_named(&device)?;
    let on_gpu = device.is_some();
    let keep = triple.py().None();
    Ok(Found { range: (address, len), parts: None, on_gpu, device, order: Order::None, keep })
}

/// A device by its name or its CUDA number; `None` is the host.
pub(crate) fn device_named(device: &Bound<'_, PyAny>) -> PyResult<Option<DeviceId>> {
    let id = |kind, index| Ok(Some(DeviceId { kind, index }));
    if device.is_none() {
        return Ok(None);
    }
    if !device.is_instance_of::<PyString>()
        && !device.is_instance_of::<PyBool>()
        && let Ok(index) = device.extract::<u32>()
    {
        return id(DeviceKind::Cuda, index);
    }
    let text = device.str()?.to_string();
    let (name, index) = text.split_once(':').unwrap_or((&text, "0"));
    let kind = match name {
        "cpu" | "host" | "none" => return Ok(None),
        "cuda" => DeviceKind::Cuda,
        "sim" => DeviceKind::Sim,
        _ => return Err(whole::refused("device", device, DEVICES)),
    };
    let index = index.parse().map_err(|_| whole::refused("device", device, DEVICES))?;
    id(kind, index)
}

/// The names of devices.
pub(crate) const DEVICES: &str = "`cpu`, `cuda` or `cuda:N`";

/// A view of an object with the buffer protocol; released on drop.
#[pyclass(frozen, module = "forebay._forebay")]
struct View(Box<ffi::Py_buffer>);

// SAFETY: it is only read and released, by threads that are attached to the interpreter.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Whether its format has references to Python objects or other memory; names are between
    /// colons.
    fn holds_references(&self) -> bool {
        if self.0.format.is_null() {
            return false;
        }
        // SAFETY: the exporter's string, which lives as long as the view.
        let format = unsafe { CStr::from_ptr(self.0.format) };
        let refers = |(at, byte): (usize, &u8), part: &[u8]| match byte {
            b'O' | b'P' | b'z' | b'&' | b'X' => true,
            // Followed by a type, it is a complex number.
            b'Z' => !matches!(part.get(at + 1), Some(b'f' | b'd' | b'g')),
            _ => false,
        };
        let mut parts = format.to_bytes().split(|&byte| byte == b':').step_by(2);
        parts.any(|part| part.iter().enumerate().any(|byte| refers(byte, part)))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: acquired once, released once; Python drops its objects in attached threads.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// Why an array's bytes are not its values.
const REFERENCES: &str = "its bytes are addresses: its elements are Python objects, or refer to \
                          other memory (`StringDType`); give an array of numbers, or of text of a \
                          fixed length (`astype(\"S\")`)";

/// Whether elements of a numpy type refer to other memory; `None` for objects without such a type.
fn holds_references(object: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
    let py = object.py();
    let Some(kind) = object.getattr_opt(intern!(py, "dtype"))? else { return Ok(None) };
    let holds = kind.getattr_opt(intern!(py, "hasobject"))?;
    holds.map(|holds| holds.extract()).transpose()
}

fn view_of(object: &Bound<'_, PyAny>, usage: Use) -> PyResult<Found> {
    let py = object.py();
    let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
    let writable = if usage == Use::Target { ffi::PyBUF_WRITABLE } else { 0 };
    let mut view_with = |flags| {
        // SAFETY: the object is alive and the view has room.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if failed == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
    };
    let flags = ffi::PyBUF_ANY_CONTIGUOUS | writable;
    if let Err(error) = view_with(flags | ffi::PyBUF_FORMAT) {
        // Some numpy types have no buffer format. Those of plain bytes (dates) can be moved; those
        // whose elements refer to other memory (`StringDType`) cannot.
        match holds_references(object)? {
            Some(false) => view_with(flags).map_err(|error| explained(object, usage, error))?,
            Some(true) => return Err(refused(usage, REFERENCES)),
            None => return Err(explained(object, usage, error)),
        }
    }
    // SAFETY: filled in, since one of the calls has succeeded.
    let view = unsafe { view.assume_init() };
    let (address, len) = (view.buf as u64, u64::try_from(view.len).unwrap_or(0));
    let view = View(view);
    if view.holds_references() {
        return Err(refused(usage, REFERENCES));
    }
    let keep = Bound::new(py, view)?.into_any().unbind();
    let (on_gpu, device, order) = (false, None, Order::None);
    Ok(Found { range: (address, len), parts: None, on_gpu, device, order, keep })
}

/// Why a view is unavailable, with the remedy.
fn explained(object: &Bound<'_, PyAny>, usage: Use, error: PyErr) -> PyErr {
    let py = object.py();
    let text = error.value(py).to_string();
    let Ok(kind) = object.get_type().name() else { return error };
    let why = if text.contains("contiguous") {
        not_contiguous(usage)
    } else if text.contains("read-only") || text.contains("writable") {
        read_only(object)
    } else {
        return error;
    };
    let better = PyBufferError::new_err(format!("cannot {} `{kind}`: {why}", usage.words()));
    better.set_cause(py, Some(error));
    better
}

fn not_contiguous(usage: Use) -> &'static str {
    match usage {
        Use::Target => "it is not contiguous: read into a contiguous array, and copy from that",
        Use::Source => {
            "it is not contiguous: make a contiguous copy first (`.contiguous()`, \
             `numpy.ascontiguousarray`)"
        }
    }
}

fn read_only(object: &Bound<'_, PyAny>) -> &'static str {
    if never_changes(object) {
        return "arrays of jax are immutable: give a buffer of `forebay.read` to \
                `jax.dlpack.from_dlpack`";
    }
    "it is read-only: give writable memory"
}

/// Whether an array belongs to a library with immutable arrays, which DLPack 0 does not report.
fn never_changes(object: &Bound<'_, PyAny>) -> bool {
    let module = object.get_type().module();
    module.is_ok_and(|module| module.to_str().is_ok_and(|name| name.starts_with("jax")))
}

fn refused(usage: Use, reason: &str) -> PyErr {
    PyBufferError::new_err(format!("cannot {} this array: {reason}", usage.words()))
}

/// A tensor of torch, of any type: only its bytes matter, and its attributes are cheaper to query
/// than DLPack.
fn tensor_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Found>> {
    let py = object.py();
    if let Some(found) = viewed(object)? {
        return Ok(Some(found));
    }
    let Some(data_ptr) = object.getattr_opt(intern!(py, "data_ptr"))? else { return Ok(None) };
    let Some(element_size) = object.getattr_opt(intern!(py, "element_size"))? else {
        return Ok(None);
    };
    let Some(is_contiguous) = object.getattr_opt(intern!(py, "is_contiguous"))? else {
        return Ok(None); // a storage
    };
    if let Some(layout) = object.getattr_opt(intern!(py, "layout"))?
        && layout.str()?.to_str()? != "torch.strided"
    {
        let text = format!(
            "cannot transfer this tensor: its layout is `{layout}`; give its `.to_dense()`, or its \
             `.indices()` and `.values()`"
        );
        return Err(PyBufferError::new_err(text));
    }
    let is_lazy = |name| object.call_method0(name)?.extract::<bool>();
    if !is_contiguous.call0()?.extract::<bool>()? {
        let text = "it is not contiguous: use `.contiguous()`, and copy a target back from that";
        return Err(PyBufferError::new_err(format!("cannot transfer this tensor: {text}")));
    }
    if is_lazy(intern!(py, "is_conj"))? || is_lazy(intern!(py, "is_neg"))? {
        let text = "its bytes are not its values (a conjugate or negative view): use \
                    `.resolve_conj().resolve_neg()`";
        return Err(PyBufferError::new_err(format!("cannot transfer this tensor: {text}")));
    }
    let address: u64 = data_ptr.call0()?.extract()?;
    let items: u64 = object.call_method0(intern!(py, "numel"))?.extract()?;
    let len = items.saturating_mul(element_size.call0()?.extract()?);
    let on_gpu: bool = object.getattr(intern!(py, "is_cuda"))?.extract()?;
    // A tensor may get another storage during the transfer (`.data = …`).
    let keep = match object.getattr_opt(intern!(py, "untyped_storage"))? {
        Some(storage) => storage.call0()?.unbind(),
        None => object.clone().unbind(),
    };
    if !on_gpu {
        let kind = object.getattr(intern!(py, "device"))?.getattr(intern!(py, "type"))?;
        if !kind.eq(intern!(py, "cpu"))? {
            let text = format!("cannot transfer a tensor on `{kind}`: give one on `cuda` or `cpu`");
            return Err(PyBufferError::new_err(text));
        }
        let order = Order::None;
        return Ok(Some(Found {
            range: (address, len),
            parts: None,
            on_gpu,
            device: None,
            order,
            keep,
        }));
    }
    let index: u32 = object.call_method0(intern!(py, "get_device"))?.extract()?;
    let order = Order::Stream(CallerStream(current_stream(py, index)?));
    let device = Some(DeviceId { kind: DeviceKind::Cuda, index });
    Ok(Some(Found { range: (address, len), parts: None, on_gpu, device, order, keep }))
}

/// A tensor of torch whose type has DLPack's functions. Torch's methods give the interpreter up to
/// say whether a tensor is a lazy view.
fn viewed(object: &Bound<'_, PyAny>) -> PyResult<Option<Found>> {
    let Some(dlpack::Viewed { address, len, gpu }) = dlpack::viewed(object)? else {
        return Ok(None);
    };
    let Ok(keep) = object.call_method0(intern!(object.py(), "untyped_storage")) else {
        return Ok(None);
    };
    let device = gpu.map(|(index, _)| DeviceId { kind: DeviceKind::Cuda, index });
    let order = gpu.map_or(Order::None, |(_, stream)| Order::Stream(CallerStream(stream)));
    Ok(Some(Found {
        range: (address, len),
        parts: None,
        on_gpu: device.is_some(),
        device,
        order,
        keep: keep.unbind(),
    }))
}

/// Torch's current stream on a GPU.
fn current_stream(py: Python<'_>, index: u32) -> PyResult<u64> {
    static RAW: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let raw = RAW.get_or_try_init(py, || -> PyResult<_> {
        let inner = hanging::import(py, "torch._C")?;
        Ok(inner.getattr_opt("_cuda_getCurrentRawStream")?.map(Bound::unbind))
    })?;
    if let Some(raw) = raw {
        return raw.bind(py).call1((index,))?.extract();
    }
    let stream = hanging::call_in(py, "torch.cuda", "current_stream", (index,))?;
    stream.getattr("cuda_stream")?.extract()
}

/// The CUDA Array Interface, versions 2 and 3.
fn interface_of(
    object: &Bound<'_, PyAny>,
    interface: &Bound<'_, PyAny>,
    usage: Use,
) -> PyResult<Found> {
    let py = object.py();
    let interface = interface.cast::<PyDict>()?;
    let missing =
        |name: &str| PyTypeError::new_err(format!("`__cuda_array_interface__` has no `{name}`"));
    let item = |name: &str| interface.get_item(name)?.ok_or_else(|| missing(name));
    let (address, is_read_only): (u64, bool) = item("data")?.extract()?;
    let shape: Vec<i64> = item("shape")?.extract()?;
    let kind: String = item("typestr")?.extract()?;
    if interface.get_item("mask")?.is_some_and(|mask| !mask.is_none()) {
        return Err(refused(usage, "it has a mask"));
    }
    if usage == Use::Target && is_read_only {
        return Err(refused(usage, read_only(object)));
    }
    if kind.contains('O') {
        return Err(refused(usage, REFERENCES));
    }
    let digits = kind.trim_start_matches(|c: char| !c.is_ascii_digit());
    let size: i64 = digits.parse().map_err(|_| missing("typestr"))?;
    let strides = interface.get_item("strides")?.filter(|strides| !strides.is_none());
    if let Some(strides) = strides
        && !dlpack::is_in_one_piece(&shape, &strides.extract::<Vec<i64>>()?, size)
    {
        return Err(refused(usage, not_contiguous(usage)));
    }
    let len = shape.iter().try_fold(size, |all, &len| all.checked_mul(len));
    let len = len.and_then(|len| u64::try_from(len).ok());
    let len = len.ok_or_else(|| refused(usage, "its shape is larger than memory"))?;
    let stream = interface.get_item("stream")?.filter(|stream| !stream.is_none());
    let order = match stream {
        Some(stream) => Order::Stream(CallerStream(stream.extract()?)),
        None => Order::None,
    };
    let keep = (object.clone(), interface.clone()).into_pyobject(py)?.into_any().unbind();
    Ok(Found { range: (address, len), parts: None, on_gpu: true, device: None, order, keep })
}

/// An object that supports DLPack.
fn exchanged(object: &Bound<'_, PyAny>, usage: Use) -> PyResult<Option<Found>> {
    let Some(array) = dlpack::array_of(object)? else { return Ok(None) };
    if usage == Use::Target && (array.is_read_only || never_changes(object)) {
        return Err(refused(usage, read_only(object)));
    }
    if !array.is_contiguous {
        return Err(refused(usage, not_contiguous(usage)));
    }
    let order = match array.is_ordered {
        true => Order::Stream(CallerStream(dlpack::READY_ON)),
        false => Order::None,
    };
    let (address, len, on_gpu) = (array.address, array.len, array.on_gpu);
    let keep = array.capsule;
    Ok(Some(Found { range: (address, len), parts: None, on_gpu, device: None, order, keep }))
}

//! DLPack, versions 0 and 1: the address of an array's bytes, and our buffers as arrays.
//!
//! The structures are those of `dlpack.h` 1.0. Capsules follow the Python specification of DLPack:
//! the consumer of an array renames its capsule, and a capsule that keeps its name frees the array.

#![expect(unsafe_code, reason = "reads and makes the structures of DLPack")]

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use forebay::gpu::{DeviceId, DeviceKind};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

const FUNCTIONS: &CStr = c"dlpack_exchange_api";
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;
/// Elements that only their library can interpret.
const OPAQUE: u8 = 3;
const COMPLEX: u8 = 5;
/// A device of some other kind: the simulated GPU.
const OTHER: i32 = 12;

const READ_ONLY: u64 = 1;
const UNSIGNED: u8 = 1;

#[repr(C)]
struct DlDevice {
    kind: i32,
    index: i32,
}

#[repr(C)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    dimensions: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Plain {
    tensor: DlTensor,
    context: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut Plain)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// The functions of an array's type (`DLPackExchangeAPI` of DLPack 1.2; torch 2.11 has them). They
/// make no Python objects and keep the interpreter's lock.
#[repr(C)]
struct Functions {
    major: u32,
    minor: u32,
    unused: [*const c_void; 4],
    view: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut DlTensor) -> c_int>,
    stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int,
}

/// A tensor of real numbers in one piece.
pub(crate) struct Viewed {
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// On a GPU its number, and torch's current stream.
    pub(crate) gpu: Option<(u32, u64)>,
}

/// Describes a tensor of torch by the functions of its type. `None` without them, and for tensors
/// that torch's methods describe: on other devices, not contiguous, or perhaps a lazy view. A lazy
/// view is complex, or the imaginary part of a conjugate, which is contiguous only if it has one
/// number.
pub(crate) fn viewed(tensor: &Bound<'_, PyAny>) -> PyResult<Option<Viewed>> {
    let py = tensor.py();
    let name = intern!(py, "__dlpack_c_exchange_api__");
    let Some(functions) = tensor.get_type().getattr_opt(name)? else { return Ok(None) };
    let Ok(capsule) = functions.cast::<PyCapsule>() else { return Ok(None) };
    let Ok(functions) = capsule.pointer_checked(Some(FUNCTIONS)) else { return Ok(None) };
    // SAFETY: by DLPack, a capsule of this name holds this structure until the process ends.
    let functions = unsafe { functions.cast::<Functions>().as_ref() };
    let Some(view) = functions.view.filter(|_| functions.major == 1) else { return Ok(None) };
    let mut seen = MaybeUninit::<DlTensor>::zeroed();
    // SAFETY: the tensor is of the functions' type, and this thread is attached.
    if unsafe { view(tensor.as_ptr(), seen.as_mut_ptr()) } != 0 {
        drop(PyErr::take(py));
        return Ok(None);
    }
    // SAFETY: the function has filled it in; zeros are valid as well.
    let seen = unsafe { seen.assume_init() };
    let (len, _) = extent(&seen)?;
    let (shape, strides) = lists(&seen);
    let is_by_rows = strides.len() == shape.len() && is_packed(shape.iter().zip(strides).rev(), 1);
    if !is_by_rows || seen.dtype.code == COMPLEX || len <= 8 {
        return Ok(None);
    }
    let address = (seen.data as u64).saturating_add(seen.byte_offset);
    let gpu = match (seen.device.kind, u32::try_from(seen.device.index)) {
        (CPU | CUDA_HOST, _) => None,
        (CUDA, Ok(number)) => {
            let mut stream = ptr::null_mut();
            // SAFETY: the output outlives the call, and this thread is attached.
            if unsafe { (functions.stream)(CUDA, seen.device.index, &raw mut stream) } != 0 {
                return Err(PyErr::fetch(py));
            }
            Some((number, stream as u64))
        }
        _ => return Ok(None),
    };
    Ok(Some(Viewed { address, len, gpu }))
}

/// An array received by DLPack.
pub(crate) struct Array {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) on_gpu: bool,
    /// Whether it is ready for work queued on [`READY_ON`] from now on.
    pub(crate) is_ordered: bool,
    pub(crate) is_read_only: bool,
    pub(crate) is_contiguous: bool,
    /// Keeps the array alive.
    pub(crate) capsule: Py<PyAny>,
}

/// The stream on which GPU arrays must be ready: the legacy default one.
pub(crate) const READY_ON: u64 = 1;

/// DLPack's kind of an object's device; `None` if it does not support DLPack.
fn kind_of(object: &Bound<'_, PyAny>) -> PyResult<Option<i32>> {
    let attribute = object.getattr_opt(intern!(object.py(), "__dlpack_device__"))?;
    let Some(device) = attribute else { return Ok(None) };
    let (kind, _): (i32, i64) = device.call0()?.extract()?;
    Ok(Some(kind))
}

/// Whether an object reports by DLPack that it is on a GPU.
pub(crate) fn is_on_gpu(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(kind_of(object)?.is_some_and(|kind| !matches!(kind, CPU | CUDA_HOST)))
}

/// The array of an object that supports DLPack; `None` if it does not.
pub(crate) fn array_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Array>> {
    let py = object.py();
    let Some(kind) = kind_of(object)? else { return Ok(None) };
    let on_gpu = match kind {
        CPU | CUDA_HOST => false,
        CUDA | CUDA_MANAGED | OTHER => true,
        other => {
            let text = format!("DLPack device type {other} is not supported: use CUDA or the host");
            return Err(PyBufferError::new_err(text));
        }
    };
    let arguments = PyDict::new(py);
    let is_ordered = matches!(kind, CUDA | CUDA_MANAGED);
    if is_ordered {
        arguments.set_item(intern!(py, "stream"), READY_ON)?;
    }
    let call = object.getattr(intern!(py, "__dlpack__"))?;
    arguments.set_item(intern!(py, "max_version"), (1, 0))?;
    let capsule = match call.call((), Some(&arguments)) {
        // The exporter is older than versioned DLPack.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            arguments.del_item(intern!(py, "max_version"))?;
            call.call((), Some(&arguments))?
        }
        made => made?,
    };
    let capsule = capsule.cast_into::<PyCapsule>()?;
    let (tensor, is_read_only) = tensor_of(&capsule)?;
    let (bytes, is_contiguous) = extent(tensor)?;
    let address = (tensor.data as u64).saturating_add(tensor.byte_offset);
    let capsule = capsule.into_any().unbind();
    let len = bytes;
    let array = Array { address, len, on_gpu, is_ordered, is_read_only, is_contiguous, capsule };
    Ok(Some(array))
}

/// The structure in a capsule, which lives as long as the capsule.
fn tensor_of<'a>(capsule: &'a Bound<'_, PyCapsule>) -> PyResult<(&'a DlTensor, bool)> {
    if let Ok(pointer) = capsule.pointer_checked(Some(VERSIONED)) {
        // SAFETY: by DLPack's specification, a capsule of this name holds this structure until it
        // is renamed, and nothing renames a capsule that only we hold.
        let versioned = unsafe { pointer.cast::<Versioned>().as_ref() };
        if versioned.major != 1 {
            let text = format!("DLPack {}.{} is not supported", versioned.major, versioned.minor);
            return Err(PyBufferError::new_err(text));
        }
        return Ok((&versioned.tensor, versioned.flags & READ_ONLY != 0));
    }
    let pointer = capsule.pointer_checked(Some(PLAIN))?;
    // SAFETY: as above, for this name.
    Ok((unsafe { &pointer.cast::<Plain>().as_ref().tensor }, false))
}

/// Bytes of an array, and whether they are contiguous in row or column order.
fn extent(tensor: &DlTensor) -> PyResult<(u64, bool)> {
    let (shape, strides) = lists(tensor);
    if tensor.dtype.code == OPAQUE {
        let text = "its elements are opaque handles: give an array of numbers";
        return Err(PyBufferError::new_err(text));
    }
    let bits = u64::from(tensor.dtype.bits) * u64::from(tensor.dtype.lanes);
    let items = shape.iter().try_fold(1_u64, |all, &len| all.checked_mul(u64::try_from(len).ok()?));
    let bytes = items.and_then(|items| Some(items.checked_mul(bits)?.div_ceil(8)));
    let bytes = bytes.ok_or_else(|| PyBufferError::new_err("its shape is larger than memory"))?;
    let is_contiguous = strides.is_empty() || is_in_one_piece(shape, strides, 1);
    Ok((bytes, is_contiguous))
}

/// Shape and strides of an array.
fn lists(tensor: &DlTensor) -> (&[i64], &[i64]) {
    let count = usize::try_from(tensor.dimensions).unwrap_or(0);
    let list = |at: *mut i64| match NonNull::new(at) {
        // SAFETY: by DLPack, the array has `ndim` entries.
        Some(at) if count > 0 => unsafe { std::slice::from_raw_parts(at.as_ptr(), count) },
        _ => &[],
    };
    (list(tensor.shape), list(tensor.strides))
}

/// Whether strides are contiguous in row or column order, in units of `unit`.
pub(crate) fn is_in_one_piece(shape: &[i64], strides: &[i64], unit: i64) -> bool {
    let pairs = || shape.iter().zip(strides);
    shape.contains(&0) || is_packed(pairs().rev(), unit) || is_packed(pairs(), unit)
}

/// Whether an array has no gaps, by its lengths and strides from the innermost dimension on.
fn is_packed<'a>(mut pairs: impl Iterator<Item = (&'a i64, &'a i64)>, unit: i64) -> bool {
    let mut expected = unit;
    pairs.all(|(&len, &stride)| {
        let fits = len == 1 || stride == expected;
        expected = expected.saturating_mul(len);
        fits
    })
}

/// DLPack's code of a device; host memory if it is `None`.
pub(crate) fn device_of(device: Option<DeviceId>) -> (i32, i32) {
    let index = |device: DeviceId| i32::try_from(device.index).unwrap_or(0);
    match device {
        None => (CPU, 0),
        Some(device) if device.kind == DeviceKind::Cuda => (CUDA, index(device)),
        Some(device) => (OTHER, index(device)),
    }
}

/// Data that an exported array refers to, freed with the array.
struct Context {
    shape: [i64; 1],
    strides: [i64; 1],
    /// Released with the array, on any thread.
    _owner: Py<PyAny>,
}

/// A capsule with `len` bytes at `address` as an array of `uint8`, which keeps `owner` alive.
pub(crate) fn capsule<'py>(
    owner: &Bound<'py, PyAny>,
    (address, len): (u64, u64),
    device: Option<DeviceId>,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let len = i64::try_from(len).map_err(|_| PyBufferError::new_err("too large for DLPack"))?;
    let context = Context { shape: [len], strides: [1], _owner: owner.clone().unbind() };
    let context = Box::into_raw(Box::new(context));
    let (kind, index) = device_of(device);
    let tensor = DlTensor {
        data: address as *mut c_void,
        device: DlDevice { kind, index },
        dimensions: 1,
        dtype: DlType { code: UNSIGNED, bits: 8, lanes: 1 },
        // SAFETY: just made; its fields do not move until it is freed.
        shape: unsafe { (&raw mut (*context).shape).cast() },
        // SAFETY: as above.
        strides: unsafe { (&raw mut (*context).strides).cast() },
        byte_offset: 0,
    };
    let context = context.cast::<c_void>();
    let (pointer, name, free): (*mut c_void, _, ffi::PyCapsule_Destructor) = if versioned {
        let delete = Some(delete_versioned as unsafe extern "C" fn(_));
        let made = Versioned { major: 1, minor: 0, context, delete, flags: 0, tensor };
        (Box::into_raw(Box::new(made)).cast(), VERSIONED, free_versioned)
    } else {
        let delete = Some(delete_plain as unsafe extern "C" fn(_));
        (Box::into_raw(Box::new(Plain { tensor, context, delete })).cast(), PLAIN, free_plain)
    };
    // SAFETY: the pointer is not null, the name is static, and the destructor frees the target if
    // no consumer has taken it over.
    unsafe {
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(free));
        Bound::from_owned_ptr_or_err(owner.py(), capsule)
    }
}

/// # Safety
/// As DLPack requires of a deleter: called once, for a structure that was made here.
unsafe extern "C" fn delete_plain(at: *mut Plain) {
    // SAFETY: the caller's promise; both were boxed in `capsule`.
    unsafe {
        let made = Box::from_raw(at);
        drop(Box::from_raw(made.context.cast::<Context>()));
    }
}

/// # Safety
/// As for [`delete_plain`].
unsafe extern "C" fn delete_versioned(at: *mut Versioned) {
    // SAFETY: the caller's promise; both were boxed in `capsule`.
    unsafe {
        let made = Box::from_raw(at);
        drop(Box::from_raw(made.context.cast::<Context>()));
    }
}

/// # Safety
/// Called by Python with a capsule that was made here.
unsafe extern "C" fn free_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that still has its name still owns its structure.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) != 0 {
            delete_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        }
    }
}

/// # Safety
/// As for [`free_plain`].
unsafe extern "C" fn free_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `free_plain`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Whether `max_version` of a call requests the versioned structure.
pub(crate) fn wants_version(max_version: Option<&Bound<'_, PyTuple>>) -> PyResult<bool> {
    let Some(version) = max_version else { return Ok(false) };
    Ok(version.get_item(0)?.extract::<u32>()? >= 1)
}

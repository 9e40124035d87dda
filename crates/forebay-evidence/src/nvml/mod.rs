//! NVML's functions, as a table filled from the driver's library at run time.
//!
//! Structures, constants and names are those of `nvml.h`, unchanged since drivers of CUDA 12. A
//! missing function disables only the calls that need it: calls return a number or the reason.
//! `sensors` uses it for a GPU's sensors, `pcie` for the bytes that crossed its link.

#![expect(unsafe_code, reason = "loads a library and declares its functions")]

#[cfg(test)]
pub(crate) mod fake;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use forebay::gpu::DeviceInfo;
use libloading::Library;

use crate::seen::Seen;

/// The library's file name.
pub(crate) const LIBRARY: &str = "libnvidia-ml.so.1";
/// Remedy if the library is missing.
const INSTALL: &str = "install the driver's `libnvidia-ml.so.1`";
/// Remedy if the library does not know a GPU or returns nothing about it.
pub(crate) const LOOK: &str = "look with `nvidia-smi` whether the driver sees this GPU";
/// Longest error text kept from the library, in characters.
const TEXT_LEN_MAX: usize = 256;

/// `nvmlReturn_t`.
type Status = c_uint;
/// `nvmlDevice_t`.
type Opaque = *mut c_void;

/// A number together with the width that NVML reports for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// 32 bits wide: a counter wraps at 4 Gi.
    Narrow(u32),
    /// 64 bits wide.
    Wide(u64),
}

impl Count {
    /// The number as 64 bits.
    pub(crate) const fn value(self) -> u64 {
        match self {
            Self::Narrow(value) => value as u64,
            Self::Wide(value) => value,
        }
    }
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency_us: i64,
    kind: c_uint,
    status: Status,
    value: u64,
}

const _: () = {
    assert!(size_of::<FieldValue>() == 40 && offset_of!(FieldValue, kind) == 24);
    assert!(offset_of!(FieldValue, status) == 28 && offset_of!(FieldValue, value) == 32);
};

impl FieldValue {
    const fn query_of(field: c_uint) -> Self {
        Self { field, scope: 0, timestamp: 0, latency_us: 0, kind: 0, status: 0, value: 0 }
    }

    /// The number, by the type that NVML reports for it; `None` for other types.
    fn count(&self) -> Option<Count> {
        #[expect(clippy::cast_possible_truncation, reason = "an unsigned int fills half of it")]
        match self.kind {
            // No driver exists for big-endian machines.
            1 => Some(Count::Narrow(self.value as u32)),
            2 | 3 => Some(Count::Wide(self.value)),
            _ => None,
        }
    }
}

type FindBy = unsafe extern "C" fn(*const c_char, *mut Opaque) -> Status;
type FieldValues = unsafe extern "C" fn(Opaque, c_int, *mut FieldValue) -> Status;
type ErrorText = unsafe extern "C" fn(Status) -> *const c_char;
/// A function that writes a number about a GPU.
type Fill<T> = unsafe extern "C" fn(Opaque, *mut T) -> Status;

/// The loaded and initialised library, and a GPU that it knows.
#[derive(Debug)]
pub(crate) struct Nvml {
    /// The GPU's handle, valid until the library is shut down.
    device: usize,
    /// The GPU's PCI address, or its UUID.
    pub(crate) name: String,
    shutdown: unsafe extern "C" fn() -> Status,
    by_address: Option<FindBy>,
    by_uuid: Option<FindBy>,
    field_values: Option<FieldValues>,
    power_usage: Option<Fill<c_uint>>,
    event_reasons: Option<Fill<c_ulonglong>>,
    throttle_reasons: Option<Fill<c_ulonglong>>,
    error_text: Option<ErrorText>,
}

impl Nvml {
    /// Loads the library at `path`, and finds a GPU in it.
    pub(crate) fn find(path: &str, info: &DeviceInfo) -> Seen<Self> {
        Seen::tried(Self::load(path), INSTALL).and_then(|mut nvml| {
            let found = nvml.look_up(&info.pci_address, &info.uuid);
            Seen::tried(found.map(|()| nvml), LOOK)
        })
    }

    /// Loads the library and starts it.
    fn load(path: &str) -> Result<Self, String> {
        // SAFETY: the library's initialisers are the driver's own; it is never unloaded.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let source = std::error::Error::source(&error);
            let words = source.map_or_else(|| error.to_string(), ToString::to_string);
            format!("cannot load `{path}`: {words}")
        })?;
        // SAFETY: the functions of these names never had other signatures.
        let (start, nvml) = unsafe {
            let none = |name: &str| format!("`{path}` has no `{name}`");
            let start = function::<unsafe extern "C" fn() -> Status>(&library, c"nvmlInit_v2")
                .ok_or_else(|| none("nvmlInit_v2"))?;
            let nvml = Self {
                device: 0,
                name: String::new(),
                shutdown: function(&library, c"nvmlShutdown")
                    .ok_or_else(|| none("nvmlShutdown"))?,
                by_address: function(&library, c"nvmlDeviceGetHandleByPciBusId_v2"),
                by_uuid: function(&library, c"nvmlDeviceGetHandleByUUID"),
                field_values: function(&library, c"nvmlDeviceGetFieldValues"),
                power_usage: function(&library, c"nvmlDeviceGetPowerUsage"),
                event_reasons: function(&library, c"nvmlDeviceGetCurrentClocksEventReasons"),
                throttle_reasons: function(&library, c"nvmlDeviceGetCurrentClocksThrottleReasons"),
                error_text: function(&library, c"nvmlErrorString"),
            };
            (start, nvml)
        };
        // The table's functions are in the library, so it stays loaded until the process ends.
        std::mem::forget(library);
        // SAFETY: the function expects no arguments.
        let status = unsafe { start() };
        if status == 0 {
            return Ok(nvml);
        }
        let why = nvml.words("nvmlInit_v2", status);
        // Skip `drop`: a library that was not initialised must not be shut down.
        std::mem::forget(nvml);
        Err(why)
    }

    /// Finds a GPU by its PCI address, else by its UUID. A MIG instance shares the address and
    /// the link of the whole GPU.
    fn look_up(&mut self, address: &str, uuid: &str) -> Result<(), String> {
        let mut why = "NVML cannot look for a GPU".to_owned();
        let ways = [
            (self.by_address, address, "nvmlDeviceGetHandleByPciBusId_v2"),
            (self.by_uuid, uuid, "nvmlDeviceGetHandleByUUID"),
        ];
        for (find, name, call) in ways {
            let Some(find) = find.filter(|_| !name.is_empty()) else { continue };
            let Ok(text) = CString::new(name) else { continue };
            let mut device = ptr::null_mut();
            // SAFETY: the text ends in a zero, and the output outlives the call.
            let status = unsafe { find(text.as_ptr(), &raw mut device) };
            if status == 0 && !device.is_null() {
                (self.device, self.name) = (device.expose_provenance(), name.to_owned());
                return Ok(());
            }
            why = format!("{} of `{name}`", self.words(call, status));
        }
        Err(why)
    }

    fn handle(&self) -> Opaque {
        ptr::with_exposed_provenance_mut(self.device)
    }

    /// Reads some fields. The outer error is that of the call, the inner ones those of single
    /// fields.
    pub(crate) fn fields<const N: usize>(
        &self,
        fields: [u32; N],
    ) -> Result<[Result<Count, String>; N], String> {
        const CALL: &str = "nvmlDeviceGetFieldValues";
        let function = self.field_values.ok_or_else(|| lacks(CALL))?;
        let mut values = fields.map(FieldValue::query_of);
        let count = c_int::try_from(N).unwrap_or(c_int::MAX);
        // SAFETY: the handle is of this library, which is not shut down. `values` has `count`
        // entries and outlives the call.
        let status = unsafe { function(self.handle(), count, values.as_mut_ptr()) };
        if status != 0 {
            return Err(self.words(CALL, status));
        }
        Ok(values.map(|value| match (value.status, value.count()) {
            (0, Some(count)) => Ok(count),
            (0, None) => Err(format!("field {} is a number of kind {}", value.field, value.kind)),
            (status, _) => Err(self.words(&format!("field {} of {CALL}", value.field), status)),
        }))
    }

    /// Power in milliwatts. From Ampere on, except GA100, it is an average over a second.
    pub(crate) fn power(&self) -> Result<u32, String> {
        self.filled(self.power_usage, "nvmlDeviceGetPowerUsage", 0)
    }

    /// Why the clocks are lower than they could be: `nvmlClocksEventReason…`, which were called
    /// `nvmlClocksThrottleReason…` before drivers of CUDA 12.2.
    pub(crate) fn reasons(&self) -> Result<u64, String> {
        let either = self.event_reasons.or(self.throttle_reasons);
        self.filled(either, "nvmlDeviceGetCurrentClocksEventReasons", 0)
    }

    /// Calls `function` with `value` as its in-out argument and returns the result.
    fn filled<T>(&self, function: Option<Fill<T>>, call: &str, mut value: T) -> Result<T, String> {
        let function = function.ok_or_else(|| lacks(call))?;
        // SAFETY: the handle is of this library, which is not shut down. The output is of the
        // function's type and outlives the call.
        match unsafe { function(self.handle(), &raw mut value) } {
            0 => Ok(value),
            status => Err(self.words(call, status)),
        }
    }

    /// The error message for a failed call, with the library's text, if any.
    fn words(&self, call: &str, status: Status) -> String {
        let text = self.error_text.and_then(|function| {
            // SAFETY: the function accepts any number.
            let text = unsafe { function(status) };
            // SAFETY: the returned text is a constant of the library and ends in a zero.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
        });
        let plain = |text: &str| -> String {
            text.chars().filter(|c| !c.is_control()).take(TEXT_LEN_MAX).collect()
        };
        match text {
            Some(text) => format!("{call}: {} ({status})", plain(&text)),
            None => format!("{call}: error {status}"),
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the library was initialised once for this value; no handle is used after it.
        unsafe { (self.shutdown)() };
    }
}

fn lacks(call: &str) -> String {
    format!("NVML has no `{call}`")
}

/// A function of the library; `None` if it is missing.
///
/// # Safety
/// `T` is the type of the function.
unsafe fn function<T: Copy>(library: &Library, name: &CStr) -> Option<T> {
    // SAFETY: by the caller's promise.
    unsafe { library.get::<T>(name) }.ok().map(|found| *found)
}

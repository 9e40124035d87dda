//! NVML's functions, as a table that is filled from the driver's library at run time.
//!
//! Structures, constants and names are those of `nvml.h`, the same since drivers of CUDA 12. A
//! missing function takes away what needs it: counters, or rates, or all.

#![expect(unsafe_code, reason = "loads a library and declares its functions")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use libloading::Library;

use super::meter::{Rates, Raw, Reading};

/// `nvmlReturn_t`.
type Status = c_uint;
/// `nvmlDevice_t`.
type Opaque = *mut c_void;

/// `NVML_FI_DEV_PCIE_COUNT_TX_BYTES` and `…_RX_BYTES`: what the GPU sent and received.
const SENT: c_uint = 197;
const RECEIVED: c_uint = 198;
/// `NVML_PCIE_UTIL_TX_BYTES` and `…_RX_BYTES`.
const RATE_SENT: c_uint = 0;
const RATE_RECEIVED: c_uint = 1;
/// Bytes of NVML's KB.
const KB: u64 = 1000;

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
    const fn asking(field: c_uint) -> Self {
        Self { field, scope: 0, timestamp: 0, latency_us: 0, kind: 0, status: 0, value: 0 }
    }

    /// The counter, by the kind of number that it is said to be.
    fn counter(&self) -> Option<Raw> {
        #[expect(clippy::cast_possible_truncation, reason = "an unsigned int fills half of it")]
        match self.kind {
            // On machines with the other order of bytes there is no such driver.
            1 => Some(Raw::Narrow(self.value as u32)),
            2 | 3 => Some(Raw::Wide(self.value)),
            _ => None,
        }
    }
}

type FindBy = unsafe extern "C" fn(*const c_char, *mut Opaque) -> Status;
type FieldValues = unsafe extern "C" fn(Opaque, c_int, *mut FieldValue) -> Status;
type Throughput = unsafe extern "C" fn(Opaque, c_uint, *mut c_uint) -> Status;
type ErrorText = unsafe extern "C" fn(Status) -> *const c_char;

/// The library, started.
#[derive(Debug)]
pub(super) struct Nvml {
    shutdown: unsafe extern "C" fn() -> Status,
    by_address: Option<FindBy>,
    by_uuid: Option<FindBy>,
    field_values: Option<FieldValues>,
    throughput: Option<Throughput>,
    error_text: Option<ErrorText>,
}

/// A GPU of NVML's, which stays valid until the library is shut down.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle(usize);

impl Handle {
    fn pointer(self) -> Opaque {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

impl Nvml {
    /// Loads the library and starts it.
    pub(super) fn load(path: &str) -> Result<Self, String> {
        // SAFETY: the library's initialisers are the driver's own; it is never unloaded.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let source = std::error::Error::source(&error);
            let words = source.map_or_else(|| error.to_string(), ToString::to_string);
            format!("cannot load `{path}`: {words}")
        })?;
        // SAFETY: each function has had this signature since it has had this name.
        let (start, nvml) = unsafe {
            let none = |name: &str| format!("`{path}` has no `{name}`");
            let start = function::<unsafe extern "C" fn() -> Status>(&library, c"nvmlInit_v2")
                .ok_or_else(|| none("nvmlInit_v2"))?;
            let nvml = Self {
                shutdown: function(&library, c"nvmlShutdown")
                    .ok_or_else(|| none("nvmlShutdown"))?,
                by_address: function(&library, c"nvmlDeviceGetHandleByPciBusId_v2"),
                by_uuid: function(&library, c"nvmlDeviceGetHandleByUUID"),
                field_values: function(&library, c"nvmlDeviceGetFieldValues"),
                throughput: function(&library, c"nvmlDeviceGetPcieThroughput"),
                error_text: function(&library, c"nvmlErrorString"),
            };
            (start, nvml)
        };
        // The table's functions lie in the library, so it stays loaded as long as the process.
        std::mem::forget(library);
        // SAFETY: it takes nothing.
        let status = unsafe { start() };
        if status == 0 {
            return Ok(nvml);
        }
        let why = nvml.words("nvmlInit_v2", status);
        // What was not started is not shut down.
        std::mem::forget(nvml);
        Err(why)
    }

    /// Finds a GPU by its PCI address, else by its UUID, and says by which. A part of a GPU has an
    /// address like the whole, whose link it shares.
    pub(super) fn find(&self, address: &str, uuid: &str) -> Result<(Handle, String), String> {
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
                return Ok((Handle(device.expose_provenance()), name.to_owned()));
            }
            why = format!("{} of `{name}`", self.words(call, status));
        }
        Err(why)
    }

    /// Both counters now.
    pub(super) fn read(&self, gpu: Handle) -> Result<Reading, String> {
        const CALL: &str = "nvmlDeviceGetFieldValues";
        let function = self.field_values.ok_or_else(|| format!("NVML has no `{CALL}`"))?;
        let mut values = [FieldValue::asking(RECEIVED), FieldValue::asking(SENT)];
        // SAFETY: the handle is of this library, which is not shut down, and the values outlive
        // the call.
        let status = unsafe { function(gpu.pointer(), 2, values.as_mut_ptr()) };
        if status != 0 {
            return Err(self.words(CALL, status));
        }
        let [received, sent] = values.map(|value| match (value.status, value.counter()) {
            (0, Some(counter)) => Ok(counter),
            (0, None) => Err(format!("field {} is a number of kind {}", value.field, value.kind)),
            (status, _) => Err(self.words(&format!("field {} of {CALL}", value.field), status)),
        });
        Ok(Reading { received: received?, sent: sent? })
    }

    /// Both rates over the last window, in bytes per second.
    pub(super) fn rates(&self, gpu: Handle) -> Result<Rates, String> {
        const CALL: &str = "nvmlDeviceGetPcieThroughput";
        let function = self.throughput.ok_or_else(|| format!("NVML has no `{CALL}`"))?;
        let rate = |which| {
            let mut rate = 0;
            // SAFETY: the handle is of this library, which is not shut down, and the output
            // outlives the call.
            match unsafe { function(gpu.pointer(), which, &raw mut rate) } {
                0 => Ok(u64::from(rate) * KB),
                status => Err(self.words(CALL, status)),
            }
        };
        Ok(Rates { received: rate(RATE_RECEIVED)?, sent: rate(RATE_SENT)? })
    }

    /// What a call's failure means, in the library's words where it has some.
    fn words(&self, call: &str, status: Status) -> String {
        let text = self.error_text.and_then(|function| {
            // SAFETY: it takes any number.
            let text = unsafe { function(status) };
            // SAFETY: what it gives is a constant of the library that ends in a zero.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
        });
        match text {
            Some(text) => format!("{call}: {} ({status})", crate::topology::clean(&text)),
            None => format!("{call}: error {status}"),
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was started once for this value; no handle is used after it.
        unsafe { (self.shutdown)() };
    }
}

/// A function of the library, where it has one of this name.
///
/// # Safety
/// `T` is the type of the function.
unsafe fn function<T: Copy>(library: &Library, name: &CStr) -> Option<T> {
    // SAFETY: by the caller's promise.
    unsafe { library.get::<T>(name) }.ok().map(|found| *found)
}

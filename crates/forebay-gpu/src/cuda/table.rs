//! The CUDA driver's functions, as a table filled from `libcuda.so.1` at run time.
//!
//! Nothing is linked, so one build runs with any driver from CUDA 12.0 on and on machines without
//! one. A name alone does not fix a signature: several functions changed theirs and kept their
//! name. So each entry is looked up by `cuGetProcAddress` at the CUDA version whose signature is
//! declared here, and later drivers still return that one. The versions are those of the `PFN_`
//! types in NVIDIA's `cudaTypedefs.h`.

#![expect(unsafe_code, reason = "loads a library and declares its functions")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::mem;
use std::ptr::{self, NonNull};

use libloading::Library;
use rustix::io::Errno;

use crate::{DeviceError, DeviceResult, NONSENSE};

/// `CUresult`.
pub(crate) type Status = c_int;
/// `CUdevice`: an ordinal.
pub(crate) type Ordinal = c_int;
/// `CUcontext`, `CUstream` and `CUevent`: opaque pointers.
pub(crate) type Opaque = *mut c_void;
/// `CUdeviceptr`.
pub(crate) type Address = u64;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const ERROR_INVALID_HANDLE: Status = 400;
pub(crate) const ERROR_NOT_READY: Status = 600;
pub(crate) const ERROR_CONTEXT_IS_DESTROYED: Status = 709;

/// The oldest supported driver.
const VERSION_MIN: c_int = 12_000;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`: stream 0 is the legacy one. No call here uses stream 0.
const LEGACY_STREAM: u64 = 1;

/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`: sources are read in the stream's order.
pub(crate) const SOURCE_ORDER_STREAM: c_uint = 1;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedHandle(pub(crate) [u8; 64]);

/// `CUmemGenericAllocationHandle`.
pub(crate) type AllocationHandle = u64;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Location {
    kind: c_uint,
    number: c_int,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_HOST`, which has no number.
    pub(crate) const HOST: Self = Self { kind: 2, number: 0 };

    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub(crate) const fn gpu(ordinal: Ordinal) -> Self {
        Self { kind: 1, number: ordinal }
    }

    /// The GPU's ordinal; `None` for the host.
    #[cfg(any(test, feature = "mock"))]
    pub(crate) fn ordinal(self) -> Option<Ordinal> {
        (self.kind == 1).then_some(self.number)
    }
}

/// `CUmemcpyAttributes`. The hints only matter for managed memory and for memory that CUDA did not
/// allocate.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CopyAttributes {
    pub(crate) source_order: c_uint,
    pub(crate) source_hint: Location,
    pub(crate) target_hint: Location,
    pub(crate) flags: c_uint,
}

/// Arguments: targets, sources, lengths and their count; attributes, the first copy of each and
/// their count; the index of the copy that failed; the stream.
pub(crate) type MemcpyBatchAsync = unsafe extern "C" fn(
    *mut Address,
    *mut Address,
    *mut usize,
    usize,
    *mut CopyAttributes,
    *mut usize,
    usize,
    *mut usize,
    Opaque,
) -> Status;

macro_rules! cuda_table {
    ($($field:ident: $name:literal since $version:literal fn($($argument:ty),*);)*) => {
        /// The driver's functions, each at the version whose signature is declared here.
        #[derive(Debug)]
        pub struct CudaTable {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> Status,)*
            /// `cuMemcpyBatchAsync` as of CUDA 12.8, which has an argument for the index of the
            /// copy that failed. CUDA 13.0 dropped that argument and kept the name; newer drivers
            /// still return the old function for version 12.8. Absent before 12.8.
            pub(crate) memcpy_batch_async: Option<MemcpyBatchAsync>,
            /// The functions that load and start kernels.
            pub(crate) kernels: Option<KernelTable>,
        }

        impl CudaTable {
            /// Looks up every entry; a missing required one is an error.
            fn fill(resolver: &Resolver) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        let address = resolver.find($name, $version)?;
                        // SAFETY: the driver returns the function of this name as of this version,
                        // whose signature is the field's.
                        unsafe {
                            mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($argument),*) -> Status,
                            >(address)
                        }
                    },)*
                    memcpy_batch_async: resolver.find(c"cuMemcpyBatchAsync", 12_080).ok().map(
                        |address| {
                            // SAFETY: as above.
                            unsafe { mem::transmute::<NonNull<c_void>, MemcpyBatchAsync>(address) }
                        },
                    ),
                    kernels: KernelTable::find(resolver),
                })
            }

            /// Name, version and address of every required entry.
            #[cfg(test)]
            pub(crate) fn entries(&self) -> Vec<(&'static CStr, c_int, Opaque)> {
                vec![$(($name, $version, self.$field as Opaque),)*]
            }
        }
    };
}

cuda_table! {
    init: c"cuInit" since 2_000 fn(c_uint);
    driver_get_version: c"cuDriverGetVersion" since 2_020 fn(*mut c_int);
    get_error_name: c"cuGetErrorName" since 6_000 fn(Status, *mut *const c_char);
    get_error_string: c"cuGetErrorString" since 6_000 fn(Status, *mut *const c_char);
    device_get_count: c"cuDeviceGetCount" since 2_000 fn(*mut c_int);
    device_get: c"cuDeviceGet" since 2_000 fn(*mut Ordinal, c_int);
    device_get_name: c"cuDeviceGetName" since 2_000 fn(*mut c_char, c_int, Ordinal);
    device_get_uuid: c"cuDeviceGetUuid" since 11_040 fn(*mut [u8; 16], Ordinal);
    device_get_pci_bus_id: c"cuDeviceGetPCIBusId" since 4_010 fn(*mut c_char, c_int, Ordinal);
    device_total_mem: c"cuDeviceTotalMem" since 3_020 fn(*mut usize, Ordinal);
    primary_ctx_retain: c"cuDevicePrimaryCtxRetain" since 7_000 fn(*mut Opaque, Ordinal);
    primary_ctx_release: c"cuDevicePrimaryCtxRelease" since 11_000 fn(Ordinal);
    ctx_get_id: c"cuCtxGetId" since 12_000 fn(Opaque, *mut u64);
    ctx_get_current: c"cuCtxGetCurrent" since 4_000 fn(*mut Opaque);
    ctx_push_current: c"cuCtxPushCurrent" since 4_000 fn(Opaque);
    ctx_pop_current: c"cuCtxPopCurrent" since 4_000 fn(*mut Opaque);
    thread_exchange_stream_capture_mode: c"cuThreadExchangeStreamCaptureMode" since 10_010
        fn(*mut c_int);
    mem_get_info: c"cuMemGetInfo" since 3_020 fn(*mut usize, *mut usize);
    mem_alloc: c"cuMemAlloc" since 3_020 fn(*mut Address, usize);
    mem_free: c"cuMemFree" since 3_020 fn(Address);
    mem_get_address_range: c"cuMemGetAddressRange" since 3_020
        fn(*mut Address, *mut usize, Address);
    mem_retain_allocation_handle: c"cuMemRetainAllocationHandle" since 11_000
        fn(*mut AllocationHandle, *mut c_void);
    mem_release: c"cuMemRelease" since 10_020 fn(AllocationHandle);
    mem_get_access: c"cuMemGetAccess" since 10_020 fn(*mut u64, *const Location, Address);
    mem_host_register: c"cuMemHostRegister" since 6_050 fn(*mut c_void, usize, c_uint);
    mem_host_unregister: c"cuMemHostUnregister" since 4_000 fn(*mut c_void);
    ipc_get_mem_handle: c"cuIpcGetMemHandle" since 4_010 fn(*mut SharedHandle, Address);
    ipc_open_mem_handle: c"cuIpcOpenMemHandle" since 11_000
        fn(*mut Address, SharedHandle, c_uint);
    ipc_close_mem_handle: c"cuIpcCloseMemHandle" since 4_010 fn(Address);
    memcpy_htod_async: c"cuMemcpyHtoDAsync" since 3_020 fn(Address, *const c_void, usize, Opaque);
    memcpy_dtoh_async: c"cuMemcpyDtoHAsync" since 3_020 fn(*mut c_void, Address, usize, Opaque);
    memcpy_dtod_async: c"cuMemcpyDtoDAsync" since 3_020 fn(Address, Address, usize, Opaque);
    device_can_access_peer: c"cuDeviceCanAccessPeer" since 4_000 fn(*mut c_int, Ordinal, Ordinal);
    ctx_enable_peer_access: c"cuCtxEnablePeerAccess" since 4_000 fn(Opaque, c_uint);
    memset_d8_async: c"cuMemsetD8Async" since 3_020 fn(Address, u8, usize, Opaque);
    pointer_get_attributes: c"cuPointerGetAttributes" since 7_000
        fn(c_uint, *mut c_uint, *mut *mut c_void, Address);
    stream_create: c"cuStreamCreateWithPriority" since 5_050 fn(*mut Opaque, c_uint, c_int);
    stream_destroy: c"cuStreamDestroy" since 4_000 fn(Opaque);
    stream_synchronize: c"cuStreamSynchronize" since 2_000 fn(Opaque);
    stream_query: c"cuStreamQuery" since 2_000 fn(Opaque);
    stream_wait_event: c"cuStreamWaitEvent" since 3_020 fn(Opaque, Opaque, c_uint);
    stream_is_capturing: c"cuStreamIsCapturing" since 10_000 fn(Opaque, *mut c_int);
    stream_wait_value32: c"cuStreamWaitValue32" since 11_070 fn(Opaque, Address, u32, c_uint);
    stream_write_value32: c"cuStreamWriteValue32" since 11_070 fn(Opaque, Address, u32, c_uint);
    device_get_attribute: c"cuDeviceGetAttribute" since 2_000 fn(*mut c_int, c_int, Ordinal);
    event_create: c"cuEventCreate" since 2_000 fn(*mut Opaque, c_uint);
    event_record: c"cuEventRecord" since 2_000 fn(Opaque, Opaque);
    event_query: c"cuEventQuery" since 2_000 fn(Opaque);
    event_destroy: c"cuEventDestroy" since 4_000 fn(Opaque);
    event_elapsed_time: c"cuEventElapsedTime" since 2_000 fn(*mut f32, Opaque, Opaque);
}

/// `cuGetProcAddress`, in either of its versions.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Resolver {
    /// From CUDA 12.0 on; the last argument returns why a function is missing.
    Second(unsafe extern "C" fn(*const c_char, *mut Opaque, c_int, u64, *mut c_int) -> Status),
    /// From CUDA 11.3 on.
    First(unsafe extern "C" fn(*const c_char, *mut Opaque, c_int, u64) -> Status),
}

impl Resolver {
    fn in_library(library: &Library, path: &str) -> Result<Self, String> {
        // SAFETY: the driver's function of this name has this signature from CUDA 12.0 on.
        if let Ok(function) = unsafe { library.get(c"cuGetProcAddress_v2") } {
            return Ok(Self::Second(*function));
        }
        // SAFETY: the driver's function of this name has this signature from CUDA 11.3 on.
        match unsafe { library.get(c"cuGetProcAddress") } {
            Ok(function) => Ok(Self::First(*function)),
            Err(_) => Err(format!(
                "`{path}` has no cuGetProcAddress: it is no NVIDIA driver of CUDA 12.0 or later"
            )),
        }
    }

    pub(super) fn find(&self, name: &CStr, version: c_int) -> Result<NonNull<c_void>, String> {
        let mut address = ptr::null_mut();
        // SAFETY: the name ends in a zero, and the outputs outlive the call.
        let status = unsafe {
            match self {
                Self::Second(function) => {
                    let mut detail = 0;
                    function(
                        name.as_ptr(),
                        &raw mut address,
                        version,
                        LEGACY_STREAM,
                        &raw mut detail,
                    )
                }
                Self::First(function) => {
                    function(name.as_ptr(), &raw mut address, version, LEGACY_STREAM)
                }
            }
        };
        NonNull::new(address).filter(|_| status == SUCCESS).ok_or_else(|| {
            let name = name.to_string_lossy();
            match early_error(status) {
                Some((error, meaning)) => format!("no `{name}`: {error} ({status}): {meaning}"),
                None => format!("the driver has no `{name}` (error {status})"),
            }
        })
    }
}

/// The error for a call that reports success but returns an impossible value. Using that value
/// could crash the process or corrupt memory.
#[cold]
pub(super) fn nonsense(call: &'static str, answer: impl fmt::Display) -> DeviceError {
    let detail = format!("the driver reports success, and {answer}");
    DeviceError { call, code: -1, name: NONSENSE.into(), detail }
}

/// Name and meaning of errors that occur before the driver can name them itself.
fn early_error(status: Status) -> Option<(&'static str, &'static str)> {
    Some(match status {
        34 => ("CUDA_ERROR_STUB_LIBRARY", "the library is one to link against, without a driver"),
        803 => ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "the library and the kernel module differ"),
        _ => return None,
    })
}

impl CudaTable {
    /// Loads a driver library and initialises the driver.
    pub(crate) fn load(path: &str) -> Result<Self, String> {
        // SAFETY: the library's initialisers are the driver's own; it is never unloaded.
        let library = unsafe { Library::new(path) }.map_err(|error| loader_reason(path, &error))?;
        let resolver = Resolver::in_library(&library, path)?;
        // The table's functions are in the library, so it stays loaded until the process ends.
        mem::forget(library);
        Self::start(&resolver)
    }

    /// Fills the table and initialises the driver.
    pub(crate) fn start(resolver: &Resolver) -> Result<Self, String> {
        let table = Self::fill(resolver)?;
        let version = table.cuda_version().map_err(|error| error.to_string())?;
        if version < VERSION_MIN {
            let (old, oldest) = (version_text(version), version_text(VERSION_MIN));
            return Err(format!("the driver speaks CUDA {old}, at least {oldest} is needed"));
        }
        // SAFETY: zero is the only valid flag.
        let status = unsafe { (table.init)(0) };
        table.check("cuInit", status).map_err(|error| error.to_string())?;
        Ok(table)
    }

    /// The highest CUDA version that the driver supports, as 1000 × major + 10 × minor.
    pub(crate) fn cuda_version(&self) -> DeviceResult<c_int> {
        let mut version = 0;
        // SAFETY: the output outlives the call.
        let status = unsafe { (self.driver_get_version)(&raw mut version) };
        self.check("cuDriverGetVersion", status)?;
        Ok(version)
    }

    /// Turns a status into a result.
    #[inline]
    pub(crate) fn check(&self, call: &'static str, status: Status) -> DeviceResult<()> {
        if status == SUCCESS { Ok(()) } else { Err(self.error(call, status)) }
    }

    #[cold]
    pub(crate) fn error(&self, call: &'static str, status: Status) -> DeviceError {
        let early = early_error(status);
        let name = self.text(self.get_error_name, status);
        let detail = self.text(self.get_error_string, status);
        let name = name.or_else(|| early.map(|(name, _)| name.to_owned()));
        let detail = detail.or_else(|| early.map(|(_, meaning)| meaning.to_owned()));
        let name = name.unwrap_or_else(|| format!("CUDA_ERROR_{status}"));
        let detail = detail.unwrap_or_default();
        DeviceError { call, code: status, name, detail }
    }

    fn text(
        &self,
        query: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        status: Status,
    ) -> Option<String> {
        let mut text = ptr::null();
        // SAFETY: the output outlives the call.
        let known = unsafe { query(status, &raw mut text) } == SUCCESS && !text.is_null();
        // SAFETY: the driver returns a constant of the library that ends in a zero.
        known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// `13.0` for 13000.
pub(crate) fn version_text(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Why a library cannot be loaded. The error's own text names only the call; its source has the
/// loader's message.
fn loader_reason(path: &str, error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    let message = source.map_or_else(|| error.to_string(), ToString::to_string);
    match is_missing(path, &message) {
        true => format!("no NVIDIA driver found ({path})"),
        false if message.starts_with(path) => format!("cannot load the NVIDIA driver: {message}"),
        false => format!("cannot load the NVIDIA driver: {path}: {message}"),
    }
}

/// Whether the loader found no file for `path`. Its message then names the path and ends with the
/// text of `ENOENT`, in the language of this process. If a library that the driver needs is
/// missing, the message names that one.
pub(super) fn is_missing(path: &str, message: &str) -> bool {
    let error = io::Error::from(Errno::NOENT).to_string();
    let text = error.split(" (os error").next().unwrap_or_default();
    message.strip_prefix(path).is_some_and(|rest| rest.starts_with(": ") && rest.ends_with(text))
}

/// Arguments: function, grid size (3), block size (3), bytes of shared memory, stream, kernel
/// arguments, extra options.
pub(crate) type LaunchKernel = unsafe extern "C" fn(
    Opaque,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Opaque,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;

/// The driver's functions that load and start kernels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelTable {
    /// `cuModuleLoadData`: makes a module from PTX.
    pub(crate) module_load_data: unsafe extern "C" fn(*mut Opaque, *const c_void) -> Status,
    /// `cuModuleGetFunction`: looks up a function in a module.
    pub(crate) module_get_function:
        unsafe extern "C" fn(*mut Opaque, Opaque, *const c_char) -> Status,
    /// `cuModuleUnload`.
    pub(crate) module_unload: unsafe extern "C" fn(Opaque) -> Status,
    /// `cuLaunchKernel`.
    pub(crate) launch_kernel: LaunchKernel,
}

impl KernelTable {
    /// All functions, or `None` if one is missing.
    fn find(resolver: &Resolver) -> Option<Self> {
        let find = |name, version| resolver.find(name, version).ok();
        let load = find(c"cuModuleLoadData", 2_000)?;
        let get = find(c"cuModuleGetFunction", 2_000)?;
        let unload = find(c"cuModuleUnload", 2_000)?;
        let launch = find(c"cuLaunchKernel", 4_000)?;
        // SAFETY: the driver returns the functions of these names as of these versions, whose
        // signatures are the fields'.
        unsafe {
            Some(Self {
                module_load_data: mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(*mut Opaque, *const c_void) -> Status,
                >(load),
                module_get_function: mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(*mut Opaque, Opaque, *const c_char) -> Status,
                >(get),
                module_unload: mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(Opaque) -> Status,
                >(unload),
                launch_kernel: mem::transmute::<NonNull<c_void>, LaunchKernel>(launch),
            })
        }
    }
}

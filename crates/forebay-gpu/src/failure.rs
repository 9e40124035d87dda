//! Errors of calls into a GPU's driver, and of calls that are refused before they reach it.

use forebay_base::process::Home;

/// A call into a GPU's driver that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code}){}{detail}", if detail.is_empty() { "" } else { ": " })]
pub struct DeviceError {
    /// The driver's function.
    pub call: &'static str,
    /// Its error number.
    pub code: i32,
    /// The error's name, as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The driver's description; may be empty.
    pub detail: String,
}

/// Name of the error for a driver that reports success but returns an impossible value.
pub const NONSENSE: &str = "NONSENSE";

impl DeviceError {
    /// Whether the driver returned an impossible value.
    #[must_use]
    pub fn is_nonsense(&self) -> bool {
        self.name == NONSENSE
    }

    /// Whether the GPU is out of memory.
    #[must_use]
    pub fn is_want_of_memory(&self) -> bool {
        self.name.ends_with("_ERROR_OUT_OF_MEMORY")
    }

    /// Whether the stream or event is unknown to the device or already destroyed.
    #[must_use]
    pub fn is_unknown_handle(&self) -> bool {
        let is_named = ["_ERROR_INVALID_HANDLE", "_ERROR_UNKNOWN_HANDLE"]
            .iter()
            .any(|end| self.name.ends_with(end));
        // A `create` call that exceeds the limit fails with the same number.
        is_named && !self.call.to_ascii_lowercase().contains("create")
    }

    /// Whether every later call of this process to the GPU will fail too, as the driver's reference
    /// says of these errors (`CUresult`).
    #[must_use]
    pub fn is_loss(&self) -> bool {
        let name = self.name.strip_prefix("CUDA_ERROR_").unwrap_or(&self.name);
        matches!(
            name,
            "DEVICE_UNAVAILABLE"
                | "DEINITIALIZED"
                | "ECC_UNCORRECTABLE"
                | "NVLINK_UNCORRECTABLE"
                | "HARDWARE_STACK_ERROR"
                | "ILLEGAL_ADDRESS"
                | "ILLEGAL_INSTRUCTION"
                | "MISALIGNED_ADDRESS"
                | "INVALID_ADDRESS_SPACE"
                | "INVALID_PC"
                | "LAUNCH_FAILED"
                | "LAUNCH_TIMEOUT"
                | "ASSERT"
                | "TENSOR_MEMORY_LEAK"
                | "MPS_CLIENT_TERMINATED"
                | "EXTERNAL_DEVICE"
                | "CONTEXT_IS_DESTROYED"
                | "CONTAINED"
                | "UNKNOWN"
                | "SIM_ERROR_DEVICE_LOST"
        )
    }
}

/// The result of a call into a GPU's driver.
pub type DeviceResult<T> = Result<T, DeviceError>;

/// Refuses the call in a forked child of the process that opened the device.
///
/// # Errors
/// The error that the CUDA driver reports itself when it detects this.
#[inline]
pub fn check_home(home: &Home, call: &'static str) -> DeviceResult<()> {
    if home.is_here() { Ok(()) } else { Err(forked(home, call)) }
}

#[cold]
fn forked(home: &Home, call: &'static str) -> DeviceError {
    let process = home.number();
    let detail = format!("it was opened in process {process}, and this one was forked from it");
    DeviceError { call, code: 3, name: "CUDA_ERROR_NOT_INITIALIZED".into(), detail }
}

/// Refuses a range that does not start and end at a multiple of 16: the kernel works on pairs of
/// 8-byte words.
///
/// # Errors
/// `UNALIGNED`.
pub fn check_pairs(call: &'static str, address: u64, len: u64) -> DeviceResult<()> {
    if address.is_multiple_of(16) && len.is_multiple_of(16) {
        return Ok(());
    }
    let (name, detail) =
        ("UNALIGNED".to_owned(), format!("{address:#x}+{len} is no pairs of words"));
    Err(DeviceError { call, code: -1, name, detail })
}

/// The error of a device that lacks an operation.
pub(crate) fn unsupported(call: &'static str) -> DeviceError {
    let name = "UNSUPPORTED".to_owned();
    DeviceError { call, code: -1, name, detail: "not on this device".into() }
}

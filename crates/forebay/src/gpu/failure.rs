//! Calls into a GPU's driver that failed, and those that are refused before.

use crate::process::Home;

/// A call into a GPU's driver that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code}){}{detail}", if detail.is_empty() { "" } else { ": " })]
pub struct DeviceError {
    /// The driver's function.
    pub call: &'static str,
    /// Its error number.
    pub code: i32,
    /// The number's name, as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// What the driver says about it; may be empty.
    pub detail: String,
}

/// The name of the error where a driver reports success and answers what cannot be.
pub(crate) const NONSENSE: &str = "NONSENSE";

impl DeviceError {
    /// Whether the driver contradicts itself.
    pub(crate) fn is_nonsense(&self) -> bool {
        self.name == NONSENSE
    }

    /// Whether the GPU has no room.
    pub(crate) fn is_want_of_memory(&self) -> bool {
        self.name.ends_with("_ERROR_OUT_OF_MEMORY")
    }

    /// Whether a stream or an event that was named is none of the GPU's, or no more.
    pub(crate) fn is_unknown_handle(&self) -> bool {
        let is_named = ["_ERROR_INVALID_HANDLE", "_ERROR_UNKNOWN_HANDLE"]
            .iter()
            .any(|end| self.name.ends_with(end));
        // Making one more than there can be fails with the same number.
        is_named && !self.call.to_ascii_lowercase().contains("create")
    }

    /// Whether the GPU will answer this process with nothing but errors from now on, as the
    /// driver's reference says of these numbers (`CUresult`).
    pub(crate) fn is_loss(&self) -> bool {
        let name = self.name.strip_prefix("CUDA_ERROR_").unwrap_or(&self.name);
        matches!(
            name,
            "DEVICE_UNAVAILABLE"
                | "DEINITIALIZED"
                | "ECC_UNCORRECTABLE"
                | "NVLINK_UNCORRECTABLE"
                | "HARDWARE_STACK_ERROR"
                | "ILLEGAL_ADDRESS"
                | "LAUNCH_FAILED"
                | "CONTEXT_IS_DESTROYED"
                | "CONTAINED"
                | "UNKNOWN"
                | "SIM_ERROR_DEVICE_LOST"
        )
    }
}

/// What a call into a GPU's driver came to.
pub type DeviceResult<T> = Result<T, DeviceError>;

/// Refuses a call of a child of the process that opened a device.
#[inline]
pub(crate) fn check_home(home: &Home, call: &'static str) -> DeviceResult<()> {
    if home.is_here() { Ok(()) } else { Err(forked(home, call)) }
}

#[cold]
fn forked(home: &Home, call: &'static str) -> DeviceError {
    let process = home.number();
    let detail = format!("it was opened in process {process}, and this one was forked from it");
    // What the CUDA driver says itself, where it notices.
    DeviceError { call, code: 3, name: "CUDA_ERROR_NOT_INITIALIZED".into(), detail }
}

/// Refuses what does not begin and end at a multiple of 16: kernels take memory by pairs of words.
pub(super) fn check_pairs(call: &'static str, address: u64, len: u64) -> DeviceResult<()> {
    if address.is_multiple_of(16) && len.is_multiple_of(16) {
        return Ok(());
    }
    let (name, detail) =
        ("UNALIGNED".to_owned(), format!("{address:#x}+{len} is no pairs of words"));
    Err(DeviceError { call, code: -1, name, detail })
}

/// What a device without an operation answers.
pub(super) fn unsupported(call: &'static str) -> DeviceError {
    let name = "UNSUPPORTED".to_owned();
    DeviceError { call, code: -1, name, detail: "not on this device".into() }
}

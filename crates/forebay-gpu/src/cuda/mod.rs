//! NVIDIA GPUs through our own table of driver functions.
//!
//! The library is loaded once per process, on first use; if that fails, the reason is kept. GPU
//! properties are queried anew each time.

mod capture;
mod copies;
#[cfg(test)]
mod corrupt_tests;
mod device;
mod driver;
mod handles;
pub(crate) mod kernels;
#[allow(clippy::unwrap_used, reason = "only tests use it")]
#[doc(hidden)]
#[cfg(any(test, feature = "mock"))]
pub mod mock;
mod query;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use super::{AddressKind, DeviceId, DeviceInfo, DeviceKind};
pub use device::CudaDevice;
pub(crate) use driver::driver;
#[doc(hidden)]
pub use table::CudaTable;

/// The kind of memory at `address`, queried without a context.
pub fn address_kind(address: u64) -> AddressKind {
    let first = DeviceId { kind: DeviceKind::Cuda, index: 0 };
    let Ok(cuda) = driver() else { return AddressKind::Unknown };
    let _relaxed = capture::Relaxed::enter(cuda);
    query::kind(cuda, address, first)
}

/// The CUDA GPUs of this machine.
///
/// # Errors
/// Why there are none, as text for users.
pub fn visible() -> Result<Vec<DeviceInfo>, String> {
    let gpus = driver().and_then(|cuda| query::all(cuda).map_err(|error| error.to_string()));
    let reason = match gpus {
        Ok(gpus) if gpus.is_empty() => "the driver reports no GPU".to_owned(),
        Err(reason) if reason.contains("CUDA_ERROR_NO_DEVICE") => reason,
        other => return other,
    };
    // The variable hides GPUs, so name it when none is visible.
    Err(match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(value) => format!("{reason} (CUDA_VISIBLE_DEVICES is `{value}`)"),
        Err(_) => reason,
    })
}

//! The GPUs of `forebay-gpu`, and the choice of a GPU by its name.

mod select;

pub(crate) use cuda::address_kind;
pub use cuda::visible;
#[cfg(test)]
pub(crate) use forebay_gpu::sealed;
pub use forebay_gpu::{
    AddressKind, BATCH_MAX, CallerStream, Device, DeviceCopy, DeviceError, DeviceId, DeviceInfo,
    DeviceKind, DeviceResult, Event, Signal, Stream, cuda, sim,
};
pub(crate) use forebay_gpu::{
    DirectProvider, GpuName, NotDeviceMemory, Port, PortError, check_range, is_quiet,
};
pub use select::{GpuSelector, absence_reason, open};

//! GPUs: the trait [`Device`] and the simulated GPU of `forebay-gpu`, [`cuda`], and the choice of a
//! GPU by its name.

pub mod cuda;
mod select;

pub use forebay_gpu::{
    AddressKind, BATCH_MAX, CallerStream, Device, DeviceCopy, DeviceError, DeviceId, DeviceInfo,
    DeviceKind, DeviceResult, Event, Signal, Stream, sim,
};
pub(crate) use forebay_gpu::{
    CopyDirection, GpuName, NONSENSE, NotDeviceMemory, check_home, check_pairs, check_range,
    is_quiet, sealed,
};
pub(crate) use select::address_kind;
pub use select::{GpuSelector, absence_reason, open, visible};

//! From what a person writes (`0`, `GPU-…`, `0000:1b:00.0`, `none`, `sim:bandwidth=50GB/s`) to a GPU.

use std::sync::Arc;

use super::sim::SimConfig;
use super::{Device, DeviceInfo};
use crate::error::Result;

/// Which GPU the caller wants.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum GpuSelector {
    /// The first CUDA GPU, else none: host memory is the target then.
    #[default]
    Auto,
    /// No GPU: host memory.
    None,
    /// One CUDA GPU by index, UUID (a unique prefix is enough) or PCI address.
    Cuda(String),
    /// A simulated GPU.
    Sim(SimConfig),
}

impl std::str::FromStr for GpuSelector {
    type Err = crate::Error;
    fn from_str(_text: &str) -> Result<Self> {
        todo!()
    }
}

/// The GPU that `wanted` names; `None` where it names host memory.
///
/// # Errors
/// [`Error::NoDevice`](crate::Error::NoDevice) where it cannot be had.
pub fn open(wanted: &GpuSelector) -> Result<Option<Arc<dyn Device>>> {
    let _ = wanted;
    todo!()
}

/// The CUDA GPUs of this machine, or why there are none.
///
/// # Errors
/// The reason, as text for a person.
pub fn visible() -> Result<Vec<DeviceInfo>, String> {
    todo!()
}

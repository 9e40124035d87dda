//! NVIDIA GPUs through our own table of driver functions.

use super::DeviceInfo;
use super::sim::SimDevice;

/// An NVIDIA GPU.
#[derive(Debug)]
pub struct CudaDevice {}

impl CudaDevice {
    pub(super) fn open(_index: u32) -> Result<SimDevice, String> {
        Err("this build has no CUDA table yet".into())
    }
}

/// The CUDA GPUs of this machine.
pub(super) fn visible() -> Result<Vec<DeviceInfo>, String> {
    Err("this build has no CUDA table yet".into())
}

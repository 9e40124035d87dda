//! The target memory: a GPU's, or the host's, with the reason.

use std::sync::Arc;

use forebay::gpu::{self, Device, GpuSelector};
use forebay::{Buffer, Engine, Route};

use crate::failure::{Failure, Result};

/// The warning about a simulated GPU.
pub const SIMULATED: &str = "the GPU is simulated: its numbers say nothing about hardware; leave \
                             `--gpu` out on a machine with a GPU";

/// The requested memory.
#[derive(Debug, Clone)]
pub struct Target {
    /// The GPU; `None` for host memory.
    pub device: Option<Arc<dyn Device>>,
    /// Why there is no GPU.
    pub reason: Option<String>,
}

impl Target {
    /// Opens the GPU that `wanted` names, or the first, or none.
    ///
    /// # Errors
    /// The named GPU is unavailable.
    pub fn find(engine: &Engine, wanted: Option<&GpuSelector>) -> Result<Self> {
        let wanted = wanted.cloned().unwrap_or_default();
        let device = engine.device(&wanted)?;
        let reason = match (&device, wanted) {
            (Some(_), _) => None,
            (None, GpuSelector::None) => Some("`--gpu none` was given".into()),
            (None, _) => Some(match gpu::visible() {
                Err(reason) => reason,
                Ok(_) => "no GPU was found".into(),
            }),
        };
        Ok(Self { device, reason })
    }

    /// Checks that there is a GPU if the route requires one.
    ///
    /// # Errors
    /// If there is none, with the reason.
    pub fn check(&self, required: Option<Route>) -> Result<()> {
        match (&self.reason, required) {
            (Some(reason), Some(Route::Direct)) => {
                Err(Failure::new("cannot move bytes by the route `direct` without a GPU")
                    .because(reason)
                    .hint("`forebay doctor` lists what the route requires; or omit `--route`"))
            }
            _ => Ok(()),
        }
    }

    /// Its name: `host`, `cuda:0`, `sim:0`.
    #[must_use]
    pub fn name(&self) -> String {
        self.device.as_ref().map_or_else(|| "host".into(), |gpu| gpu.id().to_string())
    }

    /// True if host memory simulates the GPU.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.info().simulated)
    }

    /// Warnings about the target.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        if self.is_simulated() {
            return vec![SIMULATED.into()];
        }
        let host = |reason: &String| {
            format!(
                "the target is host memory: {reason}; `--gpu sim` shows every row with a simulated \
                 GPU"
            )
        };
        self.reason.iter().map(host).collect()
    }

    /// Allocates `len` bytes, one or more.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate(&self, engine: &Engine, len: u64) -> Result<Buffer> {
        Ok(match &self.device {
            None => engine.allocate_pinned(len)?,
            Some(device) => engine.allocate(device.id(), len)?,
        })
    }
}

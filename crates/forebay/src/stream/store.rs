//! The memory of a stream on its GPU.

use std::sync::Arc;

use super::layer::Unit;
use crate::engine::Engine;
use crate::error::Result;
use crate::gpu::Device;
use crate::memory::Buffer;

/// Buffers for layers.
#[derive(Debug)]
pub(super) struct Store {
    /// Each as large as the largest unit.
    pub(super) buffers: Vec<Buffer>,
}

impl Store {
    pub(super) fn new(
        engine: &Engine,
        device: &Arc<dyn Device>,
        units: &[Unit],
        count: usize,
    ) -> Result<Self> {
        let largest = units.iter().map(|unit| unit.len).max().unwrap_or(0);
        let buffers = (0..count).map(|_| engine.allocate(device.id(), largest));
        Ok(Self { buffers: buffers.collect::<Result<Vec<Buffer>>>()? })
    }
}

//! The GPU memory of a stream.

use std::ops::RangeInclusive;
use std::sync::Arc;

use forebay::gpu::Device;
use forebay::{Buffer, Engine, Error, Operation, Result};

use super::layer::Unit;

/// Buffers for layers.
#[derive(Debug)]
pub(super) struct Store {
    /// All are as large as the largest unit.
    pub(super) buffers: Vec<Buffer>,
}

impl Store {
    /// Allocates the largest number of buffers in `counts`, or down to the smallest if the GPU is
    /// short of memory.
    ///
    /// # Errors
    /// Errors of the GPU; lack of memory as one of [`Operation::GiveLayers`].
    pub(super) fn new(
        engine: &Engine,
        device: &Arc<dyn Device>,
        units: &[Unit],
        counts: &RangeInclusive<usize>,
    ) -> Result<Self> {
        let (least, most) = (*counts.start(), *counts.end());
        let largest = units.iter().map(|unit| unit.len).max().unwrap_or(0);
        let allocate = |count: usize| {
            let buffers = (0..count).map(|_| engine.allocate(device.id(), largest));
            buffers.collect::<Result<Vec<Buffer>>>()
        };
        let (count, made) = match allocate(most) {
            Err(error) if least < most && is_want_of_memory(&error) => (least, allocate(least)),
            made => (most, made),
        };
        let buffers = made.map_err(|error| match error {
            Error::Device { device, place, source, .. } if source.is_want_of_memory() => {
                let (operation, len) = (Operation::GiveLayers, largest * count as u64);
                Error::Device { operation, device, len, place, source }
            }
            other => other,
        });
        Ok(Self { buffers: buffers? })
    }
}

fn is_want_of_memory(error: &Error) -> bool {
    matches!(error, Error::Device { source, .. } if source.is_want_of_memory())
}

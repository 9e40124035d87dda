//! The GPU memory of a stream, and the writes from it.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use forebay::gpu::Device;
use forebay::{Buffer, Engine, Error, Operation, Result};
use forebay_base::lock::Lock;

use super::layer::Unit;
use super::mapped::One;
use super::marks::Mark;

/// Buffers for layers.
#[derive(Debug)]
pub(super) struct Store {
    /// All are as large as the largest unit.
    pub(super) buffers: Vec<Buffer>,
}

/// A layer to be written.
pub(super) struct Write {
    pub(super) unit: usize,
    pub(super) buffer: usize,
    pub(super) store: Arc<Store>,
    /// Signaled when all of it is loaded, and when all changes to it are done. The latter may
    /// be on a stream that does not wait for the former.
    pub(super) marks: [Mark; 2],
    /// Layers of the same files that may still be copied from pages. Changes by other writers to
    /// those can only be detected before this write.
    pub(super) copied: Vec<One>,
}

/// The sender to the writer thread.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Lock<Option<Sender<Write>>>);

/// The pending writes.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// The buffers of layers that are being written.
    pub(super) buffers: Vec<usize>,
    /// Errors that were not yet reported.
    pub(super) failures: VecDeque<Error>,
    /// Bytes that were written.
    pub(super) bytes: u64,
    /// Whether the code after a write panics.
    #[cfg(test)]
    pub(super) breaks: bool,
}

impl Writes {
    /// Whether the layer in a buffer is being written.
    pub(super) fn of(&self, buffer: usize) -> bool {
        self.buffers.contains(&buffer)
    }

    /// Whether any layer is being written.
    pub(super) fn is_any(&self) -> bool {
        !self.buffers.is_empty()
    }
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

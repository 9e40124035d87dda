//! The memory of a stream: buffers on the GPU, and pinned memory of layers that are kept there.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::layer::{Shelf, Unit};
use crate::engine::Engine;
use crate::error::Result;
use crate::gpu::Device;
use crate::memory::Buffer;

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Store {
    /// Each as large as the largest unit.
    pub(super) buffers: Vec<Buffer>,
    /// For each unit its pinned memory, if it has any.
    homes: Vec<OnceLock<Home>>,
}

/// Pinned memory of a unit.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) memory: Buffer,
    pub(super) shelf: Shelf,
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
        let buffers = buffers.collect::<Result<Vec<Buffer>>>()?;
        Ok(Self { buffers, homes: units.iter().map(|_| OnceLock::new()).collect() })
    }

    /// Takes pinned memory for units, from the first on, as far as the budget goes.
    ///
    /// # Errors
    /// The host's or the GPU's.
    pub(super) fn pin_first(&self, engine: &Engine, units: &[Unit], budget: u64) -> Result<()> {
        let mut left = budget;
        for (number, unit) in units.iter().enumerate() {
            let shelf = Shelf::new(&unit.packing);
            if shelf.len > 0 && shelf.len <= left {
                left -= shelf.len;
                self.pin(engine, number, shelf)?;
            }
        }
        Ok(())
    }

    /// Takes pinned memory for a unit.
    ///
    /// # Errors
    /// The host's or the GPU's.
    pub(super) fn pin(&self, engine: &Engine, unit: usize, shelf: Shelf) -> Result<()> {
        let memory = engine.allocate_pinned(shelf.len)?;
        // Whoever else did so meanwhile was as right.
        let _ = self.homes[unit].set(Home { memory, shelf });
        Ok(())
    }

    /// The pinned memory of a unit.
    pub(super) fn home(&self, unit: usize) -> Option<&Home> {
        self.homes[unit].get()
    }
}

impl Home {
    /// Where a slot's worth goes, and all behind it.
    pub(super) fn part(&self, step: u64) -> Buffer {
        let start = self.shelf.starts[usize::try_from(step).expect("it is in memory")];
        self.memory.share(start, self.memory.len() - start)
    }
}

/// An address of the host.
pub(super) fn host(address: u64) -> NonNull<u8> {
    NonNull::new(address as *mut u8).expect("mapped memory is not at zero")
}

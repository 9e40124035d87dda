//! The memory of a stream: buffers on the GPU, and pinned memory of layers that are kept there.

use std::ptr::NonNull;
use std::sync::Arc;

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
    pub(super) homes: Vec<Option<Home>>,
}

impl Store {
    pub(super) fn new(
        engine: &Engine,
        device: &Arc<dyn Device>,
        units: &[Unit],
        count: usize,
        host_budget: u64,
    ) -> Result<Self> {
        let largest = units.iter().map(|unit| unit.len).max().unwrap_or(0);
        let buffers = (0..count).map(|_| engine.allocate(device.id(), largest));
        let buffers = buffers.collect::<Result<Vec<Buffer>>>()?;
        Ok(Self { buffers, homes: homes(engine, units, host_budget)? })
    }
}

/// Pinned memory of a unit.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) memory: Buffer,
    pub(super) shelf: Shelf,
}

impl Home {
    /// Where a slot's worth goes, and all behind it.
    pub(super) fn part(&self, step: u64) -> Buffer {
        let start = self.shelf.starts[usize::try_from(step).expect("it is in memory")];
        self.memory.share(start, self.memory.len() - start)
    }
}

/// Pinned memory for units, from the first on, as far as the budget goes.
fn homes(engine: &Engine, units: &[Unit], budget: u64) -> Result<Vec<Option<Home>>> {
    let mut left = budget;
    let of = |unit: &Unit| {
        let shelf = Shelf::new(&unit.packing);
        if shelf.len == 0 || shelf.len > left {
            return Ok(None);
        }
        left -= shelf.len;
        Ok(Some(Home { memory: engine.allocate_pinned(shelf.len)?, shelf }))
    };
    units.iter().map(of).collect()
}

pub(super) fn host(address: u64) -> NonNull<u8> {
    NonNull::new(address as *mut u8).expect("mapped memory is not at zero")
}

//! The memory of a stream: buffers on the GPU, and where on the host layers are kept for it.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layer::{Copy, Shelf, Unit};
use super::mapped::Pages;
use crate::engine::Engine;
use crate::error::Result;
use crate::gpu::{BATCH_MAX, Device, DeviceCopy};
use crate::memory::Buffer;

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Store {
    /// Each as large as the largest unit.
    pub(super) buffers: Vec<Buffer>,
    /// For each unit where it is kept, if it is.
    homes: Mutex<Vec<Option<Arc<Home>>>>,
}

/// Where a unit is kept on the host, pinned, and the copies from there.
#[derive(Debug)]
pub(super) struct Home {
    kept: Kept,
    copies: Vec<Copy>,
    /// Where each slot's worth begins in memory of the stream's own.
    starts: Vec<u64>,
}

#[derive(Debug)]
enum Kept {
    /// In memory of the stream's own.
    Memory(Buffer),
    /// In the page cache, where it was.
    Pages(Pages),
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
        Ok(Self { buffers, homes: Mutex::new(vec![None; units.len()]) })
    }

    fn homes(&self) -> MutexGuard<'_, Vec<Option<Arc<Home>>>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Takes pinned memory for a unit that is kept nowhere yet; whether it was not.
    ///
    /// # Errors
    /// The host's or the GPU's.
    pub(super) fn pin(&self, engine: &Engine, unit: usize, shelf: Shelf) -> Result<bool> {
        let memory = engine.allocate_pinned(shelf.len)?;
        let (first, starts) = (memory.address(), shelf.starts);
        let copies = shelf.copies.into_iter().map(|(at, to, len)| (first + at, to, len)).collect();
        Ok(self.keep(unit, Home { kept: Kept::Memory(memory), copies, starts }).is_ok())
    }

    /// Says that the pages of a unit are pinned; gives them back where it is kept elsewhere.
    pub(super) fn keep_pages(
        &self,
        unit: usize,
        pages: Pages,
        copies: Vec<Copy>,
    ) -> std::result::Result<(), Arc<Home>> {
        self.keep(unit, Home { kept: Kept::Pages(pages), copies, starts: Vec::new() })
    }

    fn keep(&self, unit: usize, home: Home) -> std::result::Result<(), Arc<Home>> {
        let (mut homes, home) = (self.homes(), Arc::new(home));
        match &mut homes[unit] {
            Some(_) => Err(home),
            place => {
                *place = Some(home);
                Ok(())
            }
        }
    }

    /// Where a unit is kept.
    pub(super) fn home(&self, unit: usize) -> Option<Arc<Home>> {
        self.homes()[unit].clone()
    }

    /// Takes a unit's pages out, if it is kept there.
    pub(super) fn take_pages(&self, unit: usize) -> Option<Arc<Home>> {
        self.homes()[unit].take_if(|home| home.pages().is_some())
    }
}

impl Home {
    /// The stream's own memory that it is kept in, if it is, and where each slot's worth begins
    /// there.
    pub(super) fn memory(&self) -> Option<(&Buffer, &[u64])> {
        match &self.kept {
            Kept::Memory(memory) => Some((memory, &self.starts)),
            Kept::Pages(_) => None,
        }
    }

    /// The pages, where it is kept in the page cache.
    pub(super) fn pages(&self) -> Option<&Pages> {
        match &self.kept {
            Kept::Pages(pages) => Some(pages),
            Kept::Memory(_) => None,
        }
    }

    /// The copies to a buffer, in groups that go to the driver in one call each.
    pub(super) fn copies_to(&self, buffer: u64) -> impl Iterator<Item = Vec<DeviceCopy>> {
        let of = move |&(from, to, len): &Copy| DeviceCopy {
            host: host(from),
            device: buffer + to,
            len: usize::try_from(len).expect("it is in memory"),
        };
        self.copies.chunks(BATCH_MAX).map(move |group| group.iter().map(of).collect())
    }
}

/// An address of the host.
pub(super) fn host(address: u64) -> NonNull<u8> {
    NonNull::new(address as *mut u8).expect("mapped memory is not at zero")
}

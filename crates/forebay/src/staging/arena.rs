//! The pinned memory of an engine, in slots, under one bound for all its GPUs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::HostMemory;
use crate::error::{Error, Result};
use crate::gpu::Device;
use crate::queue::Slot;
use crate::units::MIB;

/// Pinned bytes for each GPU in use, unless the caller sets a bound.
const PER_LINK: u64 = 256 * MIB;

/// Slots that are made at once: four of 16 MiB reach the link's limit, and take 9 ms to make.
const SLOTS_AT_ONCE: u64 = 4;

/// See the module's own text. Memory is given back when the last user is gone.
#[derive(Debug)]
pub(crate) struct Arena {
    slot_size: u64,
    bound: Option<u64>,
    /// The GPU of each link, by the link's index.
    devices: Mutex<Vec<Arc<dyn Device>>>,
    used: AtomicU64,
    parts: Mutex<Vec<HostMemory>>,
}

impl Arena {
    pub(crate) fn new(slot_size: u64, bound: Option<u64>) -> Self {
        Self {
            slot_size,
            bound,
            devices: Mutex::default(),
            used: AtomicU64::new(0),
            parts: Mutex::new(Vec::new()),
        }
    }

    /// Counts the next link's GPU in, and returns how many slots it may have.
    pub(crate) fn add_link(&self, device: &Arc<dyn Device>) -> usize {
        self.devices().push(Arc::clone(device));
        let most = self.bound.unwrap_or(PER_LINK).max(self.slot_size);
        usize::try_from(most / self.slot_size).unwrap_or(usize::MAX)
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Arc<dyn Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bound(&self) -> u64 {
        let links = self.devices().len().max(1) as u64;
        self.bound.unwrap_or(PER_LINK * links).max(self.slot_size * links)
    }

    /// Makes slots, as many as fit below the bound, and pins them for the GPU of `link`.
    ///
    /// # Errors
    /// The host's or the GPU's; [`Error::HostMemory`] where the bound is reached.
    pub(crate) fn grow(&self, link: usize) -> Result<Vec<Slot>> {
        let device = Arc::clone(&self.devices()[link]);
        let len = self.reserve()?;
        let made = HostMemory::map(usize::try_from(len).expect("an arena fits memory"))
            .and_then(|mut memory| memory.register(&device).map(|()| memory));
        let memory = match made {
            Ok(memory) => memory,
            Err(error) => {
                self.used.fetch_sub(len, Ordering::Relaxed);
                return Err(error);
            }
        };
        let first = memory.address();
        let slots = (0..len / self.slot_size)
            .map(|index| Slot { address: first + index * self.slot_size })
            .collect();
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        Ok(slots)
    }

    /// Takes the next slots' bytes out of the bound.
    fn reserve(&self) -> Result<u64> {
        let bound = self.bound();
        let mut len = 0;
        let reserved = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let room = bound.saturating_sub(used) / self.slot_size;
            len = room.min(SLOTS_AT_ONCE) * self.slot_size;
            (len > 0).then_some(used + len)
        });
        match reserved {
            Ok(_) => Ok(len),
            Err(_) => {
                Err(Error::HostMemory { len: self.slot_size, source: rustix::io::Errno::NOMEM })
            }
        }
    }
}

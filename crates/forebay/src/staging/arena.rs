//! The pinned memory of an engine, in slots, under one bound for all its GPUs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::gpu::Device;
use crate::memory::{HostMemory, Node, Parts};
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
    /// By the index of each link.
    links: Mutex<Vec<Link>>,
    used: AtomicU64,
    parts: Arc<Parts>,
    /// Why slots may lie on another NUMA node than their GPU: the first answer of the kernel.
    misplaced: OnceLock<Errno>,
}

#[derive(Debug)]
struct Link {
    device: Arc<dyn Device>,
    /// Where its slots are to lie.
    node: Option<Node>,
    has_slots: bool,
}

impl Arena {
    pub(crate) fn new(slot_size: u64, bound: Option<u64>) -> Self {
        Self {
            slot_size,
            bound,
            links: Mutex::default(),
            used: AtomicU64::new(0),
            parts: Arc::default(),
            misplaced: OnceLock::new(),
        }
    }

    /// What it has made so far; rings keep it as long as they live.
    pub(crate) fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// Why slots may lie on another NUMA node than their GPU.
    pub(crate) fn misplaced(&self) -> Option<Errno> {
        self.misplaced.get().copied()
    }

    /// Counts the next link's GPU in, whose slots are to lie on `node`, and returns how many it may
    /// have.
    pub(crate) fn add_link(&self, device: &Arc<dyn Device>, node: Option<Node>) -> usize {
        self.links().push(Link { device: Arc::clone(device), node, has_slots: false });
        let most = self.bound.unwrap_or(PER_LINK).max(self.slot_size);
        usize::try_from(most / self.slot_size).unwrap_or(usize::MAX)
    }

    fn links(&self) -> MutexGuard<'_, Vec<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes slots, as many as fit below the bound, and pins them for the GPU of `link`. A link
    /// gets its first slot in any case: without one nothing would move.
    ///
    /// # Errors
    /// The host's or the GPU's; [`Error::HostMemory`] where the bound is reached.
    pub(crate) fn grow(&self, link: usize) -> Result<Vec<Slot>> {
        let (device, node, has_slots, bound) = {
            let links = self.links();
            let Link { device, node, has_slots } = &links[link];
            let bound = self.bound.unwrap_or(PER_LINK * links.len() as u64);
            (Arc::clone(device), node.clone(), *has_slots, bound)
        };
        let len = self.reserve(bound, !has_slots)?;
        let bytes = usize::try_from(len).expect("an arena fits memory");
        let made = HostMemory::map_near(bytes, node.as_ref()).and_then(|(mut memory, refusal)| {
            if let Some(errno) = refusal {
                self.misplaced.get_or_init(|| errno);
            }
            memory.register(&device).map(|()| memory)
        });
        let memory = match made {
            Ok(memory) => memory,
            Err(error) => {
                self.used.fetch_sub(len, Ordering::Relaxed);
                return Err(error);
            }
        };
        let first = memory.address();
        let slots = (0..len / self.slot_size)
            .map(|index| Slot::whole(first + index * self.slot_size, self.slot_size))
            .collect();
        // Before anybody can get a slot, so that rings know of it when they see the first op.
        self.parts.add(memory);
        self.links()[link].has_slots = true;
        Ok(slots)
    }

    /// Takes the next slots' bytes out of the bound; one slot beyond it where it is `urgent`.
    fn reserve(&self, bound: u64, urgent: bool) -> Result<u64> {
        let mut len = 0;
        let reserved = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let room = bound.saturating_sub(used) / self.slot_size;
            len = room.clamp(u64::from(urgent), SLOTS_AT_ONCE) * self.slot_size;
            (len > 0).then_some(used + len)
        });
        match reserved {
            Ok(_) => Ok(len),
            Err(_) => Err(Error::HostMemory { len: self.slot_size, source: Errno::NOMEM }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::gpu::sim::{SimConfig, SimDevice};

    #[test]
    fn every_link_gets_a_slot_and_no_more_than_the_bound() {
        let slot = 256 << 10;
        let arena = Arena::new(slot, Some(2 * slot));
        let clock = Arc::new(SystemClock::new());
        let devices: [Arc<dyn Device>; 2] =
            [0, 1].map(|n| Arc::new(SimDevice::new(n, SimConfig::default(), clock.clone())) as _);
        for device in &devices {
            assert_eq!(arena.add_link(device, None), 2);
        }
        assert_eq!(arena.grow(0).unwrap().len(), 2);
        assert_eq!(arena.grow(1).unwrap().len(), 1);
        for link in [0, 1] {
            assert!(matches!(arena.grow(link), Err(Error::HostMemory { .. })));
        }
    }
}

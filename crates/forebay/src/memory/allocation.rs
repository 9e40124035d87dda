//! What buffers' bytes live in, and the shares that transfers have in it: memory is given back with
//! the last share, and never while a device or the kernel may touch it.

#![expect(unsafe_code, reason = "frees memory of GPUs")]

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::HostMemory;
use super::known::{Known, KnownMemory};
use crate::gpu::{Device, DeviceError};
use crate::process::Home;

/// What a buffer's bytes live in; given back with the last buffer that was split from it.
pub(super) struct Allocation {
    pub(super) memory: Memory,
    /// Whatever keeps memory that is not ours: dropped with the last share.
    pub(super) owners: Vec<Box<dyn Any + Send + Sync>>,
    known: Mutex<Known>,
    /// Calls that were given up and still move bytes to or from it.
    adrift: AtomicUsize,
}

pub(super) enum Memory {
    Host(HostMemory),
    /// Memory of the process that somebody else owns.
    Lent {
        address: u64,
    },
    Device {
        device: Arc<dyn Device>,
        address: u64,
        len: u64,
        /// Whether it is ours to free.
        ours: bool,
        /// Why a copy may still touch it, for ever.
        lost: OnceLock<DeviceError>,
    },
}

impl Memory {
    pub(super) fn device(device: Arc<dyn Device>, (address, len): (u64, u64), ours: bool) -> Self {
        Self::Device { device, address, len, ours, lost: OnceLock::new() }
    }
}

impl Allocation {
    pub(super) fn new(memory: Memory) -> Self {
        Self { memory, owners: Vec::new(), known: Mutex::default(), adrift: AtomicUsize::new(0) }
    }

    /// The process that it is no use outside of; a child has what others own as its parent has it.
    pub(super) fn home(&self) -> Option<&Home> {
        match &self.memory {
            Memory::Host(memory) => Some(memory.home()),
            Memory::Lent { .. } => None,
            Memory::Device { device, .. } => Some(device.home()),
        }
    }

    /// Whether a call that was given up may still touch it.
    pub(super) fn is_adrift(&self) -> bool {
        self.adrift.load(Ordering::Acquire) > 0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Memory::Device { device, address, ours, lost, .. } = &self.memory else { return };
        let known = std::mem::take(&mut self.known).into_inner().unwrap_or_default();
        if !device.home().is_here() {
            return;
        }
        if lost.get().is_some() {
            // A copy may touch it for ever, so whoever owns it must not free it either.
            std::mem::forget(known);
            return std::mem::forget(std::mem::take(&mut self.owners));
        }
        drop(known); // while it is there
        if *ours {
            // SAFETY: the address came from this device's `allocate` and is freed only here; a
            // transfer keeps its buffer, and so this allocation, until all copies are done, and
            // says where one may not be.
            let freed = unsafe { device.free(*address) };
            // A driver that refuses leaves nothing to do: the memory is lost to this process.
            drop(freed);
        }
    }
}

/// A transfer's share in memory.
#[derive(Clone)]
pub(crate) struct Keep(Arc<Allocation>);

/// Memory that nobody else has a share in any more. To give it back may take long.
pub(crate) struct Last(#[expect(dead_code, reason = "held for its drop")] Allocation);

impl Keep {
    pub(super) fn of(allocation: &Arc<Allocation>) -> Self {
        Self(Arc::clone(allocation))
    }

    /// Gives the memory up for good: the copy that failed so may touch it at any time from now on.
    pub(crate) fn lose(&self, source: &DeviceError) {
        if let Memory::Device { lost, .. } = &self.0.memory {
            lost.get_or_init(|| source.clone());
        }
    }

    /// Whether the memory is a GPU's.
    pub(crate) fn is_on_gpu(&self) -> bool {
        matches!(self.0.memory, Memory::Device { .. })
    }

    /// Has a provider that carries bytes to the memory again know it, by `ask`, which is given what
    /// was allocated. Memory that others own stays unknown: they may free it at any time.
    pub(crate) fn become_known(&self, ask: impl FnOnce(u64, u64) -> Option<Box<dyn KnownMemory>>) {
        let Memory::Device { address, len, ours: true, .. } = &self.0.memory else { return };
        // While somebody else asks, which may take long, it is served as it is.
        if let Ok(mut known) = self.0.known.try_lock() {
            known.used(|| ask(*address, *len));
        }
    }

    /// Has others keep off the memory, since its user has gone on without the end of a call.
    pub(crate) fn set_adrift(&self) {
        self.0.adrift.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes that back: the call is over.
    pub(crate) fn land(&self) {
        self.0.adrift.fetch_sub(1, Ordering::Release);
    }

    /// Lets go of the share; of the last one the memory is the answer.
    pub(crate) fn let_go(self) -> Option<Last> {
        Arc::into_inner(self.0).map(Last)
    }
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keep")
    }
}

impl fmt::Debug for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Last")
    }
}

//! Allocations behind buffers, and the shares that transfers have in them. Memory is freed with the
//! last share, and never while a device or the kernel may touch it.

#![expect(unsafe_code, reason = "frees memory of GPUs")]

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_base::process::Home;

use super::HostMemory;
use crate::gpu::{Device, DeviceError};

/// The memory behind a buffer; freed with the last buffer split from it.
pub(super) struct Allocation {
    pub(super) memory: Memory,
    /// Values that keep borrowed memory alive; dropped with the last share.
    pub(super) owners: Vec<Box<dyn Any + Send + Sync>>,
    /// Number of abandoned calls that still move bytes to or from it.
    adrift: AtomicUsize,
}

pub(super) enum Memory {
    Host(HostMemory),
    /// Borrowed memory of this process.
    Lent {
        address: u64,
    },
    Device {
        device: Arc<dyn Device>,
        address: u64,
        /// Whether we allocated it and must free it.
        ours: bool,
        /// Error of a failed copy that may still touch the memory at any time.
        lost: OnceLock<DeviceError>,
    },
}

impl Allocation {
    pub(super) fn new(memory: Memory) -> Self {
        Self { memory, owners: Vec::new(), adrift: AtomicUsize::new(0) }
    }

    /// The process that may use the memory; `None` for borrowed host memory, which a child
    /// inherits.
    pub(super) fn home(&self) -> Option<&Home> {
        match &self.memory {
            Memory::Host(memory) => Some(memory.home()),
            Memory::Lent { .. } => None,
            Memory::Device { device, .. } => Some(device.home()),
        }
    }

    /// Whether an abandoned call may still touch it.
    pub(super) fn is_adrift(&self) -> bool {
        self.adrift.load(Ordering::Acquire) > 0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Memory::Device { device, address, ours, lost, .. } = &self.memory else { return };
        if !device.home().is_here() {
            return;
        }
        if lost.get().is_some() {
            // A copy may still touch it at any time, so its owner must not free it either.
            return std::mem::forget(std::mem::take(&mut self.owners));
        }
        if *ours {
            // SAFETY: the address came from this device's `allocate` and is freed only here. A
            // transfer keeps its buffer, and so this allocation, until all copies are done, and
            // records a copy that may not be.
            let freed = unsafe { device.free(*address) };
            // If the driver refuses, the memory is leaked; nothing else can be done.
            drop(freed);
        }
    }
}

/// A transfer's share in an allocation.
#[derive(Clone)]
pub(crate) struct Keep(Arc<Allocation>);

/// An allocation without other shares. Freeing it may take long.
pub(crate) struct Last(#[expect(dead_code, reason = "held for its drop")] Allocation);

impl Keep {
    pub(super) fn of(allocation: &Arc<Allocation>) -> Self {
        Self(Arc::clone(allocation))
    }

    /// Gives the memory up for good: the copy that failed with `source` may touch it at any time.
    pub(crate) fn lose(&self, source: &DeviceError) {
        if let Memory::Device { lost, .. } = &self.0.memory {
            lost.get_or_init(|| source.clone());
        }
    }

    /// Whether it is GPU memory.
    pub(crate) fn is_on_gpu(&self) -> bool {
        matches!(self.0.memory, Memory::Device { .. })
    }

    /// Marks the memory unusable for other calls, since its user has abandoned a call on it.
    pub(crate) fn set_adrift(&self) {
        self.0.adrift.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes [`set_adrift`](Self::set_adrift): the call is over.
    pub(crate) fn land(&self) {
        self.0.adrift.fetch_sub(1, Ordering::Release);
    }

    /// Drops the share; returns the allocation if it was the last one.
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

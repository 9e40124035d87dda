//! The account of an engine's pinned memory, which has one limit, and its allocation where the
//! control groups of the process leave room.
//!
//! Whatever the engine pins, it leases from the account first. Pinned pages are touched when they are allocated, and beyond a group's limit the kernel kills
//! the process instead of refusing. So the limits are read before each allocation; they may change,
//! and other processes use memory too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_base::lock::{Lock, MutexGuard};
use forebay_base::per_process::PerProcess;
use forebay_base::units::{KIB, MIB};
use forebay_topology::{MemoryLimit, System};
use rustix::io::Errno;

use super::courier::Courier;
use super::{HostMemory, Node};
use crate::error::{Error, Result};
use crate::gpu::Device;

/// Upper bound of the overhead for `len` bytes: page tables take 1/512 with small pages, and each
/// processor reserves a little from the group in advance.
const fn page_tables_of(len: u64) -> u64 {
    4 * MIB + len / 256
}

/// The turn of one allocation.
struct RoomTurn;

/// The turns of all engines of the process, whose limit is the same.
static TURN: PerProcess<Lock<RoomTurn>> = PerProcess::new();

/// Limit of pinned bytes per GPU in use, unless the caller sets one.
const PER_GPU: u64 = 320 * MIB;

/// Bytes that only couriers use: a copy that its caller waits for always gets some.
const FOR_COURIERS: u64 = 64 * KIB;

/// Pinned bytes of an engine.
#[derive(Debug)]
struct Pinned {
    limit: AtomicU64,
    /// Bytes for the first slots of GPUs that have none.
    kept: AtomicU64,
    used: AtomicU64,
}

/// The use of pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Slots of a GPU that has none.
    FirstSlots,
    Courier,
    Other,
}

/// Bytes of pinned memory, which are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pinned: Arc<Pinned>,
    len: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pinned.used.fetch_sub(self.len, SeqCst);
    }
}

/// Allocates memory, one piece at a time, and counts pinned memory.
#[derive(Debug)]
pub(crate) struct Room {
    system: System,
    /// Bytes of a slot.
    slot: u64,
    /// The caller's limit.
    bound: Option<u64>,
    pinned: Arc<Pinned>,
    pub(super) couriers: Lock<Vec<Courier>>,
}

impl Room {
    /// For slots of `slot` bytes; `bound` is the caller's limit of pinned memory.
    pub(crate) fn new(system: System, slot: u64, bound: Option<u64>) -> Self {
        let pinned = Pinned { limit: 0.into(), kept: 0.into(), used: 0.into() };
        let room =
            Self { system, slot, bound, pinned: Arc::new(pinned), couriers: Lock::default() };
        room.pinned.limit.store(room.per_gpu(), SeqCst);
        room
    }

    /// The limit with one GPU.
    fn per_gpu(&self) -> u64 {
        self.bound.unwrap_or(PER_GPU.max(2 * self.slot))
    }

    /// Keeps bytes for the first slot of one more GPU, and raises the limit if it is not the first.
    pub(crate) fn add_gpu(&self, is_first: bool) {
        // A thread that reads the new limit reads this too.
        self.pinned.kept.fetch_add(self.slot, SeqCst);
        if !is_first {
            let more = if self.bound.is_some() { self.slot } else { self.per_gpu() };
            self.pinned.limit.fetch_add(more, SeqCst);
        }
    }

    /// The GPU that was added has its first slot, whose bytes are counted.
    pub(crate) fn has_first_slot(&self) {
        self.pinned.kept.fetch_sub(self.slot, SeqCst);
    }

    /// Pinned bytes of the engine.
    pub(crate) fn used(&self) -> u64 {
        self.pinned.used.load(SeqCst)
    }

    /// The most bytes of slots, of all GPUs or of `one`: the rest of the limit is for cells, lanes,
    /// couriers, tracks and reads to several GPUs.
    pub(crate) fn slots_max(&self, one: bool) -> u64 {
        let limit = if one { self.per_gpu() } else { self.pinned.limit.load(SeqCst) };
        limit / 5 * 4
    }

    /// Counts `len` bytes as pinned.
    ///
    /// # Errors
    /// [`Error::PinnedLimit`].
    pub(crate) fn lease(&self, len: u64, purpose: Purpose) -> Result<Lease> {
        let Pinned { limit, kept, used } = &*self.pinned;
        let (limit, kept) = (limit.load(SeqCst), kept.load(SeqCst));
        let kept = match purpose {
            Purpose::FirstSlots => kept.saturating_sub(self.slot) + FOR_COURIERS,
            Purpose::Courier => kept,
            Purpose::Other => kept + FOR_COURIERS,
        };
        let most = limit.saturating_sub(kept);
        let fits = |used: u64| used.checked_add(len).filter(|&all| all <= most);
        match used.fetch_update(SeqCst, SeqCst, fits) {
            Ok(_) => Ok(Lease { pinned: Arc::clone(&self.pinned), len }),
            Err(used) => Err(Error::PinnedLimit { len, used, limit }),
        }
    }

    /// Allocates `len` bytes if there is room for them and for `spare` bytes for other users, on a
    /// NUMA node if it has room. Also returns the kernel's error if placement was refused.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] and [`Error::HostMemory`].
    pub(crate) fn map(
        &self,
        len: u64,
        spare: u64,
        node: Option<&Node>,
    ) -> Result<(HostMemory, Option<Errno>)> {
        let bytes = usize::try_from(len);
        let bytes = bytes.map_err(|_| Error::HostMemory { len, source: Errno::NOMEM })?;
        let _turn = self.enter(len, spare)?;
        HostMemory::map_near(bytes, node)
    }

    /// Allocates `len` bytes as [`map`](Self::map) does, and pins them for `device`.
    ///
    /// # Errors
    /// As for `map` and [`lease`](Self::lease), and those of the GPU.
    pub(crate) fn pin(
        &self,
        len: u64,
        purpose: Purpose,
        device: &Arc<dyn Device>,
    ) -> Result<HostMemory> {
        let lease = self.lease(len, purpose)?;
        let (mut memory, _) = self.map(len, 0, None)?;
        memory.register(device)?;
        Ok(memory.counted(lease))
    }

    /// Checks the room for `len` bytes plus `spare` bytes for other users. If there is a
    /// limit, no other thread gets an answer until the returned guard is dropped, which the caller
    /// does after touching the bytes.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if there is not enough room.
    fn enter(&self, len: u64, spare: u64) -> Result<Option<MutexGuard<'static, RoomTurn>>> {
        let turn = TURN.get_or_init(|| Lock::new(RoomTurn)).lock();
        let Some(MemoryLimit { limit, available, file }) = self.system.memory_limit() else {
            return Ok(None);
        };
        let needed = len.saturating_add(spare).saturating_add(page_tables_of(len));
        if needed > available {
            return Err(Error::MemoryLimit { len, available, limit, file });
        }
        Ok(Some(turn))
    }
}

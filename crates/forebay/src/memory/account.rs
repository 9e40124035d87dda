//! The account of an engine's pinned memory, which has one limit: whatever the engine pins, it
//! leases here first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_base::units::{KIB, MIB};

use crate::error::{Error, Result};

/// Limit of pinned bytes per GPU in use, unless the caller sets one.
const PER_GPU: u64 = 320 * MIB;

/// Bytes that only couriers use: a copy that its caller waits for always gets some.
const FOR_COURIERS: u64 = 64 * KIB;

/// Pinned bytes of an engine.
#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes of a slot.
    slot: u64,
    /// The caller's limit.
    bound: Option<u64>,
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
    account: Arc<Account>,
    len: u64,
    pub(super) purpose: Purpose,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.len, SeqCst);
    }
}

impl Account {
    /// For slots of `slot` bytes; `bound` is the caller's limit.
    pub(crate) fn new(slot: u64, bound: Option<u64>) -> Arc<Self> {
        let (kept, used) = (slot.into(), 0.into());
        let mut account = Self { slot, bound, limit: 0.into(), kept, used };
        account.limit = account.per_gpu().into();
        Arc::new(account)
    }

    /// The limit with one GPU.
    fn per_gpu(&self) -> u64 {
        self.bound.unwrap_or(PER_GPU.max(2 * self.slot))
    }

    /// Raises the limit for one more GPU than the first, and keeps bytes for its first slot.
    pub(crate) fn add_gpu(&self) {
        // A thread that reads the new limit reads this too.
        self.kept.fetch_add(self.slot, SeqCst);
        let more = if self.bound.is_some() { self.slot } else { self.per_gpu() };
        self.limit.fetch_add(more, SeqCst);
    }

    /// The GPU that was added has its first slot, whose bytes are counted.
    pub(crate) fn has_first_slot(&self) {
        self.kept.fetch_sub(self.slot, SeqCst);
    }

    /// Pinned bytes of the engine.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(SeqCst)
    }

    /// The most bytes of slots, of all GPUs or of `one`: the rest of the limit is for cells, lanes,
    /// couriers, tracks and reads to several GPUs.
    pub(crate) fn slots_max(&self, one: bool) -> u64 {
        let limit = if one { self.per_gpu() } else { self.limit.load(SeqCst) };
        limit / 5 * 4
    }

    /// Counts `len` bytes as pinned.
    ///
    /// # Errors
    /// [`Error::PinnedLimit`].
    pub(crate) fn lease(self: &Arc<Self>, len: u64, purpose: Purpose) -> Result<Lease> {
        let (limit, kept) = (self.limit.load(SeqCst), self.kept.load(SeqCst));
        let kept = match purpose {
            // Nothing else has taken the bytes of the first one.
            Purpose::FirstSlots if len == self.slot => kept.saturating_sub(len),
            Purpose::FirstSlots => kept.saturating_sub(self.slot) + FOR_COURIERS,
            Purpose::Courier => kept,
            Purpose::Other => kept + FOR_COURIERS,
        };
        let most = limit.saturating_sub(kept);
        let fits = |used: u64| used.checked_add(len).filter(|&all| all <= most);
        match self.used.fetch_update(SeqCst, SeqCst, fits) {
            Ok(_) => Ok(Lease { account: Arc::clone(self), len, purpose }),
            Err(used) => Err(Error::PinnedLimit { len, used, limit }),
        }
    }
}

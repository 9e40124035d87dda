//! The account of an engine's pinned memory. Everything that the engine pins is counted here first,
//! against one limit.

use std::sync::Arc;

use forebay_base::lock::Lock;
use forebay_base::units::{KIB, MIB};

use crate::error::{Error, Result};

/// Limit of pinned bytes per GPU in use, unless the caller sets one.
const PER_GPU: u64 = 320 * MIB;

/// Bytes that only couriers use.
const FOR_COURIERS: u64 = 64 * KIB;

/// Bytes that a borrowed block has in addition to its length, at most.
const PADDING: u64 = 8 * KIB;

/// Pinned bytes of an engine. Every kind of call works at any limit: bytes are reserved for the
/// first slot of every GPU, a borrowed block, and a courier.
#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes of a slot.
    slot: u64,
    /// The caller's limit.
    bound: Option<u64>,
    counted: Lock<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    limit: u64,
    /// Kept back for the first slots of GPUs that have none.
    first_slots: u64,
    /// Slots, cells and lanes.
    lasting: u64,
    borrowed: u64,
    couriers: u64,
}

/// The use of pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Slots of a GPU that has none.
    FirstSlots,
    /// Until the engine ends.
    Lasting,
    /// Until a call ends.
    Borrowed,
    Courier,
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
        let mut counted = self.account.counted.lock();
        *counted.bytes(self.purpose) -= self.len;
        if self.purpose == Purpose::FirstSlots {
            counted.first_slots += self.account.slot;
        }
    }
}

impl Counted {
    fn bytes(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::FirstSlots | Purpose::Lasting => &mut self.lasting,
            Purpose::Borrowed => &mut self.borrowed,
            Purpose::Courier => &mut self.couriers,
        }
    }
}

impl Account {
    /// For slots of `slot` bytes; `bound` is the caller's limit.
    pub(crate) fn new(slot: u64, bound: Option<u64>) -> Arc<Self> {
        let counted = Counted { first_slots: slot, ..Counted::default() };
        let account = Self { slot, bound, counted: Lock::new(counted) };
        account.counted.lock().limit = account.one_gpu();
        Arc::new(account)
    }

    /// Raises the limit for one more GPU than the first.
    pub(crate) fn add_gpu(&self) {
        let mut counted = self.counted.lock();
        counted.first_slots += self.slot;
        counted.limit += if self.bound.is_some() { self.slot } else { self.one_gpu() };
    }

    /// The limit for one GPU.
    fn one_gpu(&self) -> u64 {
        self.bound.unwrap_or(PER_GPU.max(2 * self.slot))
    }

    /// Pinned bytes of the engine.
    pub(crate) fn used(&self) -> u64 {
        let counted = self.counted.lock();
        counted.lasting + counted.borrowed + counted.couriers
    }

    /// Most bytes of slots, of all GPUs or of `one`; small transfers need the rest.
    pub(crate) fn slots_max(&self, one: bool) -> u64 {
        let limit = if one { self.one_gpu() } else { self.counted.lock().limit };
        limit / 5 * 4
    }

    /// Length of a block that a call can borrow at any time, once other calls have returned theirs:
    /// a slot, or less if the limit is low.
    pub(crate) fn block_len(&self) -> u64 {
        let eighth = self.one_gpu() / 8;
        self.slot.min(1 << eighth.ilog2())
    }

    /// Counts `len` bytes as pinned.
    ///
    /// # Errors
    /// [`Error::PinnedLimit`].
    pub(crate) fn lease(self: &Arc<Self>, len: u64, purpose: Purpose) -> Result<Lease> {
        let mut counted = self.counted.lock();
        let own = if purpose == Purpose::FirstSlots { self.slot } else { 0 };
        let first_slots = counted.first_slots.saturating_sub(own);
        let Counted { limit, lasting, borrowed, couriers, .. } = *counted;
        let check = |used: u64, limit: u64| match used.checked_add(len) {
            Some(all) if all <= limit => Ok(()),
            _ => Err(Error::PinnedLimit { len, used, limit, lent: borrowed + couriers }),
        };
        if matches!(purpose, Purpose::FirstSlots | Purpose::Lasting) {
            let kept = first_slots + self.block_len() + PADDING + FOR_COURIERS;
            check(lasting, limit.saturating_sub(kept))?;
        }
        let least = if purpose == Purpose::Courier { 0 } else { FOR_COURIERS };
        check(lasting + borrowed + couriers.max(least), limit.saturating_sub(first_slots))?;
        *counted.bytes(purpose) += len;
        counted.first_slots = first_slots;
        drop(counted);
        Ok(Lease { account: Arc::clone(self), len, purpose })
    }
}

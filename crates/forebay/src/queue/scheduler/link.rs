//! Scheduler state of one GPU's link.

use std::collections::VecDeque;

use super::crews::Parked;
use super::slots::{Slots, Waiting};
use crate::gpu::{DeviceError, DeviceId};
use crate::queue::op::WindowKey;

/// Maximum queued groups of copies per direction: one runs while the next is ready.
pub(super) const COPIES_QUEUED_MAX: usize = 2;

/// A link is behind once it has copied this many slots' worth without a pause: half a millisecond.
const BEHIND_SLOTS: u64 = 2;

/// A link's slots, copies and waiting transfers.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) slots: Slots,
    pub(super) growing: bool,
    /// Open windows of reads, oldest first.
    pub(super) filling: Vec<WindowKey>,
    /// Windows of writes that wait for their copy from the GPU.
    pub(super) unloading: VecDeque<WindowKey>,
    /// Transfers that wait for a slot.
    pub(super) waiting: Waiting,
    /// Number of copies so far.
    begun: u64,
    /// Number of queued copies.
    copies: u32,
    /// Bytes of the queued copies.
    queued_len: u64,
    /// Bytes queued since the link was last idle.
    busy_len: u64,
    /// True if the last queued group began with a transfer's first copy, although transfers that
    /// had copied before were ready.
    pub(super) overtook: bool,
    /// The GPU and its error, if nothing is copied there any more.
    pub(super) broken: Option<(DeviceId, DeviceError)>,
    pub(super) parked: Parked,
}

impl Link {
    /// A link with at most `most` slots of `slot_size` bytes, and no part smaller than `segment`.
    pub(super) fn new(slot_size: u64, segment: u64, most: usize) -> Self {
        Self {
            slots: Slots::new(slot_size, segment, most),
            growing: false,
            filling: Vec::new(),
            unloading: VecDeque::new(),
            waiting: Waiting::default(),
            begun: 0,
            copies: 0,
            queued_len: 0,
            busy_len: 0,
            overtook: false,
            broken: None,
            parked: Parked::default(),
        }
    }

    /// Counts a copy of `len` bytes as queued; returns its number.
    pub(super) fn begin_copy(&mut self, len: u64) -> u64 {
        self.begun += 1;
        self.copies += 1;
        self.queued_len += len;
        self.busy_len += len;
        self.begun
    }

    /// Uncounts a copy of `len` bytes.
    pub(super) fn end_copy(&mut self, len: u64) {
        self.copies -= 1;
        self.queued_len -= len;
        if self.copies == 0 {
            self.busy_len = 0;
        }
    }

    /// Number of queued copies.
    #[cfg(test)]
    pub(super) fn copies(&self) -> u32 {
        self.copies
    }

    /// Bytes of the queued copies.
    pub(super) fn queued_len(&self) -> u64 {
        self.queued_len
    }

    /// True if the link has been busy for long. Drives complete requests in bursts, and one burst
    /// keeps the link busy only for a moment.
    pub(super) fn is_behind(&self) -> bool {
        self.copies as usize >= COPIES_QUEUED_MAX
            && self.busy_len >= BEHIND_SLOTS * self.slots.size()
    }

    /// True if no copy is queued and none is about to be.
    pub(super) fn is_idle(&self) -> bool {
        self.copies == 0 && self.unloading.is_empty()
    }

    /// Forgets a window that has closed, or whose slot is lost.
    pub(super) fn forget(&mut self, window: WindowKey) {
        self.filling.retain(|&key| key != window);
        self.unloading.retain(|&key| key != window);
    }
}

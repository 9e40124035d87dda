//! Scheduler state of one GPU's link.

use std::collections::VecDeque;

use super::Limits;
use super::sleepers::Sleepers;
use super::slots::Slots;
use super::waiting::Waiting;
use crate::gpu::{DeviceError, DeviceId};
use crate::queue::op::WindowKey;

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
    /// Number of queued copies, and their bytes.
    pub(super) copies: u32,
    pub(super) queued_len: u64,
    /// Bytes queued since the link was last idle.
    pub(super) busy_len: u64,
    /// True if the last queued group began with a transfer's first copy, although transfers that
    /// had copied before were ready.
    pub(super) overtook: bool,
    /// The GPU and its error, if nothing is copied there any more.
    pub(super) broken: Option<(DeviceId, DeviceError)>,
    pub(super) sleepers: Sleepers,
}

impl Link {
    pub(super) fn new(limits: &Limits, slots_max: usize) -> Self {
        Self {
            slots: Slots::new(limits.slot_size, limits.segment, slots_max),
            growing: false,
            filling: Vec::new(),
            unloading: VecDeque::new(),
            waiting: Waiting::default(),
            copies: 0,
            queued_len: 0,
            busy_len: 0,
            overtook: false,
            broken: None,
            sleepers: Sleepers::default(),
        }
    }
}

//! The link above a switch that several simulated GPUs share.
//!
//! Every byte queued below the switch is charged to it, so in the long run it never carries more
//! than its rate. If a GPU has two copies queued, the second may be charged too early; it delays or
//! speeds up other GPUs by no more than that one copy.

use std::time::Duration;

use crate::CopyDirection;
use forebay_base::lock::Lock;

/// The link above several simulated GPUs.
#[derive(Debug)]
pub(super) struct Uplink {
    /// Bytes per second, each direction.
    pub(super) rate: u64,
    /// When all bytes queued so far will have been carried, for each direction.
    free: Lock<[Duration; 2]>,
}

impl Uplink {
    pub(super) fn new(rate: u64) -> Self {
        Self { rate, free: Lock::default() }
    }

    /// Charges `len` bytes queued at `now`; returns when they will have been carried.
    pub(super) fn carries(&self, now: Duration, direction: CopyDirection, len: u64) -> Duration {
        let mut free = self.free.lock();
        let free = &mut free[direction as usize];
        *free = now.max(*free).saturating_add(time_of_bytes(len, Some(self.rate)));
        *free
    }
}

/// How long `len` bytes take at a rate.
pub(super) fn time_of_bytes(len: u64, rate: Option<u64>) -> Duration {
    rate.map_or(Duration::ZERO, |rate| {
        let ns = u128::from(len) * 1_000_000_000 / u128::from(rate);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    })
}

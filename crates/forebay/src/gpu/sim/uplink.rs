//! What simulated GPUs below one switch share: the link above it.
//!
//! It is charged with every byte that is queued below it, so that in the long run it never carries
//! more than it can, whoever asks; a GPU that has two copies queued may have its second one counted
//! before its time, which hurries or delays others by no more than that.

use std::time::Duration;

use super::timeline::Direction;
use crate::lock::Lock;

/// The link above several simulated GPUs.
#[derive(Debug)]
pub(super) struct Uplink {
    /// Bytes per second, each direction.
    pub(super) rate: u64,
    /// When it has carried all that was queued.
    free: Lock<[Duration; 2]>,
}

impl Uplink {
    pub(super) fn new(rate: u64) -> Self {
        Self { rate, free: Lock::default() }
    }

    /// When it has carried `len` bytes that are queued `now`.
    pub(super) fn carries(&self, now: Duration, direction: Direction, len: u64) -> Duration {
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

//! Work of a stream that waits for a number in host memory.

#![expect(unsafe_code, reason = "reads and writes numbers whose addresses were promised to stay")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::memory::HostAddress;
use crate::{CopyDirection, DeviceCopy};

/// Work of a stream that is held back.
#[derive(Debug)]
pub(super) enum Held {
    /// Copies whose memory is already counted as in use, and the link's latency for the first.
    Copies(CopyDirection, Vec<(DeviceCopy, bool)>, Duration),
    Fill(u64, u8, u64),
    Xor(u64, u64, u64),
    Work(Duration),
    /// An event and its record number, which shows whether a later record replaced this one.
    Record(u64, u64),
    /// Waits for the event record with this number.
    Event(u64),
    Number(Number, u32),
    Write(Number, u32),
}

// SAFETY: only addresses; they are dereferenced under the promises of the calls that queued the
// work.
unsafe impl Send for Held {}

/// A number in registered host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(pub(super) NonNull<u32>);

// SAFETY: only an address, dereferenced as an atomic while its owner has promised to keep it valid.
unsafe impl Send for Number {}

impl Number {
    pub(super) fn host(self) -> HostAddress {
        HostAddress(self.0.cast())
    }

    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: the code that queued it keeps the number in place until it was waited for or
        // written.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr()) }
    }

    pub(super) fn reaches(self, least: u32) -> bool {
        self.atomic().load(Ordering::Acquire).wrapping_sub(least).cast_signed() >= 0
    }

    pub(super) fn write(self, value: u32) {
        self.atomic().store(value, Ordering::Release);
    }
}

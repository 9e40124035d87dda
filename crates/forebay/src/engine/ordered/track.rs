//! The resources of an ordered transfer: a stream, an event, slots, and two counters by which host
//! and GPU report their progress to each other.

#![expect(unsafe_code, reason = "shares two numbers with the GPU")]

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use forebay_base::units::{ByteRange, align_down};

use super::blocks::{Blocks, number};
use crate::engine::Engine;
use crate::error::{Error, Operation, Result};
use crate::events;
use crate::gpu::{Device, DeviceError, is_quiet};
use crate::memory::{Buffer, Courier, Purpose};
use crate::plan::SKEW;
use crate::transfer::State;

/// Maximum number of slots of a track: one is copied, one is ready, and two are being filled.
const SLOTS_MAX: u64 = 4;

/// Bytes for the two counters, before the slots.
const NUMBERS: u64 = 4096;

/// Bytes between the counters, so that host and GPU do not write to one cache line.
const APART: usize = 256;

/// The resources of one ordered transfer, which it returns for later ones.
#[derive(Debug)]
pub(crate) struct Track {
    pub(super) courier: Courier,
    memory: Buffer,
    slot_len: u64,
    count: u64,
}

impl Track {
    /// A track for a transfer of these blocks. While other transfers have all pinned memory that
    /// the limit allows, it waits for them, at most for the watchdog's time.
    pub(super) fn new(engine: &Engine, device: &Arc<dyn Device>, blocks: Blocks) -> Result<Self> {
        let arena = &engine.inner.tools.arena;
        let (slot_len, start) = (blocks.len + SKEW, Instant::now());
        let sizes = (1..=blocks.count().clamp(1, SLOTS_MAX)).rev().map(|n| NUMBERS + n * slot_len);
        let waits = &mut || Ok(start.elapsed() < engine.options().watchdog);
        let memory = arena.room().lend(sizes, Purpose::Borrowed, slice::from_ref(device), waits)?;
        let count = ((memory.len() as u64 - NUMBERS) / slot_len).min(SLOTS_MAX);
        let failed = |source| Error::of_device(Operation::Allocate, device.id(), 0, source);
        let courier = Courier::take(arena.couriers(), device).map_err(failed)?;
        let track = Self { courier, memory: Buffer::host(memory), slot_len, count };
        track.number(0).store(0, Ordering::Release);
        track.number(APART).store(0, Ordering::Release);
        Ok(track)
    }

    /// Returns its memory and its stream, if the GPU has passed all of it. The result is a stream
    /// that is not kept.
    pub(super) fn end(self, engine: &Engine) -> Option<Courier> {
        self.courier.keep(engine.inner.tools.arena.couriers())
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> u64 {
        self.count
    }

    fn address_of(&self, at: usize) -> NonNull<u32> {
        let address = self.memory.address() + at as u64;
        NonNull::new(address as *mut u32).expect("mapped memory is not at zero")
    }

    fn number(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned, and only used as an atomic; the GPU writes whole
        // numbers.
        unsafe { AtomicU32::from_ptr(self.address_of(at).as_ptr()) }
    }

    /// The number of gates that the host has opened.
    pub(super) fn opened(&self) -> NonNull<u32> {
        self.address_of(0)
    }

    /// The number of copies that the GPU has made.
    pub(super) fn passed(&self) -> NonNull<u32> {
        self.address_of(APART)
    }

    pub(super) fn open(&self, count: u64) {
        self.number(0).store(number(count), Ordering::Release);
    }

    pub(super) fn has_passed(&self) -> u64 {
        self.number(APART).load(Ordering::Acquire).into()
    }

    /// The address and length of a block's bytes in its slot.
    pub(super) fn place(&self, index: u64, part: ByteRange) -> (NonNull<u8>, usize) {
        let address = self.part(index, part).address();
        let len = usize::try_from(part.len()).expect("a slot fits memory");
        (NonNull::new(address as *mut u8).expect("mapped memory is not at zero"), len)
    }

    /// All of a slot, with the gap before it.
    pub(super) fn slot(&self, index: u64) -> Buffer {
        // SAFETY: no buffer over this memory is accessed as a slice.
        unsafe { self.memory.share(NUMBERS + index % self.count * self.slot_len, self.slot_len) }
    }

    /// The part of a slot for these bytes of a block.
    pub(super) fn part(&self, index: u64, part: ByteRange) -> Buffer {
        let skew = part.start - align_down(part.start, SKEW);
        let start = NUMBERS + index % self.count * self.slot_len + skew;
        // SAFETY: as above.
        unsafe { self.memory.share(start, part.len()) }
    }

    /// Releases partly queued work and waits until it is done. If it does not end, the memory of
    /// the track and the transfer is leaked. May wait for the caller's stream.
    pub(super) fn settle(self, state: &State, source: &DeviceError) {
        let Courier { device, stream, .. } = &self.courier;
        if !is_quiet(&**device, *stream) {
            events::copy_not_over(device.id(), source);
            state.lose_memory(source);
            std::mem::forget(self);
        }
    }

    /// The error for a GPU that makes no progress; memory that it may access is leaked.
    pub(super) fn lose(self) -> DeviceError {
        let (call, name) = ("cuStreamWriteValue32", "NO_ANSWER".to_owned());
        let detail = "the GPU makes no progress, though nothing holds its stream".to_owned();
        std::mem::forget(self);
        DeviceError { call, code: -1, name, detail }
    }
}

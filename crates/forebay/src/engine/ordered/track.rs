//! What a transfer in a stream's order has to itself: a stream, an event, slots, and the two
//! numbers by which host and GPU tell each other how far they are.

#![expect(unsafe_code, reason = "shares two numbers with the GPU")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Blocks;
use crate::engine::Engine;
use crate::error::{Error, Operation, Result};
use crate::events;
use crate::gpu::{Device, DeviceError, Event, Stream, is_quiet};
use crate::memory::{Buffer, HostMemory};
use crate::plan::SKEW;
use crate::transfer::State;
use crate::units::{ByteRange, align_down};

/// Slots of a track at most: one is copied, one is ready behind it, and two are being filled.
const SLOTS_MAX: u64 = 4;

/// Bytes of memory for the two numbers.
const NUMBERS: u64 = 4096;

/// Bytes between the two numbers, so that host and GPU do not write to one cache line.
const APART: usize = 256;

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Track {
    pub(super) device: Arc<dyn Device>,
    pub(super) stream: Stream,
    pub(super) event: Event,
    numbers: HostMemory,
    /// `None` where there is nothing to move.
    slots: Option<Buffer>,
    slot_len: u64,
    count: u64,
}

impl Track {
    /// For transfers of so many blocks, or fewer.
    pub(super) fn new(engine: &Engine, device: &Arc<dyn Device>, blocks: Blocks) -> Result<Self> {
        let count = blocks.count().clamp(1, SLOTS_MAX);
        let slot_len = blocks.len + SKEW;
        let slots = engine.allocate_pinned(count * slot_len)?;
        let turn = engine.inner.tools.arena.room().enter(NUMBERS, 0)?;
        let mut numbers = HostMemory::map(usize::try_from(NUMBERS).expect("a page"))?;
        drop(turn);
        numbers.register(device)?;
        let failed = |source| {
            let (operation, device, len) = (Operation::Allocate, device.id(), 0);
            Error::Device { operation, device, len, place: None, source }
        };
        let stream = device.create_stream().map_err(failed)?;
        let event = device.create_event().inspect_err(|_| drop(device.destroy_stream(stream)));
        let event = event.map_err(failed)?;
        let device = Arc::clone(device);
        Ok(Self { device, stream, event, numbers, slots: Some(slots), slot_len, count })
    }

    /// Whether it serves a transfer of these blocks on that GPU.
    pub(super) fn serves(&self, device: &Arc<dyn Device>, blocks: Blocks) -> bool {
        let enough = self.count >= blocks.count().clamp(1, SLOTS_MAX);
        Arc::ptr_eq(&self.device, device) && enough && self.slot_len == blocks.len + SKEW
    }

    /// Makes it ready for another transfer.
    pub(super) fn reset(&self) {
        self.number(0).store(0, Ordering::Release);
        self.number(APART).store(0, Ordering::Release);
    }

    /// How many slots it has.
    pub(super) fn slots(&self) -> u64 {
        self.count
    }

    fn address_of(&self, at: usize) -> NonNull<u32> {
        let address = self.numbers.address() + at as u64;
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
        self.number(0).store(super::number(count), Ordering::Release);
    }

    pub(super) fn has_passed(&self) -> u64 {
        self.number(APART).load(Ordering::Acquire).into()
    }

    /// Where a block's bytes lie in its slot.
    pub(super) fn place(&self, index: u64, part: ByteRange) -> (NonNull<u8>, usize) {
        let address = self.part(index, part).address();
        let len = usize::try_from(part.len()).expect("a slot fits memory");
        (NonNull::new(address as *mut u8).expect("mapped memory is not at zero"), len)
    }

    /// All of a slot, with the room before it.
    pub(super) fn slot(&self, index: u64) -> Buffer {
        let slots = self.slots.as_ref().expect("there until it is dropped");
        slots.share(index % self.count * self.slot_len, self.slot_len)
    }

    /// That part of its slot.
    pub(super) fn part(&self, index: u64, part: ByteRange) -> Buffer {
        let slots = self.slots.as_ref().expect("there until it is dropped");
        let skew = part.start - align_down(part.start, SKEW);
        slots.share(index % self.count * self.slot_len + skew, part.len())
    }

    /// Lets whatever was queued in part go on, and waits until nothing does; else neither the
    /// track's memory nor the transfer's is ever given back. May wait for the caller's stream.
    pub(super) fn settle(self, state: &State, source: &DeviceError) {
        if !is_quiet(&*self.device, self.stream) {
            events::copy_not_over(self.device.id(), source);
            state.lose_memory(source);
            std::mem::forget(self);
        }
    }

    /// Says that the GPU does not go on: what it may touch is never given back.
    pub(super) fn lose(self) -> DeviceError {
        let (call, name) = ("cuStreamWriteValue32", "NO_ANSWER".to_owned());
        let detail = "the GPU does not go on, though nothing holds its stream".to_owned();
        std::mem::forget(self);
        DeviceError { call, code: -1, name, detail }
    }
}

impl Drop for Track {
    fn drop(&mut self) {
        // Nothing is queued: a track ends when the GPU has passed all of it.
        drop(self.device.destroy_event(self.event));
        drop(self.device.destroy_stream(self.stream));
    }
}

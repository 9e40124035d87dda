//! The resources of an ordered transfer: a stream, an event, slots, and two counters by which host
//! and GPU report their progress to each other.

#![expect(unsafe_code, reason = "shares two numbers with the GPU")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_base::units::{ByteRange, align_down};

use super::blocks::{Blocks, number};
use crate::engine::Engine;
use crate::error::{Error, Operation, Result};
use crate::events;
use crate::gpu::{Device, DeviceError, Event, Stream, is_quiet};
use crate::memory::{Buffer, HostMemory, Purpose};
use crate::plan::SKEW;
use crate::transfer::State;

/// Maximum number of slots of a track: one is copied, one is ready, and two are being filled.
const SLOTS_MAX: u64 = 4;

/// Bytes of memory for the two counters.
const NUMBERS: u64 = 4096;

/// Bytes between the counters, so that host and GPU do not write to one cache line.
const APART: usize = 256;

/// The resources of one ordered transfer; reused for later ones.
#[derive(Debug)]
pub(crate) struct Track {
    pub(super) device: Arc<dyn Device>,
    pub(super) stream: Stream,
    pub(super) event: Event,
    numbers: HostMemory,
    /// `None` if there is nothing to move.
    slots: Option<Buffer>,
    slot_len: u64,
    count: u64,
    /// Counts the tracks.
    _tracks: Arc<()>,
}

impl Track {
    /// Creates a track for transfers of at most this many blocks.
    pub(super) fn new(
        engine: &Engine,
        device: &Arc<dyn Device>,
        blocks: Blocks,
        tracks: &Arc<()>,
    ) -> Result<Self> {
        let mut count = blocks.count().clamp(1, SLOTS_MAX);
        let slot_len = blocks.len + SKEW;
        let slots = loop {
            match engine.pinned_within_limit(count * slot_len) {
                Err(Error::PinnedLimit { .. }) if count > 1 => count /= 2,
                made => break made?,
            }
        };
        let numbers = engine.inner.tools.arena.room().pin(NUMBERS, Purpose::Other, device)?;
        let failed = |source| Error::of_device(Operation::Allocate, device.id(), 0, source);
        let stream = device.create_stream().map_err(failed)?;
        let event = device.create_event().inspect_err(|_| drop(device.destroy_stream(stream)));
        let event = event.map_err(failed)?;
        let device = Arc::clone(device);
        let (slots, _tracks) = (Some(slots), Arc::clone(tracks));
        Ok(Self { device, stream, event, numbers, slots, slot_len, count, _tracks })
    }

    /// Whether it can serve a transfer of these blocks on that GPU.
    pub(super) fn serves(&self, device: &Arc<dyn Device>, blocks: Blocks) -> bool {
        let enough = self.count >= blocks.count().clamp(1, SLOTS_MAX);
        Arc::ptr_eq(&self.device, device) && enough && self.slot_len == blocks.len + SKEW
    }

    /// Resets the counters for another transfer.
    pub(super) fn reset(&self) {
        self.number(0).store(0, Ordering::Release);
        self.number(APART).store(0, Ordering::Release);
    }

    /// Number of slots.
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
        let slots = self.slots.as_ref().expect("there until it is dropped");
        // SAFETY: no buffer over these slots is accessed as a slice.
        unsafe { slots.share(index % self.count * self.slot_len, self.slot_len) }
    }

    /// The part of a slot for these bytes of a block.
    pub(super) fn part(&self, index: u64, part: ByteRange) -> Buffer {
        let slots = self.slots.as_ref().expect("there until it is dropped");
        let skew = part.start - align_down(part.start, SKEW);
        // SAFETY: as above.
        unsafe { slots.share(index % self.count * self.slot_len + skew, part.len()) }
    }

    /// Releases partly queued work and waits until it is done. If it does not end, the memory of
    /// the track and the transfer is leaked. May wait for the caller's stream.
    pub(super) fn settle(self, state: &State, source: &DeviceError) {
        if !is_quiet(&*self.device, self.stream) {
            events::copy_not_over(self.device.id(), source);
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

impl Drop for Track {
    fn drop(&mut self) {
        // Nothing is queued: a track ends when the GPU has passed all of it.
        drop(self.device.destroy_event(self.event));
        drop(self.device.destroy_stream(self.stream));
    }
}

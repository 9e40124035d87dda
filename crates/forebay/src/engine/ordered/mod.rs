//! Transfers in the order of a caller's CUDA stream: they begin after what is queued there, and
//! what is queued there later begins after them, while the host goes on.
//!
//! All work for the GPU is queued before the call returns, on a stream of our own: for each slot's
//! worth a wait until the host has opened its gate, a copy, and a number by which the GPU says that
//! the copy is done. Both streams are tied by events, so that every order between tasks of the GPU
//! is one that CUDA knows; a gate only waits for the host, which fills (or empties) slots by
//! transfers to (or from) host memory and makes no call for it. Gates open while the rest is still
//! being queued: a call of the driver may wait for another thread, which waits for our stream.
//! Failures, cancels and a watchdog open all gates, so no stream waits for ever.

#![expect(unsafe_code, reason = "queues copies and waits on the caller's promise")]

mod keeper;
mod pieces;
mod track;
mod work;

use std::sync::{Arc, OnceLock};

pub(super) use keeper::Keepers;
use keeper::Ordered;
use track::Track;
use work::Work;

use super::peers::IN_ORDER;
use super::start::Call;
use super::{Engine, File, RequestOptions, bad_request};
use crate::error::{Error, Operation, Result};
use crate::events::Begin;
use crate::gpu::{CallerStream, Device, DeviceError, DeviceResult};
use crate::memory::{Buffer, Span};
use crate::options::DirectIo;
use crate::queue::Direction;
use crate::transfer::{State, Transfer};
use crate::units::{ByteRange, align_down};

/// Slots' worth of a transfer at most: each takes three entries of a stream's queue, which holds
/// 1,024 before a call blocks.
const BLOCKS_MAX: u64 = 300;

/// Entries of a stream's queue that one transfer takes at most.
const ENTRIES_MAX: u64 = 3 * BLOCKS_MAX;

/// Pieces that one transfer copies in batches at most. The queue of a stream that waits took 406
/// batches of 64 and 52 of 512, some 26,000 copies, before a call blocked (H200, driver 580.159;
/// `benches/runs/2026-11-21-h200-i`).
const PARTS_MAX: u64 = 22_000;

/// How a transfer is carried out that is ordered.
struct Ordering<'a> {
    device: &'a Arc<dyn Device>,
    direction: Direction,
    options: &'a RequestOptions,
    /// What its slots have to hold.
    blocks: Blocks,
    /// What subscribers are told of it.
    begin: Begin,
}

impl Engine {
    /// Takes the pinned memory that so many `transfers` in the order of streams need on `device` at
    /// once, four slots for each, so that none of them has to: a driver may wait for all that the
    /// GPU does before it gives any. It is kept until the engine ends.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where streams cannot wait for the host; what
    /// [`allocate_pinned`](Self::allocate_pinned) says.
    pub fn prepare_ordered(&self, device: &Arc<dyn Device>, transfers: usize) -> Result<()> {
        self.check(Operation::Allocate)?;
        if let Some(reason) = device.no_gates() {
            let reason = format!("its streams cannot wait for the host: {reason}");
            return Err(Error::NoDevice { wanted: device.id().to_string(), reason });
        }
        self.link(device)?; // pinned memory is pinned for the GPUs that the engine knows
        self.keepers().prepare(self, device, transfers)
    }

    /// Queues all that the GPU has to do, and has the rest done.
    ///
    /// # Safety
    /// `stream` is alive and one of the GPU. What `copy` queues, given the track and the number of
    /// a slot's worth, touches that slot and memory that the transfer has until it has ended.
    unsafe fn order(
        &self,
        stream: CallerStream,
        how: &Ordering<'_>,
        state: &Arc<State>,
        work: Work,
        copy: impl Fn(&Track, u64) -> DeviceResult<()>,
    ) -> Result<()> {
        let Ordering { device, direction, options, blocks, ref begin } = *how;
        self.link(device)?; // pinned memory is pinned for the GPUs that the engine knows
        let (place, len) = (work.place(), work.len());
        let expected = self.keepers().expect()?;
        let track = Arc::new(self.keepers().track(self, device, blocks)?);
        let queued = Arc::new(Queued::new());
        state.tell_begin(work.handle(), begin);
        let (of, shares) = (Arc::clone(state), (Arc::clone(&track), Arc::clone(&queued)));
        expected.add(Ordered::new(of, work, direction, options, shares));
        // SAFETY: the stream is the caller's promise; the GPU's memory is the transfer's until it
        // has ended, and the track keeps its own until the GPU has passed all of it.
        let result = unsafe { queue(&track, stream, direction, blocks.count(), copy) };
        drop(track); // before the keeper is told
        queued.set(result.clone()).expect("it is told once");
        result.map_err(|source| {
            // Part of it may be queued, behind work of the caller's that this call cannot wait for.
            let (device, place) = (device.id(), Some(Box::new(place)));
            Error::CopyNotOver { device, len, place, source }
        })
    }
}

impl File {
    /// Starts reading into all of `target`, after what is queued on `stream` now; what is queued
    /// there from now on sees the bytes. The call does not wait for either, but where more are on
    /// their way at once than before it takes pinned memory, for which a driver may wait for all
    /// that the GPU does: [`Engine::prepare_ordered`] takes it beforehand. The bytes that the file
    /// has when the call is made are read: behind them `target` stays as it is.
    ///
    /// After an error or a cancel, what is queued later runs as well, and part of `target` may hold
    /// any bytes: ask [`Transfer::wait_for`] before you trust what comes out of it.
    ///
    /// # Safety
    /// `stream` is alive and one of the GPU that `target` lies on.
    ///
    /// # Errors
    /// [`Error::BadRequest`](crate::Error::BadRequest) where the order cannot be kept: a stream
    /// that is being captured, a driver that cannot wait for the host, more bytes than a stream's
    /// queue holds copies for; and what can be known at once.
    pub unsafe fn start_read_on(
        &self,
        stream: CallerStream,
        offset: u64,
        target: Buffer,
        options: &RequestOptions,
    ) -> Result<Transfer> {
        // SAFETY: the caller's promise.
        unsafe { self.start_on(stream, Direction::Read, offset, target, options) }
    }

    /// Starts writing all of `source`, after what is queued on `stream` now; what is queued there
    /// from now on may change `source`, whose bytes have left it by then.
    ///
    /// # Safety
    /// As for [`start_read_on`](Self::start_read_on).
    ///
    /// # Errors
    /// As for [`start_read_on`](Self::start_read_on).
    pub unsafe fn start_write_on(
        &self,
        stream: CallerStream,
        offset: u64,
        source: Buffer,
        options: &RequestOptions,
    ) -> Result<Transfer> {
        // SAFETY: the caller's promise.
        unsafe { self.start_on(stream, Direction::Write, offset, source, options) }
    }

    /// # Safety
    /// As for [`start_read_on`](Self::start_read_on).
    unsafe fn start_on(
        &self,
        stream: CallerStream,
        direction: Direction,
        offset: u64,
        memory: Buffer,
        options: &RequestOptions,
    ) -> Result<Transfer> {
        let call = self.call(direction, offset, &memory, options)?;
        let asked = call.range()?;
        // SAFETY: the caller's promise.
        let device = unsafe { self.check_order(&call, stream, asked) }?;
        let range = self.prepare(direction, asked, options)?;
        let blocks = Blocks { range, len: self.engine().options().slot_size };
        if range.is_empty() {
            return self.start(direction, offset, memory, options); // nothing to order
        }
        if blocks.count() > BLOCKS_MAX {
            let most = blocks.len * (BLOCKS_MAX - 1);
            let place = self.handle().place(offset, memory.len());
            let reason = format!(
                "a stream's queue holds the copies of {most} bytes: make several transfers"
            );
            return Err(bad_request(direction.operation(), place, reason));
        }
        let not_direct = self.engine().why_not_direct(Some(&device), IN_ORDER);
        let begin = Begin { not_direct, ..call.begin(None) };
        let Span { address, keep, .. } = call.span;
        let state = State::new(
            Arc::clone(self.shared_handle()),
            asked,
            vec![memory],
            keep.into_iter().collect(),
        );
        let state = Arc::new(state);
        let how = Ordering { device: &device, direction, options, blocks, begin };
        let copy = |track: &Track, block: u64| {
            let part = blocks.range_of(block);
            let (host, len) = track.place(block, part);
            let gpu = address + (part.start - blocks.range.start);
            // SAFETY: all of it lies in the transfer's memory, and in the slot.
            unsafe {
                match direction {
                    Direction::Read => device.copy_to_device(track.stream, gpu, host, len),
                    Direction::Write => device.copy_to_host(track.stream, host, gpu, len),
                }
            }
        };
        let work = Work::Range(self.clone(), blocks);
        // SAFETY: the stream is the caller's promise.
        unsafe { self.engine().order(stream, &how, &state, work, copy) }?;
        Ok(Transfer::new(state, self.engine().clone()))
    }

    /// The bytes of a call that there are. Does what may hang: who goes on with it may not wait.
    fn prepare(
        &self,
        direction: Direction,
        asked: ByteRange,
        options: &RequestOptions,
    ) -> Result<ByteRange> {
        let end = self.prepared_end(direction, asked)?;
        if direction == Direction::Write && options.preallocate && !asked.is_empty() {
            self.handle().preallocate(asked.start, asked.len())?;
        }
        Ok(ByteRange { start: asked.start, end: end.clamp(asked.start, asked.end) })
    }

    /// Where a file ends that is to be read, or nowhere; opens what it needs for its drive.
    fn prepared_end(&self, direction: Direction, asked: ByteRange) -> Result<u64> {
        let (engine, handle) = (self.engine(), self.shared_handle());
        // One that opens slowly was opened so with the file.
        if engine.options().direct_io == DirectIo::Auto && !handle.opens_slowly() {
            let _ = handle.direct(); // whoever asks for it is told what came of it
        }
        if direction == Direction::Write {
            return Ok(u64::MAX);
        }
        let Some(size) = engine.size_in_time(handle, asked.end)? else {
            let place = handle.place(asked.start, asked.len());
            let known = handle.last_size()?;
            let reason = format!(
                "it had {known} bytes, and its server has not said in time whether it has more"
            );
            return Err(bad_request(Operation::Read, place, reason));
        };
        if !handle.is_sized(size.max(1)) {
            let place = handle.place(asked.start, asked.len());
            let reason = "how long the file is shows only when it is read, which takes its time";
            return Err(bad_request(Operation::Read, place, reason.into()));
        }
        Ok(size)
    }

    /// The GPU on which a call can keep the order of a stream.
    ///
    /// # Safety
    /// As for [`start_read_on`](Self::start_read_on).
    unsafe fn check_order(
        &self,
        call: &Call<'_>,
        stream: CallerStream,
        asked: ByteRange,
    ) -> Result<Arc<dyn Device>> {
        let refused = |reason: &str| {
            let place = self.handle().place(asked.start, asked.len());
            bad_request(call.direction.operation(), place, reason.to_owned())
        };
        let Some(device) = call.span.gpu.clone() else {
            return Err(refused("a stream orders memory of a GPU, and this is the host's"));
        };
        if let Some(route) = call.options.route {
            let reason = "in the order of a stream the best way is taken".to_owned();
            return Err(call.unavailable(route, reason));
        }
        if let Some(reason) = device.no_gates() {
            return Err(refused(&format!("streams cannot wait for the host here: {reason}")));
        }
        // SAFETY: the caller's promise.
        match unsafe { device.is_capturing(stream) } {
            Ok(false) => Ok(device),
            Ok(true) => Err(refused("the stream is being captured: end the capture first")),
            Err(error) => Err(self.gpu_failed(&device, asked, error)),
        }
    }

    fn gpu_failed(
        &self,
        device: &Arc<dyn Device>,
        range: ByteRange,
        source: DeviceError,
    ) -> crate::Error {
        let (operation, device, len) = (Operation::Copy, device.id(), range.len());
        let place = Some(Box::new(self.handle().place(range.start, len)));
        crate::Error::Device { operation, device, len, place, source }
    }
}

/// How a range is cut: at multiples of a slot's length in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) range: ByteRange,
    /// Bytes of one.
    pub(super) len: u64,
}

impl Blocks {
    /// So many, each of `len` bytes.
    fn of(count: u64, len: u64) -> Self {
        Self { range: ByteRange { start: 0, end: count * len }, len }
    }

    pub(super) fn count(&self) -> u64 {
        let first = align_down(self.range.start, self.len);
        if self.range.is_empty() { 0 } else { (self.range.end - first).div_ceil(self.len) }
    }

    /// What of the file is in one.
    pub(super) fn range_of(&self, index: u64) -> ByteRange {
        let start = align_down(self.range.start, self.len) + index * self.len;
        ByteRange::at(start, self.len).intersect(self.range)
    }
}

/// What came of queueing, once all of it is queued, or one call for it has failed.
type Queued = OnceLock<Result<(), DeviceError>>;

/// Queues all that the GPU has to do.
///
/// # Safety
/// `stream` is alive and one of the track's GPU; what `copy` touches, and the track, stay until the
/// GPU has passed the last number.
unsafe fn queue(
    track: &Track,
    stream: CallerStream,
    direction: Direction,
    count: u64,
    copy: impl Fn(&Track, u64) -> DeviceResult<()>,
) -> DeviceResult<()> {
    let (device, ours) = (&track.device, track.stream);
    // SAFETY: the caller's promises, and the track's own memory, streams and events.
    unsafe {
        device.record_on_caller(track.event, stream)?;
        device.wait_event(ours, track.event)?;
        for index in 0..count {
            let least = match direction {
                Direction::Read => index + 1,
                Direction::Write => (index + 1).saturating_sub(track.slots()),
            };
            if least > 0 {
                device.wait_number(ours, track.opened(), number(least))?;
            }
            copy(track, index)?;
            device.write_number(ours, track.passed(), number(index + 1))?;
        }
        device.record(track.event, ours)?;
        device.hold_caller(stream, track.event)
    }
}

/// A count of blocks as the GPU knows it.
fn number(count: u64) -> u32 {
    u32::try_from(count).expect("far fewer than that")
}

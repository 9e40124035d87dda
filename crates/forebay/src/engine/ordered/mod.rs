//! Transfers in the order of a caller's CUDA stream. They begin after work queued there before, and
//! work queued there later begins after them, without blocking the host.
//!
//! All GPU work is queued on our own stream before the call returns. For each slot it is a wait for
//! the host to open a gate, a copy, and a write of the number of finished copies. Events order both
//! streams, so CUDA knows every dependency between GPU tasks. Only a gate waits for the host, which
//! fills or empties slots by transfers to or from host memory, without driver calls. Gates open
//! while the rest is still being queued: a driver call may wait for another thread that waits for
//! our stream. Failures, cancels and a watchdog open all gates, so no stream waits forever.

#![expect(unsafe_code, reason = "queues copies and waits on the caller's promise")]

mod blocks;
mod keeper;
mod many;
mod pieces;
mod track;
mod work;

use std::sync::Arc;

use blocks::{BLOCKS_MAX, Blocks, Ordering, Queued, number};
use forebay_base::units::ByteRange;
pub(super) use keeper::Keepers;
use keeper::Ordered;
use track::Track;
use work::OrderedWork;

use super::request::OrderedOn;
use super::start::{Call, IN_ORDER};
use super::{Engine, File, Request, bad_request};
use crate::engine::Transfer;
use crate::error::{Error, Operation, Result};
use crate::events::Begin;
use crate::gpu::{CallerStream, Device, DeviceResult};
use crate::memory::{Buffer, Lent, Span, ToStart};
use crate::options::DirectIo;
use crate::options::RequestOptions;
use crate::plan::Direction;
use crate::transfer::State;

impl Engine {
    /// Queues all work for the GPU, and hands the host's part to the keeper thread.
    ///
    /// # Safety
    /// `stream` is alive and belongs to the GPU. The work that `copy` queues for a track and a
    /// block number accesses only that block's slot, and memory that the transfer owns until it has
    /// ended.
    unsafe fn order(
        &self,
        stream: CallerStream,
        how: &Ordering<'_>,
        state: &Arc<State>,
        work: OrderedWork,
        copy: impl Fn(&Track, u64) -> DeviceResult<()>,
    ) -> Result<()> {
        let Ordering { device, direction, options, blocks, ref begin } = *how;
        self.link(device)?; // memory is pinned for the GPUs in the engine
        let (place, len) = (work.place.clone(), work.len);
        let expected = self.inner.keepers.expect()?;
        let track = Arc::new(Track::new(self, device, blocks)?);
        let queued = Arc::new(Queued::new());
        state.emit_begin(&work.file.handle, begin);
        let (of, shares) = (Arc::clone(state), (Arc::clone(&track), Arc::clone(&queued)));
        expected.add(Ordered::new(of, work, direction, options, shares));
        // SAFETY: the stream is the caller's promise. The transfer owns the GPU memory until it has
        // ended, and the track keeps its memory until the GPU has passed all of it.
        let result = unsafe { queue(&track, stream, direction, blocks.count(), copy) };
        drop(track); // before the keeper is notified
        queued.set(result.clone()).expect("it is set once");
        result.map_err(|source| {
            // Part of it may be queued, behind work of the caller that this call cannot wait for.
            let (device, place) = (device.id(), Some(Box::new(place)));
            Error::CopyNotOver { device, len, place, source }
        })
    }
}

impl<Of, Memory: ToStart> Request<'_, Of, Memory> {
    /// Orders the transfer after the work queued on `stream` so far, and work queued there from now
    /// on after the transfer. The call that starts it waits for neither. But if more transfers run
    /// concurrently than before, it allocates pinned memory, for which a driver may wait for all
    /// GPU work.
    ///
    /// A read transfers the bytes that the file has at the time of the call; the rest of the target
    /// is unchanged. If a piece fails, or its file is truncated during the transfer, its target may
    /// hold any bytes. After an error or a cancel, work queued later runs as well, and part of the
    /// target may hold any bytes: check [`Transfer::wait_for`] before you trust its results.
    ///
    /// Work queued after a write may change its source, because the bytes have been copied by then.
    /// After a cancel or an error the stream waits until no write is in flight, at most for the
    /// watchdog's time. If the drive hangs longer, what it writes later may be other bytes of the
    /// source.
    ///
    /// Starting fails with [`Error::BadRequest`] if the order cannot be kept: the memory is the
    /// host's, the stream is being captured, the driver cannot wait for the host, or a stream's
    /// queue cannot hold enough copies.
    ///
    /// # Safety
    /// `stream` belongs to the GPU that owns the memory, and is alive until the transfer has
    /// started.
    pub unsafe fn on(mut self, stream: CallerStream) -> Self {
        self.stream = Some(OrderedOn(stream));
        self
    }
}

impl File {
    pub(super) fn start_on(
        &self,
        OrderedOn(stream): OrderedOn,
        direction: Direction,
        offset: u64,
        memory: Buffer,
        options: &RequestOptions,
    ) -> Result<Transfer> {
        let call = self.call(direction, offset, &Lent::whole(&memory), options)?;
        let whole = call.range()?;
        // SAFETY: the promise of `OrderedOn`.
        let device = unsafe { self.check_order(&call, stream, whole) }?;
        // The parts that may hang are done here, because later steps must not wait.
        let end = self.prepared_end(direction, whole)?;
        if direction == Direction::Write && options.preallocate && !whole.is_empty() {
            self.handle.preallocate(whole.start, whole.len())?;
        }
        let range = ByteRange { start: whole.start, end: end.clamp(whole.start, whole.end) };
        let blocks = Blocks { range, len: self.engine.block_len() };
        if range.is_empty() {
            return self.start(direction, offset, memory, options); // nothing to order
        }
        if blocks.count() > BLOCKS_MAX {
            let most = blocks.len * (BLOCKS_MAX - 1);
            let place = self.handle.place(offset, memory.len());
            let reason = format!(
                "a stream's queue holds the copies of {most} bytes: make several transfers"
            );
            return Err(bad_request(direction.into(), place, reason));
        }
        let not_direct = self.engine.why_not_direct(Some(&device), IN_ORDER);
        let begin = Begin { not_direct, ..call.begin(None) };
        let Span { address, keep, .. } = call.span;
        let (file, keep) = (Arc::clone(&self.handle), keep.into_iter().collect());
        let state = Arc::new(State::new(call.started, file, whole, vec![memory], keep));
        let how = Ordering { device: &device, direction, options, blocks, begin };
        let copy = |track: &Track, block: u64| {
            let part = blocks.range_of(block);
            let (host, len) = track.place(block, part);
            let gpu = address + (part.start - blocks.range.start);
            // SAFETY: the range is inside the transfer's memory, and inside the slot.
            unsafe {
                match direction {
                    Direction::Read => device.copy_to_device(track.courier.stream, gpu, host, len),
                    Direction::Write => device.copy_to_host(track.courier.stream, host, gpu, len),
                }
            }
        };
        let work = OrderedWork::of_range(self, blocks);
        // SAFETY: the stream is the promise of `OrderedOn`.
        unsafe { self.engine.order(stream, &how, &state, work, copy) }?;
        Ok(Transfer::new(state, self.engine.clone()))
    }

    /// The end of a file to be read, or no limit for a write; finds the file's drive. A server may
    /// hang here, and must not in the keeper's thread, which other transfers use.
    fn prepared_end(&self, direction: Direction, whole: ByteRange) -> Result<u64> {
        let (engine, handle) = (&self.engine, &self.handle);
        // A file that opens slowly was prepared when it was opened.
        if engine.options().direct_io == DirectIo::Auto && !handle.opens_slowly() {
            let _ = handle.o_direct(); // the error is reported where it is needed
        }
        engine.drive(handle, false)?;
        if direction == Direction::Write {
            return Ok(u64::MAX);
        }
        let Some(size) = engine.size_in_time(handle, whole.end)? else {
            let place = handle.place(whole.start, whole.len());
            let known = handle.last_size()?;
            let reason = format!(
                "its server did not report the size in time; the last known size is {known} bytes"
            );
            return Err(bad_request(Operation::Read, place, reason));
        };
        if !handle.is_sized(size.max(1)) {
            let place = handle.place(whole.start, whole.len());
            let reason =
                "its file system reports no reliable size, which a stream-ordered read needs";
            return Err(bad_request(Operation::Read, place, reason.into()));
        }
        Ok(size)
    }

    /// The GPU on which a call can keep the order of a stream.
    ///
    /// # Safety
    /// `stream` is alive and belongs to the GPU of the call's memory.
    unsafe fn check_order(
        &self,
        call: &Call<'_>,
        stream: CallerStream,
        whole: ByteRange,
    ) -> Result<Arc<dyn Device>> {
        let refused = |reason: &str| {
            let place = self.handle.place(whole.start, whole.len());
            bad_request(call.direction.into(), place, reason.to_owned())
        };
        let Some(device) = call.span.gpu().cloned() else {
            return Err(refused(
                "stream-ordered transfers need GPU memory, and this is host memory",
            ));
        };
        if let Some(route) = call.options.route {
            let reason = "stream-ordered transfers choose their route: omit `route`".to_owned();
            return Err(call.unavailable(route, reason));
        }
        if let Some(reason) = device.no_gates() {
            return Err(refused(&format!("streams cannot wait for the host here: {reason}")));
        }
        // SAFETY: the caller's promise.
        match unsafe { device.is_capturing(stream) } {
            Ok(false) => Ok(device),
            Ok(true) => Err(refused("the stream is being captured: end the capture first")),
            Err(source) => {
                let (operation, device, len) = (Operation::Copy, device.id(), whole.len());
                let place = Some(Box::new(self.handle.place(whole.start, len)));
                Err(Error::Device { operation, device, len, place, source })
            }
        }
    }
}

/// Queues all work for the GPU.
///
/// # Safety
/// `stream` is alive and belongs to the track's GPU. The track and the memory that `copy` accesses
/// stay until the GPU has passed the last number.
unsafe fn queue(
    track: &Track,
    stream: CallerStream,
    direction: Direction,
    count: u64,
    copy: impl Fn(&Track, u64) -> DeviceResult<()>,
) -> DeviceResult<()> {
    let (device, ours) = (&track.courier.device, track.courier.stream);
    // SAFETY: the caller's promises, and the track owns its memory, streams and events.
    unsafe {
        device.record_on_caller(track.courier.event, stream)?;
        device.wait_event(ours, track.courier.event)?;
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
        device.record(track.courier.event, ours)?;
        device.hold_caller(stream, track.courier.event)
    }
}

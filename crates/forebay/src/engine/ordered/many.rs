//! Many pieces in the order of a caller's stream: the calls, and the GPU's part of the work.

#![expect(unsafe_code, reason = "queues copies on the caller's promise")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use forebay_base::units::ByteRange;

use super::blocks::{BLOCKS_MAX, Blocks, ENTRIES_MAX, Ordering, PARTS_MAX};
use super::pieces::Pieces;
use super::track::Track;
use super::work::OrderedWork;
use crate::engine::Engine;
use crate::engine::many::{Many, ManyTransfer, Piece, Results};
use crate::engine::request::OrderedOn;
use crate::engine::start::Call;
use crate::engine::start::IN_ORDER;
use crate::error::Result;
use crate::events::Begin;
use crate::gpu::{Device, DeviceCopy, DeviceResult};
use crate::memory::{Buffer, Span};
use crate::options::RequestOptions;
use crate::plan::{Direction, Packed, Packing};
use crate::transfer::State;

impl Engine {
    pub(in crate::engine) fn start_many_on(
        &self,
        OrderedOn(stream): OrderedOn,
        direction: Direction,
        pieces: &[Piece<'_>],
        buffers: Vec<Buffer>,
        options: &RequestOptions,
    ) -> Result<ManyTransfer> {
        let started = Instant::now();
        let spans = Many::spans(direction, pieces, &buffers)?;
        let many = Many::new(direction, pieces, &spans, options);
        self.check_many(&many)?;
        let Some(first) = pieces.first().filter(|_| pieces.iter().any(|piece| piece.len > 0))
        else {
            return self.start_owned(direction, pieces, buffers, options); // nothing to order
        };
        let (file, gpu) = (&first.file.handle, spans[first.target].gpu().cloned());
        let span = Span::kept_elsewhere(0, first.len, gpu);
        let call = Call::new(file, direction, first.offset, span, options);
        let whole = ByteRange::at(first.offset, first.len);
        // SAFETY: the promise of `OrderedOn`.
        let device = unsafe { first.file.check_order(&call, stream, whole) }?;
        let work = Pieces::new(self, &many)?;
        let packing = Arc::clone(work.packing());
        if packing.blocks() == 0 {
            return self.start_owned(direction, pieces, buffers, options); // all behind the end
        }
        many_fit(&packing, &*device).map_err(|reason| many.refusal(first, reason))?;
        let published = Arc::clone(work.published());
        let keep = spans.iter().filter_map(|span| span.keep.clone()).collect();
        let range = ByteRange::at(0, packing.bytes());
        let state = Arc::new(State::new(started, Arc::clone(file), range, buffers, keep));
        let begin = Begin::of_pieces(direction, pieces.len(), Some(device.id()));
        let not_direct = self.why_not_direct(Some(&device), IN_ORDER);
        let begin = Begin { not_direct, ..begin };
        let blocks = Blocks::of(packing.blocks(), self.block_len());
        let how = Ordering { device: &device, direction, options, blocks, begin };
        let copy = |track: &Track, block: u64| {
            // SAFETY: the pieces are in the caller's memory, which the transfer owns until it has
            // ended. Their places in the track's slots stay until the GPU has passed them.
            unsafe { copy(&*device, track, direction, block, packing.parts_of(block)) }
        };
        let work = OrderedWork::of_pieces(first.file, file.place(whole.start, whole.len()), work);
        // SAFETY: the stream is the promise of `OrderedOn`.
        unsafe { self.order(stream, &how, &state, work, copy) }?;
        Ok(ManyTransfer::new(state, Results::Noted(published), self))
    }
}

/// Whether a stream's queue can hold all copies; otherwise returns a hint.
fn many_fit(packing: &Packing, device: &dyn Device) -> Result<(), String> {
    let (blocks, parts) = (packing.blocks(), packing.parts().len() as u64);
    let copies = if device.has_batches() { blocks } else { parts };
    if blocks <= BLOCKS_MAX && 2 * blocks + copies <= ENTRIES_MAX && parts <= PARTS_MAX {
        return Ok(());
    }
    Err(format!(
        "a stream's queue does not hold the copies of {parts} pieces of {} bytes in all: make \
         several calls, each of {PARTS_MAX} pieces at most",
        packing.bytes()
    ))
}

/// Queues the copies of one block.
///
/// # Safety
/// The parts' GPU memory and the track stay until the GPU has passed them.
unsafe fn copy(
    device: &dyn Device,
    track: &Track,
    direction: Direction,
    block: u64,
    parts: &[Packed],
) -> DeviceResult<()> {
    let slot = track.slot(block).address();
    let of = |part: &Packed| DeviceCopy {
        host: NonNull::new((slot + part.at) as *mut u8).expect("mapped memory is not at zero"),
        device: part.address,
        len: usize::try_from(part.len).expect("a slot fits memory"),
    };
    let copies: Vec<DeviceCopy> = parts.iter().map(of).collect();
    // SAFETY: the caller's promise.
    unsafe {
        match direction {
            Direction::Read => device.copy_batch_to_device(track.courier.stream, &copies),
            Direction::Write => device.copy_batch_to_host(track.courier.stream, &copies),
        }
    }
}

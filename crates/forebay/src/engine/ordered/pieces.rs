//! Many pieces in the order of a caller's stream: the calls, and the host's part of the work.

#![expect(unsafe_code, reason = "queues copies on the caller's promise")]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use forebay_base::units::ByteRange;

use super::blocks::{BLOCKS_MAX, Blocks, ENTRIES_MAX, Ordering, PARTS_MAX};
use super::track::Track;
use super::work::{Moving, OrderedWork};
use crate::engine::call::Call;
use crate::engine::many::{Many, ManyTransfer, Piece, PieceResult, Results};
use crate::engine::peers::IN_ORDER;
use crate::engine::{Engine, File, RequestOptions};
use crate::error::{Error, Place, Result};
use crate::events::Begin;
use crate::file::Handle;
use crate::gpu::{CallerStream, Device, DeviceCopy, DeviceResult};
use crate::memory::{Buffer, Span};
use crate::plan::{Packed, Packing, Wanted};
use crate::queue::Direction;
use crate::transfer::{State, Transfer};

/// The pieces of one ordered transfer.
#[derive(Debug)]
pub(super) struct Pieces {
    engine: Engine,
    /// Each file once.
    files: Vec<File>,
    packing: Arc<Packing>,
    /// The requested pieces, by file and range, and the bytes that the files have of them.
    asked: Vec<(usize, ByteRange)>,
    there: Vec<u64>,
    exact: bool,
    /// The results so far.
    results: Vec<PieceResult>,
    told: Arc<OnceLock<Vec<PieceResult>>>,
}

impl Engine {
    /// Like [`start_read_many`](Self::start_read_many), after the work queued on `stream` so far;
    /// work queued there from now on sees the bytes. It relates to [`File::start_read_on`] as many
    /// reads to one: the files' sizes are queried now. If a piece fails, or its file is truncated
    /// during the transfer, its target may hold any bytes.
    ///
    /// # Safety
    /// As for [`File::start_read_on`].
    ///
    /// # Errors
    /// As for [`File::start_read_on`] and [`start_read_many`](Self::start_read_many).
    pub unsafe fn start_read_many_on(
        &self,
        stream: CallerStream,
        pieces: &[Piece<'_>],
        targets: Vec<Buffer>,
        options: &RequestOptions,
    ) -> Result<ManyTransfer> {
        // SAFETY: the caller's promise.
        unsafe { self.start_many_on(stream, Direction::Read, pieces, targets, options) }
    }

    /// Like [`start_write_many`](Self::start_write_many), after the work queued on `stream` so far.
    /// Work queued there from now on may change the sources, because their bytes have been copied
    /// by then.
    ///
    /// # Safety
    /// As for [`File::start_read_on`].
    ///
    /// # Errors
    /// As for [`File::start_read_on`] and [`start_write_many`](Self::start_write_many).
    pub unsafe fn start_write_many_on(
        &self,
        stream: CallerStream,
        pieces: &[Piece<'_>],
        sources: Vec<Buffer>,
        options: &RequestOptions,
    ) -> Result<ManyTransfer> {
        // SAFETY: the caller's promise.
        unsafe { self.start_many_on(stream, Direction::Write, pieces, sources, options) }
    }

    /// # Safety
    /// As for [`File::start_read_on`].
    unsafe fn start_many_on(
        &self,
        stream: CallerStream,
        direction: Direction,
        pieces: &[Piece<'_>],
        buffers: Vec<Buffer>,
        options: &RequestOptions,
    ) -> Result<ManyTransfer> {
        let spans = Many::spans(direction, pieces, &buffers)?;
        let many =
            Many { direction, pieces, spans: &spans, options, is_block: false, blocks: None };
        self.check_many(&many)?;
        let Some(first) = pieces.first().filter(|_| pieces.iter().any(|piece| piece.len > 0))
        else {
            return self.start_owned(direction, pieces, buffers, options); // nothing to order
        };
        let (file, gpu) = (first.file.shared_handle(), spans[first.target].gpu.clone());
        let span = Span { address: 0, len: first.len, gpu, keep: None };
        let call = Call::new(file, direction, first.offset, span, options);
        let asked = ByteRange::at(first.offset, first.len);
        // SAFETY: the caller's promise.
        let device = unsafe { first.file.check_order(&call, stream, asked) }?;
        let work = self.work(&many)?;
        let packing = Arc::clone(&work.packing);
        if packing.blocks() == 0 {
            return self.start_owned(direction, pieces, buffers, options); // all behind the end
        }
        many_fit(&packing, &*device).map_err(|reason| many.refusal(first, reason))?;
        let told = Arc::clone(&work.told);
        let keep = spans.iter().filter_map(|span| span.keep.clone()).collect();
        let range = ByteRange::at(0, packing.bytes());
        let state = Arc::new(State::new(Arc::clone(file), range, buffers, keep));
        let begin = Begin::of_pieces(direction, pieces.len(), Some(device.id()));
        let not_direct = self.why_not_direct(Some(&device), IN_ORDER);
        let begin = Begin { not_direct, ..begin };
        let blocks = Blocks::of(packing.blocks(), self.options().slot_size);
        let how = Ordering { device: &device, direction, options, blocks, begin };
        let copy = |track: &Track, block: u64| {
            // SAFETY: the pieces are in the caller's memory, which the transfer owns until it has
            // ended. Their places in the track's slots stay until the GPU has passed them.
            unsafe { copy(&*device, track, direction, block, packing.parts_of(block)) }
        };
        // SAFETY: the stream is the caller's promise.
        unsafe { self.order(stream, &how, &state, OrderedWork::Pieces(work), copy) }?;
        Ok(ManyTransfer::new(state, Results::of_order(told), self))
    }

    /// The host's part of a call. Does the parts that may hang, because later steps must not wait.
    fn work(&self, many: &Many<'_>) -> Result<Pieces> {
        let mut files: Vec<File> = Vec::new();
        let mut ends: Vec<u64> = Vec::new();
        let mut numbers: HashMap<*const Handle, usize> = HashMap::new();
        let (mut asked, mut wanted) = (Vec::new(), Vec::new());
        for piece in many.pieces {
            let Piece { file, offset, len, target, at } = *piece;
            let key = Arc::as_ptr(file.shared_handle());
            let number = match numbers.get(&key) {
                Some(&number) => number,
                None => {
                    ends.push(file.prepared_end(many.direction, ByteRange::at(offset, len))?);
                    files.push(file.clone());
                    numbers.insert(key, files.len() - 1);
                    files.len() - 1
                }
            };
            if many.direction == Direction::Write && many.options.preallocate && len > 0 {
                file.handle().preallocate(offset, len)?;
            }
            let there = len.min(ends[number].saturating_sub(offset));
            let address = many.spans[target].address + at;
            asked.push((number, ByteRange::at(offset, len)));
            wanted.push(Wanted { source: number, offset, len: there, address });
        }
        let packing = Arc::new(Packing::new(&wanted, self.options().slot_size));
        let there: Vec<u64> = wanted.iter().map(|wanted| wanted.len).collect();
        Ok(Pieces {
            engine: self.clone(),
            files,
            packing,
            results: vec![Ok(0); asked.len()],
            asked,
            there,
            exact: many.options.exact && many.direction == Direction::Read,
            told: Arc::default(),
        })
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
            Direction::Read => device.copy_batch_to_device(track.stream, &copies),
            Direction::Write => device.copy_batch_to_host(track.stream, &copies),
        }
    }
}

impl Pieces {
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn first_file(&self) -> &File {
        &self.files[self.asked[0].0]
    }

    pub(super) fn packing(&self) -> &Packing {
        &self.packing
    }

    pub(super) fn place(&self) -> Place {
        self.place_of(0)
    }

    fn place_of(&self, piece: usize) -> Place {
        let (file, range) = self.asked[piece];
        self.files[file].handle().place(range.start, range.len())
    }

    /// Begins a block, or after the last one the sync of all files.
    pub(super) fn begin(
        &self,
        step: u64,
        track: &Track,
        direction: Direction,
        options: &RequestOptions,
    ) -> Result<Moving> {
        let slot = track.slot(step);
        let pieces: Vec<Piece<'_>> = if step < self.packing.blocks() {
            let parts = self.packing.parts_of(step).iter();
            parts
                .map(|part| Piece::new(&self.files[part.file], part.offset, part.len, part.at))
                .collect()
        } else {
            self.files.iter().map(|file| Piece::new(file, 0, 0, 0)).collect()
        };
        let buffers = vec![slot];
        let spans: Vec<Span> = Many::spans(direction, &pieces, &buffers)?;
        // The sizes are known, so no server is queried here.
        let many = Many {
            direction,
            pieces: &pieces,
            spans: &spans,
            options,
            is_block: true,
            blocks: None,
        };
        let (state, results) = self.engine.start_many(&many, buffers)?;
        let transfer = Transfer::new(state, self.engine.clone());
        Ok(Moving { transfer, step, results: Some(results) })
    }

    /// Records the results of a step's parts, or of the files' syncs.
    pub(super) fn note(&mut self, step: u64, came: Vec<PieceResult>) {
        if step < self.packing.blocks() {
            for (part, came) in self.packing.parts_of(step).iter().zip(came) {
                let result = &mut self.results[part.piece];
                match (&mut *result, came) {
                    (Ok(sum), Ok(got)) => *sum += got,
                    (Ok(_), Err(error)) => *result = Err(error),
                    (Err(_), _) => {} // the first error counts
                }
            }
            return;
        }
        for ((file, _), result) in self.asked.iter().zip(&mut self.results) {
            if let (Ok(_), Err(error)) = (&*result, &came[*file]) {
                *result = Err(error.clone());
            }
        }
    }

    /// Publishes the result of each piece; returns the bytes of all.
    pub(super) fn end(&mut self) -> u64 {
        let mut results = std::mem::take(&mut self.results);
        let got = results.iter().filter_map(|result| result.as_ref().ok()).sum();
        if self.exact {
            for (piece, result) in results.iter_mut().enumerate() {
                let (_, range) = self.asked[piece];
                if let Ok(got) = *result
                    && got < range.len()
                {
                    let place = self.place_of(piece);
                    *result = Err(Box::new(match got < self.there[piece] {
                        true => Error::FileChanged { place, got },
                        false => Error::EndOfFile { place, got },
                    }));
                }
            }
        }
        self.told.set(results).expect("it ends once");
        got
    }

    pub(super) fn into_parts(self) -> (Vec<Arc<Handle>>, Engine) {
        let handles = self.files.into_iter().map(|file| file.into_parts().0).collect();
        (handles, self.engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    /// No file system here fails only a sync, so its result is passed in.
    #[test]
    fn what_fails_is_told_by_the_pieces_that_it_is_about() {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = Engine::new(Options::default()).expect("an engine");
        let open = |name: &str| {
            std::fs::write(folder.path().join(name), vec![1; 5000]).expect("room for a file");
            engine.open(folder.path().join(name)).expect("the file opens")
        };
        let files = [open("one"), open("two")];
        let of = |n: usize| Piece::new(&files[n % 2], 0, 1000 * n as u64, 0);
        let pieces: Vec<Piece<'_>> = (0..4).map(of).collect();
        let spans = [Span { address: 0, len: 9000, gpu: None, keep: None }];
        let options = RequestOptions::exactly();
        let direction = Direction::Read;
        let call = Many {
            direction,
            pieces: &pieces,
            spans: &spans,
            options: &options,
            is_block: false,
            blocks: None,
        };
        let mut work = engine.work(&call).expect("files that are there");
        assert_eq!((work.packing.blocks(), work.files.len()), (1, 2));
        let failed = Box::new(Error::Cancelled { place: work.place(), done: 0 });
        // Three of them have bytes: one by one in the order of the files.
        let order: Vec<usize> = work.packing.parts().iter().map(|part| part.piece).collect();
        assert_eq!(order, [2, 1, 3]);
        work.note(0, vec![Ok(2000), Err(failed.clone()), Ok(2999)]);
        work.note(1, vec![Err(failed), Ok(0)]);
        let told = Arc::clone(&work.told);
        assert_eq!(work.end(), 2999);
        let told = told.get().expect("it has ended").iter();
        let errors: Vec<&Error> = told.map(|result| &**result.as_ref().unwrap_err()).collect();
        match errors[..] {
            [
                Error::Cancelled { .. },
                Error::Cancelled { .. },
                Error::Cancelled { .. },
                Error::FileChanged { got: 2999, .. },
            ] => {}
            _ => panic!("{errors:?}"),
        }
    }
}

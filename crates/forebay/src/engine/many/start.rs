//! Turns a call of many pieces into one transfer of a strip.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use forebay_base::units::ByteRange;
use rustc_hash::FxHashMap;

use super::{OfStrip, Piece, Results, span};
use crate::engine::start::{Call, OF_PIECES};
use crate::engine::{Engine, bad_request};
use crate::error::{Error, Result};
use crate::events::Begin;
use crate::file::Handle;
use crate::gpu::Device;
use crate::memory::{Buffer, Lent, Span};
use crate::options::RequestOptions;
use crate::plan::{Access, Alignment, Direction, GAP_MAX, Io, Reason, Route, Strip, Wanted};
use crate::queue::{Request, Share};
use crate::transfer::{Batch, Gate, State, SyncMode};

/// Minimum distance of pieces in the strip. It limits a segment of 1 MiB to 2,048 pieces, because
/// some segments are split under the scheduler's lock.
const UNIT_MIN: u64 = 512;

/// A call with its arguments.
pub(in crate::engine) struct Many<'a> {
    pub(in crate::engine) direction: Direction,
    pub(in crate::engine) pieces: &'a [Piece<'a>],
    /// The memory that pieces refer to by index.
    pub(in crate::engine) spans: &'a [Span],
    pub(in crate::engine) options: &'a RequestOptions,
    /// True for one block of an operation that is logged as a unit; the files are known to contain
    /// it.
    pub(in crate::engine) is_block: bool,
    /// The number of consecutive pieces in each block, for a read that its caller opens block by
    /// block.
    pub(in crate::engine) blocks: Option<&'a [usize]>,
}

/// A file of a call, and how its bytes are moved.
struct SourceFile {
    file: Arc<Handle>,
    access: Access,
    drive: usize,
    /// Where reads meet the end of the file, if known in advance.
    end: u64,
}

impl SourceFile {
    /// Key of a part of the transfer: drive, and whether O_DIRECT is used.
    fn part(&self) -> (usize, bool) {
        (self.drive, self.access.is_o_direct())
    }

    fn of_batch(&self) -> (Arc<Handle>, usize, Option<Alignment>) {
        (Arc::clone(&self.file), self.drive, self.access.direct)
    }

    fn share(&self) -> (usize, Io, Reason) {
        (self.drive, self.access.io(), self.access.reason)
    }
}

impl Engine {
    /// Starts a call; the transfer owns `buffers` until it has drained.
    pub(in crate::engine) fn start_many(
        &self,
        many: &Many<'_>,
        buffers: Vec<Buffer>,
    ) -> Result<(Arc<State>, Results)> {
        let (request, results) = self.prepare_many(many, buffers)?;
        let state = Arc::clone(&request.state);
        self.launch(request);
        Ok((state, results))
    }

    /// Prepares a call up to its launch.
    pub(super) fn prepare_many(
        &self,
        many: &Many<'_>,
        buffers: Vec<Buffer>,
    ) -> Result<(Request, Results)> {
        let started = Instant::now();
        self.check_many(many)?;
        let gpu = many.one_memory()?;
        let (sources, wanted) = self.sources(many, gpu)?;
        let batch = many.lay_out(&sources, &wanted, gpu.is_none())?;
        let strip = batch.strip();
        if many.direction == Direction::Write && many.options.preallocate {
            strip.stretches().iter().try_for_each(|stretch| {
                let (file, len) = (&sources[stretch.source].file, stretch.at.len());
                file.preallocate(stretch.offset, len).map(drop)
            })?;
        }
        let mut shares = Share::of_strip(strip, |number| sources[number].share());
        if many.sync() != SyncMode::None {
            // Each drive syncs its files, including those without written bytes.
            let drives = sources.iter().map(|source| source.drive);
            shares.extend(Share::of_nothing(&shares, drives));
        }
        let range = ByteRange::at(0, strip.len());
        let link = gpu.map(|device| self.ready_link(device)).transpose()?;
        self.start_readers()?;
        let file = Arc::clone(&sources[0].file);
        let keep = many.spans.iter().filter_map(|span| span.keep.clone()).collect();
        let state = State::new(started, Arc::clone(&file), range, buffers, keep);
        let state = Arc::new(state.of_batch(Arc::clone(&batch)));
        let id = gpu.map(|gpu| gpu.id());
        if !many.is_block {
            let begin = Begin::of_pieces(many.direction, many.pieces.len(), id);
            let plain = gpu.filter(|_| many.options.route.is_none());
            let not_direct = self.why_not_direct(plain, OF_PIECES);
            let begin = Begin { not_direct, ..begin };
            state.emit_begin(&file, &begin);
        }
        let none = Share { drive: sources[0].drive, parts: Vec::new().into() };
        let first = if shares.is_empty() { none } else { shares.remove(0) };
        let begins_direct = first.parts.front().is_some_and(|part| part.1 == Io::ODirect);
        let request = Request {
            state,
            file,
            batch: Some(Arc::clone(&batch)),
            direction: many.direction,
            range,
            end: range.end,
            is_sized: false, // per file
            address: 0,      // per piece
            link,
            direct: None,
            drive: first.drive,
            cold: begins_direct && batch.begins_cold(),
            parts: first.parts,
            shares,
            alignment: alignment(&sources),
            exact: false, // per read
            sync: many.sync(),
            priority: many.options.priority,
        };
        Ok((request, many.results(wanted, batch)))
    }

    /// Checks that the pieces can be moved.
    pub(in crate::engine) fn check_many(&self, many: &Many<'_>) -> Result<()> {
        for piece in many.pieces {
            // Drive indices of another engine are different.
            if !piece.file.is_of(self) {
                let reason = "the file was opened by another engine: open it with this one";
                return Err(many.refusal(piece, reason.into()));
            }
            piece.file.check_access(many.direction, piece.offset, piece.len)?;
            many.check(piece)?;
        }
        many.one_memory().map(drop)
    }

    /// The files of a call and the bytes that each file has of each piece. Files of one drive are
    /// adjacent, and within a drive those that are moved in the same way; for blocks the given
    /// order is kept.
    fn sources(
        &self,
        many: &Many<'_>,
        gpu: Option<&Arc<dyn Device>>,
    ) -> Result<(Vec<SourceFile>, Vec<Wanted>)> {
        let mut sources: Vec<SourceFile> = Vec::new();
        let mut numbers: FxHashMap<*const Handle, usize> = FxHashMap::default();
        let mut wanted: Vec<Wanted> = Vec::with_capacity(many.pieces.len());
        let mut last = None;
        let reaches = many.reaches();
        for piece in many.pieces {
            let file = Arc::as_ptr(&piece.file.handle);
            let number = match last {
                Some((same, number)) if same == file => number,
                _ => match numbers.entry(file) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        let reach = reaches.get(&file).copied();
                        sources.push(self.source(many, piece, gpu, reach.unwrap_or_default())?);
                        *new.insert(sources.len() - 1)
                    }
                },
            };
            last = Some((file, number));
            let Piece { offset, len, target, at, .. } = *piece;
            let len = len.min(sources[number].end.saturating_sub(offset));
            let address = many.spans[target].address + at;
            wanted.push(Wanted { source: number, offset, len, address });
        }
        let mut order: Vec<usize> = (0..sources.len()).collect();
        if many.blocks.is_none() {
            order.sort_by_key(|&number| sources[number].part());
        }
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, &old)| place[old] = new);
        wanted.iter_mut().for_each(|wanted| wanted.source = place[wanted.source]);
        let mut sorted: Vec<(usize, SourceFile)> = place.into_iter().zip(sources).collect();
        sorted.sort_by_key(|(place, _)| *place);
        Ok((sorted.into_iter().map(|(_, source)| source).collect(), wanted))
    }

    /// The file of a `piece`; its pieces end at `reach`.
    fn source(
        &self,
        many: &Many<'_>,
        piece: &Piece<'_>,
        gpu: Option<&Arc<dyn Device>>,
        reach: u64,
    ) -> Result<SourceFile> {
        let file = &piece.file.handle;
        let span = Span::kept_elsewhere(0, piece.len, gpu.cloned());
        let call = Call::new(file, many.direction, piece.offset, span, many.options);
        let call = Call { is_part: true, ..call };
        let mut access = self.access(&call)?;
        let mut end = u64::MAX;
        if many.direction == Direction::Write {
            if access.is_o_direct() {
                let reason = "pieces of one call are written through the page cache: write each \
                              by a call of its own";
                return Err(call.unavailable(Route::Staged, reason.into()));
            }
        } else if !many.is_block {
            let size = self.size_in_time(file, reach)?.filter(|&size| file.is_sized(size));
            if size.is_none() {
                access = access.of_unknown_size();
            }
            end = size.unwrap_or(u64::MAX);
        }
        let drive = self.drive(file, access.is_o_direct())?;
        Ok(SourceFile { file: Arc::clone(file), access, drive, end })
    }
}

/// The strictest O_DIRECT alignment of all files.
fn alignment(sources: &[SourceFile]) -> Option<Alignment> {
    sources.iter().filter_map(|source| source.access.direct).reduce(Alignment::max)
}

impl<'a> Many<'a> {
    /// A call that is logged as such, of pieces without an order.
    pub(in crate::engine) fn new(
        direction: Direction,
        pieces: &'a [Piece<'a>],
        spans: &'a [Span],
        options: &'a RequestOptions,
    ) -> Self {
        Self { direction, pieces, spans, options, is_block: false, blocks: None }
    }

    /// The memory of a call that owns its buffers.
    pub(in crate::engine) fn spans(
        direction: Direction,
        pieces: &[Piece<'_>],
        buffers: &[Buffer],
    ) -> Result<Vec<Span>> {
        buffers.iter().map(|buffer| span(direction, pieces, &Lent::whole(buffer))).collect()
    }

    /// The end of the last piece of each file whose size is queried only as far as it is needed.
    pub(in crate::engine) fn reaches(&self) -> FxHashMap<*const Handle, u64> {
        let mut reaches = FxHashMap::default();
        for piece in self.pieces.iter().filter(|piece| piece.file.handle.opens_slowly()) {
            let reach = reaches.entry(Arc::as_ptr(&piece.file.handle)).or_insert(0);
            *reach = piece.offset.saturating_add(piece.len).max(*reach);
        }
        reaches
    }

    pub(in crate::engine) fn refusal(&self, piece: &Piece<'_>, reason: String) -> Error {
        let place = piece.file.handle.place(piece.offset, piece.len);
        bad_request(self.direction.into(), place, reason)
    }

    fn check(&self, piece: &Piece<'_>) -> Result<()> {
        let Piece { offset, len, target, at, .. } = *piece;
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        let name = match self.direction {
            Direction::Read => "target",
            Direction::Write => "source",
        };
        let count = self.spans.len();
        let reason = match (end, self.spans.get(target), at.checked_add(len)) {
            (None, ..) => "the range ends beyond the largest file offset".to_owned(),
            (_, None, _) => format!("there are {count} {name}s, none with the index {target}"),
            (_, Some(span), Some(end)) if end <= span.len => return Ok(()),
            (_, Some(span), _) => {
                format!("{len} bytes at {at} lie outside the {name} of {} bytes", span.len)
            }
        };
        Err(self.refusal(piece, reason))
    }

    /// The GPU of all memory; `None` for host memory.
    fn one_memory(&self) -> Result<Option<&'a Arc<dyn Device>>> {
        let spans = self.spans;
        let id = |span: &Span| span.gpu().map(|gpu| gpu.id());
        let first = spans.first().map(id);
        if spans.iter().all(|span| Some(id(span)) == first) {
            return Ok(spans.first().and_then(|span| span.gpu()));
        }
        let reason = "memory on several GPUs, or on one and the host: make a call for each";
        Err(self.refusal(&self.pieces[0], reason.into()))
    }

    /// The sync mode for the files; none for reads, whatever the options say.
    fn sync(&self) -> SyncMode {
        match self.direction {
            Direction::Read => SyncMode::None,
            Direction::Write => self.options.sync,
        }
    }

    /// The data for the results of all pieces; `there` is what the files have of them.
    fn results(&self, there: Vec<Wanted>, batch: Arc<Batch>) -> Results {
        let of = self.pieces.iter().zip(&there).enumerate();
        let longer = of.filter(|(_, (piece, there))| piece.len > there.len);
        let longer = longer.map(|(index, (piece, _))| (index, piece.len)).collect();
        Results::Strip(OfStrip { batch, there, longer, exact: self.options.exact })
    }

    /// Arranges the pieces in a strip. Gaps between pieces may be read with them, but not written.
    fn lay_out(
        &self,
        sources: &[SourceFile],
        wanted: &[Wanted],
        on_host: bool,
    ) -> Result<Arc<Batch>> {
        let unit = alignment(sources).map_or(1, |alignment| alignment.offset).max(UNIT_MIN);
        let gap = match self.direction {
            Direction::Read => GAP_MAX,
            Direction::Write => 0,
        };
        let strip = match self.blocks {
            None => Strip::new(wanted, unit, gap),
            Some(_) => Strip::in_given_order(wanted, unit, gap),
        };
        let Some(strip) = strip else {
            let reason = "together the pieces are too long";
            return Err(self.refusal(&self.pieces[0], reason.into()));
        };
        let gate = self.blocks.map(|blocks| Gate::new(&strip, blocks));
        let files = sources.iter().map(SourceFile::of_batch);
        let batch = Batch::new(strip, files, on_host);
        Ok(Arc::new(match gate {
            Some(gate) => batch.behind(gate),
            None => batch,
        }))
    }
}

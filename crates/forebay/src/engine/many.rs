//! Many reads in one call: from a request for each to one transfer of a strip.

use std::collections::HashMap;
use std::sync::Arc;

use super::file::{Borrowed, RequestOptions};
use super::start::{Call, Way};
use super::{Engine, File, bad_request};
use crate::error::{Error, Operation, Result};
use crate::events::Begin;
use crate::file::Handle;
use crate::gpu::Device;
use crate::memory::{Buffer, Span, Target};
use crate::plan::{Alignment, Io, Reason, Strip, Wanted};
use crate::queue::{Batch, Direction, Request, Share};
use crate::transfer::{Outcome, State, SyncMode, Transfer};
use crate::units::ByteRange;

/// One of many reads: `len` bytes at `offset` of `file`, to the byte `at` of a target of the call.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The file, of the engine that is called.
    pub file: &'a File,
    /// Where the bytes begin in it.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
    /// The target that they go to, by its place in the call's list.
    pub target: usize,
    /// Where they go there.
    pub at: u64,
}

impl<'a> Piece<'a> {
    /// For a call with one target.
    #[must_use]
    pub fn new(file: &'a File, offset: u64, len: u64, at: u64) -> Self {
        Self { file, offset, len, target: 0, at }
    }

    /// The same, to another target.
    #[must_use]
    pub fn to(self, target: usize) -> Self {
        Self { target, ..self }
    }
}

/// Pieces are no closer to each other in the strip, so that a segment of 1 MiB never has more than
/// 2,048 of them: some are taken apart under the scheduler's lock.
const UNIT_MIN: u64 = 512;

/// What many reads came to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ManyOutcome {
    /// For each read its bytes, fewer than asked for only at the end of its file, or what went
    /// wrong with it.
    pub results: Vec<Result<u64>>,
    /// What the transfer of all of them did.
    pub whole: Outcome,
}

/// Many reads on their way. Dropping it is as dropping a [`Transfer`].
#[derive(Debug)]
pub struct ManyTransfer {
    transfer: Transfer,
    /// There until it is dropped.
    reads: Option<Reads>,
    engine: Engine,
}

impl Drop for ManyTransfer {
    fn drop(&mut self) {
        // It may hold the last share in its files, whose close may hang.
        let reads = self.reads.take();
        if self.engine.inner.home.is_here() {
            self.engine.inner.core.aside(move || drop(reads));
        } else {
            std::mem::forget(reads); // the parent's
        }
    }
}

/// What is needed to say what each read came to.
#[derive(Debug)]
struct Reads {
    batch: Arc<Batch>,
    asked: Vec<Asked>,
    exact: bool,
}

impl ManyTransfer {
    /// The transfer of all of them, to ask, to wait for and to cancel.
    #[must_use]
    pub fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Waits for the end. The targets come back, after an error as well.
    ///
    /// # Errors
    /// As [`Engine::read_many`]. Only [`Error::CopyNotOver`] comes without the targets.
    pub fn wait(self) -> (Result<ManyOutcome>, Vec<Buffer>) {
        let (end, targets) = self.transfer.wait_for_all();
        let reads = self.reads.as_ref().expect("there until it is dropped");
        (end.map(|whole| reads.outcome(whole)), targets)
    }
}

/// What was asked of a source of the batch.
#[derive(Debug)]
struct Asked {
    source: usize,
    offset: u64,
    len: u64,
    /// What of it the file had when it was asked.
    there: u64,
}

impl Reads {
    fn outcome(&self, whole: Outcome) -> ManyOutcome {
        let mut results: Vec<Result<u64>> = self.asked.iter().map(|_| Ok(0)).collect();
        self.batch.results().for_each(|(index, result)| results[index] = result);
        for (result, asked) in results.iter_mut().zip(&self.asked).filter(|_| self.exact) {
            let &Asked { source, offset, len, there } = asked;
            if let Ok(got) = *result
                && got < len
            {
                let place = self.batch.file(source).place(offset, len);
                *result = Err(match got < there {
                    true => Error::FileChanged { place, got },
                    false => Error::EndOfFile { place, got },
                });
            }
        }
        ManyOutcome { results, whole }
    }
}

/// A file of a call, and how its bytes are read.
struct Source {
    file: Arc<Handle>,
    way: Way,
    drive: usize,
    /// Where it ends, where that is known before it is read.
    end: u64,
}

impl Source {
    /// What tells a part of a transfer from others: its drive and its way.
    fn part(&self) -> (usize, bool) {
        (self.drive, self.way.is_ok())
    }

    fn file_and_alignment(&self) -> (Arc<Handle>, Option<Alignment>) {
        (Arc::clone(&self.file), self.way.ok().map(|(alignment, _)| alignment))
    }

    fn drive_and_way(&self) -> (usize, Io, Reason) {
        match self.way {
            Ok((_, reason)) => (self.drive, Io::Direct, reason),
            Err(reason) => (self.drive, Io::Buffered, reason),
        }
    }
}

impl Engine {
    /// Reads many pieces of files into `targets`, all of them on one GPU or on the host, and
    /// returns when all bytes are there. What belongs together is read together: neighbours in a
    /// file are one request, and what goes to scattered places on a GPU leaves in batches. Tens of
    /// thousands of pieces are one call's work.
    ///
    /// Where pieces meet in a target, it holds bytes of either.
    ///
    /// ```
    /// use forebay::{Engine, Options, Piece, RequestOptions, Target};
    ///
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("experts.bin");
    /// # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    /// let engine = Engine::new(Options::from_env()?)?;
    /// let gpu = engine.device(&"sim".parse()?)?.expect("a GPU").id();
    /// let file = engine.open(&path)?;
    /// let mut memory = engine.allocate(gpu, 256 << 10)?;
    /// // Every second 8 KiB of the file, one behind the other.
    /// let pieces: Vec<Piece> =
    ///     (0..32).map(|n| Piece::new(&file, n * (16 << 10), 8 << 10, n * (8 << 10))).collect();
    /// let mut targets = [Target::from(&mut memory)];
    /// let outcome = engine.read_many(&pieces, &mut targets, &RequestOptions::exactly())?;
    /// assert!(outcome.results.iter().all(|result| matches!(result, Ok(8192))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What is wrong with the call, and what stops all of it: the GPU, a cancel. What goes wrong
    /// with one piece is in its own result.
    pub fn read_many(
        &self,
        pieces: &[Piece<'_>],
        targets: &mut [Target<'_>],
        options: &RequestOptions,
    ) -> Result<ManyOutcome> {
        let Some(first) = pieces.first() else {
            return Ok(ManyOutcome { results: Vec::new(), whole: Outcome::nothing() });
        };
        let spans = targets.iter_mut().map(|target| match target {
            Target::Host(bytes) => Ok(Span::of_host(bytes)),
            Target::Buffer(buffer, range) => {
                first.file.part(Operation::Read, first.offset, buffer, range)
            }
        });
        let spans = spans.collect::<Result<Vec<Span>>>()?;
        let on_gpu = spans.first().is_some_and(|span| span.gpu.is_some());
        let (state, reads) = self.start_many(pieces, &spans, options, Vec::new())?;
        let borrowed = Borrowed(state);
        self.help(&borrowed.0);
        let (end, _) = if on_gpu { borrowed.0.wait_awake() } else { borrowed.0.wait() };
        Ok(reads.outcome(end?))
    }

    /// Starts the same into `targets`, which the transfer owns until it is waited for.
    ///
    /// # Errors
    /// What can be known at once, and a call without pieces; the rest comes from
    /// [`ManyTransfer::wait`].
    pub fn start_read_many(
        &self,
        pieces: &[Piece<'_>],
        targets: Vec<Buffer>,
        options: &RequestOptions,
    ) -> Result<ManyTransfer> {
        let Some(first) = pieces.first() else {
            let (name, value) = ("pieces".into(), "none".into());
            return Err(Error::BadOption { name, value, expected: "one at least".into() });
        };
        let span = |target: &Buffer| {
            first.file.part(Operation::Read, first.offset, target, &(0..target.len()))
        };
        let spans = targets.iter().map(span).collect::<Result<Vec<Span>>>()?;
        let (state, reads) = self.start_many(pieces, &spans, options, targets)?;
        let transfer = Transfer::new(state, self.clone());
        Ok(ManyTransfer { transfer, reads: Some(reads), engine: self.clone() })
    }

    fn start_many(
        &self,
        pieces: &[Piece<'_>],
        spans: &[Span],
        options: &RequestOptions,
        targets: Vec<Buffer>,
    ) -> Result<(Arc<State>, Reads)> {
        for piece in pieces {
            self.check_engine(piece)?;
            piece.file.check_access(Direction::Read, piece.offset, piece.len)?;
            check(piece, spans)?;
        }
        let gpu = one_memory(pieces, spans)?;
        let (sources, source_of) = self.sources(pieces, gpu, options)?;
        let wanted = |(piece, &source): (&Piece<'_>, &usize)| {
            let Piece { offset, len, target, at, .. } = *piece;
            let len = len.min(sources[source].end.saturating_sub(offset));
            Wanted { source, offset, len, address: spans[target].address + at }
        };
        let wanted: Vec<Wanted> = pieces.iter().zip(&source_of).map(wanted).collect();
        let alignments = sources.iter().filter_map(|source| source.way.ok());
        let alignment = alignments.map(|(alignment, _)| alignment).reduce(Alignment::max);
        let unit = alignment.map_or(1, |alignment| alignment.offset).max(UNIT_MIN);
        let too_long = || {
            let place = pieces[0].file.handle().place(pieces[0].offset, pieces[0].len);
            bad_request(Operation::Read, place, "together the pieces are too long".into())
        };
        let strip = Strip::new(&wanted, unit).ok_or_else(too_long)?;
        let mut shares = Share::of_strip(&strip, |number| sources[number].drive_and_way());
        let range = ByteRange::at(0, strip.len());
        let link = gpu.map(|device| self.ready_link(device)).transpose()?;
        self.start_readers()?;
        let files = sources.iter().map(Source::file_and_alignment);
        let batch = Arc::new(Batch::new(strip, files, link.is_none()));
        let file = Arc::clone(&sources[0].file);
        let keep = spans.iter().filter_map(|span| span.keep.clone()).collect();
        let state = State::new(Arc::clone(&file), range, targets, keep);
        let state = Arc::new(state.of_batch(Arc::clone(&batch)));
        let begin = Begin::of_pieces(pieces.len(), gpu.map(|gpu| gpu.id()));
        state.tell_begin(self.ranges(), &file, &begin);
        let none = Share { drive: sources[0].drive, parts: Vec::new().into() };
        let first = if shares.is_empty() { none } else { shares.remove(0) };
        self.launch(Request {
            state: Arc::clone(&state),
            file,
            batch: Some(Arc::clone(&batch)),
            direction: Direction::Read,
            range,
            end: range.end,
            is_sized: false, // each file for itself
            address: 0,      // each piece has its own
            link,
            drive: first.drive,
            cold: batch.begins_cold()
                && first.parts.front().is_some_and(|part| part.1 == Io::Direct),
            parts: first.parts,
            beside: shares,
            alignment,
            exact: false,         // each read for itself
            sync: SyncMode::None, // a demand on writes
            priority: options.priority,
        });
        let asked = |(piece, wanted): (&Piece<'_>, &Wanted)| {
            let &Piece { offset, len, .. } = piece;
            Asked { source: wanted.source, offset, len, there: wanted.len }
        };
        let asked = pieces.iter().zip(&wanted).map(asked).collect();
        Ok((state, Reads { batch, asked, exact: options.exact }))
    }

    /// Another engine's numbers of drives are not ours.
    fn check_engine(&self, piece: &Piece<'_>) -> Result<()> {
        if std::ptr::eq(&*piece.file.engine().inner, &*self.inner) {
            return Ok(());
        }
        let place = piece.file.handle().place(piece.offset, piece.len);
        let reason = "the file was opened by another engine: open it with this one".to_owned();
        Err(bad_request(Operation::Read, place, reason))
    }

    /// The files of a call, those first that are read by the same drive in the same way, and for
    /// each piece the number of its own.
    fn sources(
        &self,
        pieces: &[Piece<'_>],
        gpu: Option<&Arc<dyn Device>>,
        options: &RequestOptions,
    ) -> Result<(Vec<Source>, Vec<usize>)> {
        let mut sources: Vec<Source> = Vec::new();
        let mut numbers: HashMap<*const Handle, usize> = HashMap::new();
        let mut source_of: Vec<usize> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let file = piece.file.shared_handle();
            let number = match numbers.get(&Arc::as_ptr(file)) {
                Some(&number) => number,
                None => {
                    sources.push(self.source(piece, gpu, options)?);
                    numbers.insert(Arc::as_ptr(file), sources.len() - 1);
                    sources.len() - 1
                }
            };
            source_of.push(number);
        }
        let mut order: Vec<usize> = (0..sources.len()).collect();
        order.sort_by_key(|&number| sources[number].part());
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, &old)| place[old] = new);
        source_of.iter_mut().for_each(|number| *number = place[*number]);
        let mut sorted: Vec<(usize, Source)> = place.into_iter().zip(sources).collect();
        sorted.sort_by_key(|(place, _)| *place);
        Ok((sorted.into_iter().map(|(_, source)| source).collect(), source_of))
    }

    fn source(
        &self,
        piece: &Piece<'_>,
        gpu: Option<&Arc<dyn Device>>,
        options: &RequestOptions,
    ) -> Result<Source> {
        let file = piece.file.shared_handle();
        let (offset, direction) = (piece.offset, Direction::Read);
        let span = Span { address: 0, len: piece.len, gpu: gpu.cloned(), keep: None };
        let call = Call::new(file, direction, offset, span, options);
        let call = Call { is_part: true, ..call };
        let mut way = self.way(&call)?;
        let size = file.size()?;
        let is_sized = file.is_sized(size);
        if !is_sized && !matches!(way, Ok((_, Reason::Demanded))) {
            way = Err(Reason::NoDirectIo); // that would end where the size says
        }
        let end = if is_sized { size } else { u64::MAX };
        let drive = self.drive(file, way.is_ok())?;
        Ok(Source { file: Arc::clone(file), way, drive, end })
    }
}

fn check(piece: &Piece<'_>, spans: &[Span]) -> Result<()> {
    let Piece { file, offset, len, target, at } = *piece;
    let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
    let reason = match (end, spans.get(target), at.checked_add(len)) {
        (None, ..) => "no file reaches so far".to_owned(),
        (_, None, _) => format!("there are {} targets, none with the index {target}", spans.len()),
        (_, Some(span), Some(end)) if end <= span.len => return Ok(()),
        (_, Some(span), _) => {
            format!("{len} bytes at {at} lie outside the target of {} bytes", span.len)
        }
    };
    Err(bad_request(Operation::Read, file.handle().place(offset, len), reason))
}

/// The GPU that all targets lie on; `None`: they are the host's.
fn one_memory<'a>(pieces: &[Piece<'_>], spans: &'a [Span]) -> Result<Option<&'a Arc<dyn Device>>> {
    let id = |span: &Span| span.gpu.as_ref().map(|gpu| gpu.id());
    let first = spans.first().map(id);
    if spans.iter().all(|span| Some(id(span)) == first) {
        return Ok(spans.first().and_then(|span| span.gpu.as_ref()));
    }
    let place = pieces[0].file.handle().place(pieces[0].offset, pieces[0].len);
    let reason = "targets lie on several GPUs, or on one and the host: make a call for each";
    Err(bad_request(Operation::Read, place, reason.into()))
}

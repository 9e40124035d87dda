//! Many reads or writes in one call.

mod blocks;
mod start;

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_base::lock::Lock;

use super::lent::{GoOn, OnUnwind};
use super::request::RequestOptions;
use super::{Engine, File};
use crate::engine::Transfer;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Source, Span, Target};
use crate::plan::{Direction, Wanted};
use crate::queue::{Batch, Chore};
use crate::transfer::{Outcome, State};
pub use blocks::BlockRead;
pub(super) use start::Many;

/// One of many reads or writes: `len` bytes at `offset` of `file`, to or from byte `at` of one of
/// the call's targets or sources.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The file, opened with the engine that is called.
    pub file: &'a File,
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The target or source, by index in the call's list.
    pub target: usize,
    /// Offset in the target or source.
    pub at: u64,
}

impl<'a> Piece<'a> {
    /// For a call with one target or source.
    #[must_use]
    pub fn new(file: &'a File, offset: u64, len: u64, at: u64) -> Self {
        Self { file, offset, len, target: 0, at }
    }

    /// Sets the target.
    #[must_use]
    pub fn to(self, target: usize) -> Self {
        Self { target, ..self }
    }

    /// Sets the source.
    #[must_use]
    pub fn from(self, source: usize) -> Self {
        Self { target: source, ..self }
    }
}

/// The result of one of many reads or writes. The error is boxed because it is rare. Inline it
/// would add 9 MB to 100,000 results, which the kernel has to clear.
pub type PieceResult = std::result::Result<u64, Box<Error>>;

/// The results of many reads or writes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ManyOutcome {
    /// Per piece: its bytes, or its error. The bytes are fewer than requested only if a read met
    /// the end of its file.
    pub results: Vec<PieceResult>,
    /// The outcome of the transfer as a whole.
    pub whole: Outcome,
}

/// Many reads or writes in progress. Dropping it has the effect of dropping a [`Transfer`].
#[derive(Debug)]
pub struct ManyTransfer {
    transfer: Transfer,
    /// Present until the end is known to a caller, because it holds the files.
    results: Lock<Option<Results>>,
    /// Set from then on.
    ended: OnceLock<Result<Arc<ManyOutcome>>>,
    engine: Engine,
}

impl Drop for ManyTransfer {
    fn drop(&mut self) {
        let results = self.results.get_mut().take();
        self.dispose(results);
    }
}

/// The data needed to compute the result of each piece.
#[derive(Debug)]
pub(super) enum Results {
    /// For one transfer of a strip.
    Strip(OfStrip),
    /// Of an ordered transfer: results recorded before the end.
    Noted(Arc<OnceLock<Vec<PieceResult>>>),
}

/// The data for one transfer of a strip.
#[derive(Debug)]
pub(super) struct OfStrip {
    batch: Arc<Batch>,
    /// Bytes that the files had of each piece at the start; for writes all of them.
    there: Vec<Wanted>,
    /// The requested lengths of pieces that the files could not fill, by index.
    longer: Vec<(usize, u64)>,
    exact: bool,
}

impl ManyTransfer {
    pub(super) fn new(state: Arc<State>, results: Results, engine: &Engine) -> Self {
        let transfer = Transfer::new(state, engine.clone());
        let (results, ended) = (Lock::new(Some(results)), OnceLock::new());
        Self { transfer, results, ended, engine: engine.clone() }
    }

    /// The transfer of all pieces, to query, wait for and cancel.
    #[must_use]
    pub fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Waits for the end. The buffers are returned, also after an error.
    ///
    /// # Errors
    /// As for [`Engine::read_many`] and [`Engine::write_many`]. Only [`Error::CopyNotOver`] comes
    /// without the buffers.
    pub fn wait(mut self) -> (Result<ManyOutcome>, Vec<Buffer>) {
        let (end, buffers) = self.transfer.wait_for_all();
        let outcome = self.outcome(end);
        drop(self.ended.take()); // avoids a copy of the results
        (outcome.map(Arc::unwrap_or_clone), buffers)
    }

    /// Waits for the end for at most `bound`; `None` if the transfer is still running.
    #[must_use]
    pub fn wait_for(&self, bound: Duration) -> Option<Result<Arc<ManyOutcome>>> {
        self.transfer.wait_for(bound).map(|end| self.outcome(end))
    }

    /// Drops it without cancelling, like [`Transfer::detach`].
    pub fn detach(mut self) {
        self.transfer.cancels = false;
    }

    /// The results of all pieces, once the transfer has ended with `end`.
    fn outcome(&self, end: Result<Outcome>) -> Result<Arc<ManyOutcome>> {
        let is_here = self.engine.inner.home.is_here();
        if let (false, Err(forked)) = (is_here, &end) {
            return Err(forked.clone()); // the locks belong to the parent
        }
        let outcome = self.ended.get_or_init(|| {
            let whole = end?;
            let mut results = self.results.lock();
            let results = results.as_mut().expect("there until the end is known");
            Ok(Arc::new(results.outcome(whole)))
        });
        let results = self.results.lock().take();
        self.dispose(results);
        outcome.clone()
    }

    /// Drops the files: this may be the last reference, and closing a file may hang.
    fn dispose(&self, results: Option<Results>) {
        let Some(results) = results else { return };
        if self.engine.inner.home.is_here() {
            self.engine.inner.core.aside(Chore::Close, move || drop(results));
        } else {
            std::mem::forget(results); // they belong to the parent
        }
    }
}

impl Results {
    /// The results of the pieces of a transfer that ended with `whole`. Called once.
    pub(super) fn outcome(&mut self, whole: Outcome) -> ManyOutcome {
        match self {
            Self::Strip(strip) => strip.outcome(whole),
            Self::Noted(noted) => {
                let results = noted.get().expect("noted before the end is reported").clone();
                ManyOutcome { results, whole }
            }
        }
    }
}

impl OfStrip {
    fn outcome(&mut self, whole: Outcome) -> ManyOutcome {
        let is_whole = self.batch.is_whole();
        if is_whole && (!self.exact || self.longer.is_empty()) {
            // Nothing else needs `there`, so its memory is reused for the results. Allocating new
            // memory costs the kernel more than all other work here.
            let there = std::mem::take(&mut self.there);
            let results = there.into_iter().map(|there| Ok(there.len)).collect();
            return ManyOutcome { results, whole };
        }
        let mut results: Vec<PieceResult> = self.there.iter().map(|there| Ok(there.len)).collect();
        if !is_whole {
            let all = self.batch.results();
            all.for_each(|(index, result)| results[index] = result.map_err(Box::new));
            // Empty pieces have no place in the strip, but may have requested a sync.
            let empty = self.there.iter().enumerate().filter(|(_, there)| there.len == 0);
            for (index, there) in empty {
                let unsynced = self.batch.unsynced(there.source);
                unsynced.into_iter().for_each(|error| results[index] = Err(Box::new(error)));
            }
        }
        if self.exact {
            self.refuse_short(&mut results);
        }
        ManyOutcome { results, whole }
    }

    /// Turns results with fewer bytes than requested into errors.
    fn refuse_short(&self, results: &mut [PieceResult]) {
        let mut longer = self.longer.iter().peekable();
        for (index, (result, there)) in results.iter_mut().zip(&self.there).enumerate() {
            let of_this = longer.next_if(|longer| longer.0 == index);
            let len = of_this.map_or(there.len, |longer| longer.1);
            if let Ok(got) = *result
                && got < len
            {
                let place = self.batch.file(there.source).place(there.offset, len);
                *result = Err(Box::new(match got < there.len {
                    true => Error::FileChanged { place, got },
                    false => Error::EndOfFile { place, got },
                }));
            }
        }
    }
}

impl Engine {
    /// Reads many pieces of files into `targets`, all of them on one GPU or on the host, and
    /// returns when all bytes have arrived. Adjacent pieces of a file are read in one request, and
    /// copies to scattered places on a GPU are batched. One call can handle tens of thousands of
    /// pieces.
    ///
    /// If pieces overlap in a target, it holds bytes of either.
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
    /// An invalid call, or a failure of the whole transfer: the GPU, a cancel. An error of one
    /// piece is in its result.
    pub fn read_many(
        &self,
        pieces: &[Piece<'_>],
        targets: &mut [Target<'_>],
        options: &RequestOptions,
    ) -> Result<ManyOutcome> {
        let direction = Direction::Read;
        let spans = targets.iter_mut().map(|target| match target {
            Target::Host(bytes) => Ok(Span::of_host(bytes)),
            Target::Buffer(buffer, range) => part(direction, pieces, buffer, range),
        });
        let spans = spans.collect::<Result<Vec<Span>>>()?;
        self.run_many(&Many::new(direction, pieces, &spans, options))
    }

    /// Writes many pieces of `sources`, all of them on one GPU or on the host, to files, and
    /// returns when all are written: to the page cache, as in [`File::write`], or to the drive if
    /// `options` require it ([`SyncMode`](crate::SyncMode)). Copies from scattered places on a GPU
    /// are batched, and adjacent pieces of a file are then one request; from the host each piece is
    /// one. Each file is written by one thread at a time.
    ///
    /// If pieces overlap in a file, it holds bytes of either.
    ///
    /// ```
    /// use forebay::{Engine, OpenOptions, Options, Piece, RequestOptions, Source};
    ///
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("cache.bin");
    /// let engine = Engine::new(Options::from_env()?)?;
    /// let gpu = engine.device(&"sim".parse()?)?.expect("a GPU").id();
    /// let file = engine.open_with(&path, &OpenOptions::new_file())?;
    /// let mut cache = engine.allocate(gpu, 1 << 20)?;
    /// cache.fill(7)?;
    /// // Every second block of the cache, one behind the other.
    /// let pieces: Vec<Piece> =
    ///     (0..32).map(|n| Piece::new(&file, n * (16 << 10), 16 << 10, n * (32 << 10))).collect();
    /// let sources = [Source::from(&cache)];
    /// let outcome = engine.write_many(&pieces, &sources, &RequestOptions::default())?;
    /// assert!(outcome.results.iter().all(|result| matches!(result, Ok(16384))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An invalid call, or a failure of the whole transfer: the GPU, a cancel. An error of one
    /// piece is in its result, and an error of a file's sync is in the results of all its pieces.
    /// With [`preallocated`](RequestOptions::preallocated) space is reserved for all pieces, or the
    /// call fails.
    pub fn write_many(
        &self,
        pieces: &[Piece<'_>],
        sources: &[Source<'_>],
        options: &RequestOptions,
    ) -> Result<ManyOutcome> {
        let direction = Direction::Write;
        let spans = sources.iter().map(|source| match source {
            Source::Host(bytes) => Ok(Span::of_host_source(bytes)),
            Source::Buffer(buffer, range) => part(direction, pieces, buffer, range),
        });
        let spans = spans.collect::<Result<Vec<Span>>>()?;
        self.run_many(&Many::new(direction, pieces, &spans, options))
    }

    fn run_many(&self, many: &Many<'_>) -> Result<ManyOutcome> {
        if many.pieces.is_empty() {
            return Ok(ManyOutcome { results: Vec::new(), whole: Outcome::nothing() });
        }
        let on_gpu = many.spans.first().is_some_and(|span| span.gpu.is_some());
        let (state, mut results) = self.start_many(many, Vec::new())?;
        let _lent = OnUnwind::drained(self, &state);
        self.help(&state, &mut || {});
        Ok(results.outcome(state.wait_awake(on_gpu)?))
    }

    /// Like `run_many`, while the caller is to continue: the buffers outlive the ops in flight.
    pub(super) fn run_many_while(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        buffers: &[Buffer],
        options: &RequestOptions,
        go_on: GoOn<'_>,
    ) -> Result<ManyOutcome> {
        if pieces.is_empty() {
            return Ok(ManyOutcome { results: Vec::new(), whole: Outcome::nothing() });
        }
        let spans = Many::spans(direction, pieces, buffers)?;
        let many = Many::new(direction, pieces, &spans, options);
        let has_server = pieces.iter().any(|piece| piece.file.handle.opens_slowly());
        let (state, mut results) = self.start_many(&many, Vec::new())?;
        Ok(results.outcome(self.finish_while(&state, has_server, go_on)?))
    }

    /// Starts reading many pieces into `targets`, which the transfer owns until it is waited for.
    ///
    /// # Errors
    /// Errors that are detected at once, and a call without pieces; all further errors come from
    /// [`ManyTransfer::wait`].
    pub fn start_read_many(
        &self,
        pieces: &[Piece<'_>],
        targets: Vec<Buffer>,
        options: &RequestOptions,
    ) -> Result<ManyTransfer> {
        self.start_owned(Direction::Read, pieces, targets, options)
    }

    /// Starts writing many pieces of `sources`, which the transfer owns until it is waited for.
    ///
    /// # Errors
    /// Errors that are detected at once, and a call without pieces; all further errors come from
    /// [`ManyTransfer::wait`].
    pub fn start_write_many(
        &self,
        pieces: &[Piece<'_>],
        sources: Vec<Buffer>,
        options: &RequestOptions,
    ) -> Result<ManyTransfer> {
        self.start_owned(Direction::Write, pieces, sources, options)
    }

    pub(super) fn start_owned(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        buffers: Vec<Buffer>,
        options: &RequestOptions,
    ) -> Result<ManyTransfer> {
        if pieces.is_empty() {
            return Err(Error::bad_option("pieces", "none", "one at least"));
        }
        let spans = Many::spans(direction, pieces, &buffers)?;
        let many = Many::new(direction, pieces, &spans, options);
        let (state, results) = self.start_many(&many, buffers)?;
        Ok(ManyTransfer::new(state, results, self))
    }
}

/// The part of a buffer that the pieces of a call use; empty without pieces.
fn part(
    direction: Direction,
    pieces: &[Piece<'_>],
    buffer: &Buffer,
    range: &Range<u64>,
) -> Result<Span> {
    match pieces.first() {
        Some(first) => first.file.part(direction.into(), first.offset, buffer, range),
        None => Ok(Span { address: 0, len: 0, gpu: None, keep: None }),
    }
}

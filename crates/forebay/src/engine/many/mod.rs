//! Many reads or writes in one call.

mod blocks;
mod start;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_base::lock::Lock;

use super::unwind::{GoOn, OnUnwind};
use super::{Engine, File};
use crate::engine::transfer::{Transfer, TransferFuture};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Lent, Span};
use crate::options::RequestOptions;
use crate::plan::{Direction, Wanted};
use crate::queue::Chore;
use crate::transfer::{Batch, Outcome, State};
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
///
/// ```
/// use std::time::Duration;
///
/// use forebay::{Engine, Options, Piece};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = Engine::new(Options::default())?;
/// let file = engine.open(&path)?;
/// let targets = [engine.allocate_pinned(4096)?, engine.allocate_pinned(4096)?];
/// let pieces = [Piece::new(&file, 0, 4096, 0).to(0), Piece::new(&file, 8192, 4096, 0).to(1)];
/// let transfer = engine.read_many(&pieces, targets).start()?;
/// if let Some(Err(error)) = transfer.wait_for(Duration::from_secs(1)) {
///     println!("{error}");
/// }
/// println!("{:?}", transfer.transfer().progress());
/// let (outcome, targets) = transfer.wait();
/// assert_eq!((outcome?.results.len(), targets.len()), (2, 2));
/// # let copy = engine.open_with(dir.path().join("copy"), &forebay::OpenOptions::writing())?;
/// # let [first, second] = [0, 8192].map(|offset| Piece::new(&copy, offset, 4096, 0));
/// # let pieces = [first.from(0), second.from(1)];
/// # engine.write_many(&pieces, targets).start()?.detach();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ManyTransfer {
    transfer: Transfer,
    /// Present until the end is known to a caller, because it holds the files.
    results: Lock<Option<Results>>,
    /// Set from then on.
    ended: OnceLock<Result<Arc<ManyOutcome>>>,
    engine: Engine,
}

impl IntoFuture for ManyTransfer {
    type Output = (Result<ManyOutcome>, Vec<Buffer>);
    type IntoFuture = TransferFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.transfer.until_end().await;
            let end = self.transfer.end_of_all();
            self.whole(end)
        })
    }
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
    pub fn wait(self) -> (Result<ManyOutcome>, Vec<Buffer>) {
        let end = self.transfer.wait_for_all();
        self.whole(end)
    }

    fn whole(
        mut self,
        (end, buffers): (Result<Outcome>, Vec<Buffer>),
    ) -> (Result<ManyOutcome>, Vec<Buffer>) {
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
    pub(super) fn run_many(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        memory: &[Lent<'_>],
        options: &RequestOptions,
        go_on: Option<GoOn<'_>>,
    ) -> Result<ManyOutcome> {
        if pieces.is_empty() {
            return Ok(ManyOutcome { results: Vec::new(), whole: Outcome::nothing() });
        }
        let spans = memory.iter().map(|memory| span(direction, pieces, memory));
        let spans = spans.collect::<Result<Vec<_>>>()?;
        let many = Many::new(direction, pieces, &spans, options);
        let (state, mut results) = self.start_many(&many, Vec::new())?;
        let whole = match go_on {
            Some(go_on) => {
                let keeps = spans.iter().all(|span| span.keep.is_some());
                let has_server = pieces.iter().any(|piece| piece.file.handle.opens_slowly());
                self.finish_while(&state, keeps, has_server, go_on)
            }
            None => {
                let _lent = OnUnwind::drained(self, &state);
                self.help(&state, &mut || {});
                state.wait_awake(spans.first().is_some_and(|span| span.gpu().is_some()))
            }
        };
        Ok(results.outcome(whole?))
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

/// The addresses of memory that the pieces of a call use; empty without pieces.
fn span(direction: Direction, pieces: &[Piece<'_>], memory: &Lent<'_>) -> Result<Span> {
    match pieces.first() {
        Some(first) => first.file.span(direction, first.offset, memory),
        None => Ok(Span::kept_elsewhere(0, 0, None)),
    }
}

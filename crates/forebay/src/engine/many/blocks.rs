//! Reads into memory for a few blocks at a time: one transfer that advances as its caller opens
//! more blocks (`transfer/gate.rs`).

use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::{Many, ManyTransfer, Piece, Results};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::Begin;
use crate::memory::Buffer;
use crate::options::RequestOptions;
use crate::plan::Direction;
use crate::queue::Request;
use crate::transfer::{Batch, Gate, Outcome, RouteShare};

/// The whole of any strip.
const WHOLE: ByteRange = ByteRange { start: 0, end: u64::MAX };

/// A read block by block. Dropping it has the effect of dropping a [`Transfer`](crate::Transfer).
#[derive(Debug)]
pub struct BlockRead {
    transfer: ManyTransfer,
    /// Number of its pieces.
    pieces: usize,
    /// Present until a block may be read.
    request: Option<Request>,
    batch: Arc<Batch>,
    /// Maximum offset that may be added to the pieces' places.
    spare: u64,
}

impl BlockRead {
    /// Prepares to read pieces that the files are known to contain; block n has `blocks[n]` of
    /// them. Nothing is read before it is [opened](BlockRead::open), and the start event is emitted
    /// then. The calling thread is unparked when a block has arrived.
    ///
    /// # Errors
    /// Errors that are detected at once, and a call without pieces; [`Error::BadOption`] if a block
    /// is empty, or the blocks have more or fewer pieces than there are.
    pub fn prepare(
        engine: &Engine,
        pieces: &[Piece<'_>],
        blocks: &[usize],
        target: Buffer,
    ) -> Result<Self> {
        let count = blocks.iter().fold(0, |sum: usize, &block| sum.saturating_add(block));
        if count != pieces.len() || blocks.contains(&0) {
            let expected = format!("blocks of one piece or more, {} in all", pieces.len());
            return Err(Error::bad_option("blocks", format!("{count} pieces"), expected));
        }
        let end = pieces.iter().map(|piece| piece.at.saturating_add(piece.len)).max();
        let spare = target.len().saturating_sub(end.unwrap_or(0));
        let (direction, targets) = (Direction::Read, vec![target]);
        let spans = Many::spans(direction, pieces, &targets)?;
        let options = RequestOptions { exact: true, ..RequestOptions::default() };
        let many = Many::new(direction, pieces, &spans, &options);
        let many = Many { is_block: true, blocks: Some(blocks), ..many };
        let (request, results) = engine.prepare_many(&many, targets)?;
        let batch = Arc::clone(results.batch().expect("of a strip"));
        let transfer = ManyTransfer::new(Arc::clone(&request.state), results, engine);
        Ok(Self { transfer, pieces: pieces.len(), request: Some(request), batch, spare })
    }

    fn gate(&self) -> &Gate {
        self.batch.gate().expect("it has blocks")
    }

    /// Moves the pieces of a block that is not open by `bytes` in the target. The caller makes sure
    /// that nothing else uses that place.
    ///
    /// # Panics
    /// If the last piece would exceed the target, or there is no such block.
    pub fn shift(&self, block: usize, bytes: u64) {
        assert!(
            bytes <= self.spare,
            "a shift of {bytes} bytes exceeds the {} that are left",
            self.spare
        );
        self.gate().shift(block, bytes);
    }

    /// Allows the first `count` blocks to be read.
    pub fn open(&mut self, count: usize) {
        self.gate().open(count);
        if let Some(request) = self.request.take() {
            let begin = Begin::of_pieces(Direction::Read, self.pieces, None);
            request.state.emit_begin(&request.file, &begin);
            // This thread, which is awake, plans the first window.
            return self.transfer.engine.launch(request);
        }
        let state = self.transfer.transfer().state();
        self.transfer.engine.inner.core.with(|scheduler| scheduler.go_on(state));
    }

    /// The blocks that have arrived since the last call. If [an error occurred](Self::has_failed),
    /// some of their bytes may be missing.
    #[must_use]
    pub fn take_arrived(&self) -> Vec<usize> {
        self.gate().take_arrived()
    }

    /// Bytes by route and reason so far, including all bytes of arrived blocks.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteShare> {
        self.transfer.transfer().routes()
    }

    /// Whether any of the data so far is wrong or missing.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        !self.batch.is_whole() || matches!(self.transfer.transfer().ended(), Some(Err(_)))
    }

    /// Stops further reads.
    pub fn cancel(&self) {
        self.transfer.transfer().cancel();
    }

    /// Whether it has ended, or never begun.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.request.is_some() || self.transfer.transfer().is_done()
    }

    /// Drops a read all of whose blocks have arrived, which may be about to end.
    pub fn dispose(self) {
        self.transfer.detach();
    }

    /// The first error of a read that is done.
    #[must_use]
    pub fn failure(&self) -> Error {
        let of_piece = || {
            let mut results = self.transfer.results.lock();
            // A cancelled one has results for pieces read before.
            let found = results.as_mut()?.outcome(Outcome::nothing());
            found.results.into_iter().find_map(Result::err)
        };
        let ended = self.transfer.transfer().ended().and_then(Result::err);
        let cancelled = || Error::Cancelled { place: self.batch.place(WHOLE), done: 0 };
        of_piece().map_or_else(|| ended.unwrap_or_else(cancelled), |error| *error)
    }
}

impl Results {
    /// The batch, if the files are read in one transfer.
    fn batch(&self) -> Option<&Arc<Batch>> {
        match self {
            Self::Strip(strip) => Some(&strip.batch),
            Self::Noted(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn a_call_dropped_before_its_start_is_done() {
        let engine = Engine::new(Options::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 20_000]).unwrap();
        let file = engine.open(&path).unwrap();
        let pieces = [Piece::new(&file, 0, 9_000, 0), Piece::new(&file, 9_000, 9_000, 9_000)];
        let prepared = || {
            let target = engine.allocate_pinned(20_000).unwrap();
            BlockRead::prepare(&engine, &pieces, &[1, 1], target).unwrap()
        };
        for wrong in [&[1][..], &[1, 2], &[0, 2], &[1, 1, 0], &[usize::MAX, 3]] {
            let target = engine.allocate_pinned(20_000).unwrap();
            let refused = BlockRead::prepare(&engine, &pieces, wrong, target).unwrap_err();
            assert!(matches!(refused, Error::BadOption { .. }), "{refused:?}");
        }
        let given_up = prepared();
        given_up.cancel();
        assert!(given_up.is_done());
        assert!(matches!(given_up.failure(), Error::Cancelled { .. }));
        let mut read = prepared();
        read.open(1);
        while read.take_arrived().is_empty() {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        assert!(!read.is_done(), "the second block is not open");
        read.cancel();
        while !read.is_done() {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        assert!(matches!(read.failure(), Error::Cancelled { .. }));
    }
    #[test]
    fn a_block_arrives_where_it_was_moved_on_the_host_and_on_a_gpu() {
        let engine = Engine::new(Options::default()).unwrap();
        let gpu = engine.device(&"sim".parse().unwrap()).unwrap().unwrap().id();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [[1; 5_000], [2; 5_000]].concat()).unwrap();
        let file = engine.open(&path).unwrap();
        let pieces = [Piece::new(&file, 0, 5_000, 0), Piece::new(&file, 5_000, 5_000, 5_000)];
        for on_gpu in [false, true] {
            let memory = match on_gpu {
                true => engine.allocate(gpu, 20_000),
                false => engine.allocate_pinned(20_000),
            };
            let mut memory = memory.unwrap();
            memory.fill(0xee).unwrap();
            let mut read = BlockRead::prepare(&engine, &pieces, &[1, 1], memory).unwrap();
            read.shift(1, 7_000);
            read.open(2);
            while !read.is_done() {
                std::thread::park_timeout(std::time::Duration::from_millis(1));
            }
            let mut got = vec![0; 20_000];
            let buffers = read.transfer.transfer().reclaim();
            buffers[0].download(0, &mut got).unwrap();
            let expected =
                [vec![1; 5_000], vec![0xee; 7_000], vec![2; 5_000], vec![0xee; 3_000]].concat();
            assert!(got == expected, "on a GPU: {on_gpu}");
        }
    }
}

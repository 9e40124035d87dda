//! Many pieces in the order of a caller's stream: the host's part of the work.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use forebay_base::units::ByteRange;

use super::track::Track;
use crate::engine::many::{Many, Piece, PieceResult, Results};
use crate::engine::{Engine, File, Transfer};
use crate::error::{Error, Place, Result};
use crate::file::Handle;
use crate::memory::Span;
use crate::options::RequestOptions;
use crate::plan::{Direction, Packing, Wanted};

/// The pieces of one ordered transfer.
#[derive(Debug)]
pub(super) struct Pieces {
    /// Each file once.
    files: Vec<File>,
    packing: Arc<Packing>,
    /// The requested pieces, by file and range, and the bytes that the files have of them.
    requested: Vec<(usize, ByteRange)>,
    there: Vec<u64>,
    exact: bool,
    /// The results so far.
    results: Vec<PieceResult>,
    published: Arc<OnceLock<Vec<PieceResult>>>,
}

/// A step in progress.
#[derive(Debug)]
pub(super) struct Moving {
    pub(super) transfer: Transfer,
    pub(super) step: u64,
    /// For many pieces: the results of each.
    pub(super) results: Option<Results>,
}

impl Pieces {
    /// The host's part of a call. Does the parts that may hang, because later steps must not wait.
    pub(super) fn new(engine: &Engine, many: &Many<'_>) -> Result<Self> {
        let mut files: Vec<File> = Vec::new();
        let mut ends: Vec<u64> = Vec::new();
        let mut numbers: HashMap<*const Handle, usize> = HashMap::new();
        let (mut requested, mut wanted) = (Vec::new(), Vec::new());
        let reaches = many.reaches();
        for piece in many.pieces {
            let Piece { file, offset, len, target, at } = *piece;
            let key = Arc::as_ptr(&file.handle);
            let number = match numbers.get(&key) {
                Some(&number) => number,
                None => {
                    let end = reaches.get(&key).copied().unwrap_or(offset + len);
                    let range = ByteRange { start: offset, end };
                    ends.push(file.prepared_end(many.direction, range)?);
                    files.push(file.clone());
                    numbers.insert(key, files.len() - 1);
                    files.len() - 1
                }
            };
            if many.direction == Direction::Write && many.options.preallocate && len > 0 {
                file.handle.preallocate(offset, len)?;
            }
            let there = len.min(ends[number].saturating_sub(offset));
            let address = many.spans[target].address + at;
            requested.push((number, ByteRange::at(offset, len)));
            wanted.push(Wanted { source: number, offset, len: there, address });
        }
        let packing = Arc::new(Packing::new(&wanted, engine.block_len()));
        let there: Vec<u64> = wanted.iter().map(|wanted| wanted.len).collect();
        Ok(Self {
            files,
            packing,
            results: vec![Ok(0); requested.len()],
            requested,
            there,
            exact: many.options.exact && many.direction == Direction::Read,
            published: Arc::default(),
        })
    }

    pub(super) fn packing(&self) -> &Arc<Packing> {
        &self.packing
    }

    /// The results of the pieces, published at the end.
    pub(super) fn published(&self) -> &Arc<OnceLock<Vec<PieceResult>>> {
        &self.published
    }

    fn place_of(&self, piece: usize) -> Place {
        let (file, range) = self.requested[piece];
        self.files[file].handle.place(range.start, range.len())
    }

    /// Begins a block, or after the last one the sync of all files.
    pub(super) fn begin(
        &self,
        engine: &Engine,
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
        let many = Many { is_block: true, ..Many::new(direction, &pieces, &spans, options) };
        let (state, results) = engine.start_many(&many, buffers)?;
        let transfer = Transfer::new(state, engine.clone());
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
        for ((file, _), result) in self.requested.iter().zip(&mut self.results) {
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
                let (_, range) = self.requested[piece];
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
        self.published.set(results).expect("it ends once");
        got
    }

    pub(super) fn into_handles(self) -> impl Iterator<Item = Arc<Handle>> {
        self.files.into_iter().map(|file| file.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    /// No file system here fails only a sync, so its result is passed in.
    #[test]
    fn failures_name_their_pieces() {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = Engine::new(Options::default()).expect("an engine");
        let open = |name: &str| {
            std::fs::write(folder.path().join(name), vec![1; 5000]).expect("room for a file");
            engine.open(folder.path().join(name)).expect("the file opens")
        };
        let files = [open("one"), open("two")];
        let of = |n: usize| Piece::new(&files[n % 2], 0, 1000 * n as u64, 0);
        let pieces: Vec<Piece<'_>> = (0..4).map(of).collect();
        let spans = [Span::kept_elsewhere(0, 9000, None)];
        let options = RequestOptions { exact: true, ..RequestOptions::default() };
        let direction = Direction::Read;
        let call = Many {
            direction,
            pieces: &pieces,
            spans: &spans,
            options: &options,
            is_block: false,
            blocks: None,
        };
        let mut work = Pieces::new(&engine, &call).expect("files that are there");
        assert_eq!((work.packing.blocks(), work.files.len()), (1, 2));
        let failed = Box::new(Error::Cancelled { place: work.place_of(0), done: 0 });
        // Three of them have bytes: one by one in the order of the files.
        let order: Vec<usize> = work.packing.parts().iter().map(|part| part.piece).collect();
        assert_eq!(order, [2, 1, 3]);
        work.note(0, vec![Ok(2000), Err(failed.clone()), Ok(2999)]);
        work.note(1, vec![Err(failed), Ok(0)]);
        let published = Arc::clone(&work.published);
        assert_eq!(work.end(), 2999);
        let published = published.get().expect("it has ended").iter();
        let errors: Vec<&Error> = published.map(|result| &**result.as_ref().unwrap_err()).collect();
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

//! The steps of an ordered transfer between files and the slots of its track: one block each. For
//! many pieces that must be durable there is one more step at the end.

use std::sync::Arc;

use super::blocks::Blocks;
use super::pieces::{Moving, Pieces};
use super::track::Track;
use crate::engine::{Engine, File};
use crate::error::{Error, Place, Result};
use crate::file::Handle;
use crate::options::RequestOptions;
use crate::plan::Direction;
use crate::transfer::{Outcome, SyncMode};

/// The host's part of an ordered transfer.
#[derive(Debug)]
pub(super) struct OrderedWork {
    /// The file that represents all of them, and the range for errors.
    pub(super) file: File,
    pub(super) place: Place,
    /// Bytes to move, and the number of blocks, each with a gate.
    pub(super) len: u64,
    pub(super) blocks: u64,
    moves: Moves,
}

/// The bytes that an ordered transfer moves.
#[derive(Debug)]
enum Moves {
    /// A range of a file.
    Range(Blocks),
    /// Many pieces.
    Pieces(Pieces),
}

impl OrderedWork {
    pub(super) fn of_range(file: &File, blocks: Blocks) -> Self {
        let (file, len) = (file.clone(), blocks.range.len());
        let place = file.handle.place(blocks.range.start, len);
        Self { file, place, len, blocks: blocks.count(), moves: Moves::Range(blocks) }
    }

    /// For pieces that begin with one at `place`, which is in `file`.
    pub(super) fn of_pieces(file: &File, place: Place, pieces: Pieces) -> Self {
        let (len, blocks) = (pieces.packing().bytes(), pieces.packing().blocks());
        Self { file: file.clone(), place, len, blocks, moves: Moves::Pieces(pieces) }
    }

    /// Number of steps; the syncs of many files are an extra one.
    pub(super) fn steps(&self, sync: SyncMode) -> u64 {
        let syncs_apart = matches!(self.moves, Moves::Pieces(_)) && sync != SyncMode::None;
        self.blocks + u64::from(syncs_apart)
    }

    /// Begins a step.
    pub(super) fn begin(
        &self,
        step: u64,
        track: &Track,
        direction: Direction,
        options: &RequestOptions,
    ) -> Result<Moving> {
        let mut options = RequestOptions { exact: true, preallocate: false, ..*options };
        if step + 1 < self.steps(options.sync) {
            options.sync = SyncMode::None;
        }
        match &self.moves {
            Moves::Range(blocks) => {
                let part = blocks.range_of(step);
                let memory = track.part(step, part);
                // The size is known, so no server is queried here.
                let size = blocks.range.end;
                let file = &self.file;
                let transfer = file.start_sized(direction, part.start, memory, &options, size)?;
                Ok(Moving { transfer, step, results: None })
            }
            Moves::Pieces(pieces) => {
                pieces.begin(&self.file.engine, step, track, direction, &options)
            }
        }
    }

    /// Records the results of a step's pieces.
    pub(super) fn note(&mut self, moved: &mut Moving, whole: &Outcome) {
        if let (Moves::Pieces(pieces), Some(results)) = (&mut self.moves, &mut moved.results) {
            pieces.note(moved.step, results.outcome(whole.clone()).results);
        }
    }

    /// The result when all steps are done.
    pub(super) fn end(&mut self, got: u64, requested: u64, exact: bool) -> Result<u64> {
        match &mut self.moves {
            Moves::Range(_) if exact && got < requested => {
                let place = Place { len: requested, ..self.place.clone() };
                Err(Error::EndOfFile { place, got })
            }
            Moves::Range(_) => Ok(got),
            Moves::Pieces(pieces) => Ok(pieces.end()),
        }
    }

    /// Its files, whose close may hang, and the engine.
    pub(super) fn into_parts(self) -> (Vec<Arc<Handle>>, Engine) {
        let mut handles = vec![self.file.handle];
        if let Moves::Pieces(pieces) = self.moves {
            handles.extend(pieces.into_handles());
        }
        (handles, self.file.engine)
    }
}

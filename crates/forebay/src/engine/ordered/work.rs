//! The steps of an ordered transfer between files and the slots of its track: one block each. For
//! many pieces that must be durable there is one more step at the end.

use std::path::Path;
use std::sync::Arc;

use super::blocks::Blocks;
use super::pieces::{Moving, Pieces};
use super::track::Track;
use crate::engine::{Engine, File, RequestOptions};
use crate::error::{Error, Place, Result};
use crate::file::Handle;
use crate::plan::Direction;
use crate::transfer::{Outcome, SyncMode};

/// The bytes that an ordered transfer moves.
#[derive(Debug)]
pub(super) enum OrderedWork {
    /// A range of a file.
    Range(File, Blocks),
    /// Many pieces.
    Pieces(Pieces),
}

impl OrderedWork {
    pub(super) fn engine(&self) -> &Engine {
        match self {
            Self::Range(file, _) => file.engine(),
            Self::Pieces(pieces) => pieces.engine(),
        }
    }

    fn file(&self) -> &File {
        match self {
            Self::Range(file, _) => file,
            Self::Pieces(pieces) => pieces.first_file(),
        }
    }

    /// The file that represents all of them.
    pub(super) fn handle(&self) -> &Handle {
        self.file().handle()
    }

    pub(super) fn path(&self) -> &Path {
        self.file().path()
    }

    /// The range that it moves, for errors.
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Range(file, blocks) => {
                file.handle().place(blocks.range.start, blocks.range.len())
            }
            Self::Pieces(pieces) => pieces.place(),
        }
    }

    /// Bytes to move.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Range(_, blocks) => blocks.range.len(),
            Self::Pieces(pieces) => pieces.packing().bytes(),
        }
    }

    /// Number of blocks, each with a gate.
    pub(super) fn blocks(&self) -> u64 {
        match self {
            Self::Range(_, blocks) => blocks.count(),
            Self::Pieces(pieces) => pieces.packing().blocks(),
        }
    }

    /// Number of steps; the syncs of many files are an extra one.
    pub(super) fn steps(&self, sync: SyncMode) -> u64 {
        let syncs_apart = matches!(self, Self::Pieces(_)) && sync != SyncMode::None;
        self.blocks() + u64::from(syncs_apart)
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
        match self {
            Self::Range(file, blocks) => {
                let part = blocks.range_of(step);
                let memory = track.part(step, part);
                // The size is known, so no server is queried here.
                let size = blocks.range.end;
                let transfer = file.start_sized(direction, part.start, memory, &options, size)?;
                Ok(Moving { transfer, step, results: None })
            }
            Self::Pieces(pieces) => pieces.begin(step, track, direction, &options),
        }
    }

    /// Records the results of a step's pieces.
    pub(super) fn note(&mut self, moved: &mut Moving, whole: &Outcome) {
        if let (Self::Pieces(pieces), Some(results)) = (self, &mut moved.results) {
            pieces.note(moved.step, results.outcome(whole.clone()).results);
        }
    }

    /// The result when all steps are done.
    pub(super) fn end(&mut self, got: u64, asked: u64, exact: bool) -> Result<u64> {
        match self {
            Self::Range(file, blocks) if exact && got < asked => {
                let place = file.handle().place(blocks.range.start, asked);
                Err(Error::EndOfFile { place, got })
            }
            Self::Range(..) => Ok(got),
            Self::Pieces(pieces) => Ok(pieces.end()),
        }
    }

    /// Its files, whose close may hang, and the engine.
    pub(super) fn into_parts(self) -> (Vec<Arc<Handle>>, Engine) {
        match self {
            Self::Range(file, _) => {
                let (handle, engine) = file.into_parts();
                (vec![handle], engine)
            }
            Self::Pieces(pieces) => pieces.into_parts(),
        }
    }
}

//! The methods to move the bytes of several files at once: each opens, moves and closes, and only
//! the move is timed.

pub mod forebay;
pub mod kvikio;
pub mod one_queue;

use std::path::PathBuf;

use super::targets::Targets;
use crate::bench::cpu::Spent;
use crate::bench::data::Expected;
use crate::bench::methods::Moved;
use crate::failure::Result;
use crate::report::json::{Cache, Direction, Settings};

/// One file of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The index of its path and of its target.
    pub index: usize,
    /// The file; it exists, and a written one has `len` bytes.
    pub path: PathBuf,
    /// Bytes from its start; its target has the same length.
    pub len: u64,
}

/// A move of the bytes of several files.
#[derive(Debug, Clone)]
pub struct Job {
    /// The files, in the order of the request.
    pub parts: Vec<Part>,
    /// From or to the files.
    pub direction: Direction,
    /// The page cache state. A cold write ends when its bytes are on the drives.
    pub cache: Cache,
}

impl Job {
    /// Bytes of all files.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }

    /// True if there is nothing to move.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A method to move the bytes of several files at once.
pub trait Way {
    /// The settings it used, for the report.
    fn settings(&self) -> Option<Settings> {
        None
    }

    /// Whether another process moves the bytes, so that this one's counters do not count them.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// Prepares once for all samples; `ready` makes the files cold or resident.
    ///
    /// # Errors
    /// Something that it needs is unavailable.
    fn prepare(
        &mut self,
        _job: &Job,
        _targets: &mut Targets,
        _ready: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        Ok(())
    }

    /// Opens the files and allocates what the move needs.
    ///
    /// # Errors
    /// Something that it needs is unavailable.
    fn open(&mut self, job: &Job, targets: &mut Targets) -> Result<()>;

    /// Sets every byte of the targets of a read.
    ///
    /// # Errors
    /// GPU errors.
    fn set(&mut self, job: &Job, targets: &mut Targets, byte: u8) -> Result<()> {
        job.parts.iter().try_for_each(|part| targets.set(part.index, byte))
    }

    /// Moves all bytes; returns their number, and the time taken.
    ///
    /// # Errors
    /// If not all bytes can be moved.
    fn run(&mut self, job: &Job, targets: &mut Targets) -> Result<(Moved, Spent)>;

    /// Whether the targets of a read are as expected; `expected` has an entry for each path.
    ///
    /// # Errors
    /// GPU errors.
    fn holds(&mut self, job: &Job, targets: &mut Targets, expected: &[Expected]) -> Result<bool> {
        for part in &job.parts {
            if !targets.holds(part.index, &expected[part.index])? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Closes the files of a job.
    ///
    /// # Errors
    /// A file system reports that written bytes may be lost.
    fn close(&mut self, job: &Job) -> Result<()>;
}

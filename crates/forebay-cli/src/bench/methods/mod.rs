//! The methods to move bytes that are compared: each opens, moves and closes, and only the move is
//! timed.

pub mod cufile;
pub mod forebay;
mod mapping;
pub mod mmap;
pub mod standard;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use ::forebay::Route;
use ::forebay::direct::Counters;
use forebay_evidence::Seen;

use super::cpu::Spent;
use super::data::{Expected, Pattern};
use super::held::no_link;
use super::memory::{self, Memory};
use crate::failure::{Failure, Result};
use crate::report::json::{Cache, Direction, MethodName, Settings};
use crate::steps::Step;

/// Bytes that methods without an engine move at a time.
const STEP: u64 = 16 * ::forebay::units::MIB;

/// A move between a file and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The file; it exists, and a written one has `len` bytes.
    pub path: PathBuf,
    /// Bytes from its start.
    pub len: u64,
    /// From or to the file.
    pub direction: Direction,
    /// The page cache state. A cold write ends when its bytes are on the drive.
    pub cache: Cache,
}

/// The bytes moved, as the method itself reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Number of bytes.
    pub bytes: u64,
    /// The engine's route.
    pub route: Option<String>,
    /// Why this route, or the route that the bytes took.
    pub reason: Option<String>,
    /// Bytes by route, as the method itself reports them; empty if it does not.
    pub said: Vec<(Route, u64)>,
}

/// A method to move bytes between a file and memory.
pub trait Method {
    /// Its name.
    fn name(&self) -> MethodName;

    /// The settings it used, for the report.
    fn settings(&self) -> Option<Settings> {
        None
    }

    /// Opens the file and allocates what the move needs.
    ///
    /// # Errors
    /// Something that it needs is unavailable.
    fn open(&mut self, job: &Job, memory: &Memory) -> Result<()>;

    /// Sets every byte of the target of a read, which may be in another process.
    ///
    /// # Errors
    /// GPU errors.
    fn set(&mut self, memory: &mut Memory, byte: u8) -> Result<()> {
        memory.set(byte)
    }

    /// Writes the first `len` bytes of `pattern` to the source of a write.
    ///
    /// # Errors
    /// GPU errors.
    fn put(&mut self, memory: &mut Memory, pattern: Pattern, len: u64) -> Result<()> {
        memory.put(pattern, len)
    }

    /// Whether the first `len` bytes of the target of a read are as expected.
    ///
    /// # Errors
    /// GPU errors.
    fn holds(&mut self, memory: &Memory, expected: &Expected, len: u64) -> Result<bool> {
        memory.holds(expected, len)
    }

    /// Moves the file's first bytes to `target`.
    ///
    /// # Errors
    /// If not all bytes can be moved.
    fn read(&mut self, job: &Job, target: &mut Memory) -> Result<Moved>;

    /// A step that detects a stalled read, if this process makes the read.
    fn reading(&self, _job: &Job) -> Option<Step> {
        None
    }

    /// Moves the first bytes of `source` to the file.
    ///
    /// # Errors
    /// If not all bytes can be moved.
    fn write(&mut self, job: &Job, source: &Memory) -> Result<Moved>;

    /// The time of the last move by another process's clock, if that process makes the move.
    fn spent(&self) -> Option<Spent> {
        None
    }

    /// Whether another process does the work.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// cuFile's counters, if they are in another process.
    fn counters(&self) -> Option<Seen<Counters>> {
        None
    }

    /// Closes the file of a job.
    ///
    /// # Errors
    /// If the file system reports that written bytes may be lost.
    fn close(&mut self, job: &Job) -> Result<()>;
}

/// Closes the job's file.
fn end(job: &Job, file: Option<File>) -> Result<()> {
    let written = job.direction == Direction::Write;
    file.map_or(Ok(()), |file| memory::end(file, &job.path, written))
}

/// Opens the job's file as its direction needs it.
fn open(job: &Job) -> Result<File> {
    let _step = Step::begin("open", &job.path);
    let write = job.direction == Direction::Write;
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(no_link(&job.path, write))
        .open(&job.path)
        .map_err(|error| Failure::io(format!("cannot open `{}`", job.path.display()), &error))
}

/// Makes a cold write durable.
fn settle(job: &Job, file: &File) -> Result<()> {
    match job.cache {
        Cache::Resident => Ok(()),
        Cache::Cold => file
            .sync_data()
            .map_err(|error| Failure::io(format!("cannot sync `{}`", job.path.display()), &error)),
    }
}

/// The failure of a move at `offset`.
fn failed(job: &Job, offset: u64, error: &std::io::Error) -> Failure {
    let verb = job.direction.name();
    Failure::io(format!("cannot {verb} `{}` at {offset}", job.path.display()), error)
}

//! One sample of one way: prepare, move (timed), check.
//!
//! Before a read the target is filled with other bytes, and those differ from repeat to repeat, so
//! that a byte which is never moved cannot be right each time. A written file is filled anew with
//! bytes that all differ from what it holds, and is read back after its pages have been dropped.

use super::cache::{PageCache, make_cold, make_resident, read_plainly};
use super::cpu::{Spent, timed};
use super::data::{Expected, Pattern};
use super::make;
use super::memory::Memory;
use super::methods::{Job, Method, Moved};
use crate::failure::{Failure, Result};
use crate::report::json::{Cache, Direction};

/// What one move took, and whether it was right.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Time and processor time.
    pub spent: Spent,
    /// What the way itself tells.
    pub moved: Moved,
    /// Whether every byte arrived.
    pub verified: bool,
}

/// What the file of a job holds.
#[derive(Debug)]
pub enum Content<'a> {
    /// A file that is read.
    Read(&'a Expected),
    /// A file of ours that is written: the pattern that it holds now.
    Write(&'a mut Pattern),
}

/// Takes one sample; the text says why the file's pages could not be brought where they should be.
///
/// # Errors
/// The way's, and the system's.
pub fn sample(
    method: &mut dyn Method,
    job: &Job,
    memory: &mut Memory,
    content: &mut Content<'_>,
    file: &dyn PageCache,
    repeat: u32,
) -> Result<Result<Sample, String>> {
    method.open(job, memory)?;
    let sample = opened(method, job, memory, content, file, repeat);
    method.close();
    sample
}

fn opened(
    method: &mut dyn Method,
    job: &Job,
    memory: &mut Memory,
    content: &mut Content<'_>,
    file: &dyn PageCache,
    repeat: u32,
) -> Result<Result<Sample, String>> {
    match content {
        // Both are even, so both differ from every byte of our own data.
        Content::Read(_) => memory.set(if repeat.is_multiple_of(2) { 0xA4 } else { 0x5A })?,
        Content::Write(pattern) => memory.put(pattern.inverse(), job.len)?,
    }
    let ready = match job.cache {
        Cache::Cold => make_cold(file, job.len)?,
        Cache::Resident => make_resident(&job.path, file, job.len)?,
    };
    if let Err(reason) = ready {
        return Ok(Err(reason));
    }
    let (moved, spent) = timed(|| match job.direction {
        Direction::Read => method.read(job, memory),
        Direction::Write => method.write(job, memory),
    });
    let moved = moved?;
    let right = match content {
        Content::Read(expected) => memory.holds(expected, job.len)?,
        Content::Write(pattern) => {
            **pattern = pattern.inverse();
            // On a file system that lives in memory nothing can be dropped, nor be lost by it.
            file.evict()?;
            let right = file_holds(job, **pattern)?;
            if !right {
                // The next way must find the file as the pattern says, whatever this one left.
                make::fill(&job.path, **pattern, job.len)?;
            }
            right
        }
    };
    let verified = right && moved.bytes == job.len;
    Ok(Ok(Sample { spent, moved, verified }))
}

/// Whether the job's file holds `pattern` and ends where it should.
fn file_holds(job: &Job, pattern: Pattern) -> Result<bool> {
    let facts = std::fs::metadata(&job.path)
        .map_err(|error| Failure::io(format!("cannot inspect `{}`", job.path.display()), &error))?;
    if facts.len() != job.len {
        return Ok(false);
    }
    let wrong = || Failure::new("");
    let read = read_plainly(&job.path, job.len, |offset, bytes| {
        if pattern.matches(offset, bytes) { Ok(()) } else { Err(wrong()) }
    });
    match read {
        Ok(()) => Ok(true),
        Err(failure) if failure == wrong() => Ok(false),
        Err(failure) => Err(failure),
    }
}

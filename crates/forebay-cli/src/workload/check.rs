//! Compares what was moved last with the files: bytes that never arrived, or went to another place,
//! are told even where nobody looked at a request while the clock ran.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay::Engine;
use forebay::units::MIB;

use super::pattern::Region;
use super::worker::{Made, Worked};
use crate::bench::memory::whole;
use crate::failure::{Failure, Result};
use crate::report::json::Direction;
use crate::steps::{self, Step};

/// Bytes that are compared at most: a look at a run, not a second run.
const CHECKED_MAX: u64 = 64 * MIB;

/// The calls whose bytes both the place's memory and the file must hold: the last of each place,
/// without writes that a later call wrote over, and, where anything is written, without reads.
fn calls(last: &VecDeque<Made>, request_size: u64, writes: bool) -> Vec<&Made> {
    let mut found: Vec<&Made> = Vec::new();
    let mut places = Vec::new();
    for (index, call) in last.iter().enumerate().rev() {
        if places.contains(&call.place) {
            continue;
        }
        places.push(call.place);
        let is_write = call.direction == Direction::Write;
        let meets = |later: &Made| {
            let near = |a: u64, b: u64| a.abs_diff(b) < request_size;
            later.direction == Direction::Write
                && call.offsets.iter().any(|&a| later.offsets.iter().any(|&b| near(a, b)))
        };
        if is_write == writes && (!writes || !last.iter().skip(index + 1).any(meets)) {
            found.push(call);
        }
    }
    found
}

/// Whether the bytes of the last calls of each of `all`, with its file, are right; `None` where
/// there were none to compare.
///
/// # Errors
/// The system's and the GPU's.
pub(super) fn holds(
    engine: &Engine,
    all: &mut [(&Path, Worked)],
    request_size: u64,
    writes: bool,
) -> Result<Option<bool>> {
    let mut left = CHECKED_MAX;
    let mut right = None;
    for (path, worked) in all {
        if worked.result.is_err() {
            continue;
        }
        if writes {
            // What is on the drive is to be compared, not what is on its way there.
            steps::open(engine, path)?.evict()?;
        }
        let reading = Step::begin("read", path);
        let failed = |error| Failure::io(format!("cannot read `{}`", path.display()), &error);
        let file = File::open(&**path).map_err(failed)?;
        for call in calls(&worked.last, request_size, writes) {
            let bytes = request_size * call.offsets.len() as u64;
            if bytes > left && right.is_some() {
                break;
            }
            left = left.saturating_sub(bytes);
            let memory = worked.issuer.memory(call.place)?;
            let same = compare(&file, &memory, &call.offsets, request_size, &reading);
            right = Some(right.unwrap_or(true) && same.map_err(failed)?);
        }
    }
    Ok(right)
}

/// Whether every request's place in the regions of `all`, each with its file, has what a thread
/// that wrote there had in its memory.
///
/// # Errors
/// The system's and the GPU's.
pub(super) fn all_holds(
    engine: &Engine,
    all: &mut [(&Path, Worked)],
    regions: &[Region],
    request_size: u64,
) -> Result<bool> {
    for ((path, worked), region) in all.iter_mut().zip(regions) {
        steps::open(engine, path)?.evict()?;
        let mut written = HashSet::new();
        for place in 0..worked.places {
            let memory = worked.issuer.memory(place)?;
            written.extend(memory.chunks_exact(whole(request_size)).map(<[u8]>::to_vec));
        }
        let reading = Step::begin("read", path);
        let failed = |error| Failure::io(format!("cannot read `{}`", path.display()), &error);
        let file = File::open(&**path).map_err(failed)?;
        let mut bytes = vec![0; whole(request_size)];
        for number in 0..region.len / request_size {
            file.read_exact_at(&mut bytes, region.start + number * request_size).map_err(failed)?;
            reading.goes_on();
            if !written.contains(&bytes) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether `memory` has, one behind the other, what the file has at `offsets`.
fn compare(
    file: &File,
    memory: &[u8],
    offsets: &[u64],
    request_size: u64,
    reading: &Step,
) -> std::io::Result<bool> {
    let mut bytes = vec![0; whole(request_size)];
    // A call that moved fewer requests than its memory has room for leaves the rest alone.
    for (memory, &offset) in memory.chunks_exact(bytes.len()).zip(offsets) {
        file.read_exact_at(&mut bytes, offset)?;
        reading.goes_on();
        if memory != bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(place: usize, direction: Direction, offsets: &[u64]) -> Made {
        Made { place, direction, offsets: offsets.to_vec() }
    }

    #[test]
    fn only_what_is_still_there_is_compared() {
        use Direction::{Read, Write};
        let last = VecDeque::from([
            made(0, Write, &[0, 100]),
            made(1, Write, &[200]),
            made(2, Write, &[300]),
            made(1, Write, &[105]),
        ]);
        let found = calls(&last, 10, true);
        let offsets: Vec<u64> = found.iter().map(|call| call.offsets[0]).collect();
        assert_eq!(offsets, [105, 300], "the first was partly written over");
        let mixed = VecDeque::from([made(0, Write, &[0]), made(1, Read, &[0])]);
        let found = calls(&mixed, 10, true);
        assert_eq!(found.len(), 1, "a read takes nothing away, and may have come before");
        let reads = VecDeque::from([made(0, Read, &[0]), made(0, Read, &[50])]);
        assert_eq!(calls(&reads, 10, false), [&made(0, Read, &[50])]);
    }
}

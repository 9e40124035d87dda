//! Verifies the moved bytes after a run, since no request is compared while the clock runs. Finds
//! bytes that are missing, changed, or at the wrong offset. Swapped writes of one thread are
//! found only if this process has their host memory: from a GPU, or by cuFile, their
//! bytes are the same.
//!
//! For writes all bytes are read back, up to a limit. For reads the last ones are compared: with
//! what the command put into the file, or with a second read if that is unknown. A mix of both is
//! not compared: if reads and writes overlap, the expected result of a read is unknown.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay::Engine;
use forebay::units::{GIB, MIB};

use super::expected::{Expected, compare};
use super::worker::Worker;
use super::written::{Piece, pieces};
use crate::failure::{Failure, Result};
use crate::memory::whole;
use crate::steps::{self, Step};

/// Maximum bytes of the last reads that are compared, beyond the last call of each thread.
const CHECKED_MAX: u64 = 64 * MIB;

/// The limits of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    /// Bytes of files with known contents.
    known: u64,
    /// Written bytes, and reads of them. If there are more, an even sample is compared.
    written: u64,
    reads: usize,
}

impl Most {
    /// The usual limits.
    pub const USUAL: Self = Self { known: CHECKED_MAX, written: 4 * GIB, reads: 1 << 16 };
    /// No limits.
    pub const ALL: Self = Self { known: u64::MAX, written: u64::MAX, reads: usize::MAX };
    /// Nothing is compared.
    pub const NONE: Self = Self { known: 0, written: 0, reads: 0 };
}

impl Default for Most {
    fn default() -> Self {
        Self::USUAL
    }
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// True if the bytes match, false on a mismatch; `None` if they were not compared.
    pub right: Option<bool>,
    /// Bytes that were compared.
    pub bytes: u64,
    /// Whether these are all that were written.
    pub is_all: bool,
}

/// Compares the files of write-only threads with the written bytes.
///
/// # Errors
/// System errors.
pub(super) fn written(engine: &Engine, all: &[Worker<'_>], most: &Most) -> Result<Checked> {
    let mut checked = Checked { right: None, bytes: 0, is_all: true };
    let count = all.len().max(1);
    for worker in all {
        let (path, Some(wrote)) = (&worker.lane.path, worker.wrote()) else { continue };
        // Evict first, to compare the bytes on the drive, not those still in the page cache.
        steps::open(engine, path)?.evict()?;
        let (places, is_all) = wrote.places();
        let pieces = pieces(&places, wrote.request_size, MIB);
        let bytes = (places.len() as u64).saturating_mul(wrote.request_size);
        let shares = bytes.div_ceil((most.written / count as u64).max(1));
        let reads = pieces.len().div_ceil((most.reads / count).max(1));
        let step = whole(shares).max(reads).max(1);
        let pieces: Vec<Piece> = pieces.into_iter().step_by(step).collect();
        if !holds(path, &pieces, |piece, bytes| wrote.fill(piece, bytes))? {
            return Ok(Checked { right: Some(false), ..checked });
        }
        checked.bytes += pieces.iter().map(|piece| piece.len).sum::<u64>();
        checked.is_all &= is_all && step == 1;
        checked.right = checked.right.or((!pieces.is_empty()).then_some(true));
    }
    Ok(checked)
}

/// Whether these pieces of the file at `path` are what `fill` makes of them.
fn holds(path: &Path, pieces: &[Piece], fill: impl Fn(Piece, &mut [u8]) + Sync) -> Result<bool> {
    let reading = Step::begin("read", path);
    let failed = |error| Failure::at("read", path, &error);
    let file = File::open(path).map_err(failed)?;
    compare(pieces.len() as u64, 1, |(found, expected), number| {
        let piece = pieces[whole(number.start)];
        found.resize(whole(piece.len), 0);
        expected.resize(whole(piece.len), 0);
        fill(piece, expected);
        file.read_exact_at(found, piece.offset).map_err(failed)?;
        reading.goes_on();
        Ok(found == expected)
    })
}

/// Compares the bytes of the last reads of each of `all` with its file.
///
/// # Errors
/// System and GPU errors.
pub(super) fn last_reads(all: &mut [Worker<'_>]) -> Result<Checked> {
    let (most, mut checked) = (CHECKED_MAX / (all.len() as u64).max(1), Checked::default());
    for Worker { load, lane, backend, progress, .. } in all {
        let (size, path) = (load.request_size, &lane.path);
        // Each thread has its share, and at least one call.
        let mut left = None;
        let reading = Step::begin("read", path);
        let failed = |error| Failure::at("read", path, &error);
        let file = File::open(path).map_err(failed)?;
        let expected = lane.content.map_or(Expected::File(&file), Expected::Pattern);
        let places = progress.last.iter().enumerate();
        for (place, (_, offsets)) in places.filter_map(|(i, call)| Some((i, call.as_ref()?))) {
            let bytes = size * offsets.len() as u64;
            if left.is_some_and(|left| bytes > left) {
                break;
            }
            left = Some(left.unwrap_or(most).saturating_sub(bytes));
            let mut same = true;
            for (index, &offset) in offsets.iter().enumerate() {
                same &= backend.holds(place, index as u64 * size, size, &expected, offset)?;
                reading.goes_on();
            }
            checked.right = Some(checked.right.unwrap_or(true) && same);
            checked.bytes += bytes;
        }
    }
    Ok(checked)
}

/// Whether the files of known contents still hold them. Reads at most `most` bytes in total, from
/// the start of each part. `None` if no contents are known.
///
/// # Errors
/// System errors.
pub(super) fn known_holds(all: &[Worker<'_>], most: &Most) -> Result<Option<bool>> {
    let known = || all.iter().filter_map(|worker| Some((worker.lane, worker.lane.content?)));
    let most = most.known / (known().count() as u64).max(1);
    let mut right = None;
    for (lane, content) in known() {
        let pieces = pieces(&[lane.region.start], lane.region.len.min(most), MIB);
        if !holds(&lane.path, &pieces, |piece, bytes| content.fill_at(piece.offset, bytes))? {
            return Ok(Some(false));
        }
        right = Some(true);
    }
    Ok(right)
}

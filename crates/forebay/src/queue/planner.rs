//! Planning of windows: queries which bytes are resident, and cuts the window into segments.

use std::iter::once;
use std::time::Instant;

use forebay_base::units::{ByteRange, KIB, align_down};

use super::scheduler::Claim;
use super::window::PIECES_MAX;
use crate::file::{Handle, ResidencySource};
use crate::plan::{
    Direction, Io, Layout, Part, Reason, Segment, Split, cut_direct, cut_parts, cut_read,
};
use crate::transfer::{Batch, Stage};

/// Shorter resident runs inside a partly resident window are ignored. A separate request per run
/// costs more than reading them from the drive with their neighbours.
const GRAIN: u64 = 64 * KIB;

/// Smallest piece at a transfer's edges, so that several readers begin immediately and the last
/// copy is short. Smaller pieces cost more in wake-ups than they gain.
const EDGE_PIECE_MIN: u64 = 128 * KIB;

/// The piece size of a window, and its segments.
pub(crate) type Plan = (u64, Vec<Segment>);

/// Cuts windows into pieces and segments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planner {
    pub(crate) segment: u64,
}

impl Planner {
    /// The piece size of a claimed window, and its segments.
    pub(crate) fn plan(&self, claim: &Claim) -> Plan {
        let start = Instant::now();
        let plan = self.cut(claim, split, Handle::is_resident);
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        claim.state.add_time(Stage::Probe, took);
        plan
    }

    /// Plans a window with residency passed in: `split` for the window, `is_resident` for each file
    /// of a batch.
    pub(super) fn cut(
        &self,
        claim: &Claim,
        split: impl FnOnce(&Claim) -> Split,
        is_resident: impl Fn(&Handle, ByteRange) -> bool,
    ) -> Plan {
        if claim.is_direct {
            let piece = self.drive_piece(claim);
            return (piece, cut_direct(claim.range, claim.base, piece, claim.how.1));
        }
        if let Some(batch) = &claim.batch {
            return self.cut_batch(claim, batch, is_resident);
        }
        // O_DIRECT may have been refused since the transfer began.
        let (io, reason) = claim.how;
        let is_refused =
            io == Io::ODirect && reason != Reason::Required && claim.file.o_direct().is_err();
        let how = if is_refused { (Io::Buffered, Reason::NoDirectIo) } else { claim.how };
        if claim.direction == Direction::Write {
            let part = Part { range: claim.range, layout: claim.layout, how };
            let segments = cut_parts(once(part), claim.base, self.segment, claim.alignment);
            return (self.segment, segments);
        }
        let split = match how {
            (Io::Buffered, reason)
                if can_be_resident(&claim.file, reason)
                    && is_resident(&claim.file, claim.range) =>
            {
                Split::Buffered(Reason::Resident)
            }
            (Io::Buffered, reason) => Split::Buffered(reason),
            (Io::ODirect, Reason::NotResident) => split(claim),
            (Io::ODirect, reason) => Split::ODirect(reason),
        };
        let piece = match &split {
            Split::ODirect(_) => self.drive_piece(claim),
            Split::Resident(runs) if runs.as_slice() != [claim.range] => self.drive_piece(claim),
            _ => self.cached_piece(claim),
        };
        let segments =
            cut_read(claim.range, claim.base, piece, &split, claim.alignment, claim.layout);
        (piece, segments)
    }

    /// Cuts a window of a batch. Adjacent resident parts become a single op, which reads them in
    /// sequence. Every other part becomes a separate request.
    fn cut_batch(
        &self,
        claim: &Claim,
        batch: &Batch,
        is_resident: impl Fn(&Handle, ByteRange) -> bool,
    ) -> Plan {
        let parts: Vec<_> = batch.parts(claim.range).collect();
        let how_of = |(part, _): &(ByteRange, _)| how_of(claim, batch, *part, &is_resident);
        let chosen: Vec<(Io, Reason)> = parts.iter().map(how_of).collect();
        let all_in_memory = chosen.iter().all(|(_, reason)| reason.is_in_memory());
        let piece = match claim.direction {
            Direction::Write => self.segment,
            Direction::Read if all_in_memory => self.cached_piece(claim),
            Direction::Read => self.drive_piece(claim),
        };
        let parts = parts.into_iter().zip(chosen).map(|((range, host), how)| {
            let layout = host.map_or(Layout::Slot, Layout::Caller);
            Part { range, layout, how }
        });
        (piece, cut_parts(parts, claim.base, piece, claim.alignment))
    }

    /// The drive's block size, adjusted to the maximum number of pieces and to the alignment.
    fn drive_piece(&self, claim: &Claim) -> u64 {
        let least = (claim.range.end - claim.base).div_ceil(PIECES_MAX).next_power_of_two();
        let unit = claim.alignment.map_or(1, |alignment| alignment.offset);
        claim.block_size.max(least).max(unit).min(self.segment)
    }

    /// Whole segments in the middle of a transfer, smaller pieces at its edges.
    fn cached_piece(&self, claim: &Claim) -> u64 {
        if !claim.edge {
            return self.segment;
        }
        let span = claim.range.end - claim.base;
        let share = (span / (4 * claim.readers as u64)).max(1).next_power_of_two();
        let least = span.div_ceil(PIECES_MAX).next_power_of_two().max(EDGE_PIECE_MIN);
        share.clamp(least, (self.segment / 4).max(least)).min(self.segment)
    }
}

/// True if bytes that are to be read through the page cache, whatever is resident, are left to
/// readers where they are. A page that is being read counts as resident, and a reader must not wait
/// for it.
fn can_be_resident(file: &Handle, reason: Reason) -> bool {
    !reason.is_in_memory() && file.supports_nowait()
}

/// The data path for a part of a stretch.
fn how_of(
    claim: &Claim,
    batch: &Batch,
    part: ByteRange,
    is_resident: impl Fn(&Handle, ByteRange) -> bool,
) -> (Io, Reason) {
    let stretch = batch.stretch_at(part.start);
    let file = batch.file_of(stretch);
    let range = ByteRange::at(stretch.offset_of(part.start), part.len());
    let (io, reason) = claim.how;
    let may_be_cached = match io {
        Io::ODirect => reason == Reason::NotResident,
        Io::Buffered => claim.direction == Direction::Read && can_be_resident(file, reason),
    };
    if may_be_cached && is_resident(file, range) {
        return (Io::Buffered, Reason::Resident);
    }
    match io {
        Io::ODirect if reason != Reason::Required && file.o_direct().is_err() => {
            (Io::Buffered, Reason::NoDirectIo)
        }
        _ => claim.how,
    }
}

/// Queries which bytes of the window are in the page cache.
fn split(claim: &Claim) -> Split {
    match claim.file.residency_source() {
        ResidencySource::InMemory => Split::Buffered(Reason::InMemory),
        ResidencySource::Unknown(_) => try_once(claim),
        ResidencySource::Cachestat | ResidencySource::Mincore => {
            Split::Resident(claim.file.resident(claim.range, GRAIN))
        }
    }
}

/// Tries to read a page without waiting. A miss starts read-ahead in the kernel, so a window makes
/// a single attempt.
fn try_once(claim: &Claim) -> Split {
    let mut page = [0; 4096];
    let start = align_down(claim.range.start, 4096);
    let len = usize::try_from(claim.range.intersect(ByteRange::at(start, 4096)).len()).unwrap_or(1);
    let found = claim.file.supports_nowait()
        && claim.file.try_read_nowait(&mut page[..len.clamp(1, 4096)], claim.range.start).is_some();
    if found {
        Split::Buffered(Reason::TriedResident)
    } else {
        Split::ODirect(Reason::TriedNotResident)
    }
}

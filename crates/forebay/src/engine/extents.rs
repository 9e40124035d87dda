//! Which queues carry a read of a file on a volume whose members stand in a row: that of the member
//! for what lies on one, so that all of them are at work, and none waits for another.
//!
//! The extents choose the queue, nothing else. The read is one of the volume still, by the file's
//! offset, so what is wrong or out of date costs speed alone.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Engine;
use super::overdue::TOLD_MAX;
use crate::error::Result;
use crate::file::{Handle, Places};
use crate::plan::{Io, Reason};
use crate::queue::Share;
use crate::topology::{Below, Row, Run};
use crate::units::ByteRange;

/// What is to be read, and how.
pub(super) type Part = (ByteRange, Io, Reason);

impl Engine {
    /// The queue of the drive that has the first byte of a read's only part, and what others have
    /// of it. `parts` holds what is that one's then.
    pub(super) fn spread(
        &self,
        file: &Arc<Handle>,
        parts: &mut VecDeque<Part>,
        needs_ring: bool,
    ) -> Result<(usize, Vec<Share>)> {
        let places = match file.places().get() {
            Some(places) => places,
            None => {
                let below = self.below(file);
                let Some(row) = below.row() else {
                    if below.is_told() {
                        file.places().get_or_init(Places::default);
                    }
                    return Ok((self.drive_of(file, &below, needs_ring)?, Vec::new()));
                };
                let Some(runs) = self.runs(file, &below, row) else {
                    return Ok((self.drive_of(file, &below, needs_ring)?, Vec::new()));
                };
                file.places().get_or_init(|| Places { runs, ..Places::default() })
            }
        };
        let Some(&part) = parts.front().filter(|_| !places.runs.is_empty()) else {
            return Ok((self.drive(file, needs_ring)?, Vec::new()));
        };
        if needs_ring && places.have_rings.get().is_none() {
            places.runs.iter().try_for_each(|&(_, queue)| self.give_ring(queue))?;
            places.have_rings.get_or_init(|| ());
        }
        let pieces = pieces(part.0, &places.runs);
        let is_placed = pieces.iter().all(|(_, queue)| queue.is_some());
        let own = if is_placed { None } else { Some(self.drive(file, needs_ring)?) };
        let pieces = pieces.into_iter().filter_map(|(range, queue)| Some((range, queue.or(own)?)));
        let mut shares = shares(pieces, part);
        let first = shares.swap_remove(0);
        *parts = first.parts;
        Ok((first.drive, shares))
    }

    /// The runs of a file with the numbers of their queues; `None`: its volume does not tell in
    /// time, now or when it was last asked, and is to be asked again by a later read.
    fn runs(&self, file: &Arc<Handle>, below: &Arc<Below>, row: &Row) -> Option<Vec<Run>> {
        // Asked while it is there, as in `drive_of`.
        let _ = file.drive();
        let (asked, under) = (Arc::clone(file), Arc::clone(below));
        // The file is let go of there as well: whoever waits may be its last owner.
        let runs = move || under.row().map(|row| row.runs_of(asked.fd())).unwrap_or_default();
        let volume = &below.queue.id;
        let told = self.inner.drives.overdue.ask(volume.as_str(), TOLD_MAX, runs);
        if told.is_none() {
            let ms = TOLD_MAX.as_millis();
            self.note(format!(
                "the volume `{volume}` did not tell in {ms} ms which of its drives has what, so it \
                 is read as one drive until it does: look whether one of its drives hangs"
            ));
        }
        let mut queues = vec![None; row.queues.len()];
        let mut queue = |member: usize| {
            let number = || self.queue(&row.queues[member], below, file).index;
            *queues[member].get_or_insert_with(number)
        };
        Some(told?.into_iter().map(|(range, member)| (range, queue(member))).collect())
    }
}

/// `wanted`, cut where another queue goes on; `None`: it lies in none of the `runs`.
fn pieces(wanted: ByteRange, runs: &[Run]) -> Vec<(ByteRange, Option<usize>)> {
    let mut pieces = Vec::new();
    let mut at = wanted.start;
    let first = runs.partition_point(|(run, _)| run.end <= wanted.start);
    for &(run, queue) in runs[first..].iter().take_while(|(run, _)| run.start < wanted.end) {
        if at < run.start {
            pieces.push((ByteRange { start: at, end: run.start }, None));
        }
        let piece = run.intersect(wanted);
        pieces.push((piece, Some(queue)));
        at = piece.end;
    }
    if at < wanted.end {
        pieces.push((ByteRange { start: at, end: wanted.end }, None));
    }
    pieces
}

/// What each queue has of the pieces of `part`, the one with the first piece first.
fn shares(pieces: impl Iterator<Item = (ByteRange, usize)>, part: Part) -> Vec<Share> {
    let (_, io, reason) = part;
    let mut shares: Vec<Share> = Vec::new();
    for (range, drive) in pieces {
        match shares.iter_mut().find(|share| share.drive == drive) {
            Some(share) => share.parts.push_back((range, io, reason)),
            None => shares.push(Share { drive, parts: [(range, io, reason)].into() }),
        }
    }
    shares
}

impl super::File {
    /// The unit of reads past the page cache, where the file takes them.
    pub(crate) fn direct_block(&self) -> Option<u64> {
        self.handle.direct().ok().map(|direct| u64::from(direct.alignment().offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn each_drive_has_what_lies_on_it() {
        let runs = [(range(0, 100), 7), (range(100, 200), 8), (range(200, 250), 7)];
        let part = (range(50, 300), Io::Buffered, Reason::NoDirectIo);
        let pieces = pieces(part.0, &runs);
        assert_eq!(pieces.last(), Some(&(range(250, 300), None)));
        let own = pieces.into_iter().map(|(range, queue)| (range, queue.unwrap_or(3)));
        let shares = shares(own, part);
        let drives: Vec<usize> = shares.iter().map(|share| share.drive).collect();
        assert_eq!(drives, [7, 8, 3]);
        let ranges: Vec<ByteRange> = shares[0].parts.iter().map(|part| part.0).collect();
        assert_eq!(ranges, [range(50, 100), range(200, 250)]);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_piece(
            start in 0_u64..200,
            len in 1_u64..200,
            runs in proptest::collection::vec((0_u64..30, 1_u64..50, 0_usize..3), 0..9),
        ) {
            let mut at = 0;
            let runs: Vec<Run> = runs.into_iter().map(|(gap, len, queue)| {
                let run = ByteRange::at(at + gap, len);
                at = run.end;
                (run, queue)
            }).collect();
            let pieces = pieces(ByteRange::at(start, len), &runs);
            let mut at = start;
            for (piece, queue) in pieces {
                prop_assert_eq!(piece.start, at);
                prop_assert!(!piece.is_empty());
                let run = runs.iter().find(|(run, _)| !run.intersect(piece).is_empty());
                prop_assert_eq!(queue, run.map(|(_, queue)| *queue));
                at = piece.end;
            }
            prop_assert_eq!(at, start + len);
        }
    }
}

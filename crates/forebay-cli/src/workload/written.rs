//! The bytes that a write-only thread has left in its file.
//!
//! While the clock runs, only the place of each call is recorded. The pattern gives the offsets and
//! the key gives a place's contents, so the expected bytes of the file are computed afterwards.

use std::collections::VecDeque;

use super::backend::held;
use super::pattern::Offsets;
use crate::bench::data::Pattern;
use crate::bench::memory::whole;

/// Maximum number of recorded calls of all threads together: 64 MiB.
pub(super) const CALLS_MAX: usize = 1 << 24;

/// The calls of one thread.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// All offsets, from the first call on.
    pub(super) offsets: Offsets,
    /// Requests in one call, and the bytes of one.
    pub(super) batch: usize,
    pub(super) request_size: u64,
    /// The key of the thread's memory contents.
    pub(super) key: u64,
    /// Maximum number of recorded calls.
    pub(super) most: usize,
    /// The place of each call, in the order in which they began; older ones are dropped.
    places: VecDeque<u32>,
    dropped: usize,
    /// Places that have had a call.
    used: usize,
}

/// A request whose bytes the file must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) offset: u64,
    place: u32,
    /// The index of the request in its call.
    index: u32,
}

impl Written {
    pub(super) fn new(
        offsets: Offsets,
        (batch, request_size): (usize, u64),
        key: u64,
        most: usize,
    ) -> Self {
        let (most, places) = (most.max(1), VecDeque::new());
        Self { offsets, batch, request_size, key, most, places, dropped: 0, used: 0 }
    }

    /// Records the place of a call that has begun.
    pub(super) fn add(&mut self, place: usize) {
        if self.places.len() == self.most {
            self.places.pop_front();
            self.dropped += 1;
        }
        self.used = self.used.max(place + 1);
        self.places.push_back(u32::try_from(place).expect("a small number"));
    }

    /// Writes the bytes of a piece into `bytes`.
    pub(super) fn fill(&self, piece: &Piece<'_>, bytes: &mut [u8]) {
        let len = bytes.len().min(whole(self.request_size));
        for (bytes, last) in bytes.chunks_mut(len).zip(piece.requests) {
            let pattern: Pattern = held(self.key, last.place as usize);
            pattern.fill_at(u64::from(last.index) * self.request_size + piece.from, bytes);
        }
    }

    /// The last request at each offset, ordered by offset, and whether those are all offsets. A
    /// request that overlapped another in flight is left out: the order in which two reach the file
    /// is unknown.
    pub(super) fn last(&self) -> (Vec<Last>, bool) {
        let next = self.next();
        let known_from = self.known_from();
        let size = self.request_size;
        let offsets = self.offsets.clone().skip(self.dropped * self.batch);
        let offsets = offsets.take(self.places.len() * self.batch).enumerate();
        let mut all: Vec<(u64, usize)> = offsets.map(|(number, offset)| (offset, number)).collect();
        all.sort_unstable();
        let (mut found, mut is_all, mut from) = (Vec::new(), self.dropped == 0, 0);
        while let Some(&(offset, _)) = all.get(from) {
            let end = from + all[from..].partition_point(|other| other.0 == offset);
            let (call, index) = (all[end - 1].1 / self.batch, all[end - 1].1 % self.batch);
            let is_over = |other: &(u64, usize)| next[other.1 / self.batch] <= call;
            let after = all[end..].iter().take_while(|other| other.0 < offset + size);
            let before = all[..end - 1].iter().rev();
            let before = before.take_while(|other| other.0 + size > offset);
            if call >= known_from && after.chain(before).all(is_over) {
                let index = u32::try_from(index).expect("a part of a call");
                found.push(Last { offset, place: self.places[call], index });
            } else {
                is_all = false;
            }
            from = end;
        }
        (found, is_all)
    }

    /// For each call, the next one in the same place, which began after it had ended.
    fn next(&self) -> Vec<usize> {
        let mut next = vec![usize::MAX; self.places.len()];
        let mut latest = vec![usize::MAX; self.used];
        for (call, place) in self.places.iter().enumerate().rev() {
            next[call] = std::mem::replace(&mut latest[*place as usize], call);
        }
        next
    }

    /// The first call that began after all dropped calls had ended.
    fn known_from(&self) -> usize {
        if self.dropped == 0 {
            return 0;
        }
        // In a place without a recorded call, a dropped call may still be in flight.
        let mut first = vec![usize::MAX; self.used];
        for (call, place) in self.places.iter().enumerate().rev() {
            first[*place as usize] = call;
        }
        first.into_iter().max().unwrap_or(usize::MAX)
    }
}

/// A contiguous part of a file: some whole requests, or a part of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) offset: u64,
    pub(super) len: u64,
    requests: &'a [Last],
    /// Where it begins in its only request.
    from: u64,
}

/// Divides requests into pieces of at most `most` bytes.
pub(super) fn pieces(all: &[Last], request_size: u64, most: u64) -> Vec<Piece<'_>> {
    let count = whole((most / request_size).max(1));
    let together = all.chunk_by(|one, other| one.offset + request_size == other.offset);
    let runs = together.flat_map(|run| run.chunks(count));
    let pieces = runs.flat_map(|requests| {
        let len = request_size * requests.len() as u64;
        (0..len).step_by(whole(most)).map(move |from| Piece {
            offset: requests[0].offset + from,
            len: most.min(len - from),
            requests,
            from,
        })
    });
    pieces.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::pattern::{Pattern as Order, Region};

    fn written(order: Order, len: u64, batch: usize, most: usize, places: &[usize]) -> Written {
        let offsets = Offsets::new(Region { start: 0, len }, 10, order, 3).unwrap();
        let mut written = Written::new(offsets, (batch, 10), 7, most);
        places.iter().for_each(|place| written.add(*place));
        written
    }

    fn last(written: &Written) -> (Vec<(u64, u32)>, bool) {
        let (found, is_all) = written.last();
        (found.iter().map(|last| (last.offset, last.place)).collect(), is_all)
    }

    #[test]
    fn every_byte_is_that_of_the_last_request_there() {
        let once = written(Order::Sequential, 40, 1, 99, &[0, 1, 2, 0]);
        assert_eq!(last(&once), (vec![(0, 0), (10, 1), (20, 2), (30, 0)], true));
        let twice = written(Order::Sequential, 20, 1, 99, &[0, 1, 0, 1]);
        assert_eq!(last(&twice), (vec![(0, 0), (10, 1)], true));
        let batches = written(Order::Sequential, 40, 2, 99, &[0, 0, 0]);
        assert_eq!(last(&batches), (vec![(0, 0), (10, 0), (20, 0), (30, 0)], true));
    }

    #[test]
    fn requests_that_may_meet_are_left_out() {
        // The first call, at 0, may still be in flight while the third writes there.
        let meet = written(Order::Sequential, 20, 1, 99, &[0, 1, 2, 1]);
        assert_eq!(last(&meet), (vec![(10, 1)], false));
        let itself = written(Order::Sequential, 10, 2, 99, &[0]);
        assert_eq!(last(&itself), (vec![], false));
        // Each overwrites half of the one before.
        let half = written(Order::Strided(5), 30, 1, 99, &[0; 5]);
        assert_eq!(last(&half), (vec![(20, 0)], false));
    }

    #[test]
    fn calls_that_were_dropped_have_ended_before_those_that_count() {
        let dropped = written(Order::Sequential, 60, 1, 4, &[0, 1, 2, 1, 0, 2]);
        assert_eq!(last(&dropped), (vec![(40, 0), (50, 2)], false));
    }

    #[test]
    fn small_requests_are_read_together_and_large_ones_in_parts() {
        let written = written(Order::Sequential, 60, 1, 99, &[0; 5]);
        let all = written.last().0;
        let parts = |most| {
            let pieces = pieces(&all, 10, most);
            pieces.iter().map(|piece| (piece.offset, piece.len)).collect::<Vec<_>>()
        };
        assert_eq!(parts(20), [(0, 20), (20, 20), (40, 10)]);
        assert_eq!(parts(10).len(), 5);
        assert_eq!(parts(8)[..3], [(0, 8), (8, 2), (10, 8)]);
        assert_eq!(pieces(&[all[0], all[2], all[3]], 10, 100).len(), 2);
        // All parts together are the contents of the memory.
        let mut whole_file = Vec::new();
        for piece in pieces(&all, 10, 8) {
            let mut bytes = vec![0; whole(piece.len)];
            written.fill(&piece, &mut bytes);
            whole_file.extend(bytes);
        }
        let mut one = [0; 10];
        held(7, 0).fill_at(0, &mut one);
        assert_eq!(whole_file, one.repeat(5));
    }
}

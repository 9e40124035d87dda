//! The bytes that a write-only thread has left in its file.
//!
//! Requests of a thread write the same bytes, except that each 64 KiB of a request begin with
//! their offset if this process has the host memory. So the order of writes to one offset does not
//! matter, and writes that were swapped are found. While the clock runs, nothing is recorded: the
//! pattern gives the offsets again.

use super::pattern::Offsets;
use crate::data::Pattern;
use crate::memory::whole;

/// Maximum number of requests whose offsets are collected: 128 MiB of memory.
const REQUESTS_MAX: u64 = 1 << 24;

/// The writes of one thread.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// All offsets, from the first request on.
    offsets: Offsets,
    pub(super) request_size: u64,
    /// The bytes of each request, from the start of the pattern on, and whether they are stamped.
    content: (Pattern, bool),
    requests: u64,
}

impl Written {
    /// The writes of `bytes` bytes.
    pub(super) fn new(
        offsets: Offsets,
        request_size: u64,
        content: (Pattern, bool),
        bytes: u64,
    ) -> Self {
        Self { offsets, request_size, content, requests: bytes / request_size }
    }

    /// The offsets that were written to, in order, and whether those are all. Requests that overlap
    /// one at another offset are left out, because their order is unknown.
    pub(super) fn places(&self) -> (Vec<u64>, bool) {
        let different = self.requests.min(self.offsets.period().unwrap_or(u64::MAX));
        let requests = different.min(REQUESTS_MAX);
        let mut all: Vec<u64> = self.offsets.clone().take(whole(requests)).collect();
        all.sort_unstable();
        all.dedup();
        let is_apart = |index: usize| {
            let meets = |one: usize, other: usize| all[one] + self.request_size > all[other];
            (index == 0 || !meets(index - 1, index))
                && (index + 1 == all.len() || !meets(index, index + 1))
        };
        let apart: Vec<u64> =
            (0..all.len()).filter(|index| is_apart(*index)).map(|index| all[index]).collect();
        let is_all = requests == different && apart.len() == all.len();
        (apart, is_all)
    }

    /// Fills `bytes` with those of a piece.
    pub(super) fn fill(&self, piece: Piece, mut bytes: &mut [u8]) {
        let (pattern, is_stamped) = self.content;
        let (mut offset, mut from) = (piece.offset - piece.from, piece.from);
        while !bytes.is_empty() {
            let len = bytes.len().min(whole(self.request_size - from));
            let (part, rest) = bytes.split_at_mut(len);
            pattern.fill_at(from, part);
            if is_stamped {
                pattern.stamp(offset, from, part);
            }
            (bytes, offset, from) = (rest, offset + self.request_size, 0);
        }
    }
}

/// A contiguous part of a file: some whole requests, or a part of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Where it begins in its first request.
    from: u64,
}

/// Divides requests at these offsets into pieces of at most `most` bytes.
pub(super) fn pieces(offsets: &[u64], request_size: u64, most: u64) -> Vec<Piece> {
    let count = whole((most / request_size).max(1));
    let together = offsets.chunk_by(|one, other| one + request_size == *other);
    let runs = together.flat_map(|run| run.chunks(count));
    let pieces = runs.flat_map(|requests| {
        let (start, len) = (requests[0], request_size * requests.len() as u64);
        (0..len).step_by(whole(most)).map(move |at| Piece {
            offset: start + at,
            len: most.min(len - at),
            from: at % request_size,
        })
    });
    pieces.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::pattern::{Pattern as Order, Region};

    fn written(order: Order, len: u64, requests: u64) -> Written {
        let offsets = Offsets::new(Region { start: 0, len }, 10, order, 3).unwrap();
        Written::new(offsets, 10, (Pattern::new(7), false), 10 * requests)
    }

    #[test]
    fn every_place_that_was_written_to_is_known_once() {
        assert_eq!(written(Order::Sequential, 40, 3).places(), (vec![0, 10, 20], true));
        assert_eq!(written(Order::Sequential, 20, u64::MAX / 20).places(), (vec![0, 10], true));
        let random = written(Order::Random, 1000, 20).places();
        assert!(random.1 && random.0.is_sorted() && random.0.iter().all(|at| at % 10 == 0));
    }

    #[test]
    fn requests_that_overlap_are_left_out() {
        // At 0, 5, 10, 15 and 20: each overwrites half of the one before.
        assert_eq!(written(Order::Strided(5), 30, 5).places(), (vec![], false));
        assert_eq!(written(Order::Strided(20), 60, 2).places(), (vec![0, 20], true));
    }

    #[test]
    fn small_requests_are_read_together_and_large_ones_in_parts() {
        let written = written(Order::Sequential, 60, 5);
        let all = written.places().0;
        let parts = |most| {
            let pieces = pieces(&all, 10, most);
            pieces.iter().map(|piece| (piece.offset, piece.len)).collect::<Vec<_>>()
        };
        assert_eq!(parts(20), [(0, 20), (20, 20), (40, 10)]);
        assert_eq!(parts(10).len(), 5);
        assert_eq!(parts(8)[..3], [(0, 8), (8, 2), (10, 8)]);
        assert_eq!(pieces(&[0, 20, 30], 10, 100).len(), 2);
        // All parts together are the bytes of the requests.
        for most in [8, 20, 100] {
            let mut whole_file = Vec::new();
            for piece in pieces(&all, 10, most) {
                let mut bytes = vec![0; whole(piece.len)];
                written.fill(piece, &mut bytes);
                whole_file.extend(bytes);
            }
            let mut one = [0; 10];
            Pattern::new(7).fill_at(0, &mut one);
            assert_eq!(whole_file, one.repeat(5));
        }
    }
}

//! The pinned parts of an arena: a list that only grows, so that whoever keeps a copy of it has to
//! look at one number to know whether it is complete.
//!
//! The list owns its parts. The arena and every ring share it, so no part is unmapped, and no
//! address of one gets another meaning, before the last ring is gone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::HostMemory;
use crate::lock::Lock;
use crate::units::ByteRange;

/// The most that io_uring registers as one buffer. A slot is a power of two and not larger, so each
/// lies in one piece.
const PIECE_MAX: usize = 1 << 30;

/// See the module's own text.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    list: Lock<List>,
    /// Pieces in the list.
    count: AtomicUsize,
    /// Why a ring could not register one of them: the first answer of the kernel.
    refusal: OnceLock<Errno>,
    /// Ops that rings ran on registered memory.
    #[cfg(test)]
    pub(crate) fixed_ops: AtomicUsize,
}

#[derive(Debug, Default)]
struct List {
    /// Held until nobody has the list any more.
    memories: Vec<HostMemory>,
    /// Their addresses, cut at [`PIECE_MAX`].
    pieces: Vec<ByteRange>,
}

impl Parts {
    /// Adds a part, for good.
    pub(crate) fn add(&self, memory: HostMemory) {
        let range = ByteRange::at(memory.address(), memory.len() as u64);
        let mut list = self.list.lock();
        list.memories.push(memory);
        list.pieces.extend(pieces(range, PIECE_MAX));
        self.count.store(list.pieces.len(), Ordering::Release);
    }

    /// Pieces so far. Whoever was given an address inside a piece counts it in.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The addresses of the pieces behind the first `known`.
    pub(crate) fn behind(&self, known: usize) -> Vec<ByteRange> {
        self.list.lock().pieces.get(known..).unwrap_or_default().to_vec()
    }

    /// Notes that the kernel would not register a piece; whether that is news.
    pub(crate) fn refuse(&self, errno: Errno) -> bool {
        self.refusal.set(errno).is_ok()
    }

    /// Why a piece is not registered with a ring that has seen it; the first reason there was.
    pub(crate) fn refusal(&self) -> Option<Errno> {
        self.refusal.get().copied()
    }
}

fn pieces(range: ByteRange, most: usize) -> impl Iterator<Item = ByteRange> {
    let starts = (range.start..range.end).step_by(most);
    starts.map(move |start| ByteRange { start, end: range.end.min(start + most as u64) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_grows_and_tells_what_is_new() {
        let parts = Parts::default();
        assert_eq!((parts.count(), parts.behind(0)), (0, vec![]));
        let mut ranges = Vec::new();
        for len in [4096, 1 << 20] {
            let memory = HostMemory::map(len).unwrap();
            ranges.push(ByteRange::at(memory.address(), len as u64));
            parts.add(memory);
        }
        assert_eq!((parts.count(), parts.behind(0)), (2, ranges.clone()));
        assert_eq!(parts.behind(1), ranges[1..]);
        assert!(parts.behind(2).is_empty() && parts.behind(9).is_empty());
    }

    #[test]
    fn the_first_refusal_stays() {
        let parts = Parts::default();
        assert_eq!(parts.refusal(), None);
        parts.refuse(Errno::NOMEM);
        parts.refuse(Errno::INVAL);
        assert_eq!(parts.refusal(), Some(Errno::NOMEM));
    }

    #[test]
    fn long_parts_are_cut() {
        let cut = |len| pieces(ByteRange::at(100, len), 10).collect::<Vec<_>>();
        assert_eq!(cut(10), [ByteRange::at(100, 10)]);
        assert_eq!(cut(20), [ByteRange::at(100, 10), ByteRange::at(110, 10)]);
        assert_eq!(cut(13), [ByteRange::at(100, 10), ByteRange::at(110, 3)]);
        assert!(cut(0).is_empty());
    }
}

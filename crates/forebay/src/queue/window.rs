//! A window: the part of a transfer that is moved at a time. It is a slot's worth of bytes, filled
//! in pieces and copied in runs.

use forebay_base::units::ByteRange;

use crate::plan::{Direction, Segment};

/// Maximum pieces of a window; a bit set holds them.
pub(crate) const PIECES_MAX: u64 = PIECES as u64;

const PIECES: usize = 64;

/// A slot of a link's arena, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Host address.
    pub(crate) address: u64,
    /// Host address of the whole slot.
    pub(crate) whole: u64,
    pub(crate) len: u64,
    pub(crate) filler: Filler,
    /// True if it belongs to the reserve for the first windows of short transfers.
    pub(crate) is_first: bool,
}

impl Slot {
    /// A whole slot.
    pub(crate) fn whole(address: u64, len: u64) -> Self {
        Self { address, whole: address, len, filler: Filler::Other, is_first: false }
    }
}

/// The threads that fill a slot, if the bytes of their slots are limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Filler {
    /// Readers, with resident bytes.
    Readers,
    /// The ring of the drive.
    Ring,
    /// No limit: urgent transfers, writes, and drives without a ring.
    Other,
}

/// Bytes of a transfer that move through a slot, or directly to and from host memory.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) transfer: usize,
    /// Its index among the windows of its transfer.
    pub(crate) index: usize,
    pub(crate) direction: Direction,
    /// The wanted bytes of the file.
    pub(crate) range: ByteRange,
    /// File offset of piece 0; at most `range.start`.
    pub(crate) base: u64,
    pub(crate) piece: u64,
    pub(crate) slot: Option<Slot>,
    /// Ops promised to its drive while it is being planned.
    pub(crate) promised: usize,
    /// True if readers will fill it; set while it is being planned.
    pub(crate) for_readers: bool,
    /// Ops by piece, queued or running: up to 1 per 64 KiB of a slot of 1 GiB.
    left: [u32; PIECES],
    /// Sum of `left`, plus 1 while the window is being planned.
    pub(crate) outstanding: u32,
    filled: u64,
    /// Time of the claim; later, of the last completion of its ops.
    pub(crate) filled_ns: u64,
    pub(crate) sent: u64,
    /// Copies between the slot and the GPU that are queued or running.
    pub(crate) copies: u32,
    /// Segments of a write that wait for the copy from the GPU.
    pub(crate) waiting: Vec<Segment>,
}

/// Adjacent pieces of a slot that a single copy moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The pieces, as bits.
    pub(crate) pieces: u64,
    /// Their wanted bytes of the file.
    pub(crate) range: ByteRange,
}

impl Window {
    pub(crate) fn new(
        transfer: usize,
        direction: Direction,
        range: ByteRange,
        base: u64,
        slot: Option<Slot>,
    ) -> Self {
        Self {
            transfer,
            direction,
            range,
            base,
            piece: 1,
            slot,
            promised: 0,
            for_readers: false,
            left: [0; PIECES],
            outstanding: 1,
            filled: 0,
            filled_ns: 0,
            sent: 0,
            copies: 0,
            waiting: Vec::new(),
            index: 0,
        }
    }

    /// The piece that holds the byte at `offset`.
    pub(crate) fn piece_of(&self, offset: u64) -> u8 {
        u8::try_from((offset - self.base) / self.piece).expect("a window has at most 64 pieces")
    }

    /// Counts an op of `piece`.
    pub(crate) fn expect(&mut self, piece: u8) {
        self.left[usize::from(piece)] += 1;
        self.outstanding += 1;
    }

    /// Uncounts an op of `piece`; the piece is filled when its last op is done.
    pub(crate) fn complete(&mut self, piece: u8) {
        let left = &mut self.left[usize::from(piece)];
        *left -= 1;
        self.outstanding -= 1;
        if *left == 0 {
            self.filled |= 1 << piece;
        }
    }

    /// The longest run of pieces that are filled and not sent yet.
    pub(crate) fn longest_run(&self) -> Option<Run> {
        let mut rest = self.filled & !self.sent;
        let mut best = (0, 0);
        while rest != 0 {
            let first = rest.trailing_zeros();
            let len = (rest >> first).trailing_ones();
            if len > best.1 {
                best = (first, len);
            }
            rest &= if first + len >= u64::BITS { 0 } else { u64::MAX << (first + len) };
        }
        let (first, len) = best;
        if len == 0 {
            return None;
        }
        let pieces = if len >= u64::BITS { u64::MAX } else { ((1 << len) - 1) << first };
        let start = self.base + u64::from(first) * self.piece;
        let covered = ByteRange::at(start, u64::from(len) * self.piece);
        Some(Run { pieces, range: self.range.intersect(covered) })
    }

    /// All bytes of a window as a single run, for the copy from the GPU before a write.
    pub(crate) fn whole(&self) -> Run {
        Run { pieces: 0, range: self.range }
    }

    /// True if every filled piece was sent.
    pub(crate) fn all_sent(&self) -> bool {
        self.filled & !self.sent == 0
    }

    /// True if all pieces are filled, so that waiting gains nothing.
    pub(crate) fn is_full(&self) -> bool {
        self.outstanding == 0
    }

    /// Host address, in the slot, of the byte at `offset` of the file.
    pub(crate) fn slot_address(&self, offset: u64) -> u64 {
        self.slot.map_or(0, |slot| slot.address) + (offset - self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(filled: &[u8]) -> Window {
        let mut w = Window::new(0, Direction::Read, ByteRange { start: 100, end: 6300 }, 0, None);
        w.piece = 100;
        w.outstanding = 0;
        (0..63).for_each(|p| w.expect(p));
        filled.iter().for_each(|&p| w.complete(p));
        w
    }

    #[test]
    fn the_longest_run_goes_first() {
        let mut w = window(&[0, 1, 5, 6, 7, 62]);
        let run = w.longest_run().unwrap();
        assert_eq!(run.range, ByteRange { start: 500, end: 800 });
        w.sent |= run.pieces;
        let run = w.longest_run().unwrap();
        assert_eq!(run.range, ByteRange { start: 100, end: 200 });
        w.sent |= run.pieces;
        assert_eq!(w.longest_run().unwrap().range, ByteRange { start: 6200, end: 6300 });
    }

    #[test]
    fn all_pieces_are_one_run() {
        let all: Vec<u8> = (0..63).collect();
        let mut w = window(&all);
        let run = w.longest_run().unwrap();
        assert_eq!(run.range, w.range);
        w.sent |= run.pieces;
        assert!(w.all_sent() && w.is_full() && w.longest_run().is_none());
    }
}

//! Memory of a ring's own, for requests that the target's memory cannot take: an unaligned target,
//! or an edge that would bring bytes nobody asked for.

#![expect(unsafe_code, reason = "copies between its own memory and an op's")]

use super::op::{Direction, Op, Work};
use crate::error::Result;
use crate::memory::HostMemory;
use crate::units::ByteRange;

/// Requests from here on deserve a huge page even if they do not fill it: a drive took requests of
/// 1 MiB on huge pages 2.5 times as fast as on 4 KiB pages.
const LARGE: usize = 256 << 10;

/// Memory of this size is put on huge pages.
const HUGE: usize = 2 << 20;

/// One piece of memory for each op of a ring; mapped when the first op needs it.
#[derive(Debug)]
pub(crate) struct Bounce {
    pieces: usize,
    piece: usize,
    memory: Option<HostMemory>,
}

impl Bounce {
    /// For `pieces` ops of at most `piece` bytes each.
    pub(crate) fn new(pieces: usize, piece: u64) -> Self {
        Self { pieces, piece: usize::try_from(piece).expect("a segment fits memory"), memory: None }
    }

    /// Address for the whole of `op` in the piece at `index`; a write's bytes are put there.
    pub(crate) fn enter(&mut self, index: usize, op: &Op) -> Result<u64> {
        debug_assert!(index < self.pieces);
        debug_assert!(op.segment.covered.len() <= self.piece as u64);
        if self.memory.is_none() {
            let len = self.pieces * self.piece;
            let len = if self.piece >= LARGE { len.max(HUGE) } else { len };
            self.memory = Some(HostMemory::map(len)?);
        }
        let memory = self.memory.as_ref().expect("mapped above");
        let address = memory.address() + (index * self.piece) as u64;
        if op.work == Work::Move(Direction::Write) {
            let wanted = op.segment.wanted;
            copy(op.address, address + (wanted.start - op.segment.covered.start), wanted.len());
        }
        Ok(address)
    }

    /// Gives a read the wanted part of the `got` bytes that just came to `address`.
    pub(crate) fn leave(&self, address: u64, op: &Op, got: u64) {
        if op.work != Work::Move(Direction::Read) {
            return;
        }
        let covered = op.segment.covered;
        let came = ByteRange::at(covered.start + op.moved, got);
        let part = came.intersect(op.segment.wanted);
        if !part.is_empty() {
            let source = address + (part.start - covered.start);
            copy(source, op.address + (part.start - op.segment.wanted.start), part.len());
        }
    }
}

/// Copies `len` bytes between host addresses that an op and its ring own.
fn copy(source: u64, target: u64, len: u64) {
    let len = usize::try_from(len).expect("a segment fits memory");
    // SAFETY: one side is a piece of this ring's own mapping, the other the op's memory, which the
    // scheduler keeps for it until it is handed back; the ranges are those of the segment.
    unsafe { std::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, len) };
}

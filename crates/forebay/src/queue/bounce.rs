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

/// Pieces of memory that ops borrow; mapped when the first op needs one.
#[derive(Debug)]
pub(crate) struct Bounce {
    most: usize,
    piece: usize,
    memory: Option<HostMemory>,
    /// Addresses of those that nobody has, the last given back first: it may be in a cache.
    free: Vec<u64>,
}

impl Bounce {
    /// Of at most `most` pieces, for ops of at most `piece` bytes each.
    pub(crate) fn new(most: usize, piece: u64) -> Self {
        let piece = usize::try_from(piece).expect("a segment fits memory");
        Self { most, piece, memory: None, free: Vec::new() }
    }

    /// Address for the whole of `op` in a piece, which is the op's until it
    /// [`leaves`](Self::leave); a write's bytes are put there. `None`: others have them all.
    pub(crate) fn enter(&mut self, op: &Op) -> Result<Option<u64>> {
        debug_assert!(op.segment.covered.len() <= self.piece as u64);
        if self.memory.is_none() {
            let len = self.most * self.piece;
            let len = if self.piece >= LARGE { len.max(HUGE) } else { len };
            let memory = HostMemory::map(len)?;
            let first = memory.address();
            self.free = (0..self.most).rev().map(|n| first + (n * self.piece) as u64).collect();
            self.memory = Some(memory);
        }
        let Some(address) = self.free.pop() else { return Ok(None) };
        if op.work == Work::Move(Direction::Write) {
            let wanted = op.segment.wanted;
            copy(op.address, address + (wanted.start - op.segment.covered.start), wanted.len());
        }
        Ok(Some(address))
    }

    /// Takes the piece at `address` back, of whose bytes `got` have just moved: a read is given the
    /// wanted part of them.
    pub(crate) fn leave(&mut self, address: u64, op: &Op, got: u64) {
        self.free.push(address);
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

//! Memory of a ring's own, for requests that the target's memory cannot take: an unaligned target,
//! or an edge that would bring bytes nobody asked for.

#![expect(unsafe_code, reason = "copies between its own memory and an op's")]

use rustix::io::Errno;

use super::op::{Direction, Op, Work};
use crate::memory::HostMemory;
use crate::units::ByteRange;
use crate::user_copy::{copy_from_user, copy_to_user};

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
    ///
    /// # Errors
    /// ENOMEM where no memory can be mapped, EFAULT where a write's memory is not accessible.
    pub(crate) fn enter(&mut self, op: &Op) -> Result<Option<u64>, Errno> {
        debug_assert!(op.segment.covered.len() <= self.piece as u64);
        if self.memory.is_none() {
            let len = self.most * self.piece;
            let len = if self.piece >= LARGE { len.max(HUGE) } else { len };
            let memory = HostMemory::map(len).map_err(|_| Errno::NOMEM)?;
            let first = memory.address();
            self.free = (0..self.most).rev().map(|n| first + (n * self.piece) as u64).collect();
            self.memory = Some(memory);
        }
        let Some(address) = self.free.pop() else { return Ok(None) };
        if op.work == Work::Move(Direction::Write) {
            let wanted = op.segment.wanted;
            let target = address + (wanted.start - op.segment.covered.start);
            let len = length(wanted);
            // SAFETY: the op's memory, which the scheduler keeps for it until it is handed back,
            // and a piece of this ring's own mapping; the range is the segment's.
            let copied = unsafe { copy_from_user(op.address as *const u8, target as *mut u8, len) };
            if let Err(errno) = copied {
                self.free.push(address);
                return Err(errno);
            }
        }
        Ok(Some(address))
    }

    /// Takes the piece at `address` back after a request has moved `result` bytes. Copies the
    /// wanted part of them to a read's memory.
    ///
    /// # Errors
    /// The request's; EFAULT where a read's memory is not accessible.
    pub(crate) fn leave(
        &mut self,
        address: u64,
        op: &Op,
        result: Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        self.free.push(address);
        let got = result?;
        if op.work != Work::Move(Direction::Read) {
            return Ok(got);
        }
        let covered = op.segment.covered;
        let came = ByteRange::at(covered.start + op.moved, got);
        let part = came.intersect(op.segment.wanted);
        if !part.is_empty() {
            let source = address + (part.start - covered.start);
            let target = op.address + (part.start - op.segment.wanted.start);
            // SAFETY: as in `enter`, with source and target exchanged.
            unsafe { copy_to_user(source as *const u8, target as *mut u8, length(part))? };
        }
        Ok(got)
    }
}

fn length(range: ByteRange) -> usize {
    usize::try_from(range.len()).expect("a segment fits memory")
}

//! Bounce buffers of a ring, for requests that the target memory cannot hold: an unaligned target,
//! or an edge that would read unrequested bytes into it.

#![expect(unsafe_code, reason = "copies between its own memory and an op's")]

use forebay_base::units::ByteRange;
use forebay_base::user_copy::{copy_from_user, copy_to_user};
use rustix::io::Errno;

use super::op::{Op, OpKind};
use crate::memory::HostMemory;
use crate::plan::Direction;

/// Requests of at least this size use a huge page even if they do not fill it: a drive served
/// requests of 1 MiB on huge pages 2.5 times as fast as on 4 KiB pages.
const LARGE: usize = 256 << 10;

/// Memory of this size is placed on huge pages.
const HUGE: usize = 2 << 20;

/// Pieces of memory for ops; mapped for the first op.
#[derive(Debug)]
pub(crate) struct Bounce {
    most: usize,
    piece: usize,
    memory: Option<HostMemory>,
    /// Addresses of free pieces. The piece returned last is reused first, since it may be in a CPU
    /// cache.
    free: Vec<u64>,
}

impl Bounce {
    /// At most `most` pieces, for ops of at most `piece` bytes.
    pub(crate) fn new(most: usize, piece: u64) -> Self {
        let piece = usize::try_from(piece).expect("a segment fits memory");
        Self { most, piece, memory: None, free: Vec::new() }
    }

    /// Leases a piece for the whole of `op` until [`leave`](Self::leave) returns it, and copies a
    /// write's bytes into it. Returns its address, or `None` if all pieces are in use.
    ///
    /// # Errors
    /// ENOMEM if no memory can be mapped, EFAULT if a write's memory is not accessible.
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
        if op.kind == OpKind::Move(Direction::Write) {
            let wanted = op.segment.wanted;
            let target = address + (wanted.start - op.segment.covered.start);
            let len = length(wanted);
            // SAFETY: the source is the op's memory, which the scheduler keeps until the op is
            // returned. The target is a piece of this ring's own mapping. The range is the
            // segment's.
            let copied = unsafe { copy_from_user(op.address as *const u8, target as *mut u8, len) };
            if let Err(errno) = copied {
                self.free.push(address);
                return Err(errno);
            }
        }
        Ok(Some(address))
    }

    /// Returns the piece at `address` after a request moved `result` bytes. For a read, copies the
    /// wanted part to the op's memory.
    ///
    /// # Errors
    /// The request's error; EFAULT if a read's memory is not accessible.
    pub(crate) fn leave(
        &mut self,
        address: u64,
        op: &Op,
        result: Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        self.free.push(address);
        let got = result?;
        if op.kind != OpKind::Move(Direction::Read) {
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

//! One request to the kernel, and what became of it.

use std::sync::Arc;

use rustix::io::Errno;

use super::batch::Batch;
use crate::error::Operation;
use crate::file::{Handle, Port, PortError};
use crate::plan::{Io, Reason, Segment};
use crate::transfer::Touch;
use crate::units::ByteRange;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// File → memory.
    Read,
    /// Memory → file.
    Write,
}

impl Direction {
    /// What a trace calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// What an error calls it.
    pub(crate) fn operation(self) -> Operation {
        match self {
            Self::Read => Operation::Read,
            Self::Write => Operation::Write,
        }
    }
}

/// A window of a transfer, by its place in the scheduler.
pub(crate) type WindowKey = usize;

/// What an op does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Moves the segment's bytes.
    Move(Direction),
    /// Makes what was written durable; with the file's metadata or without.
    Sync { metadata: bool },
    /// Drops old bytes of the segment from the page cache, which it was written around.
    DropStale,
}

/// Where an op waits, and who runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// The ring of its drive.
    Direct,
    /// The pool, whose threads may wait for drives.
    Waits,
    /// The readers.
    Cached,
}

/// A segment on its way through a ring.
///
/// The memory at `address` belongs to the window, which the scheduler keeps until the op has been
/// completed: whoever runs an op may touch `[address, address + segment.covered.len())`, or only
/// the wanted part of it where the segment bounces, until it hands the op back.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    pub(crate) owner: Owner,
    pub(crate) file: Arc<Handle>,
    /// What is added to a place in the transfer to have the place in the file.
    pub(crate) shift: i64,
    /// Where it reads several stretches of a batch: these say whence.
    pub(crate) batch: Option<Arc<Batch>>,
    /// Where its bytes go straight between the drive and a GPU.
    pub(crate) port: Option<Arc<dyn Port>>,
    pub(crate) work: Work,
    pub(crate) segment: Segment,
    /// Host address of the segment's first covered byte, of its first wanted byte where it bounces,
    /// or the GPU's where it has a port.
    pub(crate) address: u64,
    /// Bytes of `segment.covered` that earlier, shorter completions have moved.
    pub(crate) moved: u64,
    /// How often in a row the kernel has brought it no further although there is more to move.
    pub(crate) empty: u8,
    /// How often in a row the kernel has asked to try again.
    pub(crate) again: u16,
    /// The line by which it counts as in flight on its drive; `Cached` where a caller runs it.
    pub(crate) counted: Option<Line>,
    /// There while a thread or the kernel has it.
    pub(crate) touch: Option<Touch>,
}

/// On whose behalf an op runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A piece of a window.
    Piece(WindowKey, u8),
    /// A transfer as a whole.
    Transfer(usize),
}

impl Op {
    /// What is still to be moved.
    pub(crate) fn rest(&self) -> ByteRange {
        let Segment { covered, .. } = self.segment;
        ByteRange { start: covered.start + self.moved, end: covered.end }
    }

    /// Where the byte at `position` of the transfer is in the file.
    pub(crate) fn offset_of(&self, position: u64) -> u64 {
        position.wrapping_add_signed(self.shift)
    }

    /// Where the byte at `offset` of the file is in the transfer; zero where it lies before.
    pub(crate) fn position_of(&self, offset: u64) -> u64 {
        offset.saturating_add_signed(-self.shift)
    }

    /// The same for the page cache, from its first wanted byte on.
    pub(crate) fn through_cache(mut self, reason: Reason) -> Self {
        let Segment { wanted, covered, bounce, .. } = self.segment;
        // Where it bounces, the address is that of the first wanted byte already.
        self.address += if bounce { 0 } else { wanted.start - covered.start };
        self.segment = Segment { wanted, covered: wanted, io: Io::Buffered, reason, bounce: false };
        Self { moved: 0, empty: 0, again: 0, ..self }
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.segment.io == Io::Direct
    }

    pub(crate) fn is_write(&self) -> bool {
        self.work == Work::Move(Direction::Write)
    }

    /// Whether it is a write through the page cache.
    pub(crate) fn is_cached_write(&self) -> bool {
        self.is_write() && !self.is_direct()
    }

    /// Whether it only copies what is in memory, so that it waits for no drive.
    pub(crate) fn is_in_memory(&self) -> bool {
        let reads = self.work == Work::Move(Direction::Read);
        reads && !self.is_direct() && self.segment.reason.is_in_memory()
    }
}

/// An op that left a ring.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) op: Op,
    pub(crate) result: Result<u64, Errno>,
    /// Why its port refused it.
    pub(crate) refused: Option<PortError>,
    /// The file's size, asked where a read came back short.
    pub(crate) size: Option<u64>,
    /// Time from submission to completion, where it is known.
    pub(crate) took_ns: u64,
    /// When it was reaped, on any clock; the same for all that were reaped together.
    pub(crate) at_ns: u64,
}

impl Completion {
    /// Of an op that did not begin.
    pub(crate) fn failed(op: Op, errno: Errno) -> Self {
        Self { op, result: Err(errno), refused: None, size: None, took_ns: 0, at_ns: 0 }
    }
}

/// The time of a completion, on the machine's clock.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, ns) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + ns.unwrap_or(0)
}

//! An op, which is a request to the kernel, and its completion.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_base::units::ByteRange;
use rustix::io::Errno;

use crate::file::Handle;
use crate::gpu::{Port, PortError};
use crate::plan::{Direction, Io, Reason, Segment};
use crate::transfer::{Batch, Touch};

/// Key of a window in the scheduler.
pub(crate) type WindowKey = usize;

/// What an op does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// Moves the segment's bytes.
    Move(Direction),
    /// Makes written data durable, with or without the file's metadata.
    Sync { metadata: bool },
    /// Drops stale pages of the segment from the page cache after a direct write.
    DropStale,
}

/// The queue of an op, which determines the thread that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executor {
    /// The ring of its drive.
    Ring,
    /// The pool, whose threads may block on drives.
    Pool,
    /// The readers.
    Readers,
}

/// What runs an op that is in flight on a drive; counts of a drive are indexed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunBy {
    Ring,
    Pool,
    /// A caller that waits for the op's transfer.
    Caller,
}

/// A segment submitted to a ring.
///
/// The memory at `address` belongs to the window, which the scheduler keeps until the op is
/// completed. Until the op is returned, the thread that runs it may access `[address, address +
/// segment.covered.len())`. If the segment bounces, it may access only the wanted part.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    pub(crate) owner: Owner,
    pub(crate) file: Arc<Handle>,
    /// Added to a position in the transfer to get the file offset.
    pub(crate) shift: i64,
    /// Set if the op reads several stretches of a batch; it holds their sources.
    pub(crate) batch: Option<Arc<Batch>>,
    /// Set if the bytes move directly between the drive and a GPU.
    pub(crate) port: Option<Arc<dyn Port>>,
    pub(crate) kind: OpKind,
    pub(crate) segment: Segment,
    /// Host address of the segment's first covered byte, or of its first wanted byte if it bounces.
    /// With a port, the GPU address.
    pub(crate) address: u64,
    /// Bytes of `segment.covered` moved by earlier, short completions.
    pub(crate) moved: u64,
    /// Consecutive completions without progress although bytes remain.
    pub(crate) empty: u8,
    /// Consecutive EAGAIN or EINTR results.
    pub(crate) again: u16,
    /// True if the reading core should demote the bytes from its private cache.
    pub(crate) demotes: bool,
    /// Set while it counts as in flight on its drive.
    pub(crate) counted: Option<RunBy>,
    /// Set while a thread or the kernel holds the op.
    pub(crate) touch: Option<Touch>,
}

/// The owner of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A piece of a window.
    Piece(WindowKey, u8),
    /// A transfer as a whole.
    Transfer(usize),
}

impl Op {
    /// An op on a file, at the same offsets, not started yet.
    pub(crate) fn new(
        owner: Owner,
        file: Arc<Handle>,
        kind: OpKind,
        segment: Segment,
        address: u64,
    ) -> Self {
        Self {
            owner,
            file,
            shift: 0,
            batch: None,
            port: None,
            kind,
            segment,
            address,
            moved: 0,
            empty: 0,
            again: 0,
            demotes: false,
            counted: None,
            touch: None,
        }
    }

    /// The range that is still to be moved.
    pub(crate) fn rest(&self) -> ByteRange {
        let Segment { covered, .. } = self.segment;
        ByteRange { start: covered.start + self.moved, end: covered.end }
    }

    /// The parts of the range that is still to be moved, which belongs to `batch`, with their host
    /// addresses.
    pub(crate) fn targets(&self, batch: &Batch) -> impl Iterator<Item = (ByteRange, u64)> {
        let (first, in_slot) = (self.segment.covered.start, self.address);
        let parts = batch.parts(self.rest());
        parts.map(move |(part, host)| (part, host.unwrap_or(in_slot + (part.start - first))))
    }

    /// The file offset of the byte at `position` of the transfer.
    pub(crate) fn offset_of(&self, position: u64) -> u64 {
        position.wrapping_add_signed(self.shift)
    }

    /// The position in the transfer of the byte at `offset` of the file; zero if it lies before.
    pub(crate) fn position_of(&self, offset: u64) -> u64 {
        offset.saturating_add_signed(-self.shift)
    }

    /// The descriptor that it moves bytes with.
    pub(super) fn descriptor(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.is_o_direct() {
            self.file.o_direct().map(|direct| direct.fd()).map_err(|_| Errno::INVAL)
        } else {
            Ok(self.file.fd())
        }
    }

    /// After a short read, the end of the file as a position in the transfer. For a file of unknown
    /// size, the end is where a read returns no bytes.
    pub(super) fn size_if_short(&self, result: Result<u64, Errno>) -> Option<u64> {
        let moved = result.ok()?;
        let reached = self.segment.covered.start + self.moved + moved;
        let short = self.kind == OpKind::Move(Direction::Read) && reached < self.segment.wanted.end;
        if !short || self.batch.is_some() {
            return None;
        }
        match self.file.size() {
            Ok(size) if self.file.is_sized(size) => Some(self.position_of(size)),
            Ok(_) => (moved == 0).then_some(reached),
            Err(_) => None,
        }
    }

    /// Turns the op into an op that uses the page cache, from its first wanted byte.
    pub(crate) fn through_cache(mut self, reason: Reason) -> Self {
        let Segment { wanted, covered, bounce, .. } = self.segment;
        // If it bounces, the address is that of the first wanted byte already.
        self.address += if bounce { 0 } else { wanted.start - covered.start };
        self.segment = Segment { wanted, covered: wanted, io: Io::Buffered, reason, bounce: false };
        Self { moved: 0, empty: 0, again: 0, ..self }
    }

    /// Turns an op that found its bytes in memory at first into an op for the rest, which waits for
    /// the drive.
    pub(crate) fn rest_from_drive(self) -> Self {
        let segment = Segment::plain(self.rest(), self.segment.io, Reason::HadToWait);
        Self { address: self.address + self.moved, segment, moved: 0, ..self }
    }

    pub(crate) fn is_o_direct(&self) -> bool {
        self.segment.io == Io::ODirect
    }

    pub(crate) fn is_write(&self) -> bool {
        self.kind == OpKind::Move(Direction::Write)
    }

    /// True if it is a write through the page cache.
    pub(crate) fn is_cached_write(&self) -> bool {
        self.is_write() && !self.is_o_direct()
    }

    /// True if it only copies bytes from memory, so that it never waits for a drive.
    pub(crate) fn is_in_memory(&self) -> bool {
        let reads = self.kind == OpKind::Move(Direction::Read);
        reads && !self.is_o_direct() && self.segment.reason.is_in_memory()
    }
}

/// An op that a ring returned.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) op: Op,
    pub(crate) result: Result<u64, Errno>,
    /// Why its port refused it.
    pub(crate) refused: Option<PortError>,
    /// The file's size in the transfer, queried after a short read.
    pub(crate) size: Option<u64>,
    /// Time from submission to completion, if known.
    pub(crate) took_ns: u64,
    /// Time of reaping, on any clock; the same for all ops that were reaped together.
    pub(crate) at_ns: u64,
}

impl Completion {
    /// The completion of an op that did not begin.
    pub(crate) fn failed(op: Op, errno: Errno) -> Self {
        Self { op, result: Err(errno), refused: None, size: None, took_ns: 0, at_ns: 0 }
    }
}

/// The time for completions, from the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, ns) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + ns.unwrap_or(0)
}

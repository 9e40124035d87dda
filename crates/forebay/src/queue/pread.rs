//! The ring of a thread: `pread` and `pwrite`, a single op at a time.
//!
//! Pages that were resident may have been evicted. So they are read without blocking if the file
//! system supports that (FUSE and NFS do not). Then EAGAIN means that the read would wait for a
//! drive, and the op moves to a thread that may block.

#![expect(unsafe_code, reason = "reads into memory that the scheduler owns for the op")]

use std::time::{Duration, Instant};

use forebay_base::units::ByteRange;
use forebay_base::user_copy::{copy_from_user, copy_to_user};
use rustix::io::Errno;

use super::Ring;
use super::op::{Completion, Op, OpKind, now_ns};
use crate::file::{Handle, read_at_raw, read_nowait_raw, write_at_raw};
use crate::gpu::{Port, PortError};
use crate::memory::HostMemory;
use crate::plan::Direction;
use crate::transfer::Batch;

/// The first and the longest pause before a retry; pauses double.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(10)];

/// The pause before an op's `again`th consecutive retry.
fn pause_before(again: u16) -> Duration {
    (PAUSES[0] * (1_u32 << (again - 1).min(10))).min(PAUSES[1])
}

/// Runs ops in `submit`, on the caller's thread.
#[derive(Debug)]
pub(crate) struct PreadRing {
    bounce: Bounce,
    done: Option<Completion>,
}

impl PreadRing {
    /// For segments of at most `segment` bytes.
    pub(crate) fn new(segment: u64) -> Self {
        Self { bounce: Bounce::new(1, segment), done: None }
    }

    fn run(&mut self, op: &Op) -> Result<u64, Errno> {
        let direction = match op.kind {
            OpKind::Sync { metadata } => {
                let synced = if metadata {
                    rustix::fs::fsync(op.file.fd())
                } else {
                    rustix::fs::fdatasync(op.file.fd())
                };
                return synced.map(|()| 0);
            }
            OpKind::DropStale => return op.file.drop_stale(op.segment.wanted).map(|()| 0),
            OpKind::Move(direction) => direction,
        };
        if let Some(batch) = &op.batch {
            return read_stretches(batch, op, read_resident);
        }
        let fd = op.descriptor()?;
        let rest = op.rest();
        let (offset, len) = (op.offset_of(rest.start), rest.len());
        let base = if op.segment.bounce {
            let piece = self.bounce.enter(op)?;
            piece.expect("one op at a time needs one")
        } else {
            op.address
        };
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let memory = (base + op.moved) as *mut u8;
        // SAFETY: the op's memory (or the bounce piece) is ours until the op is handed back.
        let moved = unsafe {
            match direction {
                Direction::Read if op.is_in_memory() && op.file.supports_nowait() => {
                    // Other errors are reported by the read that may block.
                    read_nowait_raw(fd, memory, len, offset).map_err(|_| Errno::AGAIN.into())
                }
                Direction::Read => read_at_raw(fd, memory, len, offset),
                Direction::Write => write_at_raw(fd, memory, len, offset),
            }
        }
        .map(|moved| moved as u64)
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
        if op.segment.bounce { self.bounce.leave(base, op, moved) } else { moved }
    }
}

/// Moves cache lines to the cache that all cores share, where a GPU reads them faster. With 16
/// threads that copy at the same time it costs more than it gains.
fn demote(first: u64, len: u64) {
    #[cfg(target_arch = "x86_64")]
    for line in (first..first + len).step_by(64) {
        // SAFETY: a hint, which changes no byte. Processors without it do nothing.
        unsafe {
            std::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags))
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (first, len);
}

/// Moves an op's bytes through a port.
fn by_port(port: &dyn Port, op: &Op, direction: Direction) -> Result<u64, PortError> {
    let rest = op.rest();
    let (address, offset) = (op.address + op.moved, op.offset_of(rest.start));
    // SAFETY: the op's memory, here a GPU's, is ours until the op is handed back.
    unsafe {
        match direction {
            Direction::Read => port.read(address, rest.len(), offset),
            Direction::Write => port.write(address, rest.len(), offset),
        }
    }
}

/// Splits the answer of a port into the fields of a completion.
fn split(answer: Result<u64, PortError>) -> (Result<u64, Errno>, Option<PortError>) {
    match answer {
        Ok(moved) => (Ok(moved), None),
        Err(error) => (Err(error.errno), Some(error)),
    }
}

/// Reads bytes of a batch that were reported resident, stretch by stretch. Returns how far it got
/// in the strip. Threads that may block read bytes that are not resident or that failed.
///
/// `read` moves bytes of a file from an offset to a host address. The op owns that memory until it
/// is returned. A result of zero bytes means the end of the file.
pub(super) fn read_stretches(
    batch: &Batch,
    op: &Op,
    mut read: impl FnMut(&Handle, ByteRange, u64) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    let rest = op.rest();
    for (mut part, mut host) in op.targets(batch) {
        let stretch = batch.stretch_at(part.start);
        let file = batch.file_of(stretch);
        while !part.is_empty() {
            let wanted = ByteRange::at(stretch.offset_of(part.start), part.len());
            match read(file, wanted, host) {
                Ok(0) => {
                    batch.ends_at(part.start);
                    break;
                }
                Ok(moved) => {
                    part.start += moved;
                    host += moved;
                }
                Err(_) if part.start > rest.start => return Ok(part.start - rest.start),
                Err(_) => return Err(Errno::AGAIN),
            }
        }
    }
    Ok(rest.len())
}

/// Reads the resident bytes of a file of a batch.
fn read_resident(file: &Handle, wanted: ByteRange, host: u64) -> Result<u64, Errno> {
    let len = usize::try_from(wanted.len()).map_err(|_| Errno::INVAL)?;
    let memory = host as *mut u8;
    // SAFETY: `read_stretches` gives addresses of the op's memory, with space for what it wants.
    let read = unsafe {
        match file.supports_nowait() {
            true => read_nowait_raw(file.fd(), memory, len, wanted.start),
            false => read_at_raw(file.fd(), memory, len, wanted.start),
        }
    };
    let moved = read.map_err(|_| Errno::AGAIN)?;
    // A server may return no bytes although there are some, or report no size.
    let is_end = || file.size().is_ok_and(|size| !file.is_sized(size) || wanted.start >= size);
    if moved > 0 || is_end() { Ok(moved as u64) } else { Err(Errno::AGAIN) }
}

impl Ring for PreadRing {
    fn room(&self) -> usize {
        1 - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        usize::from(self.done.is_some())
    }

    fn submit(&mut self, op: Op) {
        if op.again > 0 {
            std::thread::sleep(pause_before(op.again));
        }
        let start = Instant::now();
        let (result, refused) = match (&op.port, op.kind) {
            (Some(port), OpKind::Move(direction)) => split(by_port(port.as_ref(), &op, direction)),
            _ => (self.run(&op), None),
        };
        if let (true, Ok(moved)) = (op.demotes && !op.segment.bounce, result) {
            demote(op.address + op.moved, moved);
        }
        let took_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let size = op.size_if_short(result);
        self.done = Some(Completion { op, result, refused, size, took_ns, at_ns: now_ns() });
    }

    fn reap(&mut self, _wait: bool, done: &mut Vec<Completion>) -> Result<(), Errno> {
        done.extend(self.done.take());
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::file::OpenOptions;
    use crate::plan::{Io, Reason, Segment};
    use crate::queue::op::Owner;

    #[test]
    fn a_reader_does_not_wait_for_evicted_pages() {
        const LEN: u64 = 64 << 20;
        const READS: u64 = 16;
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; usize::try_from(LEN).unwrap()]).unwrap();
        let file = Arc::new(Handle::open(&path, &OpenOptions::default()).unwrap());
        if file.is_memory() || !file.supports_nowait() {
            return println!("skipped: reads here cannot be made without waiting");
        }
        let mut ring = PreadRing::new(4096);
        let mut target = [0; 4096];
        let mut read = |start, reason| {
            let wanted = ByteRange::at(start, 4096);
            let (io, bounce) = (Io::Buffered, false);
            ring.submit(Op {
                owner: Owner::Piece(0, 0),
                file: Arc::clone(&file),
                shift: 0,
                batch: None,
                port: None,
                kind: OpKind::Move(Direction::Read),
                segment: Segment { wanted, covered: wanted, io, reason, bounce },
                address: target.as_mut_ptr() as u64,
                moved: 0,
                empty: 0,
                again: 0,
                demotes: false,
                counted: None,
                touch: None,
            });
            let mut done = Vec::new();
            ring.reap(true, &mut done).unwrap();
            done.remove(0).result
        };
        // The read waits behind the bytes that the drive has to read first. The drive may still
        // be done with all of them by then, if this thread does not run for a while.
        let half = std::num::NonZeroU64::new(LEN / 2);
        let refused = (0..READS).any(|_| {
            file.evict().unwrap();
            rustix::fs::fadvise(file.fd(), 0, half, rustix::fs::Advice::WillNeed).unwrap();
            read(LEN - 4096, Reason::Resident) == Err(Errno::AGAIN)
        });
        assert!(refused, "each of {READS} reads of evicted bytes waited for the drive");
        for _ in 0..READS {
            file.evict().unwrap();
            assert_eq!(read(LEN - 4096, Reason::HadToWait), Ok(4096));
        }
    }
}

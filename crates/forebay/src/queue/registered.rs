//! What a ring's kernel side knows of the pinned parts: memory that is registered with the ring
//! stays pinned for it, so that a direct request need not pin and release its pages.
//!
//! Parts are registered when the ring first submits something after they were made, and stay so
//! until the ring is gone. Where the kernel refuses, ops use the same memory unregistered.

#![expect(unsafe_code, reason = "has the kernel pin memory for as long as a ring lives")]

use std::collections::BTreeMap;
use std::sync::Arc;

use io_uring::IoUring;
use rustix::io::Errno;

use crate::events;
use crate::memory::Parts;
use crate::units::ByteRange;

/// Pieces that a ring's table has room for: 64 GiB of slots of the default size. What is beyond is
/// moved unregistered.
const TABLE: u16 = 1024;

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Registered {
    parts: Arc<Parts>,
    /// Pieces that were looked at.
    seen: usize,
    /// End and place in the table of each registered piece, by its start.
    known: BTreeMap<u64, (u64, u16)>,
    /// The kernel's last answer; after a refusal it is not asked again.
    answer: Result<(), Errno>,
}

impl Registered {
    /// Makes the ring's table, without any memory in it (Linux 5.19).
    pub(super) fn new(ring: &IoUring, parts: Arc<Parts>) -> Self {
        let answer = ring.submitter().register_buffers_sparse(TABLE.into());
        Self { parts, seen: 0, known: BTreeMap::new(), answer: answer.map_err(errno) }
    }

    /// The place in the ring's table of the piece that holds all of `memory`; `None`: it is not
    /// registered. Must be called on the ring's thread.
    pub(super) fn index(&mut self, ring: &IoUring, memory: ByteRange) -> Option<u16> {
        if self.parts.count() != self.seen {
            self.take_in(ring);
        }
        let index = self.place(memory)?;
        #[cfg(test)]
        self.parts.fixed_ops.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Some(index)
    }

    fn place(&self, memory: ByteRange) -> Option<u16> {
        let (_, &(end, index)) = self.known.range(..=memory.start).next_back()?;
        (memory.end <= end).then_some(index)
    }

    /// Registers the pieces that are new.
    fn take_in(&mut self, ring: &IoUring) {
        for piece in self.parts.behind(self.seen) {
            let index = u16::try_from(self.seen).ok().filter(|&index| index < TABLE);
            self.seen += 1;
            let Some(index) = index else { continue };
            if self.answer.is_ok() {
                self.answer = register(ring, index, piece);
            }
            match self.answer {
                Ok(()) => {
                    self.known.insert(piece.start, (piece.end, index));
                }
                Err(errno) if self.parts.refuse(errno) => {
                    events::refused("to keep pinned memory registered with io_uring", errno);
                }
                Err(_) => {}
            }
        }
    }
}

fn register(ring: &IoUring, index: u16, piece: ByteRange) -> Result<(), Errno> {
    let len = usize::try_from(piece.len()).map_err(|_| Errno::INVAL)?;
    let vector = libc::iovec { iov_base: piece.start as *mut _, iov_len: len };
    // SAFETY: the list of parts owns the memory, and `Registered` holds the list. The ring that
    // owns this drops it after itself, or leaks it where ops are in flight, also on a thread that
    // outlives the engine because a drive hangs: the range is mapped as long as the ring lives.
    unsafe { ring.submitter().register_buffers_update(index.into(), &[vector], None) }
        .map_err(errno)
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::op::{Completion, Direction, Op, Owner, Work};
    use super::super::{KernelThreads, Ring, UringRing, Waker};
    use super::*;
    use crate::file::{Handle, OpenHow};
    use crate::memory::HostMemory;
    use crate::plan::{Io, Reason, Segment};

    const LEN: usize = 64 << 10;

    /// A ring that knows of `parts`, and a file to move.
    struct Rig {
        _folder: tempfile::TempDir,
        file: Arc<Handle>,
        bytes: Vec<u8>,
        parts: Arc<Parts>,
        ring: UringRing,
    }

    impl Rig {
        /// `None`: io_uring, or its registered memory, cannot be had here.
        fn new() -> Option<Self> {
            let parts = Arc::<Parts>::default();
            let (waker, threads) = (Waker::new().unwrap(), KernelThreads::new(1, 1, 1));
            let ring = UringRing::new(LEN as u64, waker, Arc::clone(&parts), threads);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("data");
            let bytes: Vec<u8> = (0..=250).cycle().take(LEN).collect();
            std::fs::write(&path, &bytes).unwrap();
            let how = OpenHow { write: true, ..OpenHow::default() };
            let file = Arc::new(Handle::open(&path, &how).unwrap());
            let mut rig = match ring {
                Ok(ring) => Self { _folder: folder, file, bytes, parts, ring },
                Err(errno) => {
                    println!("skipped: io_uring is refused here: {errno}");
                    return None;
                }
            };
            let part = rig.add();
            rig.run(Direction::Read, part, 1);
            if let Some(errno) = rig.parts.refusal() {
                println!("skipped: io_uring may register no memory here: {errno}");
                return None;
            }
            Some(rig)
        }

        fn add(&self) -> u64 {
            let memory = HostMemory::map(LEN).unwrap();
            let address = memory.address();
            self.parts.add(memory);
            address
        }

        /// Moves the first `len` bytes of the file; returns whether that took registered memory.
        fn run(&mut self, direction: Direction, address: u64, len: usize) -> bool {
            let before = self.parts.fixed_ops.load(Ordering::Relaxed);
            let range = ByteRange::at(0, len as u64);
            self.ring.submit(Op {
                owner: Owner::Transfer(0),
                file: Arc::clone(&self.file),
                shift: 0,
                batch: None,
                port: None,
                by_call: false,
                work: Work::Move(direction),
                segment: Segment {
                    wanted: range,
                    covered: range,
                    io: Io::Buffered,
                    reason: Reason::Demanded,
                    bounce: false,
                },
                address,
                moved: 0,
                empty: 0,
                again: 0,
                counted: None,
                touch: None,
            });
            let mut done: Vec<Completion> = Vec::new();
            while done.is_empty() {
                self.ring.reap(true, &mut done).unwrap();
            }
            assert_eq!(done[0].result, Ok(len as u64));
            self.parts.fixed_ops.load(Ordering::Relaxed) > before
        }
    }

    /// The bytes at an address that the caller knows to hold them.
    fn bytes_at(address: u64, len: usize) -> Vec<u8> {
        // SAFETY: callers pass parts of mapped memory that no op is in flight for.
        unsafe { std::slice::from_raw_parts(address as *const u8, len) }.to_vec()
    }

    #[test]
    fn parts_are_registered_when_they_are_first_used() {
        let Some(mut rig) = Rig::new() else { return };
        let mut own = HostMemory::map(LEN).unwrap();
        assert!(!rig.run(Direction::Read, own.address(), LEN));
        for _ in 0..3 {
            let part = rig.add();
            assert!(rig.run(Direction::Read, part, LEN));
            assert!(bytes_at(part, LEN) == rig.bytes);
            assert!(rig.run(Direction::Read, part + 8192, LEN - 8192));
            assert!(bytes_at(part + 8192, LEN - 8192) == rig.bytes[..LEN - 8192]);
            // Other memory stays what it was.
            own.bytes_mut().fill(0);
            assert!(!rig.run(Direction::Read, own.address(), LEN));
            assert!(own.bytes() == rig.bytes);
        }
        assert_eq!(rig.parts.refusal(), None);
    }

    #[test]
    fn registered_memory_is_written_too() {
        let Some(mut rig) = Rig::new() else { return };
        let part = rig.add();
        assert!(rig.run(Direction::Read, part, 4096));
        // The rest of the part is zero, as fresh memory is.
        assert!(rig.run(Direction::Write, part + 4096, 4096));
        let expected = [&[0; 4096], &rig.bytes[4096..]].concat();
        assert!(std::fs::read(rig.file.path()).unwrap() == expected);
    }

    #[test]
    fn memory_that_is_partly_registered_is_not() {
        let known = [(100, (200, 7)), (200, (300, 8)), (400, (500, 9))].into();
        let registered = Registered { parts: Arc::default(), seen: 0, known, answer: Ok(()) };
        let place = |start, end| registered.place(ByteRange { start, end });
        for (start, end, index) in [(100, 200, 7), (199, 200, 7), (200, 300, 8), (450, 460, 9)] {
            assert_eq!(place(start, end), Some(index));
        }
        for (start, end) in [(0, 1), (99, 101), (199, 201), (300, 301), (399, 500), (500, 501)] {
            assert_eq!(place(start, end), None);
        }
    }

    #[test]
    fn a_table_that_is_full_leaves_the_rest_as_it_is() {
        let Some(mut rig) = Rig::new() else { return };
        let parts: Vec<u64> = (0..TABLE)
            .map(|_| {
                let memory = HostMemory::map(4096).unwrap();
                let address = memory.address();
                rig.parts.add(memory);
                address
            })
            .collect();
        assert!(rig.run(Direction::Read, parts[0], 4096));
        // The rig's own part has the first place.
        let last = usize::from(TABLE) - 2;
        assert!(rig.run(Direction::Read, parts[last], 4096));
        assert!(!rig.run(Direction::Read, parts[last + 1], 4096));
        assert!(bytes_at(parts[last + 1], 4096) == rig.bytes[..4096]);
        assert_eq!(rig.parts.refusal(), None);
    }
}

//! The simulated files, clock and faults.

#![expect(
    unsafe_code,
    reason = "moves bytes between its files and an op's memory, as the kernel does"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock};
use forebay_base::units::{ByteRange, align_down};
use rustix::io::Errno;

use super::device::FaultyDevice;
use super::direct::Moved;
use super::tally::Tally;
use crate::file::Handle;
use crate::gpu::sim::Dice;
use crate::plan::{Alignment, Direction, Io, Reason};
use crate::queue::op::{Op, OpKind};
use crate::queue::pread::read_stretches;
use crate::transfer::State;

/// Extra time that a hung drive takes.
const HUNG: Duration = Duration::from_secs(100);

/// Due time of an op whose completion is lost.
pub(super) const NEVER: Duration = Duration::MAX;

/// A random number below `end`, which must be above zero.
pub(super) fn below(dice: &mut Dice, end: u64) -> u64 {
    dice.next() % end
}

/// `len` random bytes.
pub(super) fn noise(dice: &mut Dice, len: u64) -> Vec<u8> {
    let len = usize::try_from(len).expect("a small file");
    let mut bytes = vec![0; len.next_multiple_of(8)];
    bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&dice.next().to_le_bytes()));
    bytes.truncate(len);
    bytes
}

/// Fraction of ops that hit each fault.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// EINTR and EAGAIN.
    pub(super) again: f64,
    /// A short transfer.
    pub(super) short: f64,
    /// A short transfer of a direct op that ends at an unaligned offset.
    pub(super) odd: f64,
    /// A transfer of zero bytes before the end of the file.
    pub(super) empty: f64,
    /// EIO.
    pub(super) hard: f64,
    /// Completions that take a hundred times longer.
    pub(super) late: f64,
    /// Driver calls that fail at once.
    pub(super) calls: f64,
    /// Driver calls after which the GPU is lost for good.
    pub(super) gone: f64,
    /// Copies that fail while running.
    pub(super) copies: f64,
    /// Failed calls that allocate GPU memory or pin host memory.
    pub(super) memory: f64,
    /// Ops whose completions never arrive, on the drive that loses some.
    pub(super) lost: f64,
    /// Ops that ports refuse.
    pub(super) port: f64,
}

impl Faults {
    /// Total fraction of faults between the host and a GPU.
    pub(super) fn of_gpu(&self) -> f64 {
        self.calls + self.gone + self.copies
    }
}

/// A file: its bytes, and the engine's handles to it.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) handles: Vec<Arc<Handle>>,
    pub(super) bytes: Vec<u8>,
    /// The contents expected from the completed writes.
    pub(super) expected: Vec<u8>,
    /// Maximum size; the disk is full beyond it.
    pub(super) size_max: u64,
    pub(super) alignment: Option<Alignment>,
    /// Whether O_DIRECT is accepted at open and refused at read.
    pub(super) refuses: bool,
    /// Whether other processes truncate it during reads; such a file is not written.
    pub(super) shrinks: bool,
}

/// An error that was returned for an op, which its transfer must report.
#[derive(Debug)]
pub(super) struct InjectedFailure {
    pub(super) state: Arc<State>,
    pub(super) errno: Errno,
    /// The op's wanted range in its transfer.
    pub(super) wanted: ByteRange,
    /// Index of the file that could not be synced.
    pub(super) synced: Option<usize>,
}

/// Memory that an op in flight reads or writes.
#[derive(Debug, Clone, Copy)]
struct Touched {
    id: u64,
    range: ByteRange,
    written: bool,
    /// For a write: its file, and whether it uses the page cache.
    writes: Option<((u64, u64), Io)>,
}

/// The simulated files, clock and faults.
#[derive(Debug)]
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) clock: Arc<ManualClock>,
    pub(super) faults: Faults,
    /// A drive that completes its ops last.
    pub(super) hung: Option<usize>,
    /// A drive that loses some completions.
    pub(super) lost: Option<usize>,
    pub(super) tally: Tally,
    pub(super) files: Vec<Contents>,
    touched: Vec<Touched>,
    begun: u64,
    pub(super) failed: Vec<InjectedFailure>,
    pub(super) devices: Vec<Arc<FaultyDevice>>,
    /// Host addresses of GPU memory that port ops hold, by op number.
    pub(super) held: HashMap<u64, u64>,
    /// Ranges that ports have transferred.
    pub(super) moved: Vec<Moved>,
}

impl Contents {
    /// The bytes of a range that exist.
    pub(super) fn part(&self, range: ByteRange) -> &[u8] {
        let place =
            |at: u64| usize::try_from(at).map_or(self.bytes.len(), |at| at.min(self.bytes.len()));
        &self.bytes[place(range.start)..place(range.end)]
    }
}

impl World {
    pub(super) fn new(dice: Dice, clock: Arc<ManualClock>, faults: Faults) -> Self {
        Self {
            dice,
            clock,
            faults,
            hung: None,
            lost: None,
            tally: Tally::default(),
            files: Vec::new(),
            touched: Vec::new(),
            begun: 0,
            failed: Vec::new(),
            devices: Vec::new(),
            held: HashMap::new(),
            moved: Vec::new(),
        }
    }

    /// Whether a fault occurs in this fraction of cases; counted as `what`.
    pub(super) fn meets(&mut self, what: &'static str, share: f64) -> bool {
        let rolled = self.dice.roll(share);
        self.tally.note(what, rolled)
    }

    /// Due time of an op that starts now.
    pub(super) fn due(&mut self) -> Duration {
        let late = if self.meets("late", self.faults.late) { 100 } else { 1 };
        self.clock.now() + Duration::from_micros(below(&mut self.dice, 200) * late)
    }

    /// Due time of an op on a drive that starts now.
    pub(super) fn due_on(&mut self, drive: usize, op: &Op) -> Duration {
        let waits = !op.is_in_memory();
        if waits && self.lost == Some(drive) && self.meets("lost", self.faults.lost) {
            return NEVER;
        }
        let hangs = self.tally.note("hung", waits && self.hung == Some(drive));
        self.due() + if hangs { HUNG } else { Duration::ZERO }
    }

    /// Registers an op that starts, and checks that it may run. `base` is the address of its bytes.
    pub(super) fn begin(&mut self, op: &Op, base: u64, state: &Arc<State>) -> u64 {
        assert!(!state.is_done(), "an op begins although its transfer has ended: {op:?}");
        self.begun += 1;
        let OpKind::Move(direction) = op.kind else { return self.begun };
        let at = ByteRange::at;
        let ranges: Vec<ByteRange> = match &op.batch {
            Some(batch) => {
                assert!(op.is_in_memory() && !op.segment.bounce, "no one request: {op:?}");
                op.targets(batch).map(|(part, host)| at(host, part.len())).collect()
            }
            None if op.segment.bounce => vec![at(op.address, op.segment.wanted.len())],
            None => vec![at(op.address + op.moved, op.rest().len())],
        };
        self.check_place(op, base, direction, state.range());
        self.hold(self.begun, op);
        ranges.into_iter().for_each(|range| self.touch(op, direction, range));
        self.begun
    }

    /// Checks that no other op uses the same memory or writes the same file range.
    fn touch(&mut self, op: &Op, direction: Direction, range: ByteRange) {
        let written = direction == Direction::Read;
        let writes = (!written).then(|| (op.file.identity(), op.segment.io));
        let new = Touched { id: self.begun, range, written, writes };
        for other in &self.touched {
            let meets = !other.range.intersect(range).is_empty();
            assert!(!meets || !(written || other.written), "{new:?} meets {other:?}");
            let (Some(one), Some(two)) = (writes, other.writes) else { continue };
            let both = one == two && one.1 == Io::Buffered;
            assert!(!both, "two writes to one file through the page cache: {new:?}, {other:?}");
            let mixed = one.0 == two.0 && one.1 != two.1;
            assert!(!mixed, "through the page cache and around it: {new:?}, {other:?}");
        }
        self.touched.push(new);
    }

    fn check_place(&self, op: &Op, base: u64, direction: Direction, requested: ByteRange) {
        let (offset, len) = (op.offset_of(op.rest().start), op.rest().len());
        assert!(len > 0, "an op of no bytes: {op:?}");
        let segment = &op.segment;
        assert_eq!(segment.wanted.intersect(requested), segment.wanted, "outside the request");
        if direction == Direction::Write {
            assert_eq!(segment.wanted, segment.covered, "a write of bytes that were not requested");
        }
        if let Some(port) = &op.port {
            let unit = port.unit();
            assert!(
                !segment.bounce && segment.wanted == segment.covered,
                "outside the range: {op:?}"
            );
            let all = [offset, len, base + op.moved];
            assert!(all.iter().all(|part| part.is_multiple_of(unit)), "no whole units: {op:?}");
        } else if segment.io == Io::ODirect {
            let alignment = self.file_of(op).alignment.expect("a direct op has a direct file");
            assert!(offset.is_multiple_of(alignment.offset), "unaligned: {op:?}");
            assert!(len.is_multiple_of(alignment.offset), "unaligned length: {op:?}");
            assert!((base + op.moved).is_multiple_of(alignment.memory), "unaligned memory: {op:?}");
        }
    }

    fn file_of(&self, op: &Op) -> &Contents {
        &self.files[self.index_of(&op.file)]
    }

    pub(super) fn index_of(&self, file: &Handle) -> usize {
        let same = |other: &Contents| other.handles[0].identity() == file.identity();
        self.files.iter().position(same).expect("every op's file is known")
    }

    /// Removes an op of which nothing was done.
    pub(super) fn drop_op(&mut self, id: u64, op: &Op, state: &Arc<State>) {
        assert!(!state.is_done(), "an op comes back after its transfer: {op:?}");
        self.touched.retain(|touched| touched.id != id);
        self.dispose(id, op);
    }

    /// Runs an op that is due. Returns the kernel's result, and the file's size if a read reached
    /// the end.
    pub(super) fn end(
        &mut self,
        id: u64,
        op: &Op,
        base: u64,
        state: &Arc<State>,
    ) -> (Result<u64, Errno>, Option<u64>) {
        assert!(!state.is_done(), "an op ends after its transfer: {op:?}");
        self.touched.retain(|touched| touched.id != id);
        if let Some(batch) = &op.batch {
            let read = |file: &Handle, wanted, host| self.read_resident(file, wanted, host);
            return (read_stretches(batch, op, read), None);
        }
        if let (Some(port), OpKind::Move(direction)) = (&op.port, op.kind) {
            let native = self.dispose(id, op);
            return self.end_by_port(op, port.as_ref(), (direction, native), state);
        }
        let faults = self.faults.clone();
        if self.meets("again", faults.again) {
            let errno = if self.dice.roll(0.5) { Errno::INTR } else { Errno::AGAIN };
            return (Err(errno), None);
        }
        let requested = op.segment.reason != Reason::Required;
        if op.is_o_direct() && requested && self.file_of(op).refuses {
            self.tally.count("no-direct", 1);
            return (Err(Errno::INVAL), None);
        }
        if self.meets("eio", faults.hard) {
            self.fail(op, state, Errno::IO);
            return (Err(Errno::IO), None);
        }
        match op.kind {
            OpKind::Sync { .. } | OpKind::DropStale => (Ok(0), None),
            OpKind::Move(Direction::Read) => self.read(op, base),
            OpKind::Move(Direction::Write) => (self.write(op, base, state), None),
        }
    }

    pub(super) fn fail(&mut self, op: &Op, state: &Arc<State>, errno: Errno) {
        let wanted = op.segment.wanted;
        let is_sync = matches!(op.kind, OpKind::Sync { .. });
        let synced = is_sync.then(|| self.index_of(&op.file));
        self.failed.push(InjectedFailure { state: Arc::clone(state), errno, wanted, synced });
    }

    /// Reads one of several stretches, as a reader thread does.
    fn read_resident(&mut self, file: &Handle, wanted: ByteRange, host: u64) -> Result<u64, Errno> {
        let Faults { again, short, empty, hard, .. } = self.faults;
        if self.meets("evicted", (again + empty + hard).min(0.9)) {
            return Err(Errno::AGAIN); // in every case another thread retries it
        }
        let index = self.index_of(file);
        let size = self.files[index].bytes.len() as u64;
        let most = size.saturating_sub(wanted.start).min(wanted.len());
        let is_short = most > 0 && self.meets("short", short);
        let moved = if is_short { 1 + below(&mut self.dice, most) } else { most };
        self.move_out(index, wanted.start, moved, host);
        Ok(moved)
    }

    /// Copies bytes of a file to an op's memory.
    pub(super) fn move_out(&mut self, index: usize, offset: u64, len: u64, host: u64) {
        if len == 0 {
            return;
        }
        let bytes = part(&mut self.files[index].bytes, offset, len);
        // SAFETY: the op owns the memory until it is handed back, which the test checks. It holds
        // the rest of the op's bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host as *mut u8, bytes.len()) };
    }

    /// Copies bytes from an op's memory to a file.
    pub(super) fn move_in(&mut self, index: usize, offset: u64, len: u64, host: u64) {
        if len == 0 {
            return;
        }
        let file = &mut self.files[index].bytes;
        let end = usize::try_from(offset + len).expect("a small file");
        file.resize(file.len().max(end), 0);
        let bytes = part(file, offset, len);
        let memory = host as *const u8;
        // SAFETY: as in `move_out`.
        unsafe { std::ptr::copy_nonoverlapping(memory, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// How many of `most` bytes are transferred.
    fn share_of(&mut self, most: u64, op: &Op) -> u64 {
        let faults = self.faults.clone();
        if self.meets("empty", faults.empty) {
            return 0;
        }
        if most == 0 || !self.meets("short", faults.short) {
            return most;
        }
        let some = 1 + below(&mut self.dice, most);
        match self.file_of(op).alignment.filter(|_| op.is_o_direct()) {
            Some(alignment) if !self.meets("odd", faults.odd) => {
                align_down(some, alignment.offset).max(alignment.offset).min(most)
            }
            _ => some,
        }
    }

    fn read(&mut self, op: &Op, base: u64) -> (Result<u64, Errno>, Option<u64>) {
        let (offset, len) = (op.offset_of(op.rest().start), op.rest().len());
        let index = self.index_of(&op.file);
        let size = self.files[index].bytes.len() as u64;
        let moved = self.share_of(size.saturating_sub(offset).min(len), op);
        self.move_out(index, offset, moved, base + op.moved);
        let is_short = op.rest().start + moved < op.segment.wanted.end;
        (Ok(moved), is_short.then(|| op.position_of(size)))
    }

    fn write(&mut self, op: &Op, base: u64, state: &Arc<State>) -> Result<u64, Errno> {
        let (offset, len) = (op.offset_of(op.rest().start), op.rest().len());
        let index = self.index_of(&op.file);
        let file = &self.files[index];
        let mut room = file.size_max.saturating_sub(offset).min(len);
        if let (Some(alignment), true) = (file.alignment, op.is_o_direct()) {
            room = align_down(room, alignment.offset);
        }
        if room == 0 {
            self.tally.count("enospc", 1);
            self.fail(op, state, Errno::NOSPC);
            return Err(Errno::NOSPC);
        }
        let moved = self.share_of(room, op);
        self.move_in(index, offset, moved, base + op.moved);
        Ok(moved)
    }
}

fn part(bytes: &mut [u8], offset: u64, len: u64) -> &mut [u8] {
    let start = usize::try_from(offset).expect("a small file");
    &mut bytes[start..start + usize::try_from(len).expect("a small file")]
}

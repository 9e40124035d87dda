//! The files that the simulated rings read and write, the time, and what goes wrong.

#![expect(
    unsafe_code,
    reason = "moves bytes between its files and an op's memory, as the kernel does"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::device::FaultyDevice;
use super::peers::Moved;
use super::tally::Tally;
use crate::clock::{Clock, ManualClock};
use crate::file::Handle;
use crate::gpu::sim::Dice;
use crate::plan::{Alignment, Io, Reason};
use crate::queue::op::{Direction, Op, Work};
use crate::queue::pread::read_stretches;
use crate::transfer::State;
use crate::units::{ByteRange, align_down};

/// How much longer a drive that hangs takes than anything else.
const HUNG: Duration = Duration::from_secs(100);

/// When an op is done whose completion is lost.
pub(super) const NEVER: Duration = Duration::MAX;

/// A number below `end`, which is above zero.
pub(super) fn below(dice: &mut Dice, end: u64) -> u64 {
    dice.next() % end
}

/// `len` bytes of which no two places look alike.
pub(super) fn noise(dice: &mut Dice, len: u64) -> Vec<u8> {
    let len = usize::try_from(len).expect("a small file");
    let mut bytes = vec![0; len.next_multiple_of(8)];
    bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&dice.next().to_le_bytes()));
    bytes.truncate(len);
    bytes
}

/// Shares of the ops that meet each fault.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// EINTR and EAGAIN.
    pub(super) again: f64,
    /// Fewer bytes than asked.
    pub(super) short: f64,
    /// A short count of a direct op that is no multiple of its unit.
    pub(super) odd: f64,
    /// No byte, although there are some.
    pub(super) empty: f64,
    /// EIO.
    pub(super) hard: f64,
    /// Completions that take a hundred times longer.
    pub(super) late: f64,
    /// Calls into the GPU's driver that fail at once.
    pub(super) calls: f64,
    /// Such calls with which the GPU is gone for good.
    pub(super) gone: f64,
    /// Copies that fail on their way.
    pub(super) copies: f64,
    /// Calls for memory of a GPU, or to pin memory for it, that fail.
    pub(super) memory: f64,
    /// Ops of the drive that loses some whose completions never come.
    pub(super) lost: f64,
    /// Ops of ports that these refuse.
    pub(super) port: f64,
}

impl Faults {
    /// Whether, and how often, something goes wrong on the way to a GPU.
    pub(super) fn of_gpu(&self) -> f64 {
        self.calls + self.gone + self.copies
    }
}

/// A file: its bytes, and the handles by which the engine knows it.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) handles: Vec<Arc<Handle>>,
    pub(super) bytes: Vec<u8>,
    /// What should be in it, by the writes that have ended.
    pub(super) expected: Vec<u8>,
    /// Where the disk is full.
    pub(super) size_max: u64,
    pub(super) alignment: Option<Alignment>,
    /// Whether O_DIRECT is taken when it is opened and refused when it is read.
    pub(super) refuses: bool,
    /// Whether others cut it while it is read; then it is not written.
    pub(super) shrinks: bool,
}

/// An error that was answered to an op, which its transfer must tell.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) state: Arc<State>,
    pub(super) errno: Errno,
    /// What the op was to bring, in its transfer.
    pub(super) wanted: ByteRange,
    /// The file that could not be synced.
    pub(super) synced: Option<usize>,
}

/// Memory that an op in flight reads or writes.
#[derive(Debug, Clone, Copy)]
struct Touched {
    id: u64,
    range: ByteRange,
    written: bool,
    /// The file of a write, and whether it goes through the page cache.
    writes: Option<((u64, u64), Io)>,
}

/// See the module's own text.
#[derive(Debug)]
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) clock: Arc<ManualClock>,
    pub(super) faults: Faults,
    /// A drive that answers after all others.
    pub(super) hung: Option<usize>,
    /// A drive that never answers to some.
    pub(super) lost: Option<usize>,
    pub(super) tally: Tally,
    pub(super) files: Vec<Contents>,
    touched: Vec<Touched>,
    begun: u64,
    pub(super) failed: Vec<Failure>,
    pub(super) devices: Vec<Arc<FaultyDevice>>,
    /// Memory of GPUs that ops of ports have, as the host reaches it, by the numbers of the ops.
    pub(super) held: HashMap<u64, u64>,
    /// What ports have moved.
    pub(super) moved: Vec<Moved>,
}

impl Contents {
    /// What it has of a range.
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

    /// Whether one of `share` goes wrong now, which is counted as `what`.
    pub(super) fn meets(&mut self, what: &'static str, share: f64) -> bool {
        let rolled = self.dice.roll(share);
        self.tally.note(what, rolled)
    }

    /// When an op that begins now is done.
    pub(super) fn due(&mut self) -> Duration {
        let late = if self.meets("late", self.faults.late) { 100 } else { 1 };
        self.clock.now() + Duration::from_micros(below(&mut self.dice, 200) * late)
    }

    /// When an op of a drive is done that begins now.
    pub(super) fn due_on(&mut self, drive: usize, op: &Op) -> Duration {
        let waits = !op.is_in_memory();
        if waits && self.lost == Some(drive) && self.meets("lost", self.faults.lost) {
            return NEVER;
        }
        let hangs = self.tally.note("hung", waits && self.hung == Some(drive));
        self.due() + if hangs { HUNG } else { Duration::ZERO }
    }

    /// Takes an op in: checks that it may run at all. `base` is where its bytes really move.
    pub(super) fn begin(&mut self, op: &Op, base: u64, state: &Arc<State>) -> u64 {
        assert!(!state.is_done(), "an op begins although its transfer has ended: {op:?}");
        self.begun += 1;
        let Work::Move(direction) = op.work else { return self.begun };
        let at = ByteRange::at;
        let ranges: Vec<ByteRange> = match &op.batch {
            Some(batch) => {
                assert!(op.is_in_memory() && !op.segment.bounce, "no one request: {op:?}");
                batch.targets(op).map(|(part, host)| at(host, part.len())).collect()
            }
            None if op.segment.bounce => vec![at(op.address, op.segment.wanted.len())],
            None => vec![at(op.address + op.moved, op.rest().len())],
        };
        self.check_place(op, base, direction, state.range());
        self.hold(self.begun, op);
        ranges.into_iter().for_each(|range| self.touch(op, direction, range));
        self.begun
    }

    /// Checks that an op has memory for itself, and a file that it writes.
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

    fn check_place(&self, op: &Op, base: u64, direction: Direction, asked: ByteRange) {
        let (offset, len) = (op.offset_of(op.rest().start), op.rest().len());
        assert!(len > 0, "an op of no bytes: {op:?}");
        let segment = &op.segment;
        assert_eq!(segment.wanted.intersect(asked), segment.wanted, "outside of what was asked");
        if direction == Direction::Write {
            assert_eq!(segment.wanted, segment.covered, "a write of bytes that nobody asked for");
        }
        if let Some(port) = &op.port {
            let unit = port.unit();
            assert!(!segment.bounce && segment.wanted == segment.covered, "beside: {op:?}");
            let all = [offset, len, base + op.moved];
            assert!(all.iter().all(|part| part.is_multiple_of(unit)), "no whole units: {op:?}");
        } else if segment.io == Io::Direct {
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

    /// Gives an op back of which nothing was done.
    pub(super) fn drop_op(&mut self, id: u64, op: &Op, state: &Arc<State>) {
        assert!(!state.is_done(), "an op comes back after its transfer: {op:?}");
        self.touched.retain(|touched| touched.id != id);
        self.let_go(id, op);
    }

    /// Runs an op that is due; returns what the kernel would, and the size of a file that a read
    /// was short of.
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
        if let (Some(port), Work::Move(direction)) = (&op.port, op.work) {
            let native = self.let_go(id, op);
            return self.end_by_port(op, port.as_ref(), (direction, native), state);
        }
        let faults = self.faults.clone();
        if self.meets("again", faults.again) {
            let errno = if self.dice.roll(0.5) { Errno::INTR } else { Errno::AGAIN };
            return (Err(errno), None);
        }
        let asked = op.segment.reason != Reason::Demanded;
        if op.is_direct() && asked && self.file_of(op).refuses {
            self.tally.count("no-direct", 1);
            return (Err(Errno::INVAL), None);
        }
        if self.meets("eio", faults.hard) {
            self.fail(op, state, Errno::IO);
            return (Err(Errno::IO), None);
        }
        match op.work {
            Work::Sync { .. } | Work::DropStale => (Ok(0), None),
            Work::Move(Direction::Read) => self.read(op, base),
            Work::Move(Direction::Write) => (self.write(op, base, state), None),
        }
    }

    pub(super) fn fail(&mut self, op: &Op, state: &Arc<State>, errno: Errno) {
        let wanted = op.segment.wanted;
        let is_sync = matches!(op.work, Work::Sync { .. });
        let synced = is_sync.then(|| self.index_of(&op.file));
        self.failed.push(Failure { state: Arc::clone(state), errno, wanted, synced });
    }

    /// A reader's read of one of several stretches.
    fn read_resident(&mut self, file: &Handle, wanted: ByteRange, host: u64) -> Result<u64, Errno> {
        let Faults { again, short, empty, hard, .. } = self.faults;
        if self.meets("evicted", (again + empty + hard).min(0.9)) {
            return Err(Errno::AGAIN); // whatever it is, others are told of it
        }
        let index = self.index_of(file);
        let size = self.files[index].bytes.len() as u64;
        let most = size.saturating_sub(wanted.start).min(wanted.len());
        let is_short = most > 0 && self.meets("short", short);
        let moved = if is_short { 1 + below(&mut self.dice, most) } else { most };
        self.move_out(index, wanted.start, moved, host);
        Ok(moved)
    }

    /// Moves bytes of a file to where an op wants them.
    pub(super) fn move_out(&mut self, index: usize, offset: u64, len: u64, host: u64) {
        if len == 0 {
            return;
        }
        let bytes = part(&mut self.files[index].bytes, offset, len);
        // SAFETY: the memory is the op's until it is handed back, which is what is tested; it
        // holds what is left of the op.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host as *mut u8, bytes.len()) };
    }

    /// Moves bytes to a file from where an op has them.
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

    /// How many of `most` bytes move.
    fn share_of(&mut self, most: u64, op: &Op) -> u64 {
        let faults = self.faults.clone();
        if self.meets("empty", faults.empty) {
            return 0;
        }
        if most == 0 || !self.meets("short", faults.short) {
            return most;
        }
        let some = 1 + below(&mut self.dice, most);
        match self.file_of(op).alignment.filter(|_| op.is_direct()) {
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
        if let (Some(alignment), true) = (file.alignment, op.is_direct()) {
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

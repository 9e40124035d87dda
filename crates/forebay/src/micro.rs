//! Entry points for the micro-benchmarks: the planner alone, and the machinery around rings and
//! copies without I/O. They measure our own cost per op and per slot.
//!
//! Not part of the public interface.

use std::path::Path;
use std::sync::Arc;

use forebay_base::clock::SystemClock;
use forebay_base::units::ByteRange;
use rustix::io::Errno;

use crate::error::Result;
use crate::file::{Handle, OpenHow};
use crate::gpu::Device;
use crate::gpu::sim::{SimConfig, SimDevice};
use crate::memory::Buffer;
use crate::memory::HostMemory;
use crate::plan::{Alignment, Direction, Io, Layout, Reason, Split, cut_read};
use crate::queue::{
    Claim, Completion, Core, Crew, Depth, Limits, Op, Plan, Planner, Priority, Reader, Request,
    Ring, RingWorker, Scheduler, Slot, Tools, Wakeup,
};
use crate::staging::Submitter;
use crate::transfer::{State, SyncMode};

const ALIGNMENT: Alignment = Alignment { memory: 512, offset: 4096 };

/// How much of a window is resident, for [`plan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resident {
    /// All of it.
    Whole,
    /// Nothing.
    Nothing,
    /// Every other `n` bytes.
    Every(u64),
}

/// Plans a read of a window of `len` bytes in pieces of `piece` bytes; returns the number of
/// segments.
#[must_use]
pub fn plan(len: u64, piece: u64, resident: Resident) -> usize {
    let wanted = ByteRange::at(123, len - 123);
    let split = match resident {
        Resident::Whole => Split::Buffered(Reason::Resident),
        Resident::Nothing => Split::ODirect(Reason::NotResident),
        Resident::Every(run) => Split::Resident(
            (0..len / run / 2).map(|n| ByteRange::at(2 * n * run, run).intersect(wanted)).collect(),
        ),
    };
    cut_read(wanted, 0, piece, &split, Some(ALIGNMENT), Layout::Slot).len()
}

/// A ring whose ops complete at once without I/O.
#[derive(Debug)]
struct NullRing {
    depth: usize,
    done: Vec<Completion>,
}

impl Ring for NullRing {
    fn room(&self) -> usize {
        self.depth - self.done.len()
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn submit(&mut self, op: Op) {
        let moved = op.segment.covered.len() - op.moved;
        let (result, refused, size) = (Ok(moved), None, None);
        self.done.push(Completion { op, result, refused, size, took_ns: 0, at_ns: 0 });
    }

    fn reap(&mut self, _wait: bool, done: &mut Vec<Completion>) -> Result<(), Errno> {
        done.append(&mut self.done);
        Ok(())
    }
}

struct NullTools {
    planner: Planner,
}

impl Tools for NullTools {
    fn plan(&self, claim: &Claim) -> Plan {
        self.planner.plan(claim)
    }

    fn grow(&self, _link: usize) -> Vec<Slot> {
        Vec::new()
    }
}

/// A reader, a drive's worker and a submitter on one thread, between a file that is never read and
/// a simulated GPU.
pub struct DataPath {
    core: Core,
    file: Arc<Handle>,
    tools: NullTools,
    reader: Reader<NullRing>,
    worker: RingWorker<NullRing>,
    submitter: Submitter,
    target: Buffer,
    /// Dropped last: the slots' memory.
    slots: HostMemory,
}

impl DataPath {
    /// For transfers of up to `len` bytes, with slots of `slot` bytes and segments of `segment`
    /// bytes. `path` may be any file.
    ///
    /// # Errors
    /// The file's or the host's error.
    pub fn new(path: &Path, len: u64, slot: u64, segment: u64) -> Result<Self> {
        let limits = Limits {
            slot_size: slot,
            segment,
            in_flight: 1024,
            readers: 1,
            pool: 1,
            host_windows: 4,
        };
        let bell = || Wakeup::List(Arc::default());
        let core = Core::new(Scheduler::new(limits), bell(), bell(), Arc::default());
        let drive = core.add_drive(Depth::Fixed(32), 32, &[]);
        let served = core.add_ring(bell());
        core.lock().attach(drive, served);
        let device: Arc<dyn Device> =
            Arc::new(SimDevice::new(0, SimConfig::default(), Arc::new(SystemClock::new())));
        let link = core.add_link(4, bell());
        let bytes = usize::try_from(4 * slot).expect("a few slots");
        let mut slots = HostMemory::map(bytes)?;
        slots.register(&device)?;
        let first = slots.address();
        let four: Vec<Slot> = (0..4).map(|n| Slot::whole(first + n * slot, slot)).collect();
        core.with(|scheduler| scheduler.add_slots(link, &four));
        let ring = || NullRing { depth: 32, done: Vec::new() };
        Ok(Self {
            core,
            file: Arc::new(Handle::open(path, &OpenHow::default())?),
            tools: NullTools { planner: Planner { segment } },
            reader: Reader::new(ring()),
            worker: RingWorker::new(Crew::Ring(served), ring()),
            submitter: Submitter::new(link, Arc::clone(&device)).expect("a simulated GPU"),
            target: Buffer::on_device(device, len)?,
            slots,
        })
    }

    /// Simulates a read of `len` bytes with O_DIRECT into host memory; no byte is written.
    ///
    /// # Errors
    /// None is expected.
    pub fn read_to_host(&mut self, len: u64) -> Result<u64> {
        let address = self.slots.address();
        self.run(len, address, None, Io::ODirect, Reason::Demanded)
    }

    /// Simulates a read of `len` bytes through the page cache; the copies to the GPU are real.
    ///
    /// # Errors
    /// None is expected.
    pub fn read_to_gpu(&mut self, len: u64) -> Result<u64> {
        let address = self.target.address();
        self.run(len, address, Some(0), Io::Buffered, Reason::InMemory)
    }

    fn run(
        &mut self,
        len: u64,
        address: u64,
        link: Option<usize>,
        io: Io,
        reason: Reason,
    ) -> Result<u64> {
        let range = ByteRange::at(0, len);
        let state = Arc::new(State::new(Arc::clone(&self.file), range, Vec::new(), Vec::new()));
        let request = Request {
            state: Arc::clone(&state),
            file: Arc::clone(&self.file),
            batch: None,
            direction: Direction::Read,
            range,
            end: range.end,
            is_sized: true,
            address,
            link,
            peer: None,
            drive: 0,
            parts: [(range, io, reason)].into(),
            shares: Vec::new(),
            alignment: (io == Io::ODirect).then_some(ALIGNMENT),
            cold: false,
            exact: true,
            sync: SyncMode::None,
            priority: Priority::Normal,
        };
        let (_, claim) = self.core.with(|scheduler| scheduler.start(request));
        if let Some(claim) = claim {
            let (piece, segments) = self.tools.plan(&claim);
            self.core.with(|scheduler| scheduler.opened(claim.window, piece, segments));
        }
        while !state.is_done() {
            self.reader.step(&self.core, &self.tools);
            match link {
                None => drop(self.worker.step(&self.core, false, |claim| self.tools.plan(claim))),
                Some(_) => drop(self.submitter.step(&self.core, true)),
            }
        }
        state.wait().0.map(|outcome| outcome.bytes)
    }
}

impl std::fmt::Debug for DataPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DataPath({:?})", self.file.path())
    }
}

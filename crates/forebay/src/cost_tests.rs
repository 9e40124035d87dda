//! Our own cost for each segment that is planned, each op of a ring, and each slot that goes from
//! its reader to the copy engine and back, without I/O. Each case also runs once as a test.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::clock::{ManualClock, SystemClock};
use forebay_base::units::{ByteRange, KIB, MIB};
use rustix::io::Errno;

use crate::file::{Handle, OpenOptions};
use crate::gpu::Device;
use crate::gpu::sim::{SimConfig, SimDevice};
use crate::memory::{Account, Buffer, Couriers, HostMemory, Room};
use crate::options::Priority;
use crate::plan::{Alignment, Direction, Io, Layout, Reason, Split, cut_read};
use crate::queue::{
    Claim, Completion, Core, Limits, Op, Plan, Planner, Reader, Request, Ring, RingWorker,
    Scheduler, Slot, Tools, Wakeup, Workers,
};
use crate::staging::{Cells, Pause, Submitter, WATCH_MAX};
use crate::transfer::{State, SyncMode};
use crate::tune::DepthLimits;

const ALIGNMENT: Alignment = Alignment { memory: 512, offset: 4096 };

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
struct DataPath {
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
    /// bytes. None of the file's bytes is read.
    fn new(len: u64, slot: u64, segment: u64) -> Self {
        let device = SimDevice::new(0, SimConfig::default(), Arc::new(SystemClock::new()));
        Self::with(device, len, slot, segment)
    }

    fn with(device: SimDevice, len: u64, slot: u64, segment: u64) -> Self {
        let limits = Limits {
            slot_size: slot,
            segment,
            in_flight: 1024,
            readers: 1,
            readers_of_host: usize::MAX,
            cache: u64::MAX,
            pool: 1,
            host_windows: 4,
        };
        let bell = || Wakeup::List(Arc::default());
        let core = Core::new(Scheduler::new(limits), bell(), bell(), Arc::default());
        let drive = core.add_drive(DepthLimits::fixed(32, MIB), &[]);
        let served = core.add_ring(bell());
        core.lock().attach(drive, served);
        let device: Arc<dyn Device> = Arc::new(device);
        let cells = Arc::new(Cells::new(None, 0, 0));
        let link = core.add_link(4, Wakeup::List(Arc::clone(&cells.bell)));
        let bytes = usize::try_from(4 * slot).expect("a few slots");
        let mut slots = HostMemory::map(bytes).expect("a few slots");
        slots.register(&device).expect("a simulated GPU");
        let first = slots.address();
        let four: Vec<Slot> = (0..4).map(|n| Slot::whole(first + n * slot, slot)).collect();
        core.with(|scheduler| scheduler.add_slots(link, &four));
        let ring = || NullRing { depth: 32, done: Vec::new() };
        let room = Room::new(forebay_topology::System::live(), Account::new(slot, None));
        let couriers = Couriers::new(&room);
        let path = std::env::current_exe().expect("any file");
        let file = Handle::open(path, &OpenOptions::default()).expect("it is there");
        Self {
            core,
            file: Arc::new(file),
            tools: NullTools { planner: Planner { segment } },
            reader: Reader::new(ring()),
            worker: RingWorker::new(Workers::Ring(served), ring()),
            submitter: Submitter::new(link, Arc::clone(&device), cells).expect("a simulated GPU"),
            target: Buffer::on_device(&couriers, device, len).expect("simulated memory"),
            slots,
        }
    }

    /// Simulates a read of `len` bytes with O_DIRECT into host memory; no byte is written.
    fn read_to_host(&mut self, len: u64) -> u64 {
        self.run(len, self.slots.address(), None, Io::ODirect, Reason::Required)
    }

    /// Simulates a read of `len` bytes through the page cache; the copies to the GPU are real.
    fn read_to_gpu(&mut self, len: u64) -> u64 {
        self.run(len, self.target.address(), Some(0), Io::Buffered, Reason::InMemory)
    }

    fn run(&mut self, len: u64, address: u64, link: Option<usize>, io: Io, reason: Reason) -> u64 {
        let state = self.start(len, address, link, io, reason);
        while !state.is_done() {
            self.reader.step(&self.core, &self.tools);
            match link {
                None => drop(self.worker.step(&self.core, false, |claim| self.tools.plan(claim))),
                Some(_) => drop(self.submitter.step(&self.core, true)),
            }
        }
        state.wait().0.expect("a whole read").bytes
    }

    fn start(
        &mut self,
        len: u64,
        address: u64,
        link: Option<usize>,
        io: Io,
        reason: Reason,
    ) -> Arc<State> {
        let range = ByteRange::at(0, len);
        let state = Arc::new(State::new(
            Instant::now(),
            Arc::clone(&self.file),
            range,
            Vec::new(),
            Vec::new(),
        ));
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
            direct: None,
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
        state
    }
}

/// Runs every case for at least `bound`, once at least, and prints what each element costs.
fn run_for(bound: Duration) {
    let measure = |case: &str, elements: u64, step: &mut dyn FnMut()| {
        let (start, mut rounds) = (Instant::now(), 0);
        while rounds == 0 || start.elapsed() < bound {
            step();
            rounds += 1;
        }
        let each = start.elapsed().as_nanos() / u128::from(rounds * elements);
        println!("{case}: {each} ns each");
    };
    let wanted = ByteRange::at(123, 16 * MIB - 123);
    let run = |n: u64| ByteRange::at(2 * n * 64 * KIB, 64 * KIB).intersect(wanted);
    for (name, split) in [
        ("resident", Split::Buffered(Reason::Resident)),
        ("cold", Split::ODirect(Reason::NotResident)),
        ("every other 64 KiB resident", Split::Resident((0..128).map(run).collect())),
    ] {
        let plan = || cut_read(wanted, 0, MIB, black_box(&split), Some(ALIGNMENT), Layout::Slot);
        let segments = plan().len() as u64;
        measure(&format!("segments of a window, {name}"), segments, &mut || drop(plan()));
    }
    for (name, ops, slot, segment) in [
        ("4 KiB", 1024, 256 * KIB, 4 * KIB),
        ("1 MiB", 1024, 16 * MIB, MIB),
        ("alone", 1, 4 * KIB, 4 * KIB),
    ] {
        let len = ops * segment;
        let mut path = DataPath::new(len, slot, segment);
        let mut step = || assert_eq!(path.read_to_host(black_box(len)), len);
        measure(&format!("ops of a ring that are done at once, {name}"), ops, &mut step);
    }
    for (name, segment) in [("one segment each", 4 * KIB), ("four segments each", KIB)] {
        let (slots, slot) = (256, 4 * KIB);
        let mut path = DataPath::new(slots * slot, slot, segment);
        let mut step = || assert_eq!(path.read_to_gpu(black_box(slots * slot)), slots * slot);
        measure(&format!("slots copied by a simulated GPU, {name}"), slots, &mut step);
    }
}

#[test]
fn every_case_of_our_own_cost_works() {
    run_for(Duration::ZERO);
}

#[test]
fn a_lone_short_read_is_polled_only_while_its_copy_is_new() {
    let (clock, latency) = (Arc::new(ManualClock::new()), Duration::from_secs(1));
    let config = SimConfig { latency, ..SimConfig::default() };
    let gpu = SimDevice::new(0, config, Arc::<ManualClock>::clone(&clock));
    let mut path = DataPath::with(gpu, 64 * KIB, 256 * KIB, 64 * KIB);
    let address = path.target.address();
    let state = path.start(64 * KIB, address, Some(0), Io::Buffered, Reason::InMemory);
    assert_eq!(path.submitter.step(&path.core, true), Pause::Watch, "readers fill its window");
    while !path.submitter.is_copying() {
        path.reader.step(&path.core, &path.tools);
        path.submitter.step(&path.core, true);
    }
    std::thread::sleep(2 * WATCH_MAX);
    assert_eq!(path.submitter.step(&path.core, true), Pause::Nap);
    clock.advance(latency);
    path.submitter.step(&path.core, true);
    assert!(state.is_done());
}

#[test]
#[ignore = "measures; CONTRIBUTING.md has the command"]
fn our_own_cost() {
    run_for(Duration::from_secs(1));
}

//! Steps every state machine of an engine on one thread, in a random order from the seed, and
//! checks invariants after each step.
//!
//! A parked machine is stepped again only after its bell was rung. So a lost wake-up leaves nothing
//! to step, which fails the run.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock};

use super::device::FaultyDevice;
use super::job::{Caller, Job};
use super::memory::Memory;
use super::ring::SimRing;
use super::shape::{self, Shape, count};
use super::start::{self, SimTools};
use super::tally::Tally;
use super::world::{World, below};
use crate::gpu::Device;
use crate::gpu::sim::{Dice, SimConfig, SimDevice};
use crate::queue::core::Wakeup;
use crate::queue::op::Op;
use crate::queue::worker::Next;
use crate::queue::{Core, Planner, Reader, Ring, RingWorker, Scheduler, Tools as _, Workers};
use crate::staging::{Cells, Pause, Submitter};
use crate::tune::{DepthLimits, DepthRule};

/// Step limit of a run; a run that reaches it is stuck.
const STEPS_MAX: u64 = 400_000;

/// State of a machine's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunState {
    Runs,
    /// Parked until its bell rings. An earlier ring counts too.
    Sleeps,
    Stopped,
}

enum ActorKind {
    Reader(Reader<SimRing>),
    /// A drive's worker, and whether it waits in its ring.
    Drive(RingWorker<SimRing>, bool),
    /// A submitter, and how many more steps it lingers before it parks.
    Submitter(Box<Submitter>, u64),
}

pub(super) struct Machine {
    kind: ActorKind,
    pub(super) workers: Workers,
    pub(super) phase: RunState,
}

/// One simulated run.
pub(super) struct Run {
    pub(super) shape: Shape,
    dice: Dice,
    clock: Arc<ManualClock>,
    pub(super) core: Arc<Core>,
    pub(super) tools: SimTools,
    pub(super) machines: Vec<Machine>,
    bells: Vec<(Workers, Arc<AtomicUsize>)>,
    pub(super) jobs: Vec<Job>,
    started: usize,
    stopping: bool,
    /// Whether the remaining transfers wait for completions that never arrive.
    pub(super) gave_up: bool,
    pub(super) steps: u64,
    pub(super) bytes: u64,
    /// Memory that a GPU may still touch.
    kept: Vec<Memory>,
}

/// Statistics of a run.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) steps: u64,
    pub(super) bytes: u64,
    pub(super) met: Tally,
}

impl Machine {
    pub(super) fn ring(&self) -> Option<&SimRing> {
        match &self.kind {
            ActorKind::Reader(reader) => Some(reader.held().0),
            ActorKind::Drive(worker, _) => Some(worker.held().0),
            ActorKind::Submitter(..) => None,
        }
    }

    /// `rung`: number of pending rings of the bell of its kind of threads.
    fn can_step(&self, now: Duration, rung: usize) -> bool {
        let due = |ring: &SimRing| ring.next_due().is_some_and(|due| due <= now);
        match (&self.kind, self.phase) {
            (_, RunState::Stopped) => false,
            (_, RunState::Sleeps) => rung > 0,
            // It waits in its ring, and its bell ends that wait too.
            (ActorKind::Drive(worker, true), RunState::Runs) => {
                let ring = worker.held().0;
                rung > 0 || !ring.is_blocked() || due(ring)
            }
            // Its thread is in a system call until its op is done.
            (ActorKind::Reader(_) | ActorKind::Drive(..), RunState::Runs) => {
                self.ring().is_none_or(|ring| ring.in_flight() == 0 || due(ring))
            }
            (ActorKind::Submitter(..), RunState::Runs) => true,
        }
    }

    /// Consumes a ring of its bell.
    fn hear(&mut self, rung: &AtomicUsize) {
        if matches!(self.kind, ActorKind::Drive(_, true)) {
            rung.store(0, Ordering::Relaxed); // one check handles all rings
        } else if self.phase == RunState::Sleeps {
            rung.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Run {
    pub(super) fn new(seed: u64, folder: &Path) -> Self {
        let mut dice = Dice::new(seed);
        let shape = Shape::of(&mut dice);
        let clock = Arc::new(ManualClock::new());
        let faults = shape.faults.clone();
        let mut world = World::new(Dice::new(dice.next()), Arc::clone(&clock), faults);
        (world.hung, world.lost) = (shape.hung, shape.lost);
        world.files = shape::files(&mut dice, &shape, folder);
        let readers = Arc::new(AtomicUsize::new(0));
        let bell = Wakeup::Counted(Arc::clone(&readers));
        let pool = Arc::new(AtomicUsize::new(0));
        let pool_bell = Wakeup::Counted(Arc::clone(&pool));
        let core =
            Arc::new(Core::new(Scheduler::new(shape.limits), bell, pool_bell, Arc::default()));
        let tools = SimTools {
            world: Rc::new(RefCell::new(world)),
            planner: Planner { segment: shape.segment },
            slot_size: shape.limits.slot_size,
            devices: Vec::new(),
            arena: RefCell::default(),
        };
        let mut run = Self {
            dice,
            clock,
            core,
            tools,
            machines: Vec::new(),
            bells: vec![(Workers::Readers, readers), (Workers::Pool, pool)],
            jobs: Vec::new(),
            started: 0,
            stopping: false,
            gave_up: false,
            steps: 0,
            bytes: 0,
            kept: Vec::new(),
            shape,
        };
        for _ in 0..run.shape.limits.readers * run.shape.gpus.max(1) {
            let reader = Reader::new(run.ring(1));
            run.add(ActorKind::Reader(reader), Workers::Readers);
        }
        run.add_drives();
        run.add_gpus();
        run
    }

    fn ring(&self, depth: usize) -> SimRing {
        SimRing::new(&self.tools.world, &self.core, depth, self.shape.segment)
    }

    fn add(&mut self, kind: ActorKind, workers: Workers) {
        self.machines.push(Machine { kind, workers, phase: RunState::Runs });
    }

    fn bell(&mut self, workers: Workers) -> Wakeup {
        let rung = Arc::new(AtomicUsize::new(0));
        self.bells.push((workers, Arc::clone(&rung)));
        Wakeup::Counted(rung)
    }

    fn add_drives(&mut self) {
        for _ in 0..self.shape.limits.pool {
            let ring = self.ring(1);
            let worker = RingWorker::woken(Workers::Pool, ring);
            let kind = ActorKind::Drive(worker, false);
            self.machines.push(Machine { kind, workers: Workers::Pool, phase: RunState::Sleeps });
        }
        self.core.lock().add_unstarted(self.shape.limits.pool);
        for index in 0..self.shape.rings {
            let workers = Workers::Ring(index);
            let bell = self.bell(workers);
            assert_eq!(self.core.add_ring(bell), index);
            let ring = self.ring(self.shape.limits.in_flight + self.shape.drives.len());
            self.add(ActorKind::Drive(RingWorker::new(workers, ring), true), workers);
        }
        for (index, served) in self.shape.drives.clone().into_iter().enumerate() {
            let depth = if self.dice.roll(0.5) {
                DepthLimits::fixed(self.shape.depth, self.shape.limits.segment)
            } else {
                let (depth_max, size_max) = (self.shape.depth, self.shape.limits.segment);
                let is_disk = self.dice.roll(0.3);
                let rule = if is_disk { DepthRule::Disk } else { DepthRule::Tuned };
                DepthLimits { rule, depth_max, size_max }
            };
            let hardware = &self.shape.hardware[index];
            assert_eq!(self.core.add_drive(depth, hardware), index);
            served.into_iter().for_each(|ring| self.core.lock().attach(index, ring));
        }
    }

    fn add_gpus(&mut self) {
        for index in 0..self.shape.gpus {
            let config = SimConfig {
                latency: Duration::from_micros(self.shape.link_latency_us),
                seed: self.dice.next(),
                copy_faults: self.shape.faults.copies,
                ..SimConfig::default()
            };
            let number = u32::try_from(index).expect("few GPUs");
            let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as _;
            let inner = SimDevice::new(number, config, clock);
            let dice = Dice::new(self.dice.next());
            let device = Arc::new(FaultyDevice::new(inner, dice, self.shape.faults.clone()));
            self.tools.devices.push(Arc::clone(&device));
            self.tools.world.borrow_mut().devices.push(Arc::clone(&device));
            let workers = Workers::Link(index);
            let bell = self.bell(workers);
            let (slots, slots_max) = self.shape.slots;
            assert_eq!(self.core.add_link(slots_max, bell), index);
            let gpu: Arc<dyn Device> = Arc::clone(&device) as _;
            let cells = Arc::new(Cells::new(None, 0, 0));
            let submitter = Submitter::new(index, gpu, cells).expect("streams cost nothing");
            self.add(ActorKind::Submitter(Box::new(submitter), 0), workers);
            let slots = self.tools.make(index, slots);
            self.core.with(|scheduler| scheduler.add_slots(index, &slots));
            device.armed.store(true, Ordering::Relaxed);
        }
    }

    /// Runs to the end. Panics if a check fails.
    pub(super) fn run(mut self) -> Summary {
        while self.steps < STEPS_MAX {
            self.steps += 1;
            self.disturb();
            if !self.step() {
                return self.end();
            }
            self.check();
            self.judge_ended();
        }
        panic!("no end after {STEPS_MAX} steps: {:?}", self.core.lock());
    }

    /// Steps one machine that can step; false if none can and nothing is left.
    fn step(&mut self) -> bool {
        let now = self.clock.now();
        let can_step = |machine: &Machine| {
            machine.can_step(now, self.rung(machine.workers).load(Ordering::Relaxed))
        };
        let machines = (0..self.machines.len()).filter(|&i| can_step(&self.machines[i]));
        let mut choices: Vec<Choice> = machines.map(Choice::Machine).collect();
        let callers = (0..self.jobs.len()).filter(|&i| self.jobs[i].can_step(now));
        choices.extend(callers.map(Choice::Caller));
        let shut = (0..self.jobs.len()).filter(|&i| self.jobs[i].can_open());
        choices.extend(shut.map(Choice::Open));
        if self.started < self.shape.transfers && self.jobs.len() < self.shape.at_once {
            choices.push(Choice::Start);
        }
        if !self.stopping {
            let all = self.started == self.shape.transfers && self.jobs.is_empty();
            if all || (self.shape.stops_early && self.dice.roll(0.001)) {
                choices.push(Choice::Stop);
            }
        }
        let due = self.next_due();
        if due.is_some() {
            choices.push(Choice::Time);
        }
        if choices.is_empty() {
            return self.give_up();
        }
        let index = below(&mut self.dice, choices.len() as u64);
        match choices[usize::try_from(index).expect("few choices")] {
            Choice::Machine(index) => self.step_machine(index),
            Choice::Caller(index) => self.jobs[index].step(&self.core, &self.tools),
            Choice::Open(index) => self.jobs[index].open(&self.core),
            Choice::Start => self.start(),
            Choice::Stop => self.stop(),
            Choice::Time => {
                let due = due.expect("something is on its way");
                self.clock.advance(due.saturating_sub(now));
            }
        }
        true
    }

    /// When the next op of any ring is due, if none is due now.
    fn next_due(&self) -> Option<Duration> {
        let rings = self.machines.iter().filter_map(Machine::ring);
        let callers = self.jobs.iter().filter_map(Job::ring);
        let now = self.clock.now();
        rings.chain(callers).filter_map(SimRing::next_due).min().filter(|due| *due > now)
    }

    fn start(&mut self) {
        if let Some(mut job) = start::start(&self.core, &self.tools, &self.shape, &mut self.jobs) {
            if matches!(job.caller, Caller::Waits) && job.blocking {
                job.caller = Caller::Help(Box::new(Reader::new(self.ring(1))));
            }
            self.jobs.push(job);
        }
        self.started += 1; // also if there was no memory for it
    }

    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.started = self.shape.transfers;
        self.core.stop();
    }

    fn step_machine(&mut self, index: usize) {
        let rung = Arc::clone(self.rung(self.machines[index].workers));
        let machine = &mut self.machines[index];
        machine.hear(&rung);
        let next = match &mut machine.kind {
            ActorKind::Reader(reader) => reader.step(&self.core, &self.tools),
            ActorKind::Drive(worker, waits) => {
                worker.step(&self.core, *waits, |claim| self.tools.plan(claim))
            }
            ActorKind::Submitter(submitter, linger) => {
                if submitter.is_copying() {
                    *linger = self.shape.linger;
                }
                match submitter.step(&self.core, *linger > 0) {
                    Pause::Nap | Pause::Watch => {
                        self.clock.advance(Duration::from_micros(20));
                        *linger = linger.saturating_sub(1);
                        Next::Again
                    }
                    Pause::Wait => Next::Wait,
                    Pause::Stop => Next::Stop,
                }
            }
        };
        machine.phase = match next {
            Next::Again => RunState::Runs,
            Next::Wait => RunState::Sleeps,
            Next::Stop => RunState::Stopped,
        };
    }

    fn rung(&self, workers: Workers) -> &Arc<AtomicUsize> {
        let (_, rung) = self
            .bells
            .iter()
            .find(|(c, _)| *c == workers)
            .expect("every kind of worker has a bell");
        rung
    }

    /// Random actions of callers and other processes: cancel transfers and truncate files.
    fn disturb(&mut self) {
        if self.dice.roll(self.shape.cancels) && !self.jobs.is_empty() {
            let index = below(&mut self.dice, self.jobs.len() as u64);
            let job = &mut self.jobs[usize::try_from(index).expect("few transfers")];
            job.cancel(&self.core);
            self.tools.world.borrow_mut().tally.count("cancel", 1);
        }
        if self.dice.roll(self.shape.cuts) {
            self.cut();
        }
        if self.dice.roll(0.002) {
            let links = count(&mut self.dice, 0, 3);
            self.core.with(|scheduler| scheduler.set_links_elsewhere(links));
        }
    }

    /// Truncates a file or extends it with zeros.
    fn cut(&mut self) {
        let mut world = self.tools.world.borrow_mut();
        let index = below(&mut self.dice, world.files.len() as u64);
        let index = usize::try_from(index).expect("few files");
        let file = &mut world.files[index];
        if !file.shrinks {
            return;
        }
        let old = file.bytes.len();
        let most = (old as u64 * 9).div_ceil(8) + 1;
        let size = usize::try_from(below(&mut self.dice, most)).expect("a small file");
        file.bytes.resize(size, 0);
        world.tally.count("cut", 1);
        let file = &mut world.files[index];
        file.expected.clone_from(&file.bytes);
        let pieces = self.jobs.iter_mut().flat_map(|job| &mut job.pieces);
        for piece in pieces.filter(|piece| piece.file == index) {
            piece.size_min = piece.size_min.min(size as u64);
            piece.zeros |= size > old;
        }
    }

    fn check(&mut self) {
        let mut taken: Vec<&Op> = Vec::new();
        let mut come = 0;
        for machine in &self.machines {
            let (ring, done) = match &machine.kind {
                ActorKind::Reader(reader) => {
                    come += usize::from(reader.is_at_work());
                    reader.held()
                }
                ActorKind::Drive(worker, _) => worker.held(),
                ActorKind::Submitter(..) => continue,
            };
            taken.extend(ring.ops().chain(done.iter().map(|completion| &completion.op)));
            let stopped = machine.phase == RunState::Stopped;
            assert!(!stopped || ring.in_flight() == 0, "a thread ended before its ops");
        }
        for job in &self.jobs {
            taken.extend(job.ops());
            come += usize::from(matches!(job.caller, Caller::Help(_)));
        }
        let scheduler = self.core.lock();
        scheduler.check(&taken, come);
        for job in &mut self.jobs {
            job.look_at_blocks();
            let now = scheduler.error_of(&job.state).map(|error| format!("{error:?}"));
            if now.as_ref().is_some_and(|error| error.starts_with("CopyNotOver")) {
                job.error = now; // lost memory takes precedence over all other errors
                continue;
            }
            if let (Some(now), Some(before)) = (&now, &job.error) {
                assert_eq!(now, before, "the first error was replaced");
            }
            job.error = job.error.take().or(now);
        }
    }

    pub(super) fn judge_ended(&mut self) {
        for index in (0..self.jobs.len()).rev() {
            if self.jobs[index].state.is_done() && matches!(self.jobs[index].caller, Caller::Waits)
            {
                let job = self.jobs.swap_remove(index);
                let (bytes, kept) = job.judge(&mut self.tools.world.borrow_mut());
                self.bytes += bytes;
                self.kept.extend(kept);
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Machine(usize),
    Caller(usize),
    /// A job's caller opens its gate further.
    Open(usize),
    Start,
    Stop,
    Time,
}

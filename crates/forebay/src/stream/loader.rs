//! The thread that brings layers from files: to slots of the stream's own, or to the pinned memory
//! that they are kept in, and from there to the GPU. It waits for storage and for slots, never for
//! the caller.

#![expect(unsafe_code, reason = "queues copies to the stream's own memory")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::layer::{Unit, slot_len};
use super::mapped::Refusal;
use super::mapper::Pinned;
use super::marks::Mark;
use super::refuse;
use super::shared::{Job, Shared, Way};
use super::store::{Store, host};
use crate::engine::{ManyTransfer, Piece};
use crate::error::{Error, Result};
use crate::gpu::{DeviceCopy, DeviceResult};
use crate::memory::Buffer;
use crate::plan::{Packed, SKEW};

/// Slots: one is copied, one or two are ready behind it, and three are being filled.
pub(super) const SLOTS: u64 = 6;

/// Reads under way while slots are copied. Those take turns, so more of them would all come later:
/// layers of 200 MB from the page cache came in 1.23, 1.07, 1.12 and 1.08 of the link's time with
/// 2, 3, 4 and 6 (H200, `benches/runs/2026-11-22-h200-layers`). A drive that the link waits for
/// may have all slots.
const READS: usize = 3;

/// How long it waits for bytes before it looks for other work: shorter than a slot takes to be
/// filled from memory.
const PATIENCE: Duration = Duration::from_micros(500);

/// The same while a slot is wanted, which may be there sooner.
const PATIENCE_FOR_SLOT: Duration = Duration::from_micros(50);

/// Time between two looks at a slot that is copied, which takes 300 µs, at least and at most: where
/// the GPU computes with what the slot's bytes are to replace it takes longer.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// How long it sleeps for want of work at most.
const REST: Duration = Duration::from_secs(1);

/// See the module's own text.
pub(super) struct Loader {
    shared: Arc<Shared>,
    store: Arc<Store>,
    /// `None` where nothing comes from files.
    slots: Option<Buffer>,
    slot_len: u64,
    /// What has to be passed before each slot may be filled again.
    copied: Vec<Option<Mark>>,
    /// Slots in the order in which they were last used.
    free: VecDeque<usize>,
    /// Jobs that have steps left to begin.
    jobs: VecDeque<Rc<Active>>,
    flights: VecDeque<Flight>,
    /// Jobs whose pages are being pinned, one after the other.
    pinning: VecDeque<(Rc<Active>, Receiver<Pinned>)>,
    /// Since when only a slot is wanted.
    waiting: Option<Instant>,
}

/// A job under way.
struct Active {
    job: Job,
    /// How it comes: pages may turn out not to be there.
    way: Cell<Way>,
    /// The first step that has not begun, and how many have landed.
    next: Cell<u64>,
    landed: Cell<u64>,
    /// Put before its first copy.
    begun: RefCell<Option<Mark>>,
    error: RefCell<Option<Error>>,
    /// Whether it was told what came of it.
    told: Cell<bool>,
}

/// A slot's worth on its way from files to memory.
struct Flight {
    active: Rc<Active>,
    step: u64,
    transfer: ManyTransfer,
    place: Place,
}

/// Where bytes come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A slot, and its first address.
    Slot(usize, u64),
    /// Pinned memory that is kept, from this address on.
    Home(u64),
}

impl Loader {
    /// Starts the thread.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
        let slot_len = slot_len(&shared.engine) + SKEW;
        let store = shared.store()?;
        let passes = (0..shared.units.len()).any(|unit| store.home(unit).is_none());
        let slots = passes.then(|| shared.engine.allocate_pinned(SLOTS * slot_len)).transpose()?;
        let shared = Arc::clone(shared);
        let count = if passes { usize::try_from(SLOTS).expect("few") } else { 0 };
        let run = move || {
            let (copied, free) = (vec![None; count], (0..count).collect());
            let (jobs, flights, pinning) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
            let (slots, waiting) = (slots, None);
            Self { shared, store, slots, slot_len, copied, free, jobs, flights, pinning, waiting }
                .run();
        };
        let started = thread::Builder::new().name("forebay-layers".into()).spawn(run);
        started.map_err(|error| crate::engine::resource("loader of layers", &error))
    }

    fn run(&mut self) {
        loop {
            let is_alone = self.jobs.is_empty() && self.flights.is_empty();
            let idle = is_alone && self.pinning.is_empty();
            if let Err(error) = self.copy_pinned(is_alone) {
                return self.shared.lose(error);
            }
            match self.shared.next_job(if idle { REST } else { Duration::ZERO }) {
                Err(()) => return,
                Ok(Some(job)) => self.jobs.push_back(Rc::new(Active::new(job))),
                Ok(None) => {}
            }
            let waits = match self.begin_steps() {
                Ok(waits) => waits,
                Err(error) => return self.shared.lose(error),
            };
            if let Some(flight) = self.flights.front() {
                let patience = if waits { PATIENCE_FOR_SLOT } else { PATIENCE };
                let Some(end) = flight.transfer.wait_for(patience) else { continue };
                let flight = self.flights.pop_front().expect("just seen");
                let ended = end.and_then(|outcome| {
                    let failed = outcome.results.iter().find_map(|result| result.as_ref().err());
                    failed.map_or(Ok(()), |error| Err((**error).clone()))
                });
                if let Err(error) = self.land(&flight, ended) {
                    return self.shared.lose(error);
                }
            } else if waits {
                // Only the GPU can give a slot back; the longer it takes, the rarer the looks.
                let since = *self.waiting.get_or_insert_with(Instant::now);
                thread::sleep((since.elapsed() / 16).clamp(NAPS[0], NAPS[1]));
                continue;
            }
            self.waiting = None;
        }
    }

    /// Begins what there is memory for; whether a step waits for a slot.
    fn begin_steps(&mut self) -> Result<bool> {
        let shared = Arc::clone(&self.shared);
        while let Some(active) = self.jobs.front().cloned() {
            let unit = &shared.units[active.job.load.unit];
            if active.way.get() == Way::Pages {
                self.jobs.pop_front();
                self.pinning.push_back((active, shared.pin_pages(unit)));
                continue;
            }
            if active.is_begun(unit) {
                self.jobs.pop_front();
                self.finish_landed(&active, unit)?;
                continue;
            }
            if self.flights.len() >= READS && self.copies() {
                return Ok(false);
            }
            let step = active.next.get();
            let home = self.store.home(active.job.load.unit);
            let home = home.filter(|_| active.way.get() == Way::Memory);
            let memory = match home.and_then(|home| home.part(step)) {
                Some(_) if self.flights.len() as u64 >= SLOTS => return Ok(false),
                Some(part) => Some((part, None)),
                None => self.free_slot()?.map(|slot| (self.slot(slot), Some(slot))),
            };
            let Some((memory, slot)) = memory else { return Ok(true) };
            active.next.set(step + 1);
            let address = memory.address();
            let place = slot.map_or(Place::Home(address), |slot| Place::Slot(slot, address));
            match self.begin_read(unit, step, memory) {
                Ok(transfer) => {
                    self.flights.push_back(Flight { active, step, transfer, place });
                }
                Err(error) => {
                    self.free.extend(slot);
                    active.landed.set(active.landed.get() + 1);
                    active.fail(error);
                }
            }
        }
        Ok(false)
    }

    fn slot(&self, slot: usize) -> Buffer {
        let slots = self.slots.as_ref().expect("there are numbers of slots");
        slots.share(slot as u64 * self.slot_len, self.slot_len)
    }

    /// Whether any slot is being copied.
    fn copies(&self) -> bool {
        self.copied.iter().flatten().any(|mark| matches!(mark.is_passed(), Ok(false)))
    }

    /// A slot that nothing is copied from any more.
    fn free_slot(&mut self) -> Result<Option<usize>> {
        let Some(&slot) = self.free.front() else { return Ok(None) };
        if let Some(mark) = &self.copied[slot] {
            let passed = mark.is_passed().map_err(|source| self.shared.failed(0, source))?;
            if !passed {
                return Ok(None);
            }
        }
        self.copied[slot] = None;
        self.free.pop_front();
        Ok(Some(slot))
    }

    /// Copies a job whose pages have been pinned, or has it come through slots where they have not;
    /// waits for that a little where there is nothing else to do.
    fn copy_pinned(&mut self, is_alone: bool) -> Result<()> {
        let Some((active, pinned)) = self.pinning.front() else { return Ok(()) };
        let patience = if is_alone { PATIENCE } else { Duration::ZERO };
        let (active, pinned) = match pinned.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Ok(pinned) => (Rc::clone(active), pinned),
            Err(RecvTimeoutError::Disconnected) => (
                Rc::clone(active),
                Err(Refusal::Ever("no thread can be had that pins pages".into())),
            ),
        };
        self.pinning.pop_front();
        let load = active.job.load;
        let shared = Arc::clone(&self.shared);
        // Nobody may take the pages away before the copies are known.
        let mut state = shared.lock();
        let refusal = match pinned {
            Err(refusal) => Some(refusal),
            Ok((pages, copies)) => match self.store.keep_pages(load.unit, pages, copies) {
                Ok(()) if state.maps.is_on() => {
                    state.maps.pinned();
                    let lane = shared.file_lane;
                    let copied = shared.copy_home(&self.store, load, (lane, &active.job.frees));
                    let failed = |source| shared.failed(shared.units[load.unit].len, source);
                    let (begun, ready) = copied.map_err(failed)?;
                    shared.arrived_in(&mut state, &active.job, begun, ready);
                    return Ok(());
                }
                // Others need the memory, or it has memory of the stream's own by now.
                Ok(()) => {
                    shared.let_pages_go(&mut state, load.unit);
                    None
                }
                Err(home) => {
                    shared.let_go(load.unit, home, Vec::new());
                    None
                }
            },
        };
        if let Some(refusal) = refusal {
            state.maps.not_pinned(load.unit, &shared.units[load.unit], refusal);
        }
        drop(state);
        active.way.set(if self.store.home(load.unit).is_some() { Way::Memory } else { Way::Slots });
        self.jobs.push_front(active);
        Ok(())
    }

    /// Starts reading a slot's worth.
    fn begin_read(&self, unit: &Unit, step: u64, memory: Buffer) -> Result<ManyTransfer> {
        let parts = unit.packing.parts_of(step).iter();
        let pieces: Vec<Piece<'_>> = parts
            .map(|part| Piece::new(&unit.files[part.file], part.offset, part.len, part.at))
            .collect();
        self.shared.engine.start_read_block(&pieces, memory)
    }

    /// Copies what has come.
    fn land(&mut self, flight: &Flight, ended: Result<()>) -> Result<()> {
        let active = &flight.active;
        active.landed.set(active.landed.get() + 1);
        let unit = &self.shared.units[active.job.load.unit];
        match ended {
            // The GPU may still touch what it was about, for ever.
            Err(error @ Error::CopyNotOver { .. }) => return Err(error),
            Err(error) => active.fail(error),
            Ok(()) => {}
        }
        let mut mark = None;
        let (Place::Slot(_, address) | Place::Home(address)) = flight.place;
        if active.error.borrow().is_none() {
            let copied = self.copy(flight, address, unit);
            mark = Some(copied.map_err(|source| self.shared.failed(unit.len, source))?);
        }
        if let Place::Slot(slot, _) = flight.place {
            self.copied[slot] = mark;
            self.free.push_back(slot);
        }
        self.finish_landed(active, unit)
    }

    /// Queues the copies of a slot's worth, behind what its buffer waits for.
    fn copy(&self, flight: &Flight, address: u64, unit: &Unit) -> DeviceResult<Mark> {
        let (device, lane) = (&self.shared.device, self.shared.file_lane);
        self.begin_copies(&flight.active)?;
        let to = self.store.buffers[flight.active.job.load.buffer].address();
        let of = |part: &Packed| DeviceCopy {
            host: host(address + part.at),
            device: to + part.address,
            len: usize::try_from(part.len).expect("a slot fits memory"),
        };
        let copies: Vec<DeviceCopy> = unit.packing.parts_of(flight.step).iter().map(of).collect();
        // SAFETY: the slot, or the pinned memory, is not written to before the mark behind the
        // copies is passed; the buffer is the stream's and as large as the largest unit.
        unsafe { device.copy_batch_to_device(lane, &copies) }?;
        self.shared.marks.put(lane)
    }

    /// Has the lane wait for what the buffer waits for, once.
    fn begin_copies(&self, active: &Active) -> DeviceResult<()> {
        if active.begun.borrow().is_none() {
            let lane = self.shared.file_lane;
            self.shared.wait_for(lane, &active.job.frees)?;
            *active.begun.borrow_mut() = Some(self.shared.marks.put(lane)?);
        }
        Ok(())
    }

    /// Tells what came of a job, once all that was begun of it has landed and no more is.
    fn finish_landed(&self, active: &Active, unit: &Unit) -> Result<()> {
        let is_over = active.is_begun(unit) && active.landed.get() == active.next.get();
        if !is_over || active.told.replace(true) {
            return Ok(());
        }
        let load = active.job.load;
        let failed = |source| self.shared.failed(self.shared.units[load.unit].len, source);
        if let Some(error) = active.error.borrow().clone() {
            let mark = self.shared.marks.put(self.shared.file_lane).map_err(failed)?;
            self.shared.gave_up(load, mark, error);
            return Ok(());
        }
        self.begin_copies(active).map_err(failed)?;
        let ready = self.shared.marks.put(self.shared.file_lane).map_err(failed)?;
        let begun = active.begun.borrow().clone().expect("put just before");
        let job = Job { way: active.way.get(), load, frees: Vec::new() };
        self.shared.arrived(&job, begun, ready);
        Ok(())
    }
}

impl Active {
    fn new(job: Job) -> Self {
        let (next, landed) = (Cell::new(0), Cell::new(0));
        let (begun, error, told) = (RefCell::default(), RefCell::default(), Cell::new(false));
        let way = Cell::new(job.way);
        Self { job, way, next, landed, begun, error, told }
    }

    /// Whether no more steps of it begin.
    fn is_begun(&self, unit: &Unit) -> bool {
        self.next.get() == unit.packing.blocks() || self.error.borrow().is_some()
    }

    fn fail(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Dropped they are cancelled; what hangs has its memory until it answers.
        self.flights.clear();
        if !self.shared.is_closing() {
            let unit = &self.shared.units[0];
            self.shared.lose(refuse(&unit.first, "what brings layers has ended".into()));
        }
        if self.shared.settle().is_err() {
            // A copy may still read the slots, and write to the buffers.
            std::mem::forget((self.slots.take(), Arc::clone(&self.store)));
        }
    }
}

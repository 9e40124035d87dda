//! The thread that brings layers from files: to slots of the stream's own, or to the pinned memory
//! that they are kept in, and from there to the GPU. It waits for storage and for slots, never for
//! the caller.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::layer::slot_len;
use super::mapped::Refusal;
use super::mapper::Pinned;
use super::reading::{Opened, Reading};
use super::refuse;
use super::ring::{Ring, SLOTS};
use super::shared::{Job, Shared, Way};
use super::store::Store;
use crate::error::Result;
use crate::gpu::DeviceError;
use crate::plan::SKEW;

/// How long it sleeps while bytes come, whose arrival wakes it, before it looks for other work.
const PATIENCE: Duration = Duration::from_micros(500);

/// The same while a slot is wanted too, of which only looking tells whether it is free: one is
/// copied in 150 µs.
const PATIENCE_FOR_SLOT: Duration = Duration::from_micros(50);

/// Time between two looks where only a slot is wanted, at least and at most: where the GPU computes
/// with what the slot's bytes are to replace it takes longer.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// How long it sleeps for want of work at most.
const REST: Duration = Duration::from_secs(1);

/// See the module's own text.
pub(super) struct Loader {
    shared: Arc<Shared>,
    store: Arc<Store>,
    ring: Ring,
    /// Jobs that have not begun.
    jobs: VecDeque<Job>,
    /// Those that are read, of which only the last may have blocks that are not open.
    readings: VecDeque<Reading>,
    /// Jobs whose pages are being pinned, one after the other.
    pinning: VecDeque<(Job, Receiver<Pinned>)>,
    /// Since when only a slot is wanted.
    waiting: Option<Instant>,
}

impl Loader {
    /// Starts the thread.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
        let slot_len = slot_len(&shared.engine) + SKEW;
        let store = shared.store()?;
        let passes = (0..shared.units.len()).any(|unit| store.home(unit).is_none());
        let slots = passes.then(|| shared.engine.allocate_pinned(SLOTS * slot_len)).transpose()?;
        let shared = Arc::clone(shared);
        let run = move || {
            let ring = Ring::new(slots, slot_len);
            let (jobs, readings) = (VecDeque::new(), VecDeque::new());
            let (pinning, waiting) = (VecDeque::new(), None);
            Self { shared, store, ring, jobs, readings, pinning, waiting }.run();
        };
        let started = thread::Builder::new().name("forebay-layers".into()).spawn(run);
        started.map_err(|error| crate::engine::resource("loader of layers", &error))
    }

    fn run(&mut self) {
        loop {
            let is_reading = !self.jobs.is_empty() || !self.readings.is_empty();
            let idle = !is_reading && self.pinning.is_empty();
            match self.shared.next_job(if idle { REST } else { Duration::ZERO }) {
                Err(()) => return,
                Ok(job) => self.jobs.extend(job),
            }
            match self.step() {
                Ok(Some(nap)) => thread::park_timeout(nap),
                Ok(None) => {}
                Err(error) => return self.shared.lose(error),
            }
        }
    }

    /// Does what there is to do; how long it may sleep then.
    fn step(&mut self) -> Result<Option<Duration>> {
        self.copy_pinned()?;
        let opened = self.begin()?;
        let landed = self.land()?;
        if landed > 0 {
            self.waiting = None;
            return Ok(None);
        }
        let is_flying = self.readings.iter().any(Reading::is_flying);
        if opened == Opened::Slot && !is_flying {
            // Only the GPU can give one back; the longer it takes, the rarer the looks.
            let since = *self.waiting.get_or_insert_with(Instant::now);
            return Ok(Some((since.elapsed() / 16).clamp(NAPS[0], NAPS[1])));
        }
        self.waiting = None;
        let nap = if opened == Opened::Slot { PATIENCE_FOR_SLOT } else { PATIENCE };
        Ok((!self.readings.is_empty() || !self.pinning.is_empty()).then_some(nap))
    }

    /// Begins what there is memory for, one job after the other; what the last one waits for.
    fn begin(&mut self) -> Result<Opened> {
        loop {
            if let Some(last) = self.readings.back_mut() {
                let len = self.shared.units[last.job.load.unit].len;
                let opened = last.open(&mut self.ring).map_err(|e| self.shared.failed(len, e))?;
                if opened != Opened::Whole {
                    return Ok(opened);
                }
            }
            let Some(job) = self.jobs.pop_front() else { return Ok(Opened::Whole) };
            let load = job.load;
            if job.way == Way::Pages {
                let pinned = self.shared.pin_pages(&self.shared.units[load.unit]);
                self.pinning.push_back((job, pinned));
                continue;
            }
            match Reading::start(&self.shared, &self.store, &self.ring, job) {
                Ok(reading) => self.readings.push_back(reading),
                Err(error) => {
                    let mark = self.shared.marks.put(self.shared.file_lane);
                    let mark = mark.map_err(|source| self.shared.failed(0, source))?;
                    self.shared.gave_up(load, mark, error);
                }
            }
        }
    }

    /// Copies what has come and tells of what has ended; how much that was.
    fn land(&mut self) -> Result<usize> {
        let (mut count, mut index) = (0, 0);
        while let Some(reading) = self.readings.get_mut(index) {
            let len = self.shared.units[reading.job.load.unit].len;
            let failed = |source: DeviceError| self.shared.failed(len, source);
            let landed = reading.land(&self.shared, &self.store, &mut self.ring);
            count += landed.map_err(failed)?;
            let Some(ended) = reading.end() else {
                index += 1;
                continue;
            };
            let reading = self.readings.remove(index).expect("just seen");
            reading.finish(&self.shared, &mut self.ring, ended).map_err(failed)?;
            count += 1;
        }
        Ok(count)
    }

    /// Copies a job whose pages have been pinned, or has it read where they have not.
    fn copy_pinned(&mut self) -> Result<()> {
        let Some((_, pinned)) = self.pinning.front() else { return Ok(()) };
        let pinned = match pinned.try_recv() {
            Err(TryRecvError::Empty) => return Ok(()),
            Ok(pinned) => pinned,
            Err(TryRecvError::Disconnected) => {
                Err(Refusal::Ever("no thread can be had that pins pages".into()))
            }
        };
        let (mut job, _) = self.pinning.pop_front().expect("just seen");
        let load = job.load;
        let shared = Arc::clone(&self.shared);
        // Nobody may take the pages away before the copies are known.
        let mut state = shared.lock();
        let refusal = match pinned {
            Err(refusal) => Some(refusal),
            Ok((pages, copies)) => match self.store.keep_pages(load.unit, pages, copies) {
                Ok(()) if state.maps.is_on() => {
                    state.maps.pinned();
                    let lane = shared.file_lane;
                    let copied = shared.copy_home(&self.store, load, (lane, &job.frees));
                    let failed = |source| shared.failed(shared.units[load.unit].len, source);
                    let (begun, ready) = copied.map_err(failed)?;
                    shared.arrived_in(&mut state, &job, begun, ready);
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
        job.way = if self.store.home(load.unit).is_some() { Way::Memory } else { Way::Slots };
        self.jobs.push_front(job);
        Ok(())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Dropped they are cancelled; what hangs has its memory until it answers.
        self.readings.clear();
        if !self.shared.is_closing() {
            let unit = &self.shared.units[0];
            self.shared.lose(refuse(&unit.first, "what brings layers has ended".into()));
        }
        if self.shared.settle().is_err() {
            // A copy may still read the slots, and write to the buffers.
            self.ring.lose();
            std::mem::forget(Arc::clone(&self.store));
        }
    }
}

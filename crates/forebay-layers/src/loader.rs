//! The thread that loads layers from files. It reads them into staging slots, or into the pinned
//! memory that keeps them, and copies from there to the streams' GPUs. It waits for storage and
//! slots, and briefly for streams that want the same layer, but never for the caller.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use forebay::Result;

use super::group::{Group, Job, Member};
use super::homes::PinnedUnit;
use super::layer::refuse;
use super::mapped::Refusal;
use super::mapper::Pinned;
use super::reading::{Opened, Reading, Target};
use super::ring::{Ring, are_passed};
use super::shared::Shared;
use super::store::Store;
use super::together::{Apart, Progress, Request, pick};

/// Sleep time while reads are in flight; arriving data wakes it earlier.
const PATIENCE: Duration = Duration::from_micros(500);

/// Sleep time while it also needs a free slot, or a block waits for its successor. Free slots and
/// the state of the link are only found by polling; a slot is copied in 150 µs.
const PATIENCE_FOR_SLOT: Duration = Duration::from_micros(50);

/// Minimum and maximum polling interval while only a slot is needed. The wait is longer if the GPU
/// still computes with the buffer that the slot's bytes will replace.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Maximum sleep time when there is no work.
const REST: Duration = Duration::from_secs(1);

/// The state of the loader thread.
pub(super) struct Loader {
    group: Arc<Group>,
    /// The streams that it serves.
    seats: Vec<Option<Seat>>,
    gone: Vec<Arc<Shared>>,
    ring: Ring,
    /// Jobs that have not begun.
    jobs: VecDeque<Job>,
    /// Running reads. Only in the last read blocks may still be closed.
    readings: VecDeque<Reading>,
    /// Layers whose pages are being pinned, in order.
    pinning: VecDeque<Pinning>,
    /// When it began to wait for nothing but a slot or a second stream.
    waiting: Option<Instant>,
}

struct Seat {
    shared: Arc<Shared>,
    store: Arc<Store>,
    apart: Apart,
}

/// A unit whose pages are being pinned, and the jobs that want it.
struct Pinning {
    unit: usize,
    jobs: Vec<Job>,
    answer: Receiver<Pinned>,
}

/// How a layer is loaded.
enum LoadPath {
    /// An empty slice is not loaded.
    Nothing,
    /// Through slots.
    Slots,
    /// Through pinned memory that keeps the layer.
    Memory(Arc<PinnedUnit>),
    /// From page cache pages, which are pinned for this.
    Pages,
}

impl Loader {
    /// Starts the thread for all streams of a group.
    pub(super) fn start(group: &Arc<Group>, streams: &[Arc<Shared>]) -> Result<()> {
        let passes = (0..group.units.len()).any(|unit| group.home(unit).is_none());
        let ring = Ring::new(&group.engine, passes)?;
        let seat = |shared: &Arc<Shared>| {
            Ok(Some(Seat {
                shared: Arc::clone(shared),
                store: shared.store()?,
                apart: Apart::default(),
            }))
        };
        let seats = streams.iter().map(seat).collect::<Result<Vec<Option<Seat>>>>()?;
        let of = Arc::clone(group);
        let run = move || {
            let (group, jobs, gone) = (of, VecDeque::new(), Vec::new());
            let (readings, pinning, waiting) = (VecDeque::new(), VecDeque::new(), None);
            Self { group, seats, gone, ring, jobs, readings, pinning, waiting }.run();
        };
        group.works(streams.len());
        let started = thread::Builder::new().name("forebay-layers".into()).spawn(run);
        let handle = started.map_err(|error| {
            group.works(0);
            forebay::Error::resource("thread that loads layers", &error)
        })?;
        let weak = |stream: &Arc<Shared>| Arc::downgrade(stream) as Weak<dyn Member>;
        group.begin(streams.iter().map(weak).collect(), handle);
        Ok(())
    }

    fn run(&mut self) {
        loop {
            let is_reading = !self.jobs.is_empty() || !self.readings.is_empty();
            let idle = !is_reading && self.pinning.is_empty();
            self.hear(if idle { REST } else { Duration::ZERO });
            if !self.part() {
                return;
            }
            match self.step() {
                Ok(Some(nap)) => thread::park_timeout(nap),
                Ok(None) => {}
                Err(error) => return self.group.lose(&error),
            }
        }
    }

    /// Pops new requests, waiting at most `bound` if there are none.
    fn hear(&mut self, bound: Duration) {
        let jobs = self.group.take_jobs(bound);
        // A closing stream may have queued requests before.
        self.jobs.extend(jobs.into_iter().filter(|job| self.seats[job.seat].is_some()));
    }

    /// Drops streams that are closing; returns true if any stream remains. The last one is settled
    /// before it is dropped.
    fn part(&mut self) -> bool {
        let seats = self.seats.iter().enumerate();
        let closing = seats.filter(|(_, seat)| {
            seat.as_ref().is_some_and(|seat| seat.shared.is_closing()) //
        });
        let closing: Vec<usize> = closing.map(|(number, _)| number).collect();
        if closing.len() == self.seats.iter().flatten().count() {
            return false;
        }
        for number in closing {
            self.jobs.retain(|job| job.seat != number);
            let pinning = self.pinning.iter_mut();
            pinning.for_each(|pinning| pinning.jobs.retain(|job| job.seat != number));
            self.readings.iter_mut().for_each(|reading| reading.leave(number));
            let seat = self.seats[number].take();
            self.gone.extend(seat.map(|seat| seat.shared)); // slots may be copied on its lane
            self.group.parted(number);
        }
        true
    }

    /// Does the pending work; returns how long it may sleep afterwards.
    fn step(&mut self) -> Result<Option<Duration>> {
        self.copy_pinned()?;
        let opened = self.begin()?;
        let landed = self.land()?;
        if landed > 0 {
            self.waiting = None;
            return Ok(None);
        }
        let is_flying = self.readings.iter().any(Reading::is_flying);
        if opened == Opened::Look && !is_flying {
            // Only a GPU or a second stream can change that, so the polling interval grows with the
            // time waited.
            let since = *self.waiting.get_or_insert_with(Instant::now);
            return Ok(Some((since.elapsed() / 16).clamp(NAPS[0], NAPS[1])));
        }
        self.waiting = None;
        let looks = opened == Opened::Look || self.readings.iter().any(Reading::is_held);
        let nap = if looks { PATIENCE_FOR_SLOT } else { PATIENCE };
        Ok((!self.readings.is_empty() || !self.pinning.is_empty()).then_some(nap))
    }

    /// Begins layers in order while memory lasts; returns what the last layer waits for.
    fn begin(&mut self) -> Result<Opened> {
        loop {
            if let Some(last) = self.readings.back_mut() {
                let opened = last.open(&self.group, &mut self.ring)?;
                if opened != Opened::Whole {
                    return Ok(opened);
                }
            }
            let jobs = self.pick()?;
            if jobs.is_empty() {
                let is_all = self.jobs.is_empty();
                return Ok(if is_all { Opened::Whole } else { Opened::Look });
            }
            self.begin_layer(jobs)?;
        }
    }

    /// Whether it serves a single stream.
    fn is_alone(&self) -> bool {
        self.seats.iter().flatten().count() == 1
    }

    /// Chooses the jobs for a layer that begin now.
    ///
    /// # Errors
    /// Errors of a GPU.
    fn pick(&mut self) -> Result<Vec<Job>> {
        // A layer that is being loaded to its host copy is copied from there afterwards.
        let is_kept = |loader: &Self, unit: usize| {
            let reads = |reading: &Reading| reading.is_kept() && reading.unit == unit;
            let is_pinned = loader.pinning.iter().any(|pinning| pinning.unit == unit);
            is_pinned || loader.readings.iter().any(reads)
        };
        if self.is_alone() {
            let place = self.jobs.iter().position(|job| !is_kept(self, job.load.unit));
            return Ok(place.and_then(|place| self.jobs.remove(place)).into_iter().collect());
        }
        let progress = |seat: &Option<Seat>| {
            let Seat { shared, apart, .. } = seat.as_ref()?;
            let (next, missing) = shared.progress();
            Some(Progress { missing, is_with: apart.is_over(next), next })
        };
        let streams: Vec<Option<Progress>> = self.seats.iter().map(progress).collect();
        self.hear(Duration::ZERO); // a request is queued before it leaves `missing`
        let mut requests = Vec::with_capacity(self.jobs.len());
        let mut places = Vec::with_capacity(self.jobs.len());
        for (place, job) in self.jobs.iter().enumerate() {
            if !is_kept(self, job.load.unit) {
                let (seat, free) = (job.seat, are_passed(&job.frees)?);
                let (unit, waited) = (job.load.unit, job.since.elapsed());
                requests.push(Request { seat, unit, free, waited });
                places.push(place);
            }
        }
        let Some(picked) = pick(&requests, &streams) else { return Ok(Vec::new()) };
        for (number, seat) in self.seats.iter_mut().enumerate() {
            let (Some(seat), Some(stream)) = (seat, &streams[number]) else { continue };
            if picked.without.contains(&number) {
                seat.apart.leave(stream.next);
            } else if picked.requests.len() > 1
                && picked.requests.iter().any(|&at| requests[at].seat == number)
            {
                seat.apart = Apart::default();
            }
        }
        let places = picked.requests.into_iter().rev().map(|request| places[request]);
        Ok(places.filter_map(|place| self.jobs.remove(place)).collect())
    }

    /// Begins to load a layer for all jobs that want it.
    fn begin_layer(&mut self, jobs: Vec<Job>) -> Result<()> {
        let Some(jobs) = self.copy_kept(jobs)? else { return Ok(()) };
        let unit = jobs[0].load.unit;
        let home = match self.way(unit, &jobs) {
            LoadPath::Nothing => {
                for target in jobs.into_iter().map(|job| self.target(job)) {
                    let shared = Arc::clone(&target.shared);
                    target.arrive(Vec::new()).map_err(|source| shared.failed(0, source))?;
                }
                return Ok(());
            }
            LoadPath::Pages => {
                let answer = self.group.pin_pages(&self.group.units[unit]);
                self.pinning.push_back(Pinning { unit, jobs, answer });
                return Ok(());
            }
            LoadPath::Memory(home) => Some(home),
            LoadPath::Slots => None,
        };
        let targets: Vec<Target> = jobs.into_iter().map(|job| self.target(job)).collect();
        match Reading::start(&self.group, &mut self.ring, (unit, home.as_deref())) {
            Ok(reading) => self.readings.push_back(reading.to(targets)),
            Err(error) => {
                targets.into_iter().try_for_each(|target| target.give_up(error.clone()))?;
            }
        }
        Ok(())
    }

    fn target(&self, job: Job) -> Target {
        let Seat { shared, store, .. } = self.seats[job.seat].as_ref().expect("it works for it");
        Target::new(job, shared, store)
    }

    /// Copies a layer from its host copy, if it exists by now. Returns the remaining jobs.
    fn copy_kept(&self, jobs: Vec<Job>) -> Result<Option<Vec<Job>>> {
        let mut left = Vec::new();
        for job in jobs {
            let seat = self.seats[job.seat].as_ref().expect("it works for it");
            let (shared, load) = (&seat.shared, job.load);
            let copied = shared.copy_kept(&seat.store, load, (shared.file_lane, &job.frees));
            let failed = |source| shared.failed(self.group.units[load.unit].len, source);
            match copied.map_err(failed)? {
                Some(loaded) => shared.arrived(&mut shared.lock(), load, loaded),
                None => left.push(job),
            }
        }
        Ok(Some(left).filter(|left| !left.is_empty()))
    }

    /// Chooses how to load a unit whose host copy is missing or not loaded.
    fn way(&self, unit: usize, jobs: &[Job]) -> LoadPath {
        if self.group.units[unit].packing.blocks() == 0 {
            return LoadPath::Nothing;
        }
        let mut homes = self.group.homes();
        if let Some(home) = homes.home(unit) {
            return LoadPath::Memory(Arc::clone(home));
        }
        let seats = jobs.iter().map(|job| job.seat);
        let pins = !jobs.iter().any(|job| job.unpinned)
            && homes.maps.claim(unit, &self.group.units[unit], seats);
        if pins { LoadPath::Pages } else { LoadPath::Slots }
    }

    /// Copies the data that has arrived and finishes ended reads; returns how much it did.
    fn land(&mut self) -> Result<usize> {
        let (mut count, mut index) = (0, 0);
        while let Some(reading) = self.readings.get_mut(index) {
            count += reading.land(&self.group, &mut self.ring)?;
            let Some(ended) = reading.end() else {
                index += 1;
                continue;
            };
            let reading = self.readings.remove(index).expect("just seen");
            reading.finish(&self.group, &mut self.ring, ended)?;
            count += 1;
        }
        Ok(count)
    }

    /// Copies a layer whose pages have been pinned, or reads it if pinning failed.
    fn copy_pinned(&mut self) -> Result<()> {
        let Some(pinning) = self.pinning.front() else { return Ok(()) };
        let pinned = match pinning.answer.try_recv() {
            Err(TryRecvError::Empty) => return Ok(()),
            Ok(pinned) => pinned,
            Err(TryRecvError::Disconnected) => {
                Err(Refusal::Ever("no thread can be started to pin pages".into()))
            }
        };
        let Pinning { unit, mut jobs, .. } = self.pinning.pop_front().expect("just seen");
        self.group.keep_pages(unit, pinned);
        jobs.iter_mut().for_each(|job| job.unpinned = true);
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for job in jobs {
            // With several streams no copy may wait for a single GPU, because the copies behind it
            // would wait too.
            let is_free = self.is_alone() || are_passed(&job.frees)?;
            if is_free { now.push(job) } else { later.push(job) }
        }
        // Pages may have been unpinned again.
        later.extend(self.copy_kept(now)?.into_iter().flatten());
        later.into_iter().rev().for_each(|job| self.jobs.push_front(job));
        Ok(())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Dropping cancels them. A hanging read keeps its memory until it returns.
        self.readings.clear();
        let mut is_settled = self.gone.iter().all(|shared| shared.settle().is_ok());
        for seat in self.seats.iter().flatten() {
            if !seat.shared.is_closing() {
                let unit = &self.group.units[0];
                seat.shared
                    .lose(refuse(&unit.first, "the thread that loads layers has ended".into()));
            }
            if seat.shared.settle().is_err() {
                is_settled = false;
                std::mem::forget(Arc::clone(&seat.store)); // a copy may still write to it
            }
        }
        if !is_settled {
            self.ring.lose(); // a copy may still read it
        }
        self.gone.clear();
        self.seats.clear();
        self.group.works(0);
    }
}

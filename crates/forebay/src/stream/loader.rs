//! The thread that brings layers from files: to slots of the streams' own, or to the pinned memory
//! that they are kept in, and from there to each stream's GPU. It waits for storage and for slots,
//! and for a while for streams that want the same layer, never for the caller.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use super::group::{Group, Job};
use super::homes::Home;
use super::mapped::Refusal;
use super::mapper::Pinned;
use super::reading::{Opened, Reading, Target};
use super::refuse;
use super::ring::{Ring, are_passed};
use super::shared::Shared;
use super::store::Store;
use super::together::{Apart, Ask, Progress, pick};
use crate::error::Result;

/// How long it sleeps while bytes come, whose arrival wakes it, before it looks for other work.
const PATIENCE: Duration = Duration::from_micros(500);

/// The same while a slot is wanted too, or a block waits for the next, of which only looking tells
/// whether it is free, and whether the link is done: one is copied in 150 µs.
const PATIENCE_FOR_SLOT: Duration = Duration::from_micros(50);

/// Time between two looks where only a slot is wanted, at least and at most: where the GPU computes
/// with what the slot's bytes are to replace it takes longer.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// How long it sleeps for want of work at most.
const REST: Duration = Duration::from_secs(1);

/// See the module's own text.
pub(super) struct Loader {
    group: Arc<Group>,
    /// The streams that it works for, and those that it has worked for.
    seats: Vec<Option<Seat>>,
    gone: Vec<Arc<Shared>>,
    ring: Ring,
    /// Jobs that have not begun.
    jobs: VecDeque<Job>,
    /// Those that are read, of which only the last may have blocks that are not open.
    readings: VecDeque<Reading>,
    /// What is being pinned, one layer after the other.
    pinning: VecDeque<Pinning>,
    /// Since when only a slot is wanted, or another stream.
    waiting: Option<Instant>,
}

struct Seat {
    shared: Arc<Shared>,
    store: Arc<Store>,
    apart: Apart,
}

/// A unit whose pages are being pinned, and who wants it.
struct Pinning {
    unit: usize,
    jobs: Vec<Job>,
    answer: Receiver<Pinned>,
}

/// How layers come from files.
enum Way {
    /// A slice that has no bytes does not come.
    Nothing,
    /// Through slots.
    Slots,
    /// By way of pinned memory that keeps them.
    Memory(Arc<Home>),
    /// From their pages, which are pinned for that.
    Pages,
}

impl Loader {
    /// Starts the thread, for all streams of a group.
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
            crate::engine::resource("loader of layers", &error)
        })?;
        group.begin(streams, handle);
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

    /// Takes what was asked for, after at most `bound` where that is nothing.
    fn hear(&mut self, bound: Duration) {
        let asked = self.group.take_jobs(bound);
        // One that is closing may have asked before.
        self.jobs.extend(asked.into_iter().filter(|job| self.seats[job.seat].is_some()));
    }

    /// Lets go of streams that are closing; whether any other is left. The last one is settled
    /// before it is let go.
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
        if opened == Opened::Look && !is_flying {
            // Only a GPU, or another stream, can change that: the longer it takes, the rarer the
            // looks.
            let since = *self.waiting.get_or_insert_with(Instant::now);
            return Ok(Some((since.elapsed() / 16).clamp(NAPS[0], NAPS[1])));
        }
        self.waiting = None;
        let looks = opened == Opened::Look || self.readings.iter().any(Reading::is_held);
        let nap = if looks { PATIENCE_FOR_SLOT } else { PATIENCE };
        Ok((!self.readings.is_empty() || !self.pinning.is_empty()).then_some(nap))
    }

    /// Begins what there is memory for, one layer after the other; what the last one waits for.
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

    /// Whether it works for one stream only.
    fn is_alone(&self) -> bool {
        self.seats.iter().flatten().count() == 1
    }

    /// Jobs for the same layer that are begun now.
    ///
    /// # Errors
    /// A GPU's.
    fn pick(&mut self) -> Result<Vec<Job>> {
        // What is being brought to where all copy it from is copied from there.
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
        self.hear(Duration::ZERO); // what is not missing any more was asked for before
        let mut asks = Vec::with_capacity(self.jobs.len());
        let mut places = Vec::with_capacity(self.jobs.len());
        for (place, job) in self.jobs.iter().enumerate() {
            if !is_kept(self, job.load.unit) {
                let (seat, free) = (job.seat, are_passed(&job.frees)?);
                let (unit, waited) = (job.load.unit, job.since.elapsed());
                asks.push(Ask { seat, unit, free, waited });
                places.push(place);
            }
        }
        let Some(picked) = pick(&asks, &streams) else { return Ok(Vec::new()) };
        for (number, seat) in self.seats.iter_mut().enumerate() {
            let (Some(seat), Some(stream)) = (seat, &streams[number]) else { continue };
            if picked.without.contains(&number) {
                seat.apart.leave(stream.next);
            } else if picked.asks.len() > 1 && picked.asks.iter().any(|&at| asks[at].seat == number)
            {
                seat.apart = Apart::default();
            }
        }
        let places = picked.asks.into_iter().rev().map(|ask| places[ask]);
        Ok(places.filter_map(|place| self.jobs.remove(place)).collect())
    }

    /// Begins to bring a layer to all who ask for it.
    fn begin_layer(&mut self, jobs: Vec<Job>) -> Result<()> {
        let Some(jobs) = self.copy_kept(jobs)? else { return Ok(()) };
        let unit = jobs[0].load.unit;
        let home = match self.way(unit, &jobs) {
            Way::Nothing => {
                for target in jobs.into_iter().map(|job| self.target(job)) {
                    let shared = Arc::clone(&target.shared);
                    target.arrive(Vec::new()).map_err(|source| shared.failed(0, source))?;
                }
                return Ok(());
            }
            Way::Pages => {
                let answer = self.group.pin_pages(&self.group.units[unit]);
                self.pinning.push_back(Pinning { unit, jobs, answer });
                return Ok(());
            }
            Way::Memory(home) => Some(home),
            Way::Slots => None,
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

    /// Copies a layer that is kept on the host by now, if it is; else the jobs.
    fn copy_kept(&self, jobs: Vec<Job>) -> Result<Option<Vec<Job>>> {
        let mut left = Vec::new();
        for job in jobs {
            let seat = self.seats[job.seat].as_ref().expect("it works for it");
            let (shared, load) = (&seat.shared, job.load);
            let copied = shared.copy_kept(&seat.store, load, (shared.file_lane, &job.frees));
            let failed = |source| shared.failed(self.group.units[load.unit].len, source);
            match copied.map_err(failed)? {
                Some(kept) => shared.arrived(load, kept),
                None => left.push(job),
            }
        }
        Ok(Some(left).filter(|left| !left.is_empty()))
    }

    /// How a unit is brought that cannot be copied from where it is kept.
    fn way(&self, unit: usize, jobs: &[Job]) -> Way {
        if self.group.units[unit].packing.blocks() == 0 {
            return Way::Nothing;
        }
        let mut homes = self.group.homes();
        if let Some(home) = homes.home(unit) {
            return Way::Memory(Arc::clone(home));
        }
        let seats = jobs.iter().map(|job| job.seat);
        let pins = !jobs.iter().any(|job| job.unpinned)
            && homes.maps.claim(unit, &self.group.units[unit], seats);
        if pins { Way::Pages } else { Way::Slots }
    }

    /// Copies what has come and tells of what has ended; how much that was.
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

    /// Copies a layer whose pages have been pinned, or has it read where they have not.
    fn copy_pinned(&mut self) -> Result<()> {
        let Some(pinning) = self.pinning.front() else { return Ok(()) };
        let pinned = match pinning.answer.try_recv() {
            Err(TryRecvError::Empty) => return Ok(()),
            Ok(pinned) => pinned,
            Err(TryRecvError::Disconnected) => {
                Err(Refusal::Ever("no thread can be had that pins pages".into()))
            }
        };
        let Pinning { unit, mut jobs, .. } = self.pinning.pop_front().expect("just seen");
        self.group.keep_pages(unit, pinned);
        jobs.iter_mut().for_each(|job| job.unpinned = true);
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for job in jobs {
            // Of one stream of several no copy may wait for its GPU: others would wait behind it.
            let is_free = self.is_alone() || are_passed(&job.frees)?;
            if is_free { now.push(job) } else { later.push(job) }
        }
        // Pages may be gone again.
        later.extend(self.copy_kept(now)?.into_iter().flatten());
        later.into_iter().rev().for_each(|job| self.jobs.push_front(job));
        Ok(())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Dropped they are cancelled; what hangs has its memory until it answers.
        self.readings.clear();
        let mut is_settled = self.gone.iter().all(|shared| shared.settle().is_ok());
        for seat in self.seats.iter().flatten() {
            if !seat.shared.is_closing() {
                let unit = &self.group.units[0];
                seat.shared.lose(refuse(&unit.first, "what brings layers has ended".into()));
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

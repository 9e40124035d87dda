//! One size of a comparison of several paths: measures every line once in each round.
//!
//! Every second round runs backwards, so that a machine that becomes slower or faster favours no
//! line. Right before a cold read its drives are kept busy for a moment. So no sample includes what
//! only an idle drive has: burst credit below a rate cap, or the exit from a sleep state.

use std::sync::Arc;
use std::time::Duration;

use forebay::units::GIB;
use forebay::{Engine, Route};
use forebay_evidence::Sources;

use super::lines::{Entry, Scope};
use super::places::Places;
use super::targets::Targets;
use super::ways::forebay::Forebay;
use super::ways::kvikio::{Kvikio, Shape};
use super::ways::one_queue::OneQueue;
use super::ways::{Job, Part, Way};
use crate::bench::cache::{make_cold, make_resident};
use crate::bench::ceilings::link::Link;
use crate::bench::ceilings::storage::{Buffers, Storage};
use crate::bench::data::{Expected, Pattern};
use crate::bench::make;
use crate::bench::measure::{Sample, file_holds, other_byte};
use crate::bench::memory::Memory;
use crate::bench::proof::Prover;
use crate::bench::run::LINK_SAMPLES;
use crate::bench::target::Target;
use crate::failure::Result;
use crate::report::json::{Cache, Direction, MethodName};
use crate::steps;

/// Maximum bytes of a copy that measures the link's limit.
pub(super) const LINK_LEN: u64 = GIB / 4;
/// How long drives work before a sample.
const RUN_UP: Duration = Duration::from_millis(40);
/// Queue depth of each drive during the run-up.
const RUN_UP_DEPTH: usize = 2;

/// The parts that a run uses.
#[derive(Clone, Copy)]
pub(super) struct Means<'a> {
    pub(super) engine: &'a Engine,
    pub(super) target: &'a Target,
    pub(super) places: &'a Places,
    /// Bytes from each path.
    pub(super) lens: &'a [u64],
    pub(super) repeats: u32,
    /// The route that the user requires.
    pub(super) route: Option<Route>,
    pub(super) kvikio: Option<&'a Shape>,
    /// Memory for measuring the limits of all drives.
    pub(super) buffers: &'a Arc<Buffers>,
}

/// One size of a comparison.
pub(super) struct Run<'a> {
    means: Means<'a>,
    targets: &'a mut Targets,
    expected: Vec<Expected>,
    written: Vec<Pattern>,
    /// The method of each line.
    ways: Vec<Option<Box<dyn Way>>>,
    link: (Link, Memory),
    /// The storage of each direction and path.
    storages: [Vec<Option<Storage>>; 2],
    /// The storage of each path that keeps its drives busy before a sample.
    starters: Vec<Option<Storage>>,
    prover: Prover,
}

impl<'a> Run<'a> {
    /// Prepares to measure `entries`. The scratch that is read exists.
    ///
    /// # Errors
    /// System and engine errors.
    pub(super) fn new(
        means: Means<'a>,
        targets: &'a mut Targets,
        entries: &[Entry],
        storages: Vec<Option<Storage>>,
    ) -> Result<Self> {
        let Means { engine, target, places, lens, .. } = means;
        let link_len = lens.iter().sum::<u64>().min(LINK_LEN);
        let memory = target.allocate(engine, link_len)?;
        let link = (Link::new(engine, &memory, link_len)?, memory);
        let any = |direction| entries.iter().any(|entry| entry.line.direction == direction);
        let subject = |index: usize| &places.all[index].subject;
        let (mut expected, mut written) = (Vec::new(), Vec::new());
        if any(Direction::Read) {
            expected = places.each(|index| subject(index).expected(lens[index]))?;
        }
        if any(Direction::Write) {
            written = places.each(|index| subject(index).make_write(lens[index]))?;
        }
        let way = |entry: &Entry| -> Option<Box<dyn Way>> {
            Some(match entry.line.method {
                MethodName::Forebay => Box::new(Forebay::new(engine.clone(), entry.line.demand)),
                MethodName::OneQueue => Box::new(OneQueue::new(engine.clone())),
                MethodName::Kvikio => Box::new(Kvikio::new(entry.kvikio?, means.kvikio?.clone())),
                _ => return None,
            })
        };
        let none = || nothing(lens.len());
        let ways = entries.iter().map(way).collect();
        let (storages, starters) = ([storages, none()], none());
        let info = target.device.as_ref().map(|device| device.info());
        let prover = Prover::new(info);
        Ok(Self { means, targets, expected, written, ways, link, storages, starters, prover })
    }

    /// Measures all `entries`; `tell` is called before each sample.
    ///
    /// # Errors
    /// Errors of the engine. A baseline method or a limit that fails is left out.
    pub(super) fn measure(
        &mut self,
        entries: &mut [Entry],
        tell: &mut dyn FnMut(&Entry),
    ) -> Result<()> {
        self.prepare(entries)?;
        for repeat in 0..self.means.repeats {
            let count = entries.len();
            for index in 0..count {
                let index = if repeat % 2 == 0 { index } else { count - 1 - index };
                tell(&entries[index]);
                if entries[index].line.left_out.is_none() {
                    self.turn(&mut entries[index], index, repeat)?;
                }
            }
        }
        for (entry, way) in entries.iter_mut().zip(&self.ways) {
            entry.settings = way.as_ref().and_then(|way| way.settings());
        }
        Ok(())
    }

    /// Warms the engine up with its first transfers, and prepares the other methods.
    fn prepare(&mut self, entries: &mut [Entry]) -> Result<()> {
        for (index, entry) in entries.iter_mut().enumerate() {
            let Some(job) = self.job(entry) else { continue };
            if self.is_chosen(entry) && entry.scope == Scope::All {
                self.warm(&job)?;
            }
            self.open_starters(&job)?;
            let Some(mut way) = self.ways[index].take() else { continue };
            let (engine, starters) = (self.means.engine, &self.starters);
            let mut ready = || match place_pages(engine, &job)? {
                Ok(()) => start_up(&job, starters),
                // The sample itself will report the error.
                Err(_) => Ok(()),
            };
            let prepared = way.prepare(&job, self.targets, &mut ready);
            self.ways[index] = Some(way);
            if let Err(failure) = prepared {
                entry.line.left_out = Some(failure.in_one_line());
            }
        }
        Ok(())
    }

    /// Moves everything once, untimed.
    fn warm(&mut self, job: &Job) -> Result<()> {
        let mut way = Forebay::new(self.means.engine.clone(), self.means.route);
        if job.direction == Direction::Write {
            // Writes what the file already holds, so that files keep their patterns.
            for part in &job.parts {
                self.targets.put(part.index, self.written[part.index])?;
            }
        }
        way.open(job, self.targets)?;
        let moved = way.run(job, self.targets);
        let closed = way.close(job);
        moved?;
        closed
    }

    fn open_starters(&mut self, job: &Job) -> Result<()> {
        for part in job.parts.iter().filter(|_| starts_up(job)) {
            let place = &mut self.starters[part.index];
            if place.is_none() {
                let buffers = Buffers::for_depth(RUN_UP_DEPTH)?;
                let opened = Storage::open_with(&part.path, job.direction, part.len, &buffers)?;
                *place = opened.ok();
            }
        }
        Ok(())
    }

    /// Whether the method is the engine, whose failure ends the run.
    fn is_chosen(&self, entry: &Entry) -> bool {
        entry.line.method == MethodName::Forebay
    }

    /// The job of a line; `None` for limits.
    fn job(&self, entry: &Entry) -> Option<Job> {
        let direction = entry.line.direction;
        let part = |index: usize| {
            let (place, len) = (&self.means.places.all[index], self.means.lens[index]);
            Part { index, path: place.path(direction), len }
        };
        let indices = entry.scope.indices(self.means.lens.len());
        let parts = indices.into_iter().map(part).collect();
        Some(Job { parts, direction, cache: entry.line.cache? })
    }

    /// Measures one line once.
    fn turn(&mut self, entry: &mut Entry, number: usize, repeat: u32) -> Result<()> {
        for place in &self.means.places.all {
            place.subject.check_scratch()?;
        }
        let result = match (entry.line.method, entry.scope) {
            (MethodName::Link, _) => self.link(entry),
            (MethodName::Storage, Scope::One(index)) => self.storage(entry, index),
            _ => self.way(entry, number, repeat),
        };
        match result {
            Err(failure) if !self.is_chosen(entry) => {
                entry.line.left_out = Some(failure.in_one_line());
                self.restore(entry)
            }
            other => other,
        }
    }

    fn link(&mut self, entry: &mut Entry) -> Result<()> {
        let (link, memory) = &mut self.link;
        let direction = entry.line.direction;
        for _ in 0..LINK_SAMPLES.div_ceil(self.means.repeats) {
            let spent = link.sample(direction, memory)?;
            entry.line.add_ceiling(link.len(), spent, link.how(direction));
        }
        Ok(())
    }

    fn storage(&mut self, entry: &mut Entry, index: usize) -> Result<()> {
        let direction = entry.line.direction;
        let path = self.means.places.all[index].path(direction);
        let len = self.means.lens[index];
        let place = &mut self.storages[direction as usize][index];
        if place.is_none() {
            match Storage::open_with(&path, direction, len, self.means.buffers)? {
                Ok(mut storage) => {
                    storage.try_at_most(len / 4);
                    *place = Some(storage);
                }
                Err(reason) => {
                    entry.line.left_out = Some(reason);
                    return Ok(());
                }
            }
        }
        let Some(storage) = place else { return Ok(()) };
        // Cached pages would make direct I/O wait for their write-back.
        self.means.engine.open(&path)?.evict()?;
        storage.find_depth()?;
        if direction == Direction::Read {
            run_up(&self.starters[index])?;
        }
        let spent = storage.sample()?;
        entry.line.add_ceiling(storage.bytes(), spent, storage.how());
        if direction == Direction::Write {
            // The file now holds even bytes, except for an unaligned end.
            let even = Pattern::new(self.written[index].key()).inverse();
            self.written[index] = even;
            make::put(&path, even, storage.bytes(), len)?;
        }
        Ok(())
    }

    fn way(&mut self, entry: &mut Entry, number: usize, repeat: u32) -> Result<()> {
        let Some(job) = self.job(entry) else { return Ok(()) };
        let Some(mut way) = self.ways[number].take() else { return Ok(()) };
        let sample = self.sample(way.as_mut(), &job, repeat);
        self.ways[number] = Some(way);
        match sample? {
            Ok(sample) => entry.line.add(job.len(), sample),
            Err(reason) => entry.line.left_out = Some(reason),
        }
        Ok(())
    }

    /// Takes one sample; the text says why the files could not be made cold or resident.
    fn sample(
        &mut self,
        way: &mut dyn Way,
        job: &Job,
        repeat: u32,
    ) -> Result<Result<Sample, String>> {
        way.open(job, self.targets)?;
        let sample = self.opened(way, job, repeat);
        let closed = way.close(job);
        let sample = sample?;
        closed?;
        Ok(sample)
    }

    fn opened(
        &mut self,
        way: &mut dyn Way,
        job: &Job,
        repeat: u32,
    ) -> Result<Result<Sample, String>> {
        match job.direction {
            Direction::Read => way.set(job, self.targets, other_byte(repeat))?,
            Direction::Write => {
                for part in &job.parts {
                    self.targets.put(part.index, self.written[part.index].inverse())?;
                }
            }
        }
        if let Err(reason) = place_pages(self.means.engine, job)? {
            return Ok(Err(reason));
        }
        let sources = self.sources(way, job)?;
        start_up(job, &self.starters)?;
        let span = sources.begin();
        let run = way.run(job, self.targets);
        let evidence = span.end();
        let (moved, spent) = run?;
        let proof = Some(self.prover.proof(evidence, &moved, job.direction));
        let right = match job.direction {
            Direction::Read => way.holds(job, self.targets, &self.expected)?,
            Direction::Write => self.files_hold(job)?,
        };
        let verified = right && moved.bytes == job.len();
        Ok(Ok(Sample { spent, moved, verified, proof }))
    }

    /// The counters for a job's bytes.
    fn sources(&self, way: &dyn Way, job: &Job) -> Result<Sources> {
        let open = |part: &Part| Ok((steps::open(self.means.engine, &part.path)?, part.len));
        let files: Vec<_> = job.parts.iter().map(open).collect::<Result<_>>()?;
        let sources = self.prover.sources(self.means.engine, &files);
        Ok(if way.is_elsewhere() { sources.elsewhere() } else { sources })
    }

    /// Whether all written files have the expected contents; rewrites those that do not.
    fn files_hold(&mut self, job: &Job) -> Result<bool> {
        let mut all = true;
        for part in &job.parts {
            let pattern = &mut self.written[part.index];
            *pattern = pattern.inverse();
            self.means.engine.open(&part.path)?.evict()?;
            if !file_holds(&part.path, part.len, *pattern)? {
                all = false;
                make::fill(&part.path, *pattern, part.len)?;
            }
        }
        Ok(all)
    }

    /// Restores written files after a failure.
    fn restore(&mut self, entry: &Entry) -> Result<()> {
        if entry.line.direction == Direction::Read {
            return Ok(());
        }
        let places = self.means.places;
        for index in entry.scope.indices(places.all.len()) {
            let path = places.all[index].path(Direction::Write);
            make::fill(&path, self.written[index], self.means.lens[index])?;
        }
        Ok(())
    }
}

/// An empty entry for the limit of each of `count` paths.
pub(super) fn nothing(count: usize) -> Vec<Option<Storage>> {
    (0..count).map(|_| None).collect()
}

/// Makes all files of a job cold or resident; the text says why this failed.
fn place_pages(engine: &Engine, job: &Job) -> Result<Result<(), String>> {
    for part in &job.parts {
        let file = engine.open(&part.path)?;
        let placed = match job.cache {
            Cache::Cold => make_cold(&file, part.len)?,
            Cache::Resident => make_resident(&part.path, &file, part.len)?,
        };
        if let Err(reason) = placed {
            return Ok(Err(format!("`{}`: {reason}", part.path.display())));
        }
    }
    Ok(Ok(()))
}

/// Whether drives work for a moment before a job.
fn starts_up(job: &Job) -> bool {
    (job.direction, job.cache) == (Direction::Read, Cache::Cold)
}

/// Keeps the drives of a job busy for a moment, all at once, before a cold read.
fn start_up(job: &Job, starters: &[Option<Storage>]) -> Result<()> {
    if !starts_up(job) {
        return Ok(());
    }
    std::thread::scope(|scope| {
        let work = |part: &Part| {
            let starter = &starters[part.index];
            scope.spawn(move || run_up(starter))
        };
        let threads: Vec<_> = job.parts.iter().map(work).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

fn run_up(starter: &Option<Storage>) -> Result<()> {
    starter.as_ref().map_or(Ok(()), |starter| starter.estimate(RUN_UP).map(drop))
}

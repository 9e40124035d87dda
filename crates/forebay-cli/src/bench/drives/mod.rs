//! `forebay bench PATH…` with several paths: each alone, and all together in one engine driven by
//! one thread. One thread pool for all files and KvikIO are measured for comparison.
//!
//! `places` finds the files and their drives, `size` chooses how much is moved, `run` takes the
//! samples that `lines` plans, and `ways` are the methods compared.

pub mod lines;
pub mod places;
mod run;
pub mod size;
pub mod targets;
pub mod ways;

use std::sync::Arc;
use std::time::Duration;

use forebay::units::{GIB, MIB};
use forebay::{Engine, RequestOptions};

use self::lines::{Entry, Plan, Scope, Setting};
use self::places::Places;
use self::run::{Run, nothing};
use self::targets::Targets;
use self::ways::kvikio::{self, Shape};
use super::ceilings::storage::{Buffers, Storage};
use super::demand::Demand;
use super::make::Room;
use super::stats::rate;
use super::target::Target;
use super::{LOOK_LEN, TRY_LEN, UNKNOWN_RATE};
use super::{LeftOut, environment, nothing_measured, progress, scratch, spinner, wanted_sizes};
use crate::args::BenchArgs;
use crate::failure::{Failure, Result};
use crate::report::json::{Cache, Direction, MethodName, Report, Row, SCHEMA};
use crate::report::plain::plain;
use crate::report::warnings::{self, Warning};
use crate::steps::Step;

/// Time limit and queue depth of the estimate of a drive's rate, before a size is chosen.
const LOOK: Duration = Duration::from_millis(300);
const LOOK_DEPTH: usize = 4;
/// Scratch is made a little larger than the rough estimate suggests, since a better one follows.
const SPARE: f64 = 1.25;
/// Share of the drives' total rate from which on they count as evenly busy.
const EVEN: f64 = 0.95;
/// Time limit of KvikIO beyond its transfers, and the factor by which those may be slower than
/// reads of the drives one by one.
const KVIKIO_MAX: Duration = Duration::from_secs(20);
const KVIKIO_SLOWER: f64 = 6.0;

/// The parts that one run uses.
pub(super) struct Bench<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) engine: Engine,
    pub(super) target: Target,
    pub(super) directions: Vec<Direction>,
    pub(super) write: bool,
}

/// Facts gathered before anything is moved.
struct Found {
    places: Places,
    caches: Vec<Cache>,
    /// Whether the limits of the drives are measured.
    storage: bool,
    kvikio: bool,
    buffers: Arc<Buffers>,
}

/// The sizes to move, and the measurements they are based on.
struct Sizes {
    /// Bytes of each path, one entry for each requested size.
    lens: Vec<Vec<u64>>,
    /// Bytes per second of each path's drives, roughly.
    rates: Vec<f64>,
    /// The storage of each path, if it is open.
    storages: Vec<Option<Storage>>,
}

impl Bench<'_> {
    /// Measures all that the arguments request.
    ///
    /// # Errors
    /// Engine and system errors, and invalid arguments.
    pub(super) fn run(&self, command: &str, mut warnings: Vec<Warning>) -> Result<Report> {
        let places = Places::find(&self.engine, &self.args.paths, self.write)?;
        match places.all.iter().map(|p| scratch::remove_leftovers(&p.subject.folder)).sum() {
            0 => {}
            count => warnings.push(Warning::Leftovers(count)),
        }
        warnings.extend(places.warnings());
        let caches = self.caches(&places, &mut warnings)?;
        self.try_route(&places)?;
        let info = self.target.device.as_ref().map(|device| device.info());
        let first = &places.all[0].subject;
        let at = if first.given_len().is_some() { first.read_path() } else { first.folder.clone() };
        let mut environment = environment::collect(&at, info, command);
        environment.drives.clone_from(&places.drives);
        environment.versions.kvikio = self.kvikio(&mut warnings)?;
        let storage = places.all.iter().all(|place| place.in_memory.is_none())
            && (caches.contains(&Cache::Cold) || self.args.route == Some(forebay::Route::Staged));
        let kvikio = environment.versions.kvikio.is_some();
        let buffers = Buffers::allocate()?;
        let found = Found { places, caches, storage, kvikio, buffers };
        let results = self.measure_sizes(&found, &mut warnings)?;
        if results.iter().all(|row| row.method.is_ceiling()) {
            return Err(nothing_measured(&warnings));
        }
        warnings.extend(self.engine.notes().into_iter().map(Warning::Engine));
        let mut report = Report { schema: SCHEMA, environment, results, warnings: Vec::new() };
        warnings.extend(warnings::about(&report));
        report.warnings = warnings.iter().map(ToString::to_string).collect();
        Ok(report)
    }

    fn measure_sizes(&self, found: &Found, warnings: &mut Vec<Warning>) -> Result<Vec<Row>> {
        let Sizes { lens: sizes, rates, mut storages } = self.sizes(found, warnings)?;
        let mut targets = Targets::allocate(&self.engine, &self.target, &sizes[0])?;
        let mut left_out = LeftOut::default();
        let mut results = Vec::new();
        for lens in sizes {
            targets.resize(&self.engine, &self.target, &lens)?;
            let shape = self.shape(found, &lens, &rates)?;
            let means = run::Means {
                engine: &self.engine,
                target: &self.target,
                places: &found.places,
                lens: &lens,
                repeats: self.args.repeats,
                route: self.args.route,
                kvikio: shape.as_ref(),
                buffers: &found.buffers,
            };
            let mut entries = lines::plan(&Plan {
                paths: lens.len(),
                directions: &self.directions,
                caches: &found.caches,
                storage: found.storage,
                kvikio: shape.is_some(),
                route: self.args.route,
            });
            let ready = std::mem::replace(&mut storages, nothing(lens.len()));
            let mut run = Run::new(means, &mut targets, &entries, ready)?;
            let paths = names(&found.places);
            let bar = progress(entries.len() as u64 * u64::from(self.args.repeats));
            bar.tick();
            let measured = run.measure(&mut entries, &mut |entry| {
                bar.set_message(plain(&entry.name(&paths)));
                bar.inc(1);
            });
            bar.finish_and_clear();
            drop(run);
            measured?;
            for entry in &entries {
                if let Some(reason) = &entry.line.left_out {
                    left_out.add_one(reason, entry.name(&paths));
                }
            }
            if !self.args.size.is_empty() {
                warnings.extend(uneven(&found.places, &entries, &lens));
            }
            results.extend(self.rows(found, &entries, &lens, &targets.name()));
        }
        warnings.extend(left_out.warnings());
        Ok(results)
    }

    fn rows(&self, found: &Found, entries: &[Entry], lens: &[u64], target: &str) -> Vec<Row> {
        let all = &found.places.all;
        let path = |direction| -> Vec<String> {
            all.iter().map(|place| place.subject.name(direction).display().to_string()).collect()
        };
        let (read, written) = (path(Direction::Read), path(Direction::Write));
        let drives: Vec<Vec<String>> = all.iter().map(|place| place.drives.clone()).collect();
        lines::rows(
            entries,
            &Setting {
                size: lens.iter().copied().max().unwrap_or(0),
                target,
                simulated: self.target.is_simulated(),
                paths: [&read, &written],
                queues: &found.places.queue_of_each(),
                drives: &drives,
            },
        )
    }

    /// The page cache states to measure, if the file systems allow them.
    fn caches(&self, places: &Places, warnings: &mut Vec<Warning>) -> Result<Vec<Cache>> {
        let (cold, resident) = (self.args.cold, self.args.resident);
        let mut all = places.all.iter();
        let in_memory = all.find_map(|place| Some((place, place.in_memory.clone()?)));
        match in_memory {
            None => Ok(match (cold, resident) {
                (false, true) => vec![Cache::Resident],
                (true, true) => vec![Cache::Cold, Cache::Resident],
                (_, false) => vec![Cache::Cold],
            }),
            Some((place, kind)) if cold && !resident => {
                let path = place.given.display();
                Err(Failure::new(format!("cannot measure with a cold file at `{path}`"))
                    .because(format!("{kind} keeps its files in memory"))
                    .hint("name paths on drives, or omit `--cold`"))
            }
            Some((_, kind)) => {
                warnings.push(Warning::InMemory(kind));
                Ok(vec![Cache::Resident])
            }
        }
    }

    /// Reads a few bytes by the required route, so that an unavailable one fails before scratch is
    /// filled.
    fn try_route(&self, places: &Places) -> Result<()> {
        let Some(route) = self.args.route else { return Ok(()) };
        for place in &places.all {
            let len = place.subject.given_len().unwrap_or(TRY_LEN).min(TRY_LEN);
            place.subject.make_read(len)?;
            let mut targets = Targets::allocate(&self.engine, &self.target, &[len])?;
            let path = place.subject.read_path();
            let _step = Step::of_engine("read", &path, &self.engine, Some(route));
            let file = self.engine.open(&path)?;
            file.read_with(0, targets.get(0)?, &RequestOptions::by_route(route))?;
        }
        Ok(())
    }

    /// The version of KvikIO, if it can be compared.
    fn kvikio(&self, warnings: &mut Vec<Warning>) -> Result<Option<String>> {
        if !self.directions.contains(&Direction::Read) {
            return Ok(None);
        }
        let found = match &self.target.device {
            Some(_) if self.target.is_simulated() => {
                Err("it cannot move bytes to a simulated GPU".to_owned())
            }
            Some(_) => kvikio::look(self.gpu())?,
            None => kvikio::look(None)?,
        };
        match found {
            Ok(version) => Ok(Some(version)),
            Err(reason) => {
                warnings.push(Warning::NoKvikio(reason));
                Ok(None)
            }
        }
    }

    /// The name by which another process finds the GPU.
    fn gpu(&self) -> Option<String> {
        self.target.device.as_ref().map(|device| device.info().uuid.clone())
    }

    /// KvikIO's own targets and its time limit; `None` if it is not compared.
    fn shape(&self, found: &Found, lens: &[u64], rates: &[f64]) -> Result<Option<Shape>> {
        if !found.kvikio {
            return Ok(None);
        }
        let seconds: f64 = lens.iter().zip(rates).map(|(len, rate)| seconds(*len, *rate)).sum();
        let bound = KVIKIO_MAX + Duration::from_secs_f64((seconds * KVIKIO_SLOWER).min(86400.0));
        Shape::new(self.gpu(), lens, bound).map(Some)
    }

    /// Refuses impossible sizes before scratch is made.
    fn check(&self, found: &Found, lens: &[u64]) -> Result<()> {
        for (place, len) in found.places.all.iter().zip(lens) {
            place.subject.check(&[*len], self.write)?;
        }
        found.places.check_room(lens, self.write)?;
        let total = lens.iter().copied().fold(0, u64::saturating_add);
        self.demand(found, total).check(total, "--size")
    }

    /// The host memory that a run over `total` bytes needs.
    fn demand(&self, found: &Found, total: u64) -> Demand {
        let gpu = self.target.device.is_some();
        let host = !gpu || self.target.is_simulated();
        let all = || found.places.all.iter();
        let in_memory = all().filter(|place| place.in_memory.is_some());
        let files: u32 = in_memory.map(|place| place.subject.scratch_files(self.write)).sum();
        let paths = u32::try_from(found.places.all.len()).unwrap_or(u32::MAX);
        let files = files.div_ceil(paths.max(1));
        let storages = u64::from(found.storage);
        let options = self.engine.options();
        let mut demand = Demand::of_comparison(options, total, (host, gpu), files, storages);
        demand.copies += u64::from(found.kvikio && !gpu);
        demand.link = run::LINK_LEN * if gpu { 1 } else { 2 };
        demand
    }

    fn sizes(&self, found: &Found, warnings: &mut Vec<Warning>) -> Result<Sizes> {
        let places = &found.places;
        let count = places.all.len();
        if !self.args.size.is_empty() {
            let sizes = wanted_sizes(self.args);
            let lens: Vec<Vec<u64>> = sizes.iter().map(|size| vec![*size; count]).collect();
            let largest = vec![sizes.iter().copied().max().unwrap_or(MIB); count];
            self.check(found, &largest)?;
            let rates = if found.kvikio { self.look(found)? } else { vec![UNKNOWN_RATE; count] };
            self.make(found, &largest)?;
            return Ok(Sizes { lens, rates, storages: nothing(count) });
        }
        let scratch: Vec<bool> =
            places.all.iter().map(|place| place.subject.given_len().is_none()).collect();
        let rooms = places.rooms(self.write)?;
        let most = places.all.iter().zip(&rooms);
        let most = most.map(|(place, room)| place.subject.given_len().unwrap_or(*room).min(*room));
        let memory = environment::memory().available;
        let mut means = size::Means {
            rates: self.look(found)?,
            queues: places.queue_of_each(),
            most: most.collect(),
            memory: memory.saturating_sub(self.demand(found, 0).fixed),
            gpu_memory: self.target.free_memory()?,
        };
        let work = self.work(found);
        let first = size::timely(&means, work);
        let mut lens = size::lens(&means, first * SPARE);
        self.check(found, &lens)?;
        self.make(found, &lens)?;
        let mut storages = nothing(count);
        if found.storage && self.directions.contains(&Direction::Read) {
            for (index, len) in lens.iter().enumerate() {
                if let Some((storage, rate)) = self.ceiling(found, index, *len)? {
                    storages[index] = Some(storage);
                    means.rates[index] = rate;
                }
            }
        }
        let lasts = size::span(&means, &lens, &scratch);
        for (most, len) in means.most.iter_mut().zip(&lens) {
            *most = (*most).min(*len);
        }
        lens = size::lens(&means, size::timely(&means, work).min(first).min(lasts));
        for (storage, len) in storages.iter_mut().zip(&lens) {
            storage.iter_mut().for_each(|storage| storage.shorten(*len));
        }
        let whole = |index: usize| places.all[index].subject.given_len() == Some(lens[index]);
        let parts = (0..count).filter(|index| !scratch[*index] && !whole(*index)).count();
        if parts > 0 {
            warnings.push(Warning::Parts { parts, len: lens.iter().sum() });
        }
        Ok(Sizes { lens: vec![lens], rates: means.rates, storages })
    }

    fn work(&self, found: &Found) -> size::Work {
        let has = |direction| self.directions.contains(&direction);
        let keeps = |cache| found.caches.contains(&cache);
        size::Work {
            repeats: self.args.repeats,
            directions: (has(Direction::Read), has(Direction::Write)),
            caches: (keeps(Cache::Cold), keeps(Cache::Resident)),
            kvikio: found.kvikio,
        }
    }

    /// Makes all scratch files to read, on all drives concurrently.
    fn make(&self, found: &Found, lens: &[u64]) -> Result<()> {
        if !self.directions.contains(&Direction::Read) {
            return Ok(());
        }
        let places = &found.places;
        let new = |index: &usize| places.all[*index].subject.given_len().is_none();
        let total = (0..lens.len()).filter(new).map(|index| lens[index]).sum();
        let bar = spinner(total > 0, total);
        let made = places.each(|index| places.all[index].subject.make_read(lens[index]));
        bar.finish_and_clear();
        made.map(drop)
    }

    /// Measures the limit of one path's drives, and estimates one pass; `None` if it cannot be
    /// measured.
    fn ceiling(&self, found: &Found, index: usize, len: u64) -> Result<Option<(Storage, f64)>> {
        let path = found.places.all[index].subject.read_path();
        let opened = Storage::open_with(&path, Direction::Read, len, &found.buffers)?;
        let Ok(mut storage) = opened else { return Ok(None) };
        self.engine.open(&path)?.evict()?;
        storage.try_at_most(len / 4);
        storage.find_depth()?;
        let spent = storage.sample()?;
        let rate = rate(storage.bytes(), spent.seconds);
        Ok(Some((storage, rate)))
    }

    /// Estimates the rates of all drives concurrently.
    fn look(&self, found: &Found) -> Result<Vec<f64>> {
        found.places.each(|index| {
            let place = &found.places.all[index];
            if place.in_memory.is_some() {
                return Ok(2.0 * UNKNOWN_RATE);
            }
            let (direction, len) = match place.subject.given_len() {
                Some(len) => (Direction::Read, len.min(LOOK_LEN)),
                None => {
                    let room = Room::of(&place.subject.folder)?.usable();
                    (Direction::Write, LOOK_LEN.min(room / 8))
                }
            };
            let buffers = Buffers::for_depth(LOOK_DEPTH)?;
            let path = place.subject.read_path();
            match Storage::open_with(&path, direction, len, &buffers) {
                Ok(Ok(storage)) => storage.estimate(LOOK),
                // If the rate cannot be measured, a guess is used.
                Ok(Err(_)) | Err(_) => Ok(UNKNOWN_RATE),
            }
        })
    }
}

/// The names of the given paths.
fn names(places: &Places) -> Vec<String> {
    places.all.iter().map(|place| place.given.display().to_string()).collect()
}

/// A warning if some drives were busy for longer than others.
fn uneven(places: &Places, entries: &[Entry], lens: &[u64]) -> Option<Warning> {
    let rate = |index: usize| {
        let mut found = entries.iter().filter(|entry| {
            (entry.line.method, entry.line.direction) == (MethodName::Storage, Direction::Read)
        });
        found.find(|entry| entry.scope == Scope::One(index))?.line.best()
    };
    let rates: Option<Vec<f64>> = (0..lens.len()).map(rate).collect();
    let means = size::Means {
        rates: rates?,
        queues: places.queue_of_each(),
        most: lens.into(),
        memory: GIB,
        gpu_memory: None,
    };
    let share = size::reachable(&means, lens);
    (share < EVEN).then_some(Warning::Uneven { share })
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn seconds(len: u64, rate: f64) -> f64 {
    len as f64 / rate.max(1.0)
}

//! `forebay sweep`: every combination of the axes' values, measured repeatedly.
//!
//! The axes are arguments; `job` reads them from a file, and [`kv`] knows cache sizes of models.
//! `plan` turns them into points, `files` and `targets` find the files and GPUs, `ceilings`
//! measures the limits. The module `beside` alternates with a second path, `cold` detects files
//! that do not stay cold, `until` checks whether samples can run until they are steady.
//!
//! [`workload`](crate::workload) measures, and [`results`](crate::results) stores each measurement
//! immediately. `pace` estimates the duration, `show` prints the results, `tally` reports the
//! progress when the sweep is stopped.

mod beside;
pub mod ceilings;
mod cold;
mod files;
mod job;
pub mod kv;
mod pace;
mod plan;
mod practice;
pub mod queues;
mod show;
mod state;
mod switch;
mod tally;
mod targets;
mod until;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay::Engine;
use forebay::gpu::DeviceInfo;
use forebay_topology::{Drive, Resolver, StorageMap};
use serde_json::Value;

use self::ceilings::{Found, parts};
use self::files::Place;
use self::plan::Planned;
use self::show::{progress, tell};
use self::state::Kept;
use self::switch::Switch;
use self::tally::Tally;
use self::targets::Together;
use crate::args::SweepArgs;
use crate::bench::environment;
use crate::failure::{Failure, Result};
use crate::power::{Meter, Part, Wanted, joules_per_gb};
use crate::program::Program;
use crate::report::json::Gpu;
use crate::report::warnings::Warning;
use crate::results::file::Ledger;
use crate::results::{Ceiling, Joules, Measured, Record, Run, SCHEMA, Sample};
use crate::stdio::say;
use crate::steps::Step;
use crate::workload::measure::Measurer;
use crate::{limits, sockets};

/// How often a spinner turns.
const TICK: Duration = Duration::from_millis(100);

/// Runs the verb.
pub(crate) fn command(args: &SweepArgs, command: &str, program: &Program) -> Result<()> {
    let args = match &args.job {
        Some(path) => job::merge(args, job::read(path)?),
        None => args.clone(),
    };
    let args = beside::with_path(args)?;
    switch::check(&args)?;
    let engine = Engine::new(limits::limits(program)?)?;
    let records = Sweep::new(&args, engine, command)?.run()?;
    let failed = show::failures(&records);
    show::print(&args, &records, &failed)?;
    match failed.first() {
        None => Ok(()),
        Some(first) => {
            let text = match failed.len() {
                1 => "one sample failed".into(),
                count => format!("{count} samples failed"),
            };
            Err(Failure::new(text).because(*first))
        }
    }
}

/// A sweep in progress.
struct Sweep<'a> {
    args: &'a SweepArgs,
    engine: Engine,
    planned: Vec<Planned>,
    targets: Vec<Together>,
    /// The measurers, one for each value of the axis of targets.
    measurers: Vec<Measurer>,
    places: Vec<Place>,
    ledger: Ledger,
    records: Vec<Record>,
    /// The results so far of the same sweep.
    kept: Kept,
    meter: Meter,
    resolver: Resolver,
    /// The storage map of each path.
    maps: Vec<StorageMap>,
    /// The command that sets the number of queues, if that is an axis.
    switch: Option<Switch>,
}

impl<'a> Sweep<'a> {
    fn new(args: &'a SweepArgs, engine: Engine, command: &'a str) -> Result<Self> {
        let (targets, mut warnings) = targets::find(&engine, args)?;
        let paths =
            if args.paths.is_empty() { vec![PathBuf::from(".")] } else { args.paths.clone() };
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let measurers = Measurer::all(&engine, &targets);
        let target_names: Vec<Vec<String>> =
            measurers.iter().map(|measurer| measurer.targets().to_vec()).collect();
        let planned = plan::points(args, &names, &target_names)?;
        until::check(args, &planned)?;
        plan::check_memory(&planned, &targets)?;
        let switch = Switch::find(args, &paths[0])?;
        let mut places = Vec::new();
        for (index, path) in paths.iter().enumerate() {
            let own: Vec<&Planned> = planned.iter().filter(|one| one.path == index).collect();
            places.push(Place::find(&engine, path, args, &own)?);
        }
        let resolver = Resolver::default();
        let maps = maps(&resolver, &paths);
        let meter = meter(args, &targets)?;
        let mut asked = plan::asked(args, &planned, &real(&paths), &identities(&targets));
        let queues = queues::told(&maps);
        // If the sweep sets queue counts, the initial count says nothing about it.
        if !queues.is_empty() && switch.is_none() {
            asked["queues"] = queues.into();
        }
        if let Some(limit) = args.until_steady {
            asked["until_steady_s"] = limit.as_secs_f64().into();
        }
        let run = run_of(args, command, (&places[0].folder, &paths[0]), (&targets, &meter), asked);
        let (ledger, kept) = state::open(args, &run.asked)?;
        let mut sweep = Self {
            args,
            engine,
            planned,
            targets,
            measurers,
            places,
            ledger,
            records: Vec::new(),
            kept,
            meter,
            resolver,
            maps,
            switch,
        };
        let leftovers = sweep.places.iter().map(|place| place.leftovers).sum();
        if leftovers > 0 {
            warnings.push(Warning::Leftovers(leftovers));
        }
        let apart = sweep.apart(&paths);
        sweep.begin(run, warnings.iter().map(ToString::to_string).chain(apart))?;
        Ok(sweep)
    }

    /// Writes the record of the run.
    fn begin(&mut self, run: Run, warnings: impl Iterator<Item = String>) -> Result<()> {
        self.records = std::mem::take(&mut self.kept.records);
        let run = Record::Run(Box::new(run));
        self.ledger.begin(&run)?;
        self.records.push(run);
        let power = self.meter.warnings();
        for text in warnings.chain(power) {
            say(&text);
            self.note(Record::Warning { text })?;
        }
        Ok(())
    }

    /// The warnings on GPUs and drives on different sockets.
    fn apart(&self, paths: &[PathBuf]) -> Vec<String> {
        let Some(first) = paths.first() else { return Vec::new() };
        let _step = Step::begin("inspect", first);
        let devices = self.targets.iter().flatten().flatten();
        let gpus = devices.map(|device| device.info().pci_address.as_str());
        let mut gpus: Vec<&str> = gpus.filter(|address| !address.is_empty()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        sockets::warnings(&self.resolver, paths, &gpus)
    }

    /// Stores a record, first on the drive.
    fn note(&mut self, record: Record) -> Result<()> {
        self.ledger.append(&record)?;
        self.ledger.sync()?;
        self.records.push(record);
        Ok(())
    }

    fn run(mut self) -> Result<Vec<Record>> {
        let todo = self.todo();
        let path = self.ledger.path().display().to_string();
        if todo.is_empty() {
            let again = if self.args.output.is_some() { "another file" } else { "`--anew`" };
            tell(&format!("`{path}` has all samples of this sweep; {again} measures again"));
            return Ok(self.records);
        }
        let (points, repeats) = (self.planned.len(), plan::repeats(self.args));
        let all = points * repeats as usize;
        let mut tally = Tally::begin(&path, (all - todo.len(), all), self.args.anew);
        match &self.switch {
            None => self.make_scratch(&todo)?,
            Some(_) => self.turn(&self.planned[todo[0].0].clone(), todo[0].1, None),
        }
        let (ceilings, table) = self.ceilings()?;
        let mut pace = self.practise(&todo)?;
        let kept = match tally.kept() {
            0 => String::new(),
            kept => format!(", {kept} of them kept from an earlier run"),
        };
        let noun = if points == 1 { "point" } else { "points" };
        tell(&format!(
            "{points} {noun} × {repeats}{kept}: {}{}{}; results go to `{path}`",
            pace.words(),
            until::words_at_most(self.args),
            self.turns_words(&todo)
        ));
        if !table.is_empty() {
            table.lines().for_each(tell);
        }
        let bar = progress(todo.len() as u64);
        for (index, repeat) in todo {
            let planned = self.planned[index].clone();
            bar.set_message(format!("{} left, {}", pace.left_words(), plan::name(&planned.point)));
            bar.tick();
            self.turn(&planned, repeat, Some(&bar));
            let start = Instant::now();
            let sample = self.sample(index, repeat, &ceilings)?;
            let measured = sample.measured.clone();
            let is_good = sample.is_good();
            self.note(Record::Sample(Box::new(sample)))?;
            if is_good {
                tally.add();
            }
            let took = start.elapsed();
            pace.took(measured.map(|measured| practice::seen(&planned, &measured, took)), took);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let records = std::mem::take(&mut self.records);
        self.ledger.finish()?;
        Ok(records)
    }

    /// The samples still to be measured: all points, then all again. Every second round runs
    /// backwards, so that a machine that becomes slower favours no point.
    fn todo(&self) -> Vec<(usize, u32)> {
        let mut todo = Vec::new();
        for repeat in 0..plan::repeats(self.args) {
            let mut order: Vec<usize> = (0..self.planned.len()).collect();
            if self.args.vs.is_some() {
                order = beside::in_turn(order.len());
            }
            if repeat % 2 == 1 {
                order.reverse();
            }
            let missing = |index: &usize| !self.kept.has(&self.planned[*index].point, repeat);
            todo.extend(order.into_iter().filter(missing).map(|index| (index, repeat)));
        }
        todo
    }

    /// Warns that a limit could not be measured; the points still can.
    fn warn(&mut self, failure: &Failure) -> Result<()> {
        let text = format!("a limit was not measured: {}", failure.with_remedy());
        say(&text);
        self.note(Record::Warning { text })
    }

    /// Measures the limits, and adds their theoretical rates.
    fn ceilings(&mut self) -> Result<(Vec<Ceiling>, String)> {
        let directions = ceilings::all_directions(&self.planned);
        // With many GPUs it takes minutes.
        let bar = practice::spinner();
        let mut begins =
            |number, all| bar.set_message(format!("measuring links, {number} of {all}"));
        let Found { mut ceilings, mut failed, gpus } =
            ceilings::links(&self.engine, &self.resolver, &self.targets, &directions, &mut begins);
        bar.set_message("measuring storage");
        let mut all: Vec<Drive> = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            let mut drives = self.drives(index);
            // The storage limit with one queue count is no limit for another.
            let of = directions.iter().filter(|_| self.switch.is_none());
            for &direction in of {
                match ceilings::storage(&self.engine, place, &self.path(index), direction) {
                    Ok(ceiling) => ceilings.extend(ceiling.map(|mut ceiling| {
                        ceilings::with_drives(&mut ceiling, &mut drives);
                        ceiling
                    })),
                    Err(failure) => failed.push(failure),
                }
            }
            drives.retain(|drive| all.iter().all(|known| known.id != drive.id));
            all.extend(drives);
        }
        bar.finish_and_clear();
        let parts = ceilings::theory(&self.resolver, &gpus, &all);
        for failure in &failed {
            self.warn(failure)?;
        }
        let theory = parts.iter().filter_map(parts::Part::record);
        for ceiling in ceilings.iter().cloned().chain(theory) {
            self.note(Record::Ceiling(ceiling))?;
        }
        let table = ceilings::render(&ceilings, &parts);
        Ok((ceilings, table))
    }

    /// A path as given.
    fn path(&self, index: usize) -> String {
        let given = self.args.paths.get(index).map(|path| path.display().to_string());
        given.unwrap_or_else(|| ".".into())
    }

    /// The drives below a path.
    fn drives(&self, index: usize) -> Vec<Drive> {
        self.maps[index].drives.clone()
    }

    fn measure(&self, planned: &Planned) -> Result<Measured> {
        if let Some(failure) = self.switch.as_ref().and_then(|switch| switch.failed.as_ref()) {
            return Err(failure.clone());
        }
        let place = &self.places[planned.path];
        place.check()?;
        let devices = &self.targets[planned.targets];
        let lanes = place.lanes(planned, devices)?;
        if planned.load.writes() {
            place.writes(lanes.iter().map(|lane| (lane.path.as_path(), lane.region)));
        } else {
            place.restore()?;
        }
        self.meter.mark();
        let (mut measured, ran) = self.measurers[planned.targets].measure(&planned.load, &lanes)?;
        let power = self.meter.between(ran.from, ran.from + ran.span);
        let parts = [Part::Gpu, Part::Package, Part::Dram, Part::Platform, Part::Server];
        let per_gb = |part| joules_per_gb(power.joules_of(part)?, measured.bytes?);
        let of = |part| per_gb(part).map(|per_gb| Joules { part, per_gb });
        measured.joules_per_gb = parts.into_iter().filter_map(of).collect();
        measured.power = Some(power);
        Ok(measured)
    }

    fn sample(&mut self, index: usize, repeat: u32, ceilings: &[Ceiling]) -> Result<Sample> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut planned = self.planned[index].clone();
        // A drive may have cached what the last repeat read.
        planned.load.seed = plan::seed_of(planned.load.seed, repeat);
        let mut result = self.measure(&planned);
        if let Ok(measured) = &result
            && self.goes_once(index, measured)?
        {
            let seed = planned.load.seed;
            planned = self.planned[index].clone();
            planned.load.seed = seed;
            result = self.measure(&planned);
        }
        let planned = &planned;
        let result = result.map(|mut measured| {
            measured.bound = ceilings::bound(planned, &measured, ceilings);
            measured
        });
        let error = result.as_ref().err().map(Failure::with_remedy);
        Ok(Sample {
            point: planned.point.clone(),
            repeat,
            unix_time: since.as_secs_f64(),
            queues_found: self.switch.as_ref().and_then(|switch| switch.found),
            measured: result.ok(),
            error,
        })
    }
}

/// Canonical paths.
fn real(paths: &[PathBuf]) -> Vec<String> {
    let real = paths.iter().map(|path| {
        let _step = Step::begin("inspect", path);
        path.canonicalize().unwrap_or_else(|_| path.clone())
    });
    real.map(|path| path.display().to_string()).collect()
}

/// The identity of each GPU; for a simulated one, what it simulates.
fn identities(targets: &[Together]) -> Vec<String> {
    let infos = targets.iter().flatten().flatten().map(|device| device.info());
    let identity = |info: &DeviceInfo| match (info.simulated, info.uuid.as_str()) {
        (false, "") => info.pci_address.clone(),
        (false, uuid) => uuid.into(),
        (true, _) => info.driver.clone(),
    };
    infos.map(identity).collect()
}

/// The record of the run, with the folder of the first path if that is a file.
fn run_of(
    args: &SweepArgs,
    command: &str,
    (folder, path): (&Path, &Path),
    (targets, meter): (&[Together], &Meter),
    asked: Value,
) -> Run {
    let device = targets.iter().flatten().flatten().next();
    let place = if args.paths.is_empty() { folder } else { path };
    let mut gpus: Vec<Gpu> = Vec::new();
    for device in targets.iter().flatten().flatten() {
        let gpu = environment::gpu(device.info());
        if !gpus.contains(&gpu) {
            gpus.push(gpu);
        }
    }
    Run {
        schema: SCHEMA,
        verb: "sweep".into(),
        label: args.label.clone(),
        environment: environment::collect(place, device.map(|device| device.info()), command),
        gpus,
        unmetered: meter.absent().to_vec(),
        asked: asked.into(),
        imported: None,
    }
}

/// The power sensors of all devices that take part.
fn meter(args: &SweepArgs, targets: &[Together]) -> Result<Meter> {
    let gpus = targets.iter().flatten().flatten().map(|device| device.info().clone());
    let mut wanted = Wanted { command: args.power_command.clone(), ..Wanted::default() };
    for gpu in gpus {
        if wanted.gpus.iter().all(|known| known.id != gpu.id) {
            wanted.gpus.push(gpu);
        }
    }
    Meter::begin(&wanted)
}

/// The storage map of each path.
fn maps(resolver: &Resolver, paths: &[PathBuf]) -> Vec<StorageMap> {
    let map = |path: &PathBuf| {
        let _step = Step::begin("inspect", path);
        resolver.resolve(path)
    };
    paths.iter().map(map).collect()
}

//! `forebay sweep`: one value of each axis with each of the others, measured again and again.
//!
//! The axes are arguments, `job` reads them from a file, [`kv`] knows sizes of caches of models;
//! `plan` makes points of them, `files` and `targets` find what these work on, `ceilings` says what
//! could be reached. [`workload`](crate::workload) measures, [`results`](crate::results) keeps what
//! was measured as soon as it was, `pace` says how long it will take, `draw` shows it.

mod ceilings;
mod draw;
mod files;
mod job;
pub mod kv;
mod pace;
mod plan;
mod state;
mod targets;

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay::Engine;
use forebay::gpu::DeviceInfo;
use forebay::topology::{DriveKind, Resolver};
use forebay::units::format_size;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use self::files::Place;
use self::pace::Pace;
use self::plan::Planned;
use self::state::Kept;
use self::targets::Together;
use crate::args::SweepArgs;
use crate::bench::environment;
use crate::failure::{Failure, Result};
use crate::power::{Meter, Part, Wanted, joules_per_gb};
use crate::program::Program;
use crate::report::json::{Direction, Gpu};
use crate::report::warnings::{Warning, say};
use crate::results::file::{Ledger, samples};
use crate::results::{Ceiling, Joules, Measured, Record, Run, SCHEMA, Sample};
use crate::steps::Step;
use crate::workload::End;
use crate::workload::measure::Measurer;
use crate::{interrupt, limits, log};

/// How long the sample takes that nobody keeps.
const PRACTICE: Duration = Duration::from_millis(200);
/// How often a spinner turns.
const TICK: Duration = Duration::from_millis(100);

/// Runs the verb.
pub(crate) fn command(args: &SweepArgs, command: &str, program: &Program) -> Result<()> {
    interrupt::install();
    let args = match &args.job {
        Some(path) => job::merge(args, job::read(path)?),
        None => args.clone(),
    };
    let engine = Engine::new(limits::limits(program)?)?;
    let records = Sweep::new(&args, engine, command)?.run()?;
    show(&args, &records)?;
    let failed = failures(&records);
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

/// Why samples are missing, or that their bytes were wrong: of those that were taken more than once
/// what came last.
fn failures(records: &[Record]) -> Vec<&str> {
    let mut last = HashMap::new();
    for (_, sample) in samples(records) {
        last.insert((&sample.point, sample.repeat), sample);
    }
    let failed = samples(records).map(|(_, sample)| sample);
    let failed = failed.filter(|sample| {
        last.get(&(&sample.point, sample.repeat)).is_some_and(|last| std::ptr::eq(*last, *sample))
    });
    failed.filter_map(failure_of).collect()
}

fn failure_of(sample: &Sample) -> Option<&str> {
    let wrong = sample.measured.as_ref().is_some_and(|m| m.verified == Some(false));
    sample.error.as_deref().or(wrong.then_some("wrong data were moved"))
}

fn show(args: &SweepArgs, records: &[Record]) -> Result<()> {
    let mut out = anstream::stdout();
    let shown = if args.json {
        records.iter().try_for_each(|record| {
            let line = serde_json::to_string(record).map_err(std::io::Error::other)?;
            writeln!(out, "{line}")
        })
    } else {
        out.write_all(draw::render(records).as_bytes())
    };
    shown.and_then(|()| out.flush()).map_err(|error| Failure::stdout(&error))
}

/// A sweep that is under way.
struct Sweep<'a> {
    args: &'a SweepArgs,
    engine: Engine,
    planned: Vec<Planned>,
    targets: Vec<Together>,
    /// What measures moves to and from each of the targets.
    measurers: Vec<Measurer>,
    places: Vec<Place>,
    ledger: Ledger,
    records: Vec<Record>,
    /// What a part of the same sweep has already.
    kept: Kept,
    meter: Meter,
}

impl<'a> Sweep<'a> {
    fn new(args: &'a SweepArgs, engine: Engine, command: &'a str) -> Result<Self> {
        let (targets, mut warnings) = targets::find(&engine, args)?;
        let paths =
            if args.paths.is_empty() { vec![PathBuf::from(".")] } else { args.paths.clone() };
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let measurers: Vec<Measurer> =
            targets.iter().map(|gpus| Measurer::new(&engine, gpus)).collect();
        let target_names: Vec<Vec<String>> =
            measurers.iter().map(|measurer| measurer.targets().to_vec()).collect();
        let planned = plan::points(args, &names, &target_names)?;
        let mut places = Vec::new();
        for (index, path) in paths.iter().enumerate() {
            let own: Vec<&Planned> = planned.iter().filter(|one| one.path == index).collect();
            places.push(Place::find(&engine, path, args, &own)?);
        }
        let meter = meter(args, &targets, &paths)?;
        let asked = plan::asked(args, &planned, &real(&paths), &identities(&targets));
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
        };
        let leftovers = sweep.places.iter().map(|place| place.leftovers).sum();
        if leftovers > 0 {
            warnings.push(Warning::Leftovers(leftovers));
        }
        sweep.begin(run, &warnings)?;
        Ok(sweep)
    }

    /// Writes down who measures what.
    fn begin(&mut self, run: Run, warnings: &[Warning]) -> Result<()> {
        self.records = std::mem::take(&mut self.kept.records);
        let run = Record::Run(Box::new(run));
        self.ledger.begin(&run)?;
        self.records.push(run);
        let power = self.meter.warnings();
        for text in warnings.iter().map(ToString::to_string).chain(power) {
            say(&text);
            self.note(Record::Warning { text })?;
        }
        Ok(())
    }

    /// Keeps a record, on the drive first.
    fn note(&mut self, record: Record) -> Result<()> {
        self.ledger.append(&record)?;
        self.records.push(record);
        Ok(())
    }

    fn run(mut self) -> Result<Vec<Record>> {
        let todo = self.todo();
        let path = self.ledger.path().display().to_string();
        if todo.is_empty() {
            let again = if self.args.output.is_some() { "another file" } else { "`--anew`" };
            tell(&format!("`{path}` holds all of this sweep; {again} measures again"));
            return Ok(self.records);
        }
        self.make_scratch()?;
        let ceilings = self.ceilings()?;
        let mut pace = self.practise(&todo);
        let (points, repeats) = (self.planned.len(), plan::repeats(self.args));
        let kept = points * repeats as usize - todo.len();
        let kept =
            if kept > 0 { format!(", {kept} of them kept from before") } else { String::new() };
        tell(&format!(
            "{points} points × {repeats}{kept}: {}; results go to `{path}`",
            pace.words()
        ));
        let bar = progress(todo.len() as u64);
        for (index, repeat) in todo {
            let planned = self.planned[index].clone();
            bar.set_message(format!("{} left, {}", pace.left_words(), plan::name(&planned.point)));
            bar.tick();
            let start = Instant::now();
            let sample = self.sample(&planned, repeat, &ceilings);
            pace.took(start.elapsed());
            bar.inc(1);
            self.note(Record::Sample(Box::new(sample)))?;
        }
        bar.finish_and_clear();
        Ok(std::mem::take(&mut self.records))
    }

    /// What is to be measured still: all points, then all again, every second time backwards, so
    /// that a machine that grows slower favours none of them.
    fn todo(&self) -> Vec<(usize, u32)> {
        let mut todo = Vec::new();
        for repeat in 0..plan::repeats(self.args) {
            let forwards = 0..self.planned.len();
            let order: Vec<usize> =
                if repeat % 2 == 0 { forwards.collect() } else { forwards.rev().collect() };
            let missing = |index: &usize| !self.kept.has(&self.planned[*index].point, repeat);
            todo.extend(order.into_iter().filter(missing).map(|index| (index, repeat)));
        }
        todo
    }

    fn make_scratch(&self) -> Result<()> {
        let bar = if log::is_on() { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.enable_steady_tick(TICK);
        let made = self.places.iter().try_for_each(|place| {
            place.make(&mut |len| {
                bar.set_message(format!("making {} of scratch", format_size(len)));
            })
        });
        bar.finish_and_clear();
        made
    }

    /// Says that a ceiling could not be measured; the points can be all the same.
    fn warn(&mut self, failure: &Failure) -> Result<()> {
        let text = format!("a ceiling is not known: {}", failure.in_one_line());
        say(&text);
        self.note(Record::Warning { text })
    }

    /// Measures what could be reached.
    fn ceilings(&mut self) -> Result<Vec<Ceiling>> {
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for direction in ceilings::all_directions(&self.planned) {
            for together in &self.targets {
                let Some(device) = together.last() else { continue };
                match ceilings::link(&self.engine, device.as_ref(), direction) {
                    Ok(ceiling) => found.push(ceiling),
                    Err(failure) => failed.push(failure),
                }
            }
            // What is measured by writing would leave bytes that no check knows.
            let read = direction == Direction::Read;
            for (index, place) in self.places.iter().enumerate().filter(|_| read) {
                let given = self.args.paths.get(index).map(|path| path.display().to_string());
                let path = given.unwrap_or_else(|| ".".into());
                match ceilings::storage(&self.engine, place, &path, direction) {
                    Ok(ceiling) => found.extend(ceiling),
                    Err(failure) => failed.push(failure),
                }
            }
        }
        for failure in &failed {
            self.warn(failure)?;
        }
        for ceiling in &found {
            self.note(Record::Ceiling(ceiling.clone()))?;
        }
        Ok(found)
    }

    /// Takes a short sample that nobody keeps: it starts what the engine starts with its first
    /// transfer, and shows what a sample takes beside its time.
    fn practise(&self, todo: &[(usize, u32)]) -> Pace {
        let mut pace =
            Pace::new(todo.iter().map(|(index, _)| self.planned[*index].time()).collect());
        let Some((first, _)) = todo.first() else { return pace };
        let mut short = self.planned[*first].clone();
        short.load.warm_up = Duration::ZERO;
        if let End::Time(time) = short.load.end {
            let time = time.min(PRACTICE);
            short.load.end = End::Time(time);
            let start = Instant::now();
            // What is wrong with it the sample itself will say.
            let _ = self.measure(&short);
            pace.beside(start.elapsed().saturating_sub(time));
        }
        pace
    }

    fn measure(&self, planned: &Planned) -> Result<Measured> {
        let place = &self.places[planned.path];
        place.check()?;
        let devices = &self.targets[planned.targets];
        let lanes = place.lanes(planned, devices)?;
        self.meter.mark();
        let (mut measured, ran) = self.measurers[planned.targets].measure(&planned.load, &lanes)?;
        let power = self.meter.between(ran.from, ran.from + ran.span);
        let parts = [Part::Gpu, Part::Package, Part::Dram, Part::Platform, Part::Server];
        let per_gb = |part| joules_per_gb(power.joules_of(part)?, measured.bytes);
        let of = |part| per_gb(part).map(|per_gb| Joules { part, per_gb });
        measured.joules_per_gb = parts.into_iter().chain([Part::Command]).filter_map(of).collect();
        measured.power = Some(power);
        Ok(measured)
    }

    fn sample(&self, planned: &Planned, repeat: u32, ceilings: &[Ceiling]) -> Sample {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let result = self.measure(planned).map(|mut measured| {
            measured.bound = ceilings::bound(planned, &measured, ceilings);
            measured
        });
        let error = result.as_ref().err().map(Failure::in_one_line);
        Sample {
            point: planned.point.clone(),
            repeat,
            unix_time: since.as_secs_f64(),
            measured: result.ok(),
            error,
        }
    }
}

/// Paths as nothing else is called.
fn real(paths: &[PathBuf]) -> Vec<String> {
    let real = paths.iter().map(|path| {
        let _step = Step::begin("look at", path);
        path.canonicalize().unwrap_or_else(|_| path.clone())
    });
    real.map(|path| path.display().to_string()).collect()
}

/// What tells each GPU from all others, of simulated ones what they play.
fn identities(targets: &[Together]) -> Vec<String> {
    let infos = targets.iter().flatten().flatten().map(|device| device.info());
    let identity = |info: &DeviceInfo| match (info.simulated, info.uuid.as_str()) {
        (false, "") => info.pci_address.clone(),
        (false, uuid) => uuid.into(),
        (true, _) => info.driver.clone(),
    };
    infos.map(identity).collect()
}

/// Who measures what, in the folder of the first path, if that is none itself.
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
        asked,
    }
}

/// What reads power and heat of all that takes part.
fn meter(args: &SweepArgs, targets: &[Together], paths: &[PathBuf]) -> Result<Meter> {
    let gpus = targets.iter().flatten().flatten().map(|device| device.info().clone());
    let mut wanted = Wanted { command: args.power_command.clone(), ..Wanted::default() };
    for gpu in gpus {
        if wanted.gpus.iter().all(|known| known.id != gpu.id) {
            wanted.gpus.push(gpu);
        }
    }
    let resolver = Resolver::default();
    for path in paths {
        let _step = Step::begin("look at", path);
        for drive in &resolver.resolve(path).drives {
            if drive.kind == DriveKind::Block && !wanted.drives.contains(&drive.name) {
                wanted.drives.push(drive.name.clone());
            }
        }
    }
    Meter::begin(&wanted)
}

fn tell(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

fn progress(steps: u64) -> ProgressBar {
    if log::is_on() {
        return ProgressBar::hidden();
    }
    ProgressBar::new(steps).with_style(
        ProgressStyle::with_template("{bar:20} {pos}/{len} {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

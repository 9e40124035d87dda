//! `forebay bench`: methods, whole files or requests of any size, paths and GPUs, measured in turns
//! and verified.
//!
//! The values of each axis are arguments. `plan` turns them into points, `files` and `targets` find
//! the files and GPUs, `limits` measures the limits of the machine.
//! [`workload`](forebay_measure::workload) measures, and [`results`](forebay_measure::results)
//! stores each measurement immediately. `table` shows them. `switch` sets numbers of I/O queues.

pub mod args;
pub(crate) mod files;
pub mod limits;
mod plan;
mod print;
pub mod queues;
mod state;
mod switch;
pub mod table;
mod targets;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay::Engine;
use forebay::gpu::DeviceInfo;
use forebay::units::{MIB, format_size};
use forebay_measure::cleanup;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::make::Room;
use forebay_measure::power::{Meter, Wanted};
use forebay_measure::program::Program;
use forebay_measure::results::file::Ledger;
use forebay_measure::results::machine::Environment;
use forebay_measure::results::{Cache, Direction};
use forebay_measure::results::{Measured, Record, Run, SCHEMA, Sample};
use forebay_measure::stdio::tell;
use forebay_measure::steps::Step;
use forebay_measure::workload::backend::{Library, Method, Plain, Pool, library};
use forebay_measure::workload::measure::Measurer;
use forebay_measure::workload::run::{Ran, Ready};
use forebay_measure::workload::{End, Lane, Load};
use forebay_measure::{environment, subject};
use forebay_topology::{Resolver, StorageMap};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use self::args::BenchArgs;
use self::files::Place;
use self::limits::Limits;
use self::plan::{Axes, Planned};
pub(crate) use self::print::show;
use self::state::Kept;
use self::switch::Switch;
use self::targets::Together;
use crate::log;
use crate::map;
use crate::report::numbers::counted;

/// Bytes read to find out if a route is available.
pub(crate) const TRY_LEN: u64 = MIB;
/// Interval of the spinner's steps.
const TICK: Duration = Duration::from_millis(100);
/// The first part of scratch, which shows how fast the storage is.
const FIRST_LEN: u64 = 128 * MIB;
/// Seconds that a cold read of a whole file should take.
const WHOLE_SECONDS: f64 = 0.6;
/// Bounds of the default size of whole files. On two cores a default run took 59 and 65 seconds
/// with 2 GiB, 22 seconds with 512 MiB (`benches/runs/2026-11-26-2-cores-bench`).
const WHOLE_LEN: (u64, u64) = (64 * MIB, 512 * MIB);
/// Records up to which the results so far are shown.
const SHOWN_MAX: usize = 300;

/// Runs the verb.
pub(crate) fn command(args: &BenchArgs, command: &str, program: &Program) -> Result<()> {
    let args = plan::with_paths(args)?;
    switch::check(&args)?;
    state::check_name(args.output.as_deref())?;
    let engine = Engine::new(program.engine_options()?)?;
    let records = Bench::new(&args, engine, None, program, command)?.run()?;
    show(&args, &records)
}

/// A run in progress.
pub(crate) struct Bench<'a> {
    args: &'a BenchArgs,
    begun: Instant,
    engine: Engine,
    pool: Arc<Pool>,
    is_whole: bool,
    planned: Vec<Planned>,
    targets: Vec<Together>,
    /// The measurers, one for each value of the axis of targets.
    measurers: Vec<Measurer>,
    places: Vec<Place>,
    /// `None` if results are only shown.
    ledger: Option<Ledger>,
    records: Vec<Record>,
    /// The results so far of the same run.
    kept: Kept,
    meter: Meter,
    resolver: Resolver,
    /// The storage map of each path.
    maps: Vec<StorageMap>,
    limits: Limits,
    /// The command that sets the number of queues, if that is an axis.
    switch: Option<Switch>,
}

impl<'a> Bench<'a> {
    /// Finds the GPUs, and the files where they are not those of `place`, and plans the points.
    ///
    /// # Errors
    /// The arguments contradict each other; system errors.
    pub(crate) fn new(
        args: &'a BenchArgs,
        engine: Engine,
        place: Option<Place>,
        program: &Program,
        command: &'a str,
    ) -> Result<Self> {
        let begun = Instant::now();
        let (targets, mut warnings) = targets::find(&engine, args)?;
        let paths = &args.paths;
        refuse_same(paths)?;
        let pool = Arc::new(Pool::new(program));
        let measurers = Measurer::all(&engine, &targets, &pool, args.verify_all);
        let is_whole = args.moves_whole_files();
        let methods = methods(args, &engine, &targets, &pool, &mut warnings);
        let directions = directions(args, paths, is_whole);
        let find = |path: &PathBuf| Place::find(&engine, path, args, &directions);
        let places =
            place.map_or_else(|| paths.iter().map(find).collect(), |place| Ok(vec![place]))?;
        let resolver = Resolver::default();
        let maps = maps(&resolver, paths);
        let gpus = targets::gpus(&targets).map(|gpu| gpu.info().clone());
        let gpus = gpus.collect();
        let power = Wanted { command: args.power_command.clone(), gpus, ..Wanted::default() };
        let meter = Meter::begin(&power)?;
        let device = targets::gpus(&targets).next().map(|gpu| gpu.info());
        let environment = environment::collect(&paths[0], device, command);
        let in_memory = in_memory(args, &environment, &mut warnings)?;
        let mut bench = Self {
            args,
            begun,
            engine,
            pool,
            is_whole,
            planned: Vec::new(),
            targets,
            measurers,
            places,
            ledger: None,
            records: Vec::new(),
            kept: Kept::default(),
            meter,
            resolver,
            maps,
            limits: Limits::default(),
            switch: Switch::find(args, &paths[0])?,
        };
        let names = paths.iter().map(|path| path.display().to_string());
        let mut axes = Axes {
            paths: names.collect(),
            targets: bench.measurers.iter().map(|one| one.targets().to_vec()).collect(),
            methods,
            directions,
            whole: None,
            has_cache: !in_memory,
        };
        if is_whole {
            axes.whole = Some(bench.whole_lens(&axes, &mut warnings)?);
        }
        bench.plan(&axes)?;
        warnings.extend(bench.apart());
        bench.begin(environment)?;
        warnings.extend(bench.meter.warnings());
        warnings.into_iter().try_for_each(|text| bench.note(Record::Warning { text }))?;
        Ok(bench)
    }

    /// Makes the points, and checks that there is room for their bytes.
    fn plan(&mut self, axes: &Axes) -> Result<()> {
        self.planned = plan::points(self.args, axes)?;
        plan::check_memory(&self.planned, &self.targets)?;
        for (index, place) in self.places.iter_mut().enumerate() {
            let own = self.planned.iter().filter(|one| one.paths.contains(&index));
            place.fit(self.args, &own.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// The bytes of whole files of each path: as many as `--size` says, or as the storage reads in
    /// about half a second.
    fn whole_lens(&mut self, axes: &Axes, warnings: &mut Vec<String>) -> Result<Vec<u64>> {
        if self.args.size.is_none() && axes.has_cache {
            let any_read = axes.directions.iter().any(|percent| *percent > 0);
            let first = if any_read { Direction::Read } else { Direction::Write };
            self.storage(first, false)?;
        }
        let free = targets::gpus(&self.targets).filter_map(|gpu| gpu.memory().ok());
        let on_gpu = free.map(|(free, _)| free / 4).min().unwrap_or(u64::MAX);
        let (memory, paths) = (environment::memory().available, self.places.len() as u64);
        let mut lens = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            let whole = if place.is_scratch() { u64::MAX } else { place.len };
            if let Some(size) = self.args.size {
                if size > whole {
                    let (wanted, have) = (format_size(size), format_size(whole));
                    return Err(Failure::new(format!(
                        "cannot read {wanted} of `{}`",
                        axes.paths[index]
                    ))
                    .because(format!("it has {have}"))
                    .hint(format!("`--size {whole}` reads all of it")));
                }
                lens.push(size);
                continue;
            }
            let rate = self.limits.all.iter().find(|limit| limit.of == axes.paths[index]);
            let timely = rate.map_or(FIRST_LEN, |limit| whole_len(limit.bytes_per_second));
            let room = Room::of(&place.folder)?.usable() / 4;
            let room = if place.is_scratch() { room } else { u64::MAX };
            let len = timely.min(memory / (8 * paths)).min(room).min(on_gpu / paths);
            let len = len.max(64 << 10).min(whole);
            if !place.is_scratch() && len < whole {
                warnings.push(format!(
                    "only the first {} of {} are read, to save time; `--size {whole}` reads all",
                    format_size(len),
                    format_size(whole)
                ));
            }
            lens.push(len);
        }
        Ok(lens)
    }

    /// Opens the results file and writes the record of the run.
    fn begin(&mut self, environment: Environment) -> Result<()> {
        let run = Run {
            schema: SCHEMA,
            verb: "bench".into(),
            label: self.args.label.clone(),
            environment,
            gpus: targets::gpus(&self.targets).map(|gpu| environment::gpu(gpu.info())).collect(),
            unmetered: self.meter.absent().to_vec(),
            asked: self.asked().into(),
            imported: None,
        };
        if let Some(path) = &self.args.output {
            let (ledger, kept) = state::open(path, &run.asked)?;
            (self.ledger, self.kept) = (Some(ledger), kept);
        }
        let kept = std::mem::take(&mut self.kept.records);
        let early = std::mem::replace(&mut self.records, kept);
        let run = Record::Run(Box::new(run));
        if let Some(ledger) = &mut self.ledger {
            ledger.append(&run)?;
        }
        self.records.push(run);
        early.into_iter().try_for_each(|record| self.note(record))
    }

    /// What is asked for, by which parts of the same run are recognized.
    fn asked(&self) -> Value {
        let identities: Vec<String> =
            targets::gpus(&self.targets).map(|gpu| identity(gpu.info())).collect();
        let mut asked = plan::asked(self.args, &self.planned, &real(&self.args.paths), &identities);
        let queues = queues::described(&self.maps);
        // If the run sets queue counts, the initial count says nothing about it.
        if !queues.is_empty() && self.switch.is_none() {
            asked["queues"] = queues.into();
        }
        asked
    }

    /// The warnings on GPUs and drives on different sockets.
    fn apart(&self) -> Vec<String> {
        let paths = &self.args.paths;
        let _step = Step::begin("inspect", &paths[0]);
        let gpus = targets::gpus(&self.targets).map(|gpu| gpu.info().pci_address.as_str());
        let gpus: Vec<&str> = gpus.filter(|address| !address.is_empty()).collect();
        map::between_sockets(&self.resolver, paths, &gpus)
    }

    /// Stores a record, first on the drive.
    fn note(&mut self, record: Record) -> Result<()> {
        if let Some(ledger) = &mut self.ledger {
            ledger.append(&record)?;
            ledger.sync()?;
        }
        self.records.push(record);
        Ok(())
    }

    /// Measures all points; returns the records.
    ///
    /// # Errors
    /// System errors, and those of a required route. A sample that fails is a record.
    pub(crate) fn run(&mut self) -> Result<Vec<Record>> {
        let repeats = plan::repeats(self.args, self.is_whole);
        let todo: Vec<(usize, u32)> = (0..repeats)
            .flat_map(|repeat| {
                let order = plan::order(self.args, self.planned.len(), repeat);
                order.into_iter().map(move |index| (index, repeat)).collect::<Vec<_>>()
            })
            .filter(|(index, repeat)| !self.kept.has(&self.planned[*index].point, *repeat))
            .collect();
        let all = self.planned.len() * repeats as usize;
        if let (true, Some(ledger)) = (todo.is_empty(), &self.ledger) {
            let path = ledger.path().display();
            self.tell(&format!(
                "`{path}` has all samples of this run; name another file to measure again"
            ));
            return Ok(std::mem::take(&mut self.records));
        }
        let bar = progress(todo.len() as u64, self.args.quiet);
        self.tell_kept(all - todo.len(), all, &bar);
        match &self.switch {
            None => self.make_scratch(&bar)?,
            Some(_) => self.turn(&self.planned[todo[0].0].clone(), todo[0].1, &bar),
        }
        self.warm(&bar)?;
        self.measure_all(todo, all, &bar)?;
        bar.finish_and_clear();
        cleanup::set_progress_note(None);
        for note in self.engine.notes() {
            self.note(Record::Warning { text: note })?;
        }
        let records = std::mem::take(&mut self.records);
        self.ledger.take().map_or(Ok(()), Ledger::finish)?;
        Ok(records)
    }

    /// Measures these points and repeats, of `all`.
    fn measure_all(
        &mut self,
        todo: Vec<(usize, u32)>,
        all: usize,
        bar: &ProgressBar,
    ) -> Result<()> {
        let mut left: Duration = todo.iter().map(|(index, _)| self.planned[*index].time()).sum();
        self.announce(all - todo.len(), all, left, bar);
        let (mut round, mut round_begun, mut slowest) = (0, Instant::now(), Duration::ZERO);
        let (mut done, mut failed) = (all - todo.len(), HashSet::new());
        for (index, repeat) in todo {
            if repeat != round {
                slowest = slowest.max(round_begun.elapsed());
                (round, round_begun) = (repeat, Instant::now());
                self.limits.measured.clear(); // they are measured again
                if self.is_whole
                    && self.args.repeats.is_none()
                    && self.begun.elapsed() + slowest > plan::BUDGET
                {
                    break;
                }
            }
            let planned = self.planned[index].clone();
            if self.is_whole && failed.contains(&index) {
                continue; // it fails again
            }
            self.turn(&planned, repeat, bar);
            self.limits_before(&planned, bar)?;
            bar.set_message(format!("{} s left, {}", left.as_secs(), plan::name(&planned.point)));
            bar.tick();
            let sample = self.sample(index, repeat);
            if sample.is_good() {
                done += 1;
            } else {
                failed.insert(index);
            }
            self.note(Record::Sample(Box::new(sample)))?;
            self.tell_kept(done, all, bar);
            left = left.saturating_sub(planned.time());
            bar.inc(1);
            if !bar.is_hidden()
                && let Some(shown) = self.so_far()
            {
                bar.set_prefix(shown);
            }
        }
        Ok(())
    }

    /// Says how much will be measured, if results go to a file.
    fn announce(&self, kept: usize, all: usize, left: Duration, bar: &ProgressBar) {
        let Some(ledger) = &self.ledger else { return };
        let (path, seconds, points) = (ledger.path().display(), left.as_secs(), self.planned.len());
        let kept = match kept {
            0 => String::new(),
            kept => format!(", {kept} of them kept from an earlier run"),
        };
        let (repeats, points) = (all / points.max(1), counted(points, "point"));
        let text =
            format!("{points} × {repeats}{kept}: {seconds} s or more; results go to `{path}`");
        bar.suspend(|| self.tell(&text));
    }

    fn tell(&self, text: &str) {
        if !self.args.quiet {
            tell(text);
        }
    }

    /// What a signal prints: the results so far, and how to continue.
    fn tell_kept(&self, done: usize, all: usize, bar: &ProgressBar) {
        // A progress bar shows them already.
        let is_wanted = done > 0 && bar.is_hidden() && !self.args.json && !self.args.quiet;
        let shown = if is_wanted { self.so_far() } else { None }.unwrap_or_default();
        let mut text = anstream::adapter::strip_str(&shown).to_string();
        let path = self.ledger.as_ref().map(|ledger| ledger.path().display());
        text.push_str(&match path {
            Some(path) => format!(
                "stopped: `{path}` has {done} of {all} samples; the same command continues from \
                 there"
            ),
            None => format!("stopped: {done} of {all} samples were measured"),
        });
        cleanup::set_progress_note(Some(text));
    }

    /// The results so far. Tables of long runs are left out, as they would take time from it.
    fn so_far(&self) -> Option<String> {
        let is_short = self.records.len() <= SHOWN_MAX;
        is_short.then(|| table::render(&table::model(&self.records), print::base(self.args)))
    }

    fn make_scratch(&self, bar: &ProgressBar) -> Result<()> {
        let len: u64 = self.places.iter().map(Place::scratch_len).sum();
        bar.set_message(format!("making {} of scratch", format_size(len)));
        self.places.iter().try_for_each(Place::check_room)?;
        self.places.iter().try_for_each(|place| place.make(Direction::Read))
    }

    /// Notes a warning, once.
    fn warn(&mut self, text: String) -> Result<()> {
        let same =
            |record: &Record| matches!(record, Record::Warning { text: old } if *old == text);
        let is_known = self.records.iter().any(same);
        if is_known { Ok(()) } else { self.note(Record::Warning { text }) }
    }

    /// Lets each method read once, so that samples do not include the start of its threads.
    ///
    /// # Errors
    /// A required route is unavailable.
    fn warm(&self, bar: &ProgressBar) -> Result<()> {
        let mut known: Vec<(Method, usize)> = Vec::new();
        for planned in self.planned.iter().filter(|one| one.is_whole && !one.load.writes()) {
            if known.contains(&(planned.load.method, planned.targets)) {
                continue;
            }
            known.push((planned.load.method, planned.targets));
            bar.set_message(format!("warming up {}", planned.point.method));
            let end = End::AtLeast(Duration::ZERO);
            let load = Load { cache: Cache::Resident, once: false, end, ..planned.load.clone() };
            let measurer = &self.measurers[planned.targets];
            let lanes = self.lanes(planned);
            let warmed = Ready::with(&self.engine, &load, &lanes, &self.pool)
                .and_then(|mut ready| ready.run(measurer.targets()).map(drop));
            // Without a required route, what fails here fails again, and is reported then.
            if planned.point.route.is_some() {
                warmed?;
            }
        }
        Ok(())
    }

    /// A path as given.
    fn path(&self, index: usize) -> String {
        self.args.paths[index].display().to_string()
    }

    fn lanes(&self, planned: &Planned) -> Vec<Lane> {
        let devices = &self.targets[planned.targets];
        let places = planned.paths.iter().map(|index| &self.places[*index]);
        places.flat_map(|place| place.lanes(planned, devices)).collect()
    }

    /// Reads whole files once more, as the engine's first row does, concurrently with other work.
    ///
    /// # Errors
    /// There is no such row; file and GPU errors.
    pub(crate) fn read_by_engine(&self) -> Result<(Measured, Ran)> {
        let is_read = |one: &&Planned| one.point.method == "forebay" && !one.load.writes();
        let planned = self.planned.iter().find(is_read);
        self.moved(planned.ok_or_else(|| Failure::new("the engine reads nothing"))?)
    }

    /// Moves the bytes of a point.
    fn moved(&self, planned: &Planned) -> Result<(Measured, Ran)> {
        if let Some(failure) = self.switch.as_ref().and_then(Switch::failed) {
            return Err(failure.clone());
        }
        let lanes = self.lanes(planned);
        let files: Vec<&Path> = lanes.iter().map(|lane| lane.path.as_path()).collect();
        for place in planned.paths.iter().map(|index| &self.places[*index]) {
            place.check()?;
            match planned.load.writes() {
                true => place.prepare_writes(&files)?,
                false => place.make(Direction::Read)?,
            }
        }
        self.meter.mark();
        self.measurers[planned.targets].measure(&planned.load, &lanes)
    }

    fn measure(&self, planned: &Planned) -> Result<Measured> {
        let (mut measured, ran) = self.moved(planned)?;
        measured.power = Some(self.meter.between(ran.from, ran.from + ran.span));
        Ok(measured)
    }

    fn sample(&self, index: usize, repeat: u32) -> Sample {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut planned = self.planned[index].clone();
        // A drive may have cached what the last repeat read.
        planned.load.seed = plan::seed_of(planned.load.seed, repeat);
        let result = self.measure(&planned).map(|mut measured| {
            measured.bound = limits::bound(&planned, &measured, &self.limits);
            measured
        });
        let error = result.as_ref().err().map(Failure::with_remedy);
        Sample {
            point: planned.point,
            repeat,
            unix_time: since.as_secs_f64(),
            queues_found: self.switch.as_ref().and_then(Switch::found),
            measured: result.ok(),
            error,
        }
    }
}

/// Whether the files are in a file system in memory, which cannot be cold.
///
/// # Errors
/// Cold files are asked for.
fn in_memory(
    args: &BenchArgs,
    environment: &Environment,
    warnings: &mut Vec<String>,
) -> Result<bool> {
    let Some(kind) = environment.memory_file_system() else { return Ok(false) };
    if args.cache.contains(&Cache::Cold) {
        return Err(Failure::new("cannot measure with a cold file")
            .because(format!("{kind} keeps its files in memory"))
            .hint("name a path on a drive, or give `--cache warm`"));
    }
    warnings.push(format!(
        "no cold rows and no storage limit: {kind} keeps its files in memory; give a path on a \
         drive"
    ));
    Ok(true)
}

/// The methods to compare, without those that are unavailable here.
fn methods(
    args: &BenchArgs,
    engine: &Engine,
    targets: &[Together],
    pool: &Pool,
    warnings: &mut Vec<String>,
) -> Vec<Method> {
    if !args.method.is_empty() {
        return args.method.clone();
    }
    let forebay = Method::Forebay(None);
    if !args.moves_whole_files() {
        return vec![forebay];
    }
    let mut methods = vec![Method::Plain(Plain::Standard), Method::Plain(Plain::Mmap)];
    if let Some(gpu) = targets::gpus(targets).next() {
        let info = gpu.info();
        let gpu = (!info.simulated).then_some(info.uuid.as_str());
        let found = match engine.options().cufile {
            true => library::check_cufile(pool, gpu),
            false => Err("`FOREBAY_CUFILE` is `off`".into()),
        };
        match found {
            Ok(()) => methods.extend(Method::library(Library::Cufile)),
            Err(reason) => warnings.push(format!("cuFile's compat mode is not compared: {reason}")),
        }
    }
    methods.push(forebay);
    methods
}

/// The shares of reads: by default only reads, and writes of whole files into folders.
fn directions(args: &BenchArgs, paths: &[PathBuf], is_whole: bool) -> Vec<u8> {
    if !args.direction.is_empty() {
        return args.direction.clone();
    }
    let is_folder = paths.iter().all(|path| subject::is_folder(path));
    if is_whole && is_folder && paths.len() == 1 { vec![100, 0] } else { vec![100] }
}

/// Refuses a path that is named twice.
fn refuse_same(paths: &[PathBuf]) -> Result<()> {
    let real = real(paths);
    for (index, path) in paths.iter().enumerate() {
        if let Some(first) = real[..index].iter().position(|other| *other == real[index]) {
            let (own, other) = (path.display(), paths[first].display());
            let text = match *path == paths[first] {
                true => format!("`{own}` is given twice"),
                false => format!("`{own}` is the same as `{other}`"),
            };
            return Err(Failure::usage(text).hint("name each file or folder once"));
        }
    }
    Ok(())
}

/// A power of two of bytes that take about [`WHOLE_SECONDS`] at a rate.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
fn whole_len(rate: f64) -> u64 {
    let len = ((rate * WHOLE_SECONDS) as u64).clamp(WHOLE_LEN.0, WHOLE_LEN.1);
    1 << len.ilog2()
}

/// Canonical paths.
fn real(paths: &[PathBuf]) -> Vec<String> {
    let real = paths.iter().map(|path| {
        let _step = Step::begin("inspect", path);
        path.canonicalize().unwrap_or_else(|_| path.clone())
    });
    real.map(|path| path.display().to_string()).collect()
}

/// The identity of a GPU; for a simulated one, what it simulates.
fn identity(info: &DeviceInfo) -> String {
    match (info.simulated, info.uuid.as_str()) {
        (false, "") => info.pci_address.clone(),
        (false, uuid) => uuid.into(),
        (true, _) => info.driver.clone(),
    }
}

/// The storage map of each path.
fn maps(resolver: &Resolver, paths: &[PathBuf]) -> Vec<StorageMap> {
    let map = |path: &PathBuf| {
        let _step = Step::begin("inspect", path);
        resolver.resolve(path)
    };
    paths.iter().map(map).collect()
}

/// A progress bar over samples, below their results. It is hidden if stderr is not a terminal or
/// has log lines, and with `--quiet`.
pub(crate) fn progress(steps: u64, is_quiet: bool) -> ProgressBar {
    if log::is_on() || is_quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix}{bar:20} {pos}/{len} {wide_msg}");
    let bar =
        ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(TICK);
    bar
}

/// Shows a spinner while scratch is made, on a terminal.
pub(crate) fn spinner(len: u64) -> ProgressBar {
    if log::is_on() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.set_message(format!("making {} of scratch", format_size(len)));
    bar.enable_steady_tick(TICK);
    bar
}

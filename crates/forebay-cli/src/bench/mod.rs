//! `forebay bench`: measures limits and methods, interleaved, and verifies every byte.
//!
//! `subject` finds or makes the files, `run` takes the samples line by line, `measure` takes one
//! sample, `line` turns samples into the rows of the report.

pub mod cache;
pub mod ceilings;
pub mod control_group;
pub mod cpu;
pub mod data;
pub mod demand;
pub mod drives;
pub mod environment;
pub(crate) mod held;
mod left_out;
pub mod line;
pub mod make;
pub mod measure;
pub mod memory;
pub mod methods;
pub mod parallel;
pub mod proof;
pub mod run;
pub mod scratch;
pub mod size;
pub mod stats;
pub mod subject;
pub mod target;
pub(crate) mod worker;

use std::cell::RefCell;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use forebay::units::{MIB, format_size};
use forebay::{DirectIo, Engine, Route};
use indicatif::{ProgressBar, ProgressStyle};

use self::ceilings::storage::Storage;
use self::demand::Demand;
use self::left_out::LeftOut;
use self::line::{Line, Others, Plan, Setting};
use self::make::Room;
use self::methods::cufile::{self, Cufile};
use self::run::Run;
use self::size::{Means, Passes};
use self::subject::{Subject, is_folder};
use self::target::Target;
use crate::args::BenchArgs;
use crate::failure::{Failure, Result};
use crate::log;
use crate::program::Program;
use crate::report::json::{Cache, Direction, Environment, Report, SCHEMA};
use crate::report::table;
use crate::report::warnings::{self, Warning};
use crate::stdio::say;
use crate::steps::Step;

/// Compared methods.
const WAYS: u32 = 3;
/// cuFile's settings, in addition.
const CUFILE_WAYS: u32 = 2;
/// Time limit of probing the storage's speed before a size is chosen.
const LOOK: Duration = Duration::from_millis(400);
/// Bytes moved to estimate the rate.
const LOOK_LEN: u64 = 64 * MIB;
/// Bytes read to find out if a route is available.
pub(crate) const TRY_LEN: u64 = MIB;
/// Interval of the spinner's steps.
const TICK: Duration = Duration::from_millis(100);
/// Bytes per second assumed if the storage cannot be probed.
const UNKNOWN_RATE: f64 = 1e9;

/// Runs the verb and shows the report.
pub(crate) fn command(args: &BenchArgs, command: &str, program: &Program) -> Result<()> {
    let report = run(args, command, program)?;
    let text = if args.json {
        report.to_text().map_err(|error| {
            Failure::new("cannot write the report as JSON").because(error.to_string())
        })?
    } else {
        table::render(&report)
    };
    let mut out = anstream::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    report.warnings.iter().for_each(|warning| say(warning));
    verdict(&report, shown.map_err(|error| Failure::stdout(&error)))
}

/// The result of the verb. Wrong data are reported even if stdout was closed.
fn verdict(report: &Report, shown: Result<()>) -> Result<()> {
    match report.results.iter().filter(|row| row.verified == Some(false)).count() {
        0 => shown,
        1 => Err(Failure::new("one method moved wrong data")),
        wrong => Err(Failure::new(format!("{wrong} methods moved wrong data"))),
    }
}

/// Runs the measurements of `args`; `program` is spawned for work that needs a separate process.
///
/// # Errors
/// Engine and system errors, and contradictory arguments.
pub fn run(args: &BenchArgs, command: &str, program: &Program) -> Result<Report> {
    let mut options = crate::limits::limits(program)?;
    options.readers = args.threads.map(usize::from).or(options.readers);
    let engine = Engine::new(options)?;
    let target = Target::find(&engine, args.gpu.as_ref())?;
    target.check(args.route)?;
    let scratch = args.paths.first().is_none_or(|path| is_folder(path));
    let several = args.paths.len() > 1;
    let write = args.write || (!args.read && scratch && !several);
    let mut directions = Vec::new();
    if args.read || !args.write {
        directions.push(Direction::Read);
    }
    if write {
        directions.push(Direction::Write);
    }
    let mut warnings = target.warnings();
    if several {
        let bench = drives::Bench { args, engine, target, directions, write };
        return bench.run(command, warnings);
    }
    let allowed = engine.options().cufile;
    let cufile = find_cufile(&target, program, allowed, &mut warnings);
    let bench = Bench { args, engine, target, directions, write, cufile };
    bench.run(command, &mut warnings)
}

/// cuFile in a child process, if the target is a GPU.
fn find_cufile(
    target: &Target,
    program: &Program,
    allowed: bool,
    warnings: &mut Vec<Warning>,
) -> Option<cufile::Shared> {
    let found = match &target.device {
        None => Err("it moves bytes to and from GPUs, and the target is host memory".to_owned()),
        Some(_) if !allowed => Err("`FOREBAY_CUFILE` is `off`".to_owned()),
        Some(device) => {
            let gpu = (!target.is_simulated()).then(|| device.info().uuid.clone());
            Cufile::start(program, gpu, cufile::Bounds::default())
        }
    };
    match found {
        Ok(cufile) => Some(Rc::new(RefCell::new(cufile))),
        Err(reason) => {
            warnings.push(Warning::NoCufile(reason));
            None
        }
    }
}

/// The parts that one run uses.
struct Bench<'a> {
    args: &'a BenchArgs,
    engine: Engine,
    target: Target,
    directions: Vec<Direction>,
    write: bool,
    /// `None` if cuFile's compat mode is not compared.
    cufile: Option<cufile::Shared>,
}

impl Bench<'_> {
    fn run(&self, command: &str, warnings: &mut Vec<Warning>) -> Result<Report> {
        let subject =
            Subject::find(&self.engine, self.args.paths.first().map(PathBuf::as_path), self.write)?;
        match scratch::remove_leftovers(&subject.folder) {
            0 => {}
            count => warnings.push(Warning::Leftovers(count)),
        }
        let read_path = subject.read_path();
        let place = if subject.given_len().is_some() { &read_path } else { &subject.folder };
        let environment = self.environment(place, command);
        let in_memory = environment.file_system.as_ref().map(|facts| facts.kind.clone());
        let in_memory = in_memory.filter(|kind| matches!(kind.as_str(), "tmpfs" | "ramfs"));
        let caches = self.caches(in_memory.as_deref(), warnings)?;
        let others = self.others(&subject)?;
        let storage =
            in_memory.is_none() && (others != Others::None || caches.contains(&Cache::Cold));
        let fio = environment.versions.fio.is_some();
        if storage && !fio && self.directions.contains(&Direction::Read) {
            warnings.push(Warning::NoFio);
        }
        self.try_route(&subject, self.args.route)?;
        let sizes = self.sizes(&subject, &caches, others, in_memory.is_some(), warnings)?;
        subject.check(&sizes, self.write)?;
        let largest = sizes.iter().copied().max().unwrap_or(MIB);
        self.demand(&subject, largest, in_memory.is_some(), storage).check(largest, "--size")?;
        // Before scratch is made, which takes far longer.
        let mut memory = self.target.allocate(&self.engine, largest)?;
        if self.directions.contains(&Direction::Read) {
            let bar = spinner(subject.given_len().is_none(), largest);
            let made = subject.make_read(largest);
            bar.finish_and_clear();
            made?;
        }
        let mut results = Vec::new();
        let mut left_out = LeftOut::default();
        let plan = Plan {
            directions: &self.directions,
            caches: &caches,
            storage,
            fio,
            route: self.args.route,
            others,
            cufile: self.cufile.is_some(),
        };
        for size in sizes {
            let mut lines = line::plan(&plan);
            self.measure(&subject, &mut memory, size, &mut lines)?;
            left_out.add(&lines);
            let setting = Setting {
                size,
                target: memory.name(),
                simulated: self.target.is_simulated(),
                read_path: subject.name(Direction::Read).display().to_string(),
                write_path: subject.name(Direction::Write).display().to_string(),
                drives: environment.drives.iter().map(|drive| drive.id.clone()).collect(),
            };
            results.extend(line::rows(&lines, &setting));
        }
        warnings.extend(left_out.warnings());
        if results.iter().all(|row| row.method.is_ceiling()) {
            return Err(nothing_measured(warnings));
        }
        warnings.extend(self.engine.notes().into_iter().map(Warning::Engine));
        let mut report = Report { schema: SCHEMA, environment, results, warnings: Vec::new() };
        warnings.extend(warnings::about(&report));
        report.warnings = warnings.iter().map(ToString::to_string).collect();
        Ok(report)
    }

    fn measure(
        &self,
        subject: &Subject,
        memory: &mut memory::Memory,
        size: u64,
        lines: &mut [Line],
    ) -> Result<()> {
        let repeats = self.args.repeats;
        let steps = lines.len() as u64 * u64::from(repeats);
        let bar = progress(steps);
        bar.set_message("making scratch");
        bar.tick();
        let run = Run::new(&self.engine, subject, memory, size, repeats, self.args.route)?;
        let mut run = run.with_cufile(self.cufile.clone());
        let result = run.measure(lines, &mut |line| {
            bar.set_message(line.name());
            bar.inc(1);
        });
        bar.finish_and_clear();
        result
    }

    /// Reads a few bytes by a route, so that an unavailable one fails before scratch is filled.
    fn try_route(&self, subject: &Subject, route: Option<Route>) -> Result<()> {
        let Some(route) = route else { return Ok(()) };
        let len = subject.given_len().unwrap_or(TRY_LEN).min(TRY_LEN);
        subject.make_read(len)?;
        methods::forebay::try_route(&self.engine, &self.target, &subject.read_path(), len, route)
    }

    fn environment(&self, place: &Path, command: &str) -> Environment {
        let info = self.target.device.as_ref().map(|device| device.info());
        let mut environment = environment::collect(place, info, command);
        let cufile = self.cufile.as_ref();
        environment.versions.cufile = cufile.map(|cufile| cufile.borrow().version().to_owned());
        environment
    }

    /// The engine's other routes to show. A GPU has two routes if the file supports O_DIRECT, and
    /// three if the direct route is available.
    fn others(&self, subject: &Subject) -> Result<Others> {
        let two = self.target.device.is_some() && self.args.route.is_none();
        let past = self.engine.options().direct_io != DirectIo::Off;
        if !two || !past || self.has_no_direct_io(subject)? {
            return Ok(Others::None);
        }
        // Most machines lack that route, so there is no warning.
        let direct = self.try_route(subject, Some(Route::Direct));
        Ok(if direct.is_ok() { Others::Direct } else { Others::Staged })
    }

    fn has_no_direct_io(&self, subject: &Subject) -> Result<bool> {
        let path = subject.read_path();
        let _step = Step::begin("read", &path);
        Ok(self.engine.open(&path)?.no_direct_io().is_some())
    }

    /// The host memory that moves of `len` bytes need.
    fn demand(&self, subject: &Subject, len: u64, in_memory: bool, storage: bool) -> Demand {
        let gpu = self.target.device.is_some();
        let host = !gpu || self.target.is_simulated();
        let files = if in_memory { subject.scratch_files(self.write) } else { 0 };
        let storages = if storage { self.directions.len() as u64 } else { 0 };
        let demand =
            Demand::of_comparison(self.engine.options(), len, (host, gpu), files, storages);
        if self.cufile.is_some() { demand.with_process(host) } else { demand }
    }

    /// The page cache states to measure, if the file system allows them.
    fn caches(&self, in_memory: Option<&str>, warnings: &mut Vec<Warning>) -> Result<Vec<Cache>> {
        let both = self.args.cold == self.args.resident;
        let mut caches = Vec::new();
        if both || self.args.cold {
            match in_memory {
                None => caches.push(Cache::Cold),
                Some(kind) if both => warnings.push(Warning::InMemory(kind.into())),
                Some(kind) => {
                    return Err(Failure::new("cannot measure with a cold file")
                        .because(format!("{kind} keeps its files in memory"))
                        .hint("name a path on a drive, or omit `--cold`"));
                }
            }
        }
        if both || self.args.resident {
            caches.push(Cache::Resident);
        }
        Ok(caches)
    }

    /// The sizes that the user requests, or one that suits the machine.
    fn sizes(
        &self,
        subject: &Subject,
        caches: &[Cache],
        others: Others,
        in_memory: bool,
        warnings: &mut Vec<Warning>,
    ) -> Result<Vec<u64>> {
        if !self.args.size.is_empty() {
            return Ok(wanted_sizes(self.args));
        }
        let files = subject.scratch_files(self.write);
        let room = Room::of(&subject.folder)?.usable();
        let cufile = self.cufile.is_some();
        let fixed = self.demand(subject, 0, in_memory, caches.contains(&Cache::Cold)).fixed;
        let means = Means {
            memory: environment::memory().available.saturating_sub(fixed),
            room: (files > 0).then_some(room * 2 / u64::from(files.max(1))),
            // cuFile's process allocates its own memory.
            gpu_memory: self
                .target
                .free_memory()?
                .map(|free| if cufile { free * 2 / 3 } else { free }),
            storage_rate: if in_memory { 2.0 * UNKNOWN_RATE } else { look(subject)? },
            host_target: self.target.device.is_none(),
        };
        let ways = WAYS + if cufile { CUFILE_WAYS } else { 0 };
        let passes = Passes::of(&self.directions, caches, ways, others.count(), files);
        let suitable = size::suitable(means, passes, self.args.repeats);
        Ok(vec![match subject.given_len() {
            Some(whole) if whole > suitable => {
                warnings.push(Warning::Part { len: suitable, whole });
                suitable
            }
            Some(whole) => whole,
            None => suitable,
        }])
    }
}

/// Each `--size` once, in the given order.
fn wanted_sizes(args: &BenchArgs) -> Vec<u64> {
    let mut sizes = Vec::new();
    for size in &args.size {
        if !sizes.contains(size) {
            sizes.push(*size);
        }
    }
    sizes
}

/// Shows a spinner while scratch is made, on a terminal.
pub(crate) fn spinner(scratch: bool, len: u64) -> ProgressBar {
    if !scratch || log::is_on() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.set_message(format!("making {} of scratch", format_size(len)));
    bar.enable_steady_tick(TICK);
    bar
}

/// A progress bar over `steps`. Hidden if stderr is not a terminal, or has log lines.
fn progress(steps: u64) -> ProgressBar {
    if log::is_on() {
        return ProgressBar::hidden();
    }
    ProgressBar::new(steps).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

/// The failure of a run in which every method was left out.
pub(crate) fn nothing_measured(warnings: &[Warning]) -> Failure {
    let mut failure = Failure::new("no method could be measured")
        .hint("try `--resident`, a regular file on another file system, or another size");
    for warning in warnings {
        if let Warning::LeftOut { reason, .. } = warning
            && !failure.causes.contains(reason)
        {
            failure = failure.because(reason);
        }
    }
    failure
}

/// Estimates the rate of the storage, by reading the user's file or writing scratch.
fn look(subject: &Subject) -> Result<f64> {
    let (path, direction, len) = match subject.given_len() {
        Some(len) => (subject.read_path(), Direction::Read, len.min(LOOK_LEN)),
        None => {
            let room = Room::of(&subject.folder)?.usable();
            (subject.read_path(), Direction::Write, LOOK_LEN.min(room / 2))
        }
    };
    match Storage::open(&path, direction, len) {
        Ok(Ok(storage)) => storage.estimate(LOOK),
        // If the rate cannot be measured, a guess is used.
        Ok(Err(_)) | Err(_) => Ok(UNKNOWN_RATE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::tests::report;

    #[test]
    fn wrong_data_fail_the_run_whoever_took_the_report() {
        let gone = || Err(Failure::stdout(&std::io::ErrorKind::BrokenPipe.into()));
        let mut report = report();
        assert_eq!(verdict(&report, gone()).unwrap_err().message, "");
        assert_eq!(verdict(&report, Ok(())), Ok(()));
        report.results[1].verified = Some(false);
        for shown in [Ok(()), gone()] {
            let failure = verdict(&report, shown).unwrap_err();
            assert_eq!(failure.message, "one method moved wrong data");
        }
    }
}

//! `forebay compare`: the GPU file benchmark. The standard method, the engine and the direct route
//! write a file from the GPU and read it back, run by run. Every byte is verified.
//!
//! `file` finds or makes the file, `run` takes the samples, `draw` shows the results, in the words
//! of `report/compared`. Whether bytes went by DMA is decided by the verdict, never by speed.

mod beside;
mod compute;
mod draw;
mod file;
pub mod json;
mod notes;
mod run;
pub mod sockets;

use std::io::Write as _;

use forebay::{Engine, Route};
use forebay_topology::Resolver;

use self::beside::Work;
use self::file::{Allowed, TestFile};
use self::json::{CompareReport, CompareRow, Compared};
use self::run::{Runner, Told, Way};
use self::sockets::Sockets;
use crate::args::{CompareArgs, Mode};
use crate::bench::cache::make_cold;
use crate::bench::data::Pattern;
use crate::bench::demand::Demand;
use crate::bench::line::RowPlace;
use crate::bench::memory::Memory;
use crate::bench::methods::forebay::try_route;
use crate::bench::proof::Prover;
use crate::bench::target::Target;
use crate::bench::{TRY_LEN, environment, make, nothing_measured, scratch, spinner};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::program::Program;
use crate::report::json::{Cache, Environment, SCHEMA};
use crate::report::warnings::{self, Warning};
use crate::steps::{self, Step};

/// Runs the verb: lines as runs end, then the report.
pub(crate) fn command(args: &CompareArgs, command: &str, program: &Program) -> Result<()> {
    interrupt::install();
    // The run ends and is judged even if stdout is closed.
    let mut told = Ok(());
    let mut tell = |text: &str| {
        if !args.json && told.is_ok() {
            told = say(text);
        }
        Ok(())
    };
    let report = run(args, command, program, &mut tell)?;
    let shown = if told.is_err() {
        told
    } else if args.json {
        let text = report.to_text().map_err(|error| {
            Failure::new("cannot write the report as JSON").because(error.to_string())
        })?;
        say(&text)
    } else {
        say(&draw::summary(&report))
    };
    report.warnings.iter().for_each(|warning| warnings::say(warning));
    verdict(&report, shown)
}

/// Shows text on stdout at once.
fn say(text: &str) -> Result<()> {
    let mut out = anstream::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    shown.map_err(|error| Failure::stdout(&error))
}

/// Refuses a comparison without any measurement.
///
/// # Errors
/// The causes say why each method was left out.
fn check_measured(results: &[CompareRow], warnings: &[Warning]) -> Result<()> {
    if !results.is_empty() {
        return Ok(());
    }
    let mut failure = nothing_measured(warnings);
    failure.hint = Some("try `--gpu none`, `-f` with a folder elsewhere, or a smaller `-s`".into());
    Err(failure)
}

/// The exit of the verb. Wrong data are reported even if the output was closed.
fn verdict(report: &CompareReport, shown: Result<()>) -> Result<()> {
    let moved = report.results.iter().all(|row| row.row.verified != Some(false));
    if moved && !report.compare.compute_wrong {
        return shown;
    }
    Err(Failure::new("wrong data were found").hint(
        "`WRONG`, in JSON `verified: false` or `compute_wrong: true`, marks where; ignore the \
         speed there",
    ))
}

/// Runs the comparison of `args`; `tell` gets the text before the report.
///
/// # Errors
/// Engine and system errors, and contradictory arguments.
pub fn run(
    args: &CompareArgs,
    command: &str,
    program: &Program,
    tell: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<CompareReport> {
    let engine = Engine::new(crate::limits::limits(program)?)?;
    let target = Target::find(&engine, args.gpu.as_ref())?;
    target.check((args.mode == Mode::Dma).then_some(Route::Direct))?;
    let allowed = Allowed { files: args.overwrite, devices: args.overwrite_device };
    let file = TestFile::find(args.file.as_deref(), allowed)?;
    let mut warnings = target.warnings();
    match file.remove_leftovers() {
        0 => {}
        count => warnings.push(Warning::Leftovers(count)),
    }
    let info = target.device.as_ref().map(|device| device.info());
    let environment = environment::collect(file.path(), info, command);
    Comparison { args, engine, target, file, environment }.run(warnings, tell)
}

/// The parts that one comparison uses.
struct Comparison<'a> {
    args: &'a CompareArgs,
    engine: Engine,
    target: Target,
    file: TestFile,
    environment: Environment,
}

/// The parts that the runs need.
struct Ready {
    memory: Memory,
    pattern: Pattern,
    cache: Cache,
    ways: Vec<Way>,
    sockets: Option<Sockets>,
}

impl Comparison<'_> {
    fn run(
        self,
        mut warnings: Vec<Warning>,
        tell: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<CompareReport> {
        let mut ready = self.ready(&mut warnings)?;
        let (simulated, runs) = (self.target.is_simulated(), self.args.runs);
        let head = draw::Head {
            environment: &self.environment,
            sockets: ready.sockets.as_ref(),
            path: self.file.name(),
            len: self.args.size,
            cache: ready.cache,
        };
        tell(&head.text(simulated))?;
        let work = self.measure(&mut ready, &mut warnings, tell)?;
        let place = RowPlace {
            target: &ready.memory.name(),
            simulated,
            size: self.args.size,
            paths: vec![self.file.name().display().to_string()],
            drives: self.environment.drives.iter().map(|drive| drive.id.clone()).collect(),
        };
        let results = run::rows(&ready.ways, &place);
        let topology = ready.sockets;
        warnings.extend(topology.as_ref().and_then(Sockets::warning).map(Warning::Engine));
        warnings.extend(self.engine.notes().into_iter().map(Warning::Engine));
        warnings.extend(notes::about(&results, runs));
        let compute_wrong = work.as_ref().is_some_and(Work::found_wrong);
        let compute = work.and_then(|work| work.facts(&results, simulated));
        if !compute_wrong {
            check_measured(&results, &warnings)?;
        }
        let mode = self.args.mode.name().into();
        Ok(CompareReport {
            schema: SCHEMA,
            environment: self.environment.clone(),
            compare: Compared { mode, runs, topology, compute, compute_wrong },
            results,
            warnings: warnings.iter().map(ToString::to_string).collect(),
        })
    }

    /// Checks that everything is available, and makes the files.
    fn ready(&self, warnings: &mut Vec<Warning>) -> Result<Ready> {
        let len = self.args.size;
        let in_memory = self.in_memory();
        self.file.check_room(len)?;
        self.demand(in_memory.is_some()).check(len, "--size")?;
        let key =
            scratch::random().map_err(|error| Failure::io("cannot get random bytes", &error))?;
        let pattern = Pattern::new(key);
        let has_direct = self.has_direct(pattern)?;
        let memory = self.target.allocate(&self.engine, len)?;
        let bar = spinner(true, len);
        let made = make::fill(self.file.path(), pattern, len);
        bar.finish_and_clear();
        made?;
        let cache = self.cache(in_memory, warnings)?;
        let (ways, sockets) = (self.ways(has_direct, cache), self.sockets());
        Ok(Ready { memory, pattern, cache, ways, sockets })
    }

    /// Makes all runs; failed measurements become warnings.
    fn measure(
        &self,
        ready: &mut Ready,
        warnings: &mut Vec<Warning>,
        tell: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Option<Work>> {
        let simulated = self.target.is_simulated();
        let mut runner = Runner {
            engine: &self.engine,
            file: &self.file,
            prover: Prover::new(ready.memory.info()),
            memory: &mut ready.memory,
            len: self.args.size,
            cache: ready.cache,
            pattern: ready.pattern,
        };
        let mut work = self.work(ready.pattern, warnings);
        for run in 1..=self.args.runs {
            let told = &mut |told: &Told| tell(&draw::run(told, simulated));
            runner.run(&mut ready.ways, run, told)?;
            let Some(at_work) = work.as_mut().filter(|work| !work.has_failed()) else { continue };
            let turn = at_work.turn(&mut runner, run);
            match turn.unwrap_or_else(|failure| Err(failure.in_one_line())) {
                Ok(turn) => tell(&draw::turn(&turn, simulated))?,
                Err(reason) => {
                    warnings.push(Warning::NoCompute(reason));
                    if at_work.found_wrong() {
                        tell(&draw::kernel_wrong(run, simulated))?;
                    }
                }
            }
        }
        for way in &ready.ways {
            if let Some(reason) = way.left_out() {
                let rows = vec![way.name.clone()];
                warnings.push(Warning::LeftOut { rows, reason: reason.into() });
            }
        }
        Ok(work)
    }

    /// The methods, in the order of the table.
    fn ways(&self, has_direct: bool, cache: Cache) -> Vec<Way> {
        let must = self.args.mode == Mode::Dma;
        let mut ways = vec![Way::standard(cache)];
        if !must {
            ways.push(Way::ours(&self.engine, None, true, cache));
        }
        if has_direct {
            ways.push(Way::ours(&self.engine, Some(Route::Direct), must, cache));
        }
        ways
    }

    /// The GPU's own work, if requested and available.
    fn work(&self, pattern: Pattern, warnings: &mut Vec<Warning>) -> Option<Work> {
        if self.args.mode != Mode::All {
            return None;
        }
        match Work::new(&self.engine, &self.target, self.args.size, pattern) {
            Ok(work) => Some(work),
            Err(failure) => {
                warnings.push(Warning::NoCompute(failure.in_one_line()));
                None
            }
        }
    }

    /// The sockets of the GPU and the drives.
    fn sockets(&self) -> Option<Sockets> {
        let info = self.target.device.as_ref()?.info();
        let _step = Step::begin("inspect", self.file.path());
        Sockets::look(&Resolver::default(), self.file.path(), &info.pci_address)
    }

    /// Whether the direct route between this file and the GPU is available.
    ///
    /// # Errors
    /// Errors of the route, if it is required.
    fn has_direct(&self, pattern: Pattern) -> Result<bool> {
        if self.target.device.is_none() {
            return Ok(false);
        }
        let len = match self.file.given_len() {
            // The contents of the user's file must not be lost for an unavailable route.
            Some(len) => len,
            None => {
                let len = TRY_LEN.min(self.args.size);
                make::fill(self.file.path(), pattern, len)?;
                len
            }
        };
        let tried = try_route(&self.engine, &self.target, self.file.path(), len, Route::Direct);
        match tried {
            Err(failure) if self.args.mode == Mode::Dma => Err(failure
                .hint("`forebay doctor` reports what the route requires; `-m compare` omits it")),
            // A machine without that route is the common case, and needs no note.
            tried => Ok(tried.is_ok()),
        }
    }

    /// The file system, if it keeps its files in memory.
    fn in_memory(&self) -> Option<String> {
        let kind = self.environment.file_system.as_ref().map(|facts| facts.kind.clone());
        kind.filter(|kind| matches!(kind.as_str(), "tmpfs" | "ramfs"))
    }

    /// The required page cache state: cold, if the pages can be evicted.
    fn cache(&self, in_memory: Option<String>, warnings: &mut Vec<Warning>) -> Result<Cache> {
        let reason = match in_memory {
            Some(kind) => format!("{kind} keeps its files in memory"),
            None => {
                let file = steps::open(&self.engine, self.file.path())?;
                match make_cold(&file, self.args.size)? {
                    Ok(()) => return Ok(Cache::Cold),
                    Err(reason) => reason,
                }
            }
        };
        warnings.push(Warning::Resident(reason));
        Ok(Cache::Resident)
    }

    /// The host memory that it needs.
    fn demand(&self, in_memory: bool) -> Demand {
        let gpu = self.target.device.is_some();
        let host = !gpu || self.target.is_simulated();
        let (options, files) = (self.engine.options(), u32::from(in_memory));
        let demand = Demand::of_comparison(options, self.args.size, (host, gpu), files, 0);
        Demand { link: 0, ..demand }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_that_measured_nothing_has_failed() {
        let left_out = |name: &str, reason: &str| Warning::LeftOut {
            rows: vec![name.into()],
            reason: reason.into(),
        };
        let warnings =
            [left_out("standard", "the device is gone"), left_out("forebay", "so it is")];
        let failure = check_measured(&[], &warnings).unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert_eq!(failure.causes, ["the device is gone", "so it is"]);
        assert!(failure.hint.unwrap().contains("`--gpu none`"));
    }
}

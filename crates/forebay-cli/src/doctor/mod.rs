//! `forebay doctor`: whether bytes of a path can go to a GPU directly, and what to do about it;
//! with `--tree` the storage map ([`crate::map`]).
//!
//! The package `forebay_doctor` examines. This module makes a transfer of a few MiB in both
//! directions (`transfers`), and shows the output: [`json`]'s plain data, and `draw`.

mod draw;
pub mod json;
mod record;
mod transfers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::gpu::GpuSelector;
use forebay::{Engine, Route};
use forebay_cufile::probe_cufile;
use forebay_doctor::{self as doctor, Answer, GpuWish, Wish};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::plain::json_lines;
use forebay_measure::program::Program;
use forebay_measure::stdio;
use forebay_measure::target::Target;
use forebay_topology::System;

use self::json::{DoctorReport, End, Transfer};
use self::transfers::Moved;
use crate::args::DoctorArgs;
use crate::bench::progress;
use crate::map::{self, look::Look};
use crate::reach;
use crate::values::Format;

/// Time limit for cuFile: it was seen to open in 0.4 s, and to hang without end.
const CUFILE_MAX: Duration = Duration::from_secs(5);

/// Runs the verb.
pub(crate) fn command(args: &DoctorArgs, command: &str, program: &Program) -> Result<()> {
    if args.paths.len() > 1 && !args.tree {
        return Err(Failure::usage("cannot diagnose several paths")
            .hint("give one path, or `--tree` for the drives under all of them"));
    }
    let (system, paths) = match &args.fixture {
        Some(dir) => record::open(dir, &args.paths)?,
        None => {
            let here = || vec![PathBuf::from(".")];
            let paths = if args.paths.is_empty() { here() } else { args.paths.clone() };
            (reach::system(program, &paths, !args.tree || args.extents), paths)
        }
    };
    if args.tree && args.record.is_none() {
        return map::command(args, system, &paths, command);
    }
    // A map may be of paths that do not exist.
    let answers = args.tree || args.fixture.is_some() || answers(&system, &paths[0])?;
    let gpu = args.gpu.as_ref().map_or(GpuWish::First, wish_of);
    let wish = |path: &PathBuf| Wish { path: path.clone(), gpu: gpu.clone() };
    if let Some(dir) = &args.record {
        let wishes: Vec<Wish> = paths.iter().map(wish).collect();
        return stdio::print(&record::write(
            &system,
            &wishes,
            has_gpu(&system).then(|| cufile(program)),
            dir,
            args.tree,
        )?);
    }
    let report = match &args.fixture {
        Some(dir) => {
            let found = doctor::examine(&system, &wish(&paths[0]), record::answer(dir)?);
            DoctorReport::of(found, Some(dir.display().to_string()))
        }
        None => examined(&system, &paths[0], answers, args, program)?,
    };
    finish(&report, args)
}

/// Whether `path` answers.
fn answers(system: &System, path: &Path) -> Result<bool> {
    match system.reach(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Ok(false),
        Err(error) => Err(Failure::at("inspect", path, &error)
            .hint("give an existing file, folder or block device")),
    }
}

/// Examines this machine, and moves bytes.
fn examined(
    system: &System,
    path: &Path,
    answers: bool,
    args: &DoctorArgs,
    program: &Program,
) -> Result<DoctorReport> {
    let engine = Engine::new(program.engine_options()?)?;
    let (gpu, steps) = (args.gpu.as_ref(), progress(2, args.quiet));
    let target = Target::find(&engine, gpu);
    let device = target.as_ref().ok().and_then(|target| target.device.as_ref());
    let real = device.filter(|device| !device.info().simulated);
    // A GPU that the driver does not show may still exist.
    let wish = real.map(|device| GpuWish::At(device.info().pci_address.clone()));
    let wish = wish.unwrap_or_else(|| gpu.map_or(GpuWish::First, wish_of));
    steps.set_message(format!("opening cuFile's driver, at most {} s", CUFILE_MAX.as_secs()));
    let opened = (real.is_some() || has_gpu(system)).then(|| cufile(program));
    steps.inc(1);
    // An engine would wait for cuFile longer than this verb.
    let is_simulated = device.is_some() && real.is_none();
    let direct = opened.as_ref().filter(|_| !is_simulated).and_then(closed);
    let found = doctor::examine(system, &Wish { path: path.to_owned(), gpu: wish }, opened);
    let mut report = DoctorReport::of(found, None);
    report.target = target.as_ref().ok().map(Target::name);
    steps.set_message("moving bytes by each route");
    let nothing = |reason| Moved { ended: Some(reason), ..Moved::default() };
    let moved = match &target {
        Ok(target) if answers => transfers::all(transfers::BOUND, &engine, target, path, direct),
        Ok(_) => nothing("the path does not answer".into()),
        Err(failure) => Moved { has_failed: true, ..nothing(failure.in_one_line()) },
    };
    steps.finish_and_clear();
    report.broken |= moved.has_failed || moved.transfers.iter().any(Transfer::has_failed);
    (report.transfers, report.not_moved) = (moved.transfers, moved.ended);
    report.sentence = match &target {
        Ok(target) => sentence(&report, target),
        Err(failure) => format!("nothing was moved: {}", failure.in_one_line()),
    };
    report.answer = report.answer();
    Ok(report)
}

/// Why the direct route should not be tried.
fn closed((seen, _): &Answer) -> Option<String> {
    let why = || seen.failed.clone().unwrap_or_else(|| "cuFile's driver does not open".into());
    (!seen.opened).then(why)
}

/// The route of the bytes: the first, in order of preference, that moved all of them.
fn sentence(report: &DoctorReport, target: &Target) -> String {
    let is_whole = |transfer: &&Transfer| {
        let mut routes = transfer.routes.iter().map(|share| share.route);
        transfer.end == End::Moved && routes.all(|route| route == transfer.required)
    };
    let path = &report.found.path;
    let to = match (&report.found.gpu, &target.device) {
        (Some(gpu), Some(_)) => format!("to {gpu}"),
        (_, Some(_)) if target.is_simulated() => "to a simulated GPU".to_owned(),
        (_, Some(device)) => format!("to {}", device.info().name),
        (_, None) => "to host memory, since no GPU is available".to_owned(),
    };
    let way = match report.transfers.iter().find(is_whole).map(|transfer| transfer.required) {
        Some(Route::Direct) => " without a copy in host memory",
        Some(Route::Host) => "",
        Some(_) => " through pinned host memory",
        None => return format!("nothing was moved, so the data path of `{path}` is unknown"),
    };
    format!("bytes of `{path}` travel {to}{way}")
}

/// Shows a report; the verdict is the command's.
fn finish(report: &DoctorReport, args: &DoctorArgs) -> Result<()> {
    stdio::print(&match args.format == Format::Json {
        true => json_lines(report)?,
        false if args.quiet => draw::answer(report, Look::of_stdout()) + "\n",
        false => draw::render(report, args.verbose, Look::of_stdout()),
    })?;
    if !report.broken {
        return Ok(());
    }
    let mut failure =
        Failure::new(format!("a part of the data path of `{}` does not work", report.found.path));
    for check in report.found.checks.iter().filter(|check| check.is_broken) {
        failure = failure.because(format!("{}: {}", check.name, check.seen));
    }
    for transfer in report.transfers.iter().filter(|transfer| transfer.has_failed()) {
        let reason = transfer.reason.as_deref().unwrap_or("unknown");
        let (direction, route) = (transfer.direction.name(), &transfer.required);
        failure = failure.because(format!("{direction} by `{route}`: {reason}"));
    }
    if let Some(reason) = report.not_moved.as_ref().filter(|_| failure.causes.is_empty()) {
        failure = failure.because(reason);
    }
    let broken = report.found.checks.iter().find(|check| check.is_broken);
    let is_direct = |one: &Transfer| one.has_failed() && one.required == Route::Direct;
    failure.hint = broken.and_then(|check| check.step.clone()).or_else(|| {
        let text = "`FOREBAY_CUFILE=off` disables cuFile until the cause is fixed";
        report.transfers.iter().any(is_direct).then(|| text.into())
    });
    Err(failure)
}

/// Whether cuFile's driver may open: without a GPU it fails, or spins until its time is up.
fn has_gpu(system: &System) -> bool {
    !forebay_topology::gpus(system).is_empty()
}

/// What cuFile reports in a child process.
fn cufile(program: &Program) -> Answer {
    probe_cufile(&program.verb("probe"), CUFILE_MAX)
}

/// The requested GPU, as far as a system without its driver can identify it.
fn wish_of(gpu: &GpuSelector) -> GpuWish {
    match gpu {
        GpuSelector::None => GpuWish::None("`--gpu none` was given".into()),
        GpuSelector::Sim(_) => GpuWish::None("a simulated GPU is not on PCI".into()),
        GpuSelector::Cuda(name) => {
            let index = name.strip_prefix("cuda:").unwrap_or(name).parse();
            match index {
                Ok(index) => GpuWish::Index(index),
                Err(_) if name.contains(':') => GpuWish::At(name.to_ascii_lowercase()),
                Err(_) => GpuWish::None(format!("only the driver knows which GPU `{name}` is")),
            }
        }
        _ => GpuWish::First,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_measure::results::Direction;
    use forebay_measure::results::verdict::VerdictFacts;

    fn verdict(word: &str) -> VerdictFacts {
        VerdictFacts {
            word: word.into(),
            text: format!("100 % {word}"),
            shares: Vec::new(),
            simulated: false,
            grounds: Vec::new(),
            missing: Vec::new(),
            contradictions: Vec::new(),
            doubts: Vec::new(),
            claim: serde_json::Value::Null,
        }
    }

    #[test]
    fn a_transfer_that_counters_refute_has_failed() {
        let ends = |word: &str, required| {
            let mut transfer = Transfer::new(Direction::Read, required);
            transfer.verdict = Some(verdict(word));
            transfer.judged().has_failed()
        };
        let direct = Route::Direct;
        assert!(ends("compat", direct) && ends("contradictory", direct));
        assert!(!ends("direct (nvidia-fs)", direct) && !ends("unproven", direct));
        assert!(!ends("contradictory", Route::Staged), "others may read the same drive");
    }

    #[test]
    fn a_gpu_is_meant_by_index_or_address() {
        let wish = |text: &str| wish_of(&text.parse().unwrap());
        assert_eq!(wish("2"), GpuWish::Index(2));
        assert_eq!(wish("cuda:1"), GpuWish::Index(1));
        assert_eq!(wish("0000:1B:00.0"), GpuWish::At("0000:1b:00.0".into()));
        assert_eq!(wish("auto"), GpuWish::First);
        for text in ["none", "sim", "GPU-12345678"] {
            assert!(matches!(wish(text), GpuWish::None(_)), "{text}");
        }
    }
}

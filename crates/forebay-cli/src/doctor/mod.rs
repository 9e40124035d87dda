//! `forebay doctor`: whether bytes of a path can go to a GPU directly, and what to do about it;
//! with `--map` the storage map ([`crate::map`]).
//!
//! The package `forebay_doctor` examines. This module makes a transfer of a few MiB in each
//! direction (`transfers`), and has the output: [`json`]'s plain data, and `draw`.

mod draw;
pub mod json;
mod transfers;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::direct::ask_cufile;
use forebay::gpu::GpuSelector;
use forebay_doctor::{self as doctor, Answer, GpuWish, Report, Wish};
use forebay_topology::System;

use self::json::DoctorReport;
use crate::args::DoctorArgs;
use crate::bench::target::Target;
use crate::failure::{Failure, Result};
use crate::map::{self, look::Look};
use crate::program::Program;
use crate::reach;
use crate::report::proof::VerdictFacts;

/// Time limit for cuFile: it was seen to open in 0.4 s, and to hang without end.
const CUFILE_MAX: Duration = Duration::from_secs(5);

/// Runs the verb.
pub(crate) fn command(args: &DoctorArgs, command: &str, program: &Program) -> Result<()> {
    if args.map {
        return map::command(args, command, program);
    }
    let path = match &args.paths[..] {
        [] => None,
        [path] => Some(path.clone()),
        _ => {
            return Err(Failure::usage("cannot diagnose several paths at once")
                .hint("give one path, or `--map` for the drives under all of them"));
        }
    };
    if let Some(dir) = &args.fixture {
        let report = replayed(dir, path.as_deref(), args.gpu.as_ref())?;
        return finish(&DoctorReport::of(&report, Some(dir.display().to_string())), args);
    }
    let path = path.unwrap_or_else(|| PathBuf::from("."));
    let system = reach::system(program, std::slice::from_ref(&path), true);
    let answers = answers(&system, &path)?;
    if let Some(dir) = &args.record {
        let gpu = args.gpu.as_ref().map_or(GpuWish::First, wish_of);
        return recorded(&system, &Wish { path, gpu }, dir, program);
    }
    let report = examined(&system, &path, answers, args.gpu.as_ref(), program)?;
    finish(&report, args)
}

/// Whether `path` answers.
fn answers(system: &System, path: &Path) -> Result<bool> {
    match system.reach(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Ok(false),
        Err(error) => Err(Failure::io(format!("cannot inspect `{}`", path.display()), &error)
            .hint("give an existing file, folder or block device")),
    }
}

/// Examines this machine, and moves bytes.
fn examined(
    system: &System,
    path: &Path,
    answers: bool,
    gpu: Option<&GpuSelector>,
    program: &Program,
) -> Result<DoctorReport> {
    let engine = transfers::engine(program)?;
    let opened = cufile(program);
    let (wish, target) = match Target::find(&engine, gpu) {
        Ok(target) => {
            let wish = match &target.device {
                Some(device) if !target.is_simulated() => {
                    GpuWish::At(device.info().pci_address.clone())
                }
                _ => gpu.map_or(GpuWish::First, wish_of),
            };
            (wish, Ok(target))
        }
        // A GPU that the driver does not show may still exist.
        Err(failure) => (gpu.map_or(GpuWish::First, wish_of), Err(failure)),
    };
    let wish = Wish { path: path.to_owned(), gpu: wish };
    let direct = closed(opened.as_ref(), target.as_ref().is_ok_and(Target::is_simulated));
    let found = doctor::examine(system, &wish, opened);
    let mut report = DoctorReport::of(&found, None);
    match target {
        Ok(target) => {
            let name = target.device.as_ref().map_or("host".into(), |gpu| gpu.id().to_string());
            report.target = Some(name);
            let moved = match answers {
                true => transfers::all(&engine, &target, path, direct),
                false => transfers::Moved::nothing("the path does not answer"),
            };
            (report.transfers, report.not_moved) = (moved.transfers, moved.ended);
            report.transfers.iter_mut().for_each(json::Transfer::judge);
            let failed = report.transfers.iter().any(json::Transfer::has_failed);
            report.broken |= failed || moved.has_failed;
            report.sentence = sentence(&found, &report, &target);
        }
        Err(failure) => {
            report.not_moved = Some(transfers::words(&failure));
            report.sentence = format!("nothing was moved: {}", transfers::words(&failure));
            report.broken = true;
        }
    }
    report.answer = answer(&report);
    Ok(report)
}

/// Why the direct route should not be tried: an engine would wait for cuFile longer than this verb.
fn closed(answer: Option<&Answer>, is_simulated: bool) -> Option<String> {
    match answer {
        _ if is_simulated => None,
        Some((seen, _)) if seen.opened => None,
        Some((seen, _)) => {
            Some(seen.failed.clone().unwrap_or_else(|| "cuFile's driver does not open".into()))
        }
        None => Some("could not check whether cuFile's driver opens".into()),
    }
}

/// Whether bytes go to the GPU directly, and what is missing if not.
fn answer(report: &DoctorReport) -> String {
    let tried = || report.transfers.iter().filter(|transfer| transfer.is_direct());
    if let Some(moved) = tried().rfind(|transfer| transfer.is_right()) {
        return match moved.verdict.as_ref().filter(|verdict| verdict.word != "unproven") {
            Some(verdict) => format!("yes. Counters verify it: {}", verdict.text),
            None => "yes, as cuFile reports; no counter verifies it".into(),
        };
    }
    let is_simulated = report.target.as_deref().is_some_and(|target| target.starts_with("sim:"));
    let class = report.checks.iter().find(|check| check.name == "gpu_class");
    if let (None, false, Some(class)) = (&report.gpu, is_simulated, class) {
        return format!("no. {}", class.seen);
    }
    let Some(way) = report.ways.first() else { return "unknown".into() };
    if way.open {
        return match tried().find_map(|transfer| transfer.reason.as_deref()) {
            Some(reason) => format!("no. No check rules it out, but {reason}"),
            None => format!("possible by {}. Nothing was moved to verify it", way.way),
        };
    }
    let (count, needs) = (way.needs.len(), way.needs.join(", "));
    match count {
        0 => format!("no. {} is closed", way.way),
        1 => format!("no. 1 thing missing for {}: {needs}", way.way),
        _ => format!("no. {count} things missing for {}: {needs}", way.way),
    }
}

/// The route of the bytes.
fn sentence(found: &Report, report: &DoctorReport, target: &Target) -> String {
    let went = |route: &str| {
        let mut asked = report.transfers.iter().filter(|transfer| transfer.demanded == route);
        asked.any(|transfer| {
            transfer.is_right() && transfer.routes.iter().all(|share| share.route == route)
        })
    };
    let path = &found.path;
    let to = match (&found.gpu, &target.device) {
        (Some(gpu), Some(_)) => format!("to {gpu}"),
        (_, Some(_)) if target.is_simulated() => "to a simulated GPU".to_owned(),
        (_, Some(device)) => format!("to {}", device.info().name),
        (_, None) => "to host memory, since no GPU is available".to_owned(),
    };
    if went("direct") {
        let mut asked = report.transfers.iter().filter(|transfer| transfer.demanded == "direct");
        // The read is the last.
        return directly(path, &to, asked.next_back().and_then(|last| last.verdict.as_ref()));
    }
    if went("staged") || went("cached") {
        return format!("bytes of `{path}` travel {to} through pinned host memory");
    }
    if went("host") {
        return format!("bytes of `{path}` travel {to}");
    }
    format!("nothing was moved, so the data path of `{path}` is unknown")
}

/// The evidence on bytes that were reported as direct.
fn directly(path: &str, to: &str, verdict: Option<&VerdictFacts>) -> String {
    match verdict.map(|verdict| (verdict.word.as_str(), &verdict.text)) {
        Some((word, text)) if word.starts_with("direct") => {
            format!("bytes of `{path}` travel {to} without a copy in host memory: {text}")
        }
        None | Some(("unproven", _)) => {
            format!("bytes of `{path}` travel {to} directly, as cuFile says; no counter proves it")
        }
        Some((_, text)) => {
            format!("cuFile says that bytes of `{path}` travel {to} directly, but counters: {text}")
        }
    }
}

/// Shows a report; the verdict is the command's.
fn finish(report: &DoctorReport, args: &DoctorArgs) -> Result<()> {
    let text = if args.json {
        report.to_text().map_err(|error| {
            Failure::new("cannot write the diagnosis as JSON").because(error.to_string())
        })?
    } else {
        draw::render(report, args.verbose, Look::of_stdout())
    };
    show(&text)?;
    if !report.broken {
        return Ok(());
    }
    let mut failure =
        Failure::new(format!("a part of the data path of `{}` does not work", report.path));
    for check in report.checks.iter().filter(|check| check.broken) {
        failure = failure.because(format!("{}: {}", check.name, check.seen));
    }
    for transfer in report.transfers.iter().filter(|transfer| transfer.has_failed()) {
        let reason = transfer.reason.as_deref().unwrap_or("unknown");
        let (direction, route) = (&transfer.direction, &transfer.demanded);
        failure = failure.because(format!("{direction} by `{route}`: {reason}"));
    }
    if let Some(reason) = report.not_moved.as_ref().filter(|_| failure.causes.is_empty()) {
        failure = failure.because(reason);
    }
    let step = report.checks.iter().find(|check| check.broken).and_then(|c| c.step.clone());
    let is_direct = |transfer: &json::Transfer| transfer.has_failed() && transfer.is_direct();
    Err(match step {
        Some(step) => failure.hint(step),
        None if report.transfers.iter().any(is_direct) => {
            failure.hint("`FOREBAY_CUFILE=off` disables cuFile until the cause is fixed")
        }
        None => failure,
    })
}

fn show(text: &str) -> Result<()> {
    let mut out = anstream::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    shown.map_err(|error| Failure::stdout(&error))
}

/// What cuFile reports in a child process.
fn cufile(program: &Program) -> Option<Answer> {
    Some(ask_cufile(&program.verb("probe"), CUFILE_MAX))
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

fn recorded(system: &System, wish: &Wish, dir: &Path, program: &Program) -> Result<()> {
    let cannot = |error: &std::io::Error| {
        let failure = Failure::io(format!("cannot write a record to `{}`", dir.display()), error);
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => failure.hint("give the path of a new folder"),
            _ => failure,
        }
    };
    doctor::record(system, wish, cufile(program), dir).map_err(|error| cannot(&error))?;
    let (path, dir) = (wish.path.display(), dir.display());
    show(&format!(
        "recorded  {path} to {dir}\n\
         masked    names of file servers, names and passwords of users in mount options, keys of \
         encrypted volumes, all variables but cuFile's, comments and paths in its settings\n\
         kept      paths, mount points, addresses, serial numbers of drives: check the record \
         before you share it\n\
         replay    forebay doctor --fixture {dir}\n"
    ))
}

/// The diagnosis of the recorded system in `dir`.
fn replayed(dir: &Path, path: Option<&Path>, gpu: Option<&GpuSelector>) -> Result<Report> {
    let cannot = |error: &std::io::Error| {
        Failure::io(format!("cannot replay `{}`", dir.display()), error)
            .hint("give a folder that `forebay doctor --record` made")
    };
    let system = System::fixture(dir).map_err(|error| cannot(&error))?;
    let answer = doctor::recorded_answer(dir).map_err(|error| cannot(&error))?;
    let first = || system.recorded_paths().into_iter().next();
    let path = path.map(Path::to_owned).or_else(first).ok_or_else(|| {
        Failure::new(format!("cannot replay `{}`", dir.display()))
            .because("its record names no path")
            .hint("give a folder that `forebay doctor --record` made")
    })?;
    let gpu = gpu.map_or(GpuWish::First, wish_of);
    Ok(doctor::examine(&system, &Wish { path, gpu }, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn directly_is_said_where_it_is_proven() {
        let said = |word: &str| directly("/p", "to a GPU", Some(&verdict(word)));
        assert!(said("direct (p2pdma)").ends_with("host memory: 100 % direct (p2pdma)"));
        assert!(said("unproven").ends_with("no counter proves it"));
        assert!(said("compat").starts_with("cuFile says") && said("compat").contains("compat"));
        assert!(directly("/p", "to a GPU", None).contains("as cuFile says"));
    }

    #[test]
    fn a_library_that_lies_has_failed() {
        let ends = |word: &str, demanded: &str| {
            let mut transfer = json::Transfer {
                direction: "read".into(),
                demanded: demanded.into(),
                end: "moved".into(),
                bytes: 1,
                seconds: 0.0,
                routes: Vec::new(),
                verdict: Some(verdict(word)),
                reason: None,
            };
            transfer.judge();
            transfer.has_failed()
        };
        assert!(ends("compat", "direct") && ends("contradictory", "direct"));
        assert!(!ends("direct (nvidia-fs)", "direct") && !ends("unproven", "direct"));
        assert!(!ends("contradictory", "staged"), "others may read the same drive");
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

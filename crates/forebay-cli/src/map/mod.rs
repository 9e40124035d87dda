//! `forebay doctor --map`: the storage below a path, down to the drives, and their distance from
//! each GPU.
//!
//! `gather` turns the topology's answers into [`json`]'s plain data. `draw` shows them and
//! `warnings` finds settings that cost speed; both are pure. `record` writes a record of a system.

mod draw;
mod extents;
mod gather;
pub mod json;
pub(crate) mod look;
mod record;
mod warnings;
mod words;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use forebay_topology::{Resolver, System};

use self::json::MapReport;
use self::look::Look;
use crate::args::DoctorArgs;
use crate::bench::environment;
use crate::failure::{Failure, Result};
use crate::program::Program;
use crate::reach;
use crate::stdio::say;

/// Shows or records the map.
pub(crate) fn command(args: &DoctorArgs, command: &str, program: &Program) -> Result<()> {
    let paths = |paths: &[PathBuf]| match paths {
        [] => vec![PathBuf::from(".")],
        paths => paths.to_vec(),
    };
    if let Some(dir) = &args.record {
        let paths = paths(&args.paths);
        return show(&record::record(&reach::system(program, &paths, false), &paths, dir)?);
    }
    let (system, paths) = match &args.fixture {
        None => {
            let paths = paths(&args.paths);
            (reach::system(program, &paths, args.extents), paths)
        }
        Some(dir) => replayed(dir, &args.paths)?,
    };
    let resolver = Resolver::new(system);
    let mut report = gather::gather(&resolver, &paths, args.fixture.as_deref(), args.extents);
    if args.json && args.fixture.is_none() {
        report.environment = Some(environment::of_machine(command, report.drives.clone()));
    }
    report.warnings = warnings::all(&report);
    let text = if args.json {
        report.to_text().map_err(|error| {
            Failure::new("cannot write the map as JSON").because(error.to_string())
        })?
    } else {
        draw::render(&report, Look::of_stdout())
    };
    let shown = show(&text);
    for warning in &report.warnings {
        // With a single path, its name can be omitted.
        match warning.path.as_ref().filter(|_| report.maps.len() > 1) {
            Some(path) => say(&format!("{path}: {}", warning.text)),
            None => say(&warning.text),
        }
    }
    verdict(&report, shown)
}

fn show(text: &str) -> Result<()> {
    let mut out = anstream::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    shown.map_err(|error| Failure::stdout(&error))
}

/// How the verb ends: a path that could not be mapped fails it, after the others were shown.
fn verdict(report: &MapReport, shown: Result<()>) -> Result<()> {
    let mut failures = report.failures.iter().map(|failed| {
        let failure = Failure::new(format!("cannot map `{}`", failed.path)).because(&failed.reason);
        match &report.replay {
            Some(dir) => failure
                .hint(format!("`forebay doctor --map --fixture {dir}` shows what is recorded")),
            None => failure,
        }
    });
    let Some(last) = failures.next_back() else { return shown };
    failures.for_each(|failure| failure.print());
    Err(last)
}

/// The recorded system in `dir`, and the paths to show.
fn replayed(dir: &Path, paths: &[PathBuf]) -> Result<(System, Vec<PathBuf>)> {
    let system = System::fixture(dir).map_err(|error| {
        Failure::io(format!("cannot replay `{}`", dir.display()), &error)
            .hint("give a folder that `forebay doctor --map --record` made")
    })?;
    let recorded = system.recorded_paths();
    if recorded.is_empty() && paths.is_empty() {
        return Err(Failure::new(format!("cannot replay `{}`", dir.display()))
            .because("its record names no path")
            .hint("give a folder that `forebay doctor --map --record` made"));
    }
    let paths = if paths.is_empty() { recorded } else { paths.to_vec() };
    Ok((system, paths))
}

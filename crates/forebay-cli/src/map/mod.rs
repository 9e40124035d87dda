//! `forebay doctor --tree`: the storage below a path, down to the drives, and their distance from
//! each GPU.
//!
//! `gather` turns the topology's answers into [`json`]'s plain data. `draw` shows them, `warnings`
//! finds settings that cost speed, `ceilings` what the parts can carry, and `rows` what a benchmark
//! of the path cannot show; these are pure.

mod ceilings;
mod draw;
mod extents;
mod gather;
pub mod json;
pub(crate) mod look;
pub(crate) mod rows;
mod warnings;
mod words;

use std::path::PathBuf;

use forebay_measure::environment;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::plain::json_lines;
use forebay_measure::results::file;
use forebay_measure::stdio::{self, say};
use forebay_topology::{Ceiling, Resolver, System, Way};

pub(crate) use self::gather::gather;
use self::json::MapReport;
use self::look::Look;
pub use self::warnings::between_sockets;
use crate::args::DoctorArgs;
use crate::values::Format;

/// Shows the map of `paths` on `system`.
pub(crate) fn command(
    args: &DoctorArgs,
    system: System,
    paths: &[PathBuf],
    command: &str,
) -> Result<()> {
    let is_json = args.format == Format::Json;
    let resolver = Resolver::new(system);
    let mut report = gather::gather(&resolver, paths, args.fixture.as_deref(), args.extents);
    if let Some(file) = &args.measured {
        report.measured = ceilings::shares(&report, resolver.system(), &file::read(file)?, file)?;
        report.ceilings = ceilings::rows(&report, resolver.system(), &report.measured);
    }
    if is_json && args.fixture.is_none() {
        report.environment = Some(environment::of_machine(command, report.drives.clone()));
    }
    report.warnings = warnings::all(&report);
    let shown = stdio::print(&match is_json {
        true => json_lines(&report)?,
        false => draw::render(&report, Look::of_stdout()),
    });
    for warning in &report.warnings {
        // With a single path, its name can be omitted.
        match warning.path.as_ref().filter(|_| report.maps.len() > 1) {
            Some(path) => say(&format!("{path}: {}", warning.text)),
            None => say(&warning.text),
        }
    }
    verdict(&report, shown)
}

/// The most that this machine reads from the drives behind some paths, or writes to them; and
/// whether they are elsewhere.
pub(crate) fn of_host(resolver: &Resolver, paths: &[PathBuf], way: Way) -> Option<(Ceiling, bool)> {
    ceilings::of_host(&gather(resolver, paths, None, false), resolver.system(), way)
}

/// How the verb ends: a path that could not be mapped fails it, after the rest was shown.
fn verdict(report: &MapReport, shown: Result<()>) -> Result<()> {
    let mut failures = report.failures.iter().map(|failed| {
        let failure = Failure::new(format!("cannot map `{}`", failed.path)).because(&failed.reason);
        match &report.replay {
            Some(dir) => failure
                .hint(format!("`forebay doctor --tree --fixture {dir}` shows what is recorded")),
            None => failure,
        }
    });
    let Some(last) = failures.next_back() else { return shown };
    failures.for_each(|failure| failure.print());
    Err(last)
}

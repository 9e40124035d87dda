//! Warnings of settings that cost speed, each with the next thing to try.
//!
//! One table of rules, each a pure function of the report. `steps` checks the storage of one path,
//! `drives` checks drives, links and GPUs. A rule is silent about unknown facts.

mod drives;
mod steps;

use super::json::{MapReport, Warning};
use super::words::Scene;

/// Most names that a warning lists.
const NAMES_MAX: usize = 4;

/// One possible problem.
pub(crate) struct Rule {
    /// Its name in JSON.
    pub(crate) name: &'static str,
    check: Check,
}

enum Check {
    /// Checks one path.
    Path(fn(&Scene<'_>) -> Vec<Found>),
    /// Checks the drives and GPUs of all paths.
    Machine(fn(&MapReport) -> Vec<Found>),
}

/// A finding of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The steps or drives that it is about.
    about: Vec<String>,
    text: String,
}

impl Found {
    fn new(about: &str, text: String) -> Self {
        Self { about: vec![about.to_owned()], text }
    }
}

/// Every rule, in the order in which warnings are printed: the most costly and most certain first.
pub(crate) const RULES: [Rule; 22] = [
    path("silent", steps::silent),
    machine("drive_link", drives::link),
    machine("bridge", drives::bridge),
    machine("across_sockets", drives::across_sockets),
    machine("path_down", drives::path_down),
    path("degraded", steps::degraded),
    path("rebuilding", steps::rebuilding),
    path("suspended", steps::suspended),
    path("one_member", steps::one_member),
    path("shared_hardware", steps::shared_hardware),
    path("encrypted_volume", steps::encrypted_volume),
    path("encrypted_file", steps::encrypted_file),
    path("compressed", steps::compressed),
    path("loop_without_direct_io", steps::loop_device),
    path("overlay", steps::overlay),
    path("program", steps::program),
    path("indirect_volume", steps::indirect_volume),
    path("misaligned", steps::misaligned),
    path("synchronous", steps::synchronous),
    path("tcp", steps::tcp),
    path("one_connection", steps::one_connection),
    machine("spinning", drives::spinning),
];

const fn path(name: &'static str, check: fn(&Scene<'_>) -> Vec<Found>) -> Rule {
    Rule { name, check: Check::Path(check) }
}

const fn machine(name: &'static str, check: fn(&MapReport) -> Vec<Found>) -> Rule {
    Rule { name, check: Check::Machine(check) }
}

/// The warnings of all rules. A warning of several paths is reported once, as the machine's.
pub(crate) fn all(report: &MapReport) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = Vec::new();
    for rule in &RULES {
        let found = match rule.check {
            Check::Machine(check) => check(report).into_iter().map(|found| (None, found)).collect(),
            Check::Path(check) => {
                let of_map = |map| {
                    let found = check(&Scene { report, map }).into_iter();
                    found.map(|found| (Some(map.path.clone()), found))
                };
                report.maps.iter().flat_map(of_map).collect::<Vec<_>>()
            }
        };
        for (path, Found { about, text }) in found {
            let same = |other: &&mut Warning| other.rule == rule.name && other.text == text;
            match warnings.iter_mut().find(same) {
                Some(known) => {
                    known.path = known.path.take().filter(|known| Some(known) == path.as_ref())
                }
                None => warnings.push(Warning { rule: rule.name.into(), path, about, text }),
            }
        }
    }
    warnings
}

/// The first few of the names in backticks, and how many more there are.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(|name| format!("`{name}`")).collect::<Vec<_>>();
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests;

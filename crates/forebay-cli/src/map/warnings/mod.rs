//! Warnings of settings that cost speed, each with the next thing to try.
//!
//! One table of rules, each a pure function of the report. `steps` checks the storage of a path,
//! `drives` checks drives, links and GPUs. A rule is silent about unknown facts.

mod drives;
mod steps;

use super::json::{MapReport, Step, Warning};
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
    /// Checks each step of these kinds, or of any kind if there are none.
    Step(&'static [&'static str], fn(&Scene<'_>, &Step) -> steps::Text),
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
    step("silent", &[], steps::silent),
    machine("drive_link", drives::link),
    machine("bridge", drives::bridge),
    machine("across_sockets", drives::across_sockets),
    machine("path_down", drives::path_down),
    step("degraded", &["md", "file_system", "device_mapper"], steps::degraded),
    step("rebuilding", &["md"], steps::rebuilding),
    step("suspended", &["device_mapper"], steps::suspended),
    step("one_member", &[], steps::one_member),
    machine("shared_hardware", drives::shared_hardware),
    step("encrypted_volume", &["device_mapper"], steps::encrypted_volume),
    step("encrypted_file", &["path"], steps::encrypted_file),
    step("compressed", &["path", "file_system"], steps::compressed),
    step("loop_without_direct_io", &["loop"], steps::loop_device),
    step("overlay", &["file_system"], steps::overlay),
    step("program", &["file_system"], steps::program),
    step("indirect_volume", &["device_mapper"], steps::indirect_volume),
    step("misaligned", &["partition"], steps::misaligned),
    step("synchronous", &["mount"], steps::synchronous),
    step("tcp", &["network", "nvme_controller"], steps::tcp),
    step("one_connection", &["network"], steps::one_connection),
    machine("spinning", drives::spinning),
];

const fn step(
    name: &'static str,
    kinds: &'static [&'static str],
    check: fn(&Scene<'_>, &Step) -> steps::Text,
) -> Rule {
    Rule { name, check: Check::Step(kinds, check) }
}

const fn machine(name: &'static str, check: fn(&MapReport) -> Vec<Found>) -> Rule {
    Rule { name, check: Check::Machine(check) }
}

/// The warnings of all rules. A warning of several paths is reported once, as the machine's.
pub(crate) fn all(report: &MapReport) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = Vec::new();
    for rule in &RULES {
        let mut add = |path: Option<&String>, Found { about, text }| {
            let same = |other: &&mut Warning| other.rule == rule.name && other.text == text;
            let path = path.cloned();
            match warnings.iter_mut().find(same) {
                Some(known) => known.path = path.filter(|path| known.path.as_ref() == Some(path)),
                None => warnings.push(Warning { rule: rule.name.into(), path, about, text }),
            }
        };
        match rule.check {
            Check::Machine(check) => check(report).into_iter().for_each(|found| add(None, found)),
            Check::Step(kinds, check) => {
                for map in &report.maps {
                    let is_of = |step: &Step| kinds.is_empty() || kinds.contains(&&*step.kind);
                    for (_, step) in map.walk().filter(|(_, step)| is_of(step)) {
                        if let Some(text) = check(&Scene { report, map }, step) {
                            add(Some(&map.path), Found::new(&step.name, text));
                        }
                    }
                }
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

//! Diagnoses of machines that are made by hand: whole ones, ones with a single fault, and hostile
//! ones.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "../../../forebay/tests/lab/mod.rs"]
mod lab;

mod devices;
mod faults;
mod hostile;
mod machine;
mod peers;
mod record;
mod recorded;
mod settings;
mod silent;
#[allow(dead_code, reason = "another test builds other systems with it")]
#[path = "../../../forebay-topology/tests/topology/tree.rs"]
mod tree;
mod unseen;
mod whole;

use forebay_doctor::{Check, Report, State};
use tempfile::TempDir;

/// A folder for many small files: in memory where it can be.
fn scratch() -> TempDir {
    let folder = lab::memory_folder().or_else(|_| tempfile::tempdir());
    folder.expect("a temporary folder")
}

/// The check of this name.
#[track_caller]
fn check<'a>(report: &'a Report, name: &str) -> &'a Check {
    report.check(name).unwrap_or_else(|| panic!("no `{name}` in {report:#?}"))
}

/// The names of the checks that came out so.
fn those(report: &Report, state: State) -> Vec<&'static str> {
    let found = report.checks.iter().filter(|check| check.state == state);
    found.map(|check| check.name).collect()
}

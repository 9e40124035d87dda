//! The wheels for Pythons without a GIL, which have no stable interface: one for each version,
//! built from maturin's knowledge of it. They are tried if there is such a Python.

use super::aarch64;
use super::interpreters::{self, Interpreter};
use super::native::{self, PROCESSOR};
use super::workshop::Workshop;
use crate::process::Result;
use crate::report::Report;

/// The only one so far: PyO3 supports none before.
const VERSION: (u32, u32) = (3, 14);

/// The tag in the wheel's name.
const TAG: &str = "-cp314-cp314t-";

const ARGUMENTS: [&str; 3] = ["--interpreter", "python3.14t", "--no-default-features"];

pub(super) fn run(report: &mut Report, workshop: &Workshop) -> Result<()> {
    let name = format!("{PROCESSOR}-3.14t");
    let target = format!("{PROCESSOR}-unknown-linux-gnu");
    let wheel = workshop.wheel(report, &name, &target, &ARGUMENTS)?;
    if let Some(wheel) = &wheel {
        let is_tagged = wheel.to_string_lossy().contains(TAG);
        report.step(&format!("wheels: {name}: says that it is for 3.14t"), is_tagged);
    }
    if PROCESSOR != "aarch64" && aarch64::target(&workshop.root).is_ok() {
        workshop.wheel(report, "aarch64-3.14t", aarch64::TARGET, &ARGUMENTS)?;
    }
    let Some(wheel) = wheel else { return Ok(()) };
    let all = interpreters::all()?.into_iter().filter(|python| python.is_free_threaded);
    let (tried, others): (Vec<Interpreter>, Vec<Interpreter>) =
        all.partition(|python| python.version == VERSION);
    for python in others {
        let name = python.name();
        report.skip(format!("wheels: Python {name}: PyO3 makes free-threaded wheels for 3.14t"));
    }
    if tried.is_empty() {
        let remedy = "`python3.14t` in `PATH` or `FOREBAY_PYTHONS`";
        report.skip(format!("wheels: Python 3.14t: its tests: no such Python here ({remedy})"));
    }
    tried.iter().try_for_each(|python| native::tests(report, workshop, python, &wheel))
}

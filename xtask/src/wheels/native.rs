//! The wheel for this machine's processor: it is installed into an empty environment, without even
//! NumPy, and must import quickly and pass the package's tests there.

use std::path::Path;
use std::process::Command;

use super::interpreters::{self, Interpreter};
use super::workshop::{Workshop, pip};
use crate::process::{self, Result, say};
use crate::python::{PYTEST, suite};
use crate::report::Report;

/// Maximum seconds of an import, without a GPU, CUDA, cuFile or NumPy.
const IMPORT_MAX: f64 = 0.050;

/// Transfers that must leak no memory: in this release build they take seconds.
const TRANSFERS: &str = "1000000";

/// Processes that import it, each once.
const IMPORTS: usize = 21;

const IMPORT: &str = "\
import importlib.util, time
assert importlib.util.find_spec('numpy') is None, 'numpy is there'
start = time.perf_counter()
import forebay
print(time.perf_counter() - start)
";

/// The name of this machine's processor in targets and wheels.
pub(super) const PROCESSOR: &str = std::env::consts::ARCH;

pub(super) fn run(report: &mut Report, workshop: &Workshop) -> Result<()> {
    let target = format!("{PROCESSOR}-unknown-linux-gnu");
    let Some(wheel) = workshop.wheel(report, PROCESSOR, &target, &[])? else { return Ok(()) };
    let python = workshop.environment("native", &workshop.system)?;
    let installed = process::succeeds(pip(&python).arg("--no-index").arg(&wheel))?;
    report.step("wheels: native: installs without anything else", installed);
    if !installed {
        return Ok(());
    }
    report.step("wheels: native: smoke", workshop.smoke(&python)?.is_some());
    let took = import(&python)?;
    say!(
        "wheels: imports in {:.1} ms (median of {IMPORTS} processes), at most {:.0} ms",
        took * 1e3,
        IMPORT_MAX * 1e3
    );
    report.step("wheels: native: the time of an import", took < IMPORT_MAX);
    process::must_succeed(pip(&python).arg("pytest==9.*"))?;
    let name = "wheels: native".to_owned();
    let mut million = Command::new(&python);
    million.args(PYTEST).env("FOREBAY_TRANSFERS", TRANSFERS);
    suite(report, name, &workshop.root, &mut million)?;
    let all = interpreters::all()?;
    let mut others = all.iter().filter(|python| !python.is_free_threaded);
    others.try_for_each(|python| tests(report, workshop, python, &wheel))
}

/// Installs a wheel for one more Python, and runs the package's tests there.
pub(super) fn tests(
    report: &mut Report,
    workshop: &Workshop,
    interpreter: &Interpreter,
    wheel: &Path,
) -> Result<()> {
    let name = format!("wheels: Python {}", interpreter.name());
    say!("{name}: {}", interpreter.program.display());
    let python = workshop.environment(&interpreter.name(), &interpreter.program)?;
    let installed = process::succeeds(pip(&python).arg(wheel).arg("pytest==9.*"))?;
    report.step(&format!("{name}: installs"), installed);
    if !installed {
        return Ok(());
    }
    report.step(&format!("{name}: smoke"), workshop.smoke(&python)?.is_some());
    suite(report, name, &workshop.root, Command::new(&python).args(PYTEST))
}

/// Seconds of an import: the median of several processes.
fn import(python: &Path) -> Result<f64> {
    let mut all = Vec::new();
    for _ in 0..IMPORTS {
        let printed = process::output(Command::new(python).args(["-I", "-c", IMPORT]))?;
        let took = printed.trim().parse::<f64>();
        all.push(took.map_err(|error| format!("an import printed `{printed}`: {error}"))?);
    }
    all.sort_by(f64::total_cmp);
    Ok(all[IMPORTS / 2])
}

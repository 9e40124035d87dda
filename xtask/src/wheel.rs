//! `cargo xtask wheel`: the Python package as a release wheel for this machine, installed into an
//! empty environment and tested there. `.github/workflows/wheels.yml` builds the wheels that are
//! published.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{entries, failed, remove};
use crate::process::{self, Result, say};
use crate::python::{self, PYTEST, suite};
use crate::report::Report;
use crate::test;

/// Maximum bytes of a wheel.
const WHEEL_MAX: u64 = 4_300_000;

/// Transfers that must leak no memory: seconds in a release build.
const TRANSFERS: &str = "1000000";

/// Builds the wheel and checks it.
pub(crate) fn run(report: &mut Report, root: &Path) -> Result<()> {
    let home = test::target(root)?.join("wheel");
    let empty = || python::environment(&python::system()?, &home.join("empty"), &[]);
    let (maturin, python) = match maturin(root).and_then(|maturin| Ok((maturin, empty()?))) {
        Ok(made) => made,
        Err(reason) => {
            report.skip(format!("wheel: {reason}"));
            return Ok(());
        }
    };
    let wheel = build(root, &maturin);
    report.step("wheel: builds", wheel.is_ok());
    let Ok(wheel) = wheel else { return Ok(()) };
    let bytes = fs::metadata(&wheel).map_err(failed(&wheel))?.len();
    say!("wheel: {}: {bytes} bytes, at most {WHEEL_MAX}", wheel.display());
    report.step("wheel: size", bytes < WHEEL_MAX);

    let installed = python::pip(&python, &["--no-index", &wheel.to_string_lossy()])?;
    report.step("wheel: installs without other packages", installed);
    if !installed {
        return Ok(());
    }
    let mut smoke = Command::new(&python);
    smoke.arg("-I").arg(root.join("xtask/smoke.py")).current_dir(&home);
    report.step("wheel: smoke", process::succeeds(&mut smoke)?);
    report.step("wheel: installs pytest", python::pip(&python, &["pytest==9.*"])?);
    let mut pytest = Command::new(&python);
    pytest.args(PYTEST).env("FOREBAY_TRANSFERS", TRANSFERS);
    suite(report, "wheel", root, &mut pytest)
}

/// A Python with maturin, or why there is none.
pub(crate) fn maturin(root: &Path) -> Result<PathBuf> {
    let home = test::target(root)?.join("wheel/tools");
    python::environment(&python::system()?, &home, &["maturin==1.9.6"])
}

/// Builds the wheel with `maturin`.
pub(crate) fn build(root: &Path, maturin: &Path) -> Result<PathBuf> {
    let dist = test::target(root)?.join("wheel/dist");
    remove(&dist)?;
    let mut build = Command::new(maturin);
    build.current_dir(root).args(["-m", "maturin", "build", "--quiet", "--profile=wheel", "--out"]);
    process::must_succeed(build.arg(&dist).env("PATH", process::full_path()))?;
    entries(&dist)?.pop().ok_or_else(|| "maturin built no wheel".into())
}

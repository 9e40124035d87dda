//! The Python package: built as a wheel into a fresh environment, and tested there.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{entries, remove};
use crate::process::{self, Result, say};
use crate::report::{Report, TestOutput};
use crate::test::target;

/// Fails below the oldest Python that the package is made for.
const IS_NEW: &str = "import sys; sys.exit(sys.version_info < (3, 11))";

/// The tests' requirements besides the package; anything else that is missing skips its own tests.
const NEEDED: [&str; 5] = ["maturin==1.9.6", "pytest==9.*", "mypy==2.*", "numpy", "fusepy"];

/// The command that runs the tests, after the interpreter, from the root of the repository.
pub(crate) const PYTEST: [&str; 6] =
    ["-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests"];

/// Builds the wheel, installs it into a fresh environment, and runs the package's tests, its
/// documentation's examples, and the check of its types.
pub(crate) fn run(root: &Path) -> Result<Report> {
    let mut report = Report::default();
    if let Some(python) = install(&mut report, root)? {
        suite(&mut report, "Python", root, Command::new(&python).args(PYTEST))?;
        types(&mut report, root, &python)?;
    }
    Ok(report)
}

/// The Python of a fresh environment with the package; `None` if it cannot be made.
fn install(report: &mut Report, root: &Path) -> Result<Option<PathBuf>> {
    let home = target(root)?.join("python");
    let python = match system().and_then(|system| environment(&system, &home, &NEEDED)) {
        Ok(python) => python,
        Err(reason) => {
            report.skip(format!("Python package: {reason}"));
            return Ok(None);
        }
    };
    let wheels = home.join("wheels");
    let mut build = Command::new(&python);
    build.current_dir(root).args(["-m", "maturin", "build", "--quiet", "--profile", "dev"]);
    // In the same place as the other crates' builds, whose parts it shares, while tests run.
    build.env("CARGO_BUILD_JOBS", "1");
    let built =
        process::succeeds(build.arg("--out").arg(&wheels).env("PATH", process::full_path()))?;
    report.step("Python wheel", built);
    if !built {
        return Ok(None);
    }
    let wheel = entries(&wheels)?.pop().ok_or("maturin built no wheel")?;
    let installed = pip(&python, &["--no-deps", "--force-reinstall", &wheel.to_string_lossy()])?;
    report.step("Python wheel installs", installed);
    Ok(installed.then_some(python))
}

/// The Python of this machine, or why it does not suit the package.
pub(crate) fn system() -> Result<PathBuf> {
    let system = process::find("python3").ok_or("no `python3`")?;
    let new = process::succeeds(Command::new(&system).args(["-c", IS_NEW]))?;
    new.then_some(system).ok_or_else(|| "`python3` is older than 3.11".into())
}

/// A fresh environment of `system` with `packages` in `home`, or why there is none.
pub(crate) fn environment(system: &Path, home: &Path, packages: &[&str]) -> Result<PathBuf> {
    remove(home)?;
    let made = Command::new(system).args(["-m", "venv"]).arg(home).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return Err("`python3 -m venv` fails (on Debian: install `python3-venv`)".into());
    }
    let python = home.join("bin/python");
    match packages.is_empty() || pip(&python, packages)? {
        true => Ok(python),
        false => Err(format!("`pip` cannot fetch {}", packages.join(", "))),
    }
}

/// Installs packages by the `pip` of an environment; returns whether it succeeded.
pub(crate) fn pip(python: &Path, arguments: &[&str]) -> Result<bool> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    process::succeeds(pip.args(arguments))
}

/// Kills many writers of checkpoints and changes many files, in the environment of [`run`].
pub(crate) fn slow(report: &mut Report, root: &Path) -> Result<()> {
    let python = target(root)?.join("python/bin/python");
    if !python.exists() {
        report.skip("long tests of Python: no environment for the package");
        return Ok(());
    }
    long(report, "Python, long", root, &python, "killed or interrupt or test_changed")
}

/// Runs tests that are longer with `FOREBAY_STRESS`, chosen by a filter of `pytest`.
pub(crate) fn long(
    report: &mut Report,
    name: &str,
    root: &Path,
    python: &Path,
    filter: &str,
) -> Result<()> {
    let mut pytest = Command::new(python);
    pytest.args(PYTEST).args(["-k", filter]).env("FOREBAY_STRESS", "60");
    suite(report, name, root, &mut pytest)
}

/// Runs the tests by a command that ends with [`PYTEST`], and counts them as those of `name`.
pub(crate) fn suite(
    report: &mut Report,
    name: &str,
    root: &Path,
    pytest: &mut Command,
) -> Result<()> {
    pytest.current_dir(root).env("XDG_CACHE_HOME", root.join("target/test-cache"));
    let mut output = TestOutput::default();
    // Printed at once: other tests may run and print at the same time.
    let mut printed = format!("\n== {name}");
    let succeeded = process::each_line(pytest, |_, line| {
        count(&mut output.counts, name, line);
        printed = format!("{printed}\n{line}");
    })?;
    say!("{printed}");
    report.add(name, output, succeeded);
    Ok(())
}

/// Counts the results in a line of `pytest`.
fn count(counts: &mut Report, name: &str, line: &str) {
    // `SKIPPED [2] python/tests/test_torch.py:10: no torch`
    if let Some(rest) = line.strip_prefix("SKIPPED [") {
        let (count, reason) = rest.split_once("] ").unwrap_or(("1", rest));
        let reason = reason.split_once(": ").map_or(reason, |(_, reason)| reason);
        let count = count.parse().unwrap_or(1);
        counts.skipped.extend((0..count).map(|_| format!("{name}: {reason}")));
    }
    if let Some(test) = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR ")) {
        counts.failures.push(test.into());
    }
    // `3 failed, 20 passed, 2 skipped in 1.23s`, or `in 83.21s (0:01:23)`
    let (line, _) = line.split_once(" (").unwrap_or((line, ""));
    if line.contains(" in ") && line.ends_with('s') {
        for (number, what) in line.split(", ").filter_map(|part| part.split_once(' ')) {
            let number: u64 = number.trim_start_matches(['=', ' ']).parse().unwrap_or(0);
            match what.split_whitespace().next().unwrap_or_default() {
                "passed" => counts.passed = number,
                "failed" | "error" | "errors" => counts.failed += number,
                _ => {}
            }
        }
    }
}

/// The package's types: its own, and whether the compiled part matches its stub.
fn types(report: &mut Report, root: &Path, python: &Path) -> Result<()> {
    let mypy = |folder: &Path, arguments: &[&str]| {
        let mut command = Command::new(python);
        command.current_dir(folder).env("MYPY_CACHE_DIR", "/dev/null");
        process::succeeds(command.args(arguments))
    };
    let strict = ["-m", "mypy", "--strict", "forebay"];
    report.step("Python types", mypy(&root.join("python"), &strict)?);
    // Checks the installed package: the source folder has no compiled part.
    let allowed = root.join("python/stubtest.txt");
    let allowed = allowed.to_string_lossy();
    let stubs = ["-m", "mypy.stubtest", "forebay._forebay", "--allowlist", &allowed];
    report.step("Python stubs", mypy(&target(root)?, &stubs)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_pytest_are_counted() {
        let mut output = Report::default();
        for line in [
            "SKIPPED [2] python/tests/test_torch.py:10: no torch",
            "FAILED python/tests/test_files.py::test_a - AssertionError",
            "1 failed, 394 passed, 12 skipped in 505.60s (0:08:25)",
        ] {
            count(&mut output, "Python", line);
        }
        assert_eq!((output.passed, output.failed, output.failures.len()), (394, 1, 1));
        assert_eq!(output.skipped, ["Python: no torch", "Python: no torch"]);
        count(&mut output, "Python", "20 passed in 1.23s");
        assert_eq!(output.passed, 20);
    }
}

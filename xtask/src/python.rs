//! The Python package: built as a wheel into a fresh environment, and tested there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, Result, say};
use crate::report::Report;
use crate::test::target;

/// The oldest Python that the package is made for.
const OLDEST: (u32, u32) = (3, 11);

/// The tests' requirements besides the package; anything else that is missing skips its own tests.
const NEEDED: [&str; 5] = ["maturin==1.9.6", "pytest==9.*", "mypy==2.*", "numpy", "fusepy"];

/// The command that runs the tests, after the interpreter, from the root of the repository.
pub(crate) const PYTEST: [&str; 6] =
    ["-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests"];

/// Builds the wheel, installs it into a fresh environment, and runs the package's tests, its
/// documentation's examples, and the check of its types.
pub(crate) fn run(report: &mut Report, root: &Path) -> Result<()> {
    let home = target(root)?.join("python");
    let python = match system().and_then(|system| environment(&system, &home, &NEEDED)) {
        Ok(python) => python,
        Err(reason) => {
            report.skip(format!("Python package: {reason}"));
            return Ok(());
        }
    };
    let wheels = home.join("wheels");
    let mut build = Command::new(&python);
    build.current_dir(root).args(["-m", "maturin", "build", "--quiet", "--profile", "dev"]);
    // In the same place as the other crates' builds, whose parts it shares.
    build.arg("--out").arg(&wheels).env("PATH", process::full_path());
    let built = process::succeeds(&mut build)?;
    report.step("Python wheel", built);
    if !built {
        return Ok(());
    }
    let install = |arguments: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]);
        process::succeeds(pip.args(arguments))
    };
    let wheel = files(&wheels).pop().ok_or("maturin built no wheel")?;
    let installed = install(&[&wheel.to_string_lossy()])?;
    report.step("Python wheel installs", installed);
    tests(report, root, &python)?;
    types(report, root, &python)
}

/// The Python of this machine, or why it does not suit the package.
pub(crate) fn system() -> Result<PathBuf> {
    let system = process::find("python3").ok_or("no `python3`")?;
    let asked = process::output(
        Command::new(&system).args(["-c", "import sys; print(*sys.version_info[:2])"]),
    )?;
    let mut numbers = asked.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST {
        return Err(format!("`python3` is {}.{}, older than 3.11", version.0, version.1));
    }
    Ok(system)
}

/// A fresh environment of `system` with `packages` in `home`, or why there is none.
pub(crate) fn environment(system: &Path, home: &Path, packages: &[&str]) -> Result<PathBuf> {
    if home.exists() {
        fs::remove_dir_all(home).map_err(|error| format!("an old environment stays: {error}"))?;
    }
    let made = Command::new(system).args(["-m", "venv"]).arg(home).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return Err("`python3 -m venv` fails (on Debian: install `python3-venv`)".into());
    }
    let python = home.join("bin/python");
    if packages.is_empty() {
        return Ok(python);
    }
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    match process::succeeds(&mut pip)? {
        true => Ok(python),
        false => Err(format!("`pip` cannot fetch {}", packages.join(", "))),
    }
}

/// The tests, which report their own skips.
fn tests(report: &mut Report, root: &Path, python: &Path) -> Result<()> {
    suite(report, "Python".to_owned(), root, Command::new(python).args(PYTEST))
}

/// Kills many writers of checkpoints and changes many files, in the environment of [`run`].
pub(crate) fn slow(report: &mut Report, root: &Path) -> Result<()> {
    let python = target(root)?.join("python/bin/python");
    if !python.exists() {
        report.skip("long tests of Python: no environment for the package");
        return Ok(());
    }
    long(report, "Python, long", root, &python, "killed_at_any_moment or test_changed")
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
    suite(report, name.to_owned(), root, &mut pytest)
}

/// Runs the tests by a command that ends with [`PYTEST`], and counts them as those of `name`.
pub(crate) fn suite(
    report: &mut Report,
    name: String,
    root: &Path,
    pytest: &mut Command,
) -> Result<()> {
    pytest.current_dir(root).env("XDG_CACHE_HOME", root.join("target/test-cache"));
    let mut outcome = Outcome::of(name);
    let succeeded = process::each_line(pytest, |_, line| {
        outcome.read(line);
        say!("{line}");
    })?;
    outcome.add_to(report, succeeded);
    Ok(())
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

/// The output of `pytest`.
#[derive(Debug, Default)]
struct Outcome {
    name: String,
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
    failures: Vec<String>,
}

impl Outcome {
    fn of(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    fn read(&mut self, line: &str) {
        // `SKIPPED [2] python/tests/test_torch.py:10: no torch`
        if let Some(rest) = line.strip_prefix("SKIPPED [") {
            let (count, reason) = rest.split_once("] ").unwrap_or(("1", rest));
            let reason = reason.split_once(": ").map_or(reason, |(_, reason)| reason);
            let count = count.parse().unwrap_or(1);
            self.skipped.extend((0..count).map(|_| format!("{}: {reason}", self.name)));
        }
        if let Some(test) = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR ")) {
            self.failures.push(test.into());
        }
        // `3 failed, 20 passed, 2 skipped in 1.23s`, or `in 83.21s (0:01:23)`
        let (line, _) = line.split_once(" (").unwrap_or((line, ""));
        if line.contains(" in ") && line.ends_with('s') {
            for (number, what) in line.split(", ").filter_map(|part| part.split_once(' ')) {
                let Ok(number) = number.trim_start_matches(['=', ' ']).parse::<u64>() else {
                    continue;
                };
                match what.split_whitespace().next().unwrap_or_default() {
                    "passed" => self.passed = number,
                    "failed" | "error" | "errors" => self.failed += number,
                    _ => {}
                }
            }
        }
    }

    fn add_to(&self, report: &mut Report, succeeded: bool) {
        report.add_counts(&self.name, (self.passed, self.failed), &self.skipped, &self.failures);
        if !succeeded && self.failed == 0 {
            report.step(&format!("{}: tests", self.name), false);
        }
    }
}

/// The contents of a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn the_last_line_of_pytest_is_counted() {
        let mut outcome = Outcome::of("Python".to_owned());
        for line in [
            "SKIPPED [2] python/tests/test_torch.py:10: no torch",
            "FAILED python/tests/test_files.py::test_a - AssertionError",
            "1 failed, 20 passed, 2 skipped in 1.23s",
        ] {
            outcome.read(line);
        }
        assert_eq!((outcome.passed, outcome.failed), (20, 1));
        assert_eq!(outcome.skipped, ["Python: no torch", "Python: no torch"]);
        assert_eq!(outcome.failures.len(), 1);
    }
    #[test]
    fn a_run_of_minutes_is_counted_as_well() {
        let mut outcome = Outcome::of("Python".to_owned());
        outcome.read("1 failed, 394 passed, 12 skipped in 505.60s (0:08:25)");
        assert_eq!((outcome.passed, outcome.failed), (394, 1));
    }
}

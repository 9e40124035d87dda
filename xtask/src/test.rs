//! `cargo xtask test`: everything that must hold before a change is accepted, in a single
//! command and a last line `N passed, N failed, N skipped`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use crate::executables::{self, Built, Executable};
use crate::folders::{failed, make, remove};
use crate::process::{self, Result, say};
use crate::report::Report;
use crate::{bundle, cufile, lab, pages, prepare, python, sanitize, servers, soak, tidy, wheel};

/// Bytes of the file that the README's examples read.
const EXAMPLE_FILE_LEN: usize = 4 << 20;

/// Tests that mostly wait, for other processes and for clocks, with the threads that they get.
const WAITING: [(&str, &str); 3] = [
    ("forebay-cli test cli", "--test-threads=8"),
    ("forebay-layers test layers", "--test-threads=4"),
    ("xtask test bars", "--test-threads=2"),
];

/// Test executables that run at once: on two cores, one at a time leaves the processors idle for
/// 60 % of the time.
const AT_ONCE: usize = 2;

/// Runs every step, also after a failure, so that a single run shows all faults.
pub(crate) fn run(root: &Path, all: bool, install: bool) -> Result<bool> {
    let start = Instant::now();
    let mut report = Report::default();
    prepare::run(&mut report, all, install);
    cufile::prepare(&mut report, root)?;
    let wheels_of_cufile = cufile::folder(root)?;
    let surround = |command: &mut Command| {
        command.current_dir(root).env("PATH", process::full_path());
        command.env(cufile::VARIABLE, &wheels_of_cufile);
    };
    let cargo = |arguments: &[&str]| {
        let mut command = process::cargo();
        surround(&mut command);
        command.args(arguments);
        command
    };

    component(&mut report, "format", cargo(&["fmt", "--version"]), cargo(&["fmt", "--check"]));
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    component(&mut report, "clippy", cargo(&["clippy", "--version"]), cargo(&clippy));
    heading("tidy");
    report.step("tidy", tidy::run(root)?);
    match process::find("typos") {
        Some(typos) => {
            let mut typos = Command::new(typos);
            report.step("typos", process::succeeds(typos.current_dir(root))?);
        }
        None => report.skip("typos: no `typos` (`cargo install typos-cli`)"),
    }

    heading("build of the tests");
    let built = Built::new(&mut cargo(&["test", "--workspace"]));
    report.step("build of the tests", built.is_ok());
    let built = built.unwrap_or_default();
    heading("tests");
    let tests = |report: &mut Report, options: &[&str]| {
        let mut documents = cargo(&["test", "--workspace", "--doc", "--no-fail-fast", "--"]);
        let apart = || executables::run(report, "documentation tests", &mut documents, options);
        at_once(&built.tests, surround, options, apart)
            .into_iter()
            .for_each(|own| report.merge(own));
    };
    // The Python package is built by one job and its tests have one thread.
    thread::scope(|scope| {
        let python = scope.spawn(|| python::run(root));
        tests(&mut report, &[]);
        report.merge(python.join().map_err(|_| "Python's tests panicked")??);
        Ok::<_, String>(())
    })?;
    heading("micro-benchmarks");
    // Under `cargo test` a benchmark is built quickly and runs every case once, so that all work.
    let mut benches = cargo(&["test", "--workspace", "--bench", "*", "--", "--test"]);
    report.step("micro-benchmarks", process::succeeds(&mut benches)?);
    readme(&mut report, root, built.library.as_deref())?;
    if all {
        heading("slow tests");
        tests(&mut report, &["--ignored"]);
        slow(&mut report, root, cargo)?;
    }
    say!("\ntook {} s", start.elapsed().as_secs());
    Ok(report.finish())
}

/// Runs test executables on [`AT_ONCE`] threads, each with its own report, and `apart` at the same
/// time.
fn at_once(
    tests: &[Executable],
    surround: impl Fn(&mut Command) + Sync,
    options: &[&str],
    apart: impl FnOnce(),
) -> Vec<Report> {
    let threads_of = |test: &Executable| WAITING.iter().find(|(name, _)| *name == test.name);
    // The executables with most threads run longest, so they begin first.
    let (first, others): (Vec<_>, Vec<_>) =
        tests.iter().partition(|test| threads_of(test).is_some());
    let next = Mutex::new(first.into_iter().chain(others));
    let lane = || {
        let mut own = Report::default();
        let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(test) = take() {
            let mut command = Command::new(&test.file);
            surround(&mut command);
            command.current_dir(&test.folder).env("CARGO_MANIFEST_DIR", &test.folder);
            command.args(threads_of(test).map(|(_, threads)| threads));
            executables::run(&mut own, &test.name, &mut command, options);
        }
        own
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(lane)).collect();
        apart();
        lanes.into_iter().map(|lane| lane.join().expect("a report cannot panic")).collect()
    })
}

/// Prints the name and time of the next step.
fn heading(name: &str) {
    static START: OnceLock<Instant> = OnceLock::new();
    say!("\n== {name} (after {} s)", START.get_or_init(Instant::now).elapsed().as_secs());
}

/// Runs a step whose program is a part of the toolchain that may not be installed.
fn component(report: &mut Report, name: &str, mut version: Command, mut step: Command) {
    heading(name);
    let there = version.output().is_ok_and(|output| output.status.success());
    if there {
        report.step(name, process::succeeds(&mut step).unwrap_or(false));
    } else {
        report.skip(format!("{name}: not part of the installed toolchain"));
    }
}

/// Runs the README's Rust examples as documentation tests, in a folder with the file they read.
fn readme(report: &mut Report, root: &Path, library: Option<&Path>) -> Result<()> {
    let target = target(root)?;
    let folder = target.join("readme");
    make(&folder)?;
    let bytes: Vec<u8> = (0_u8..=250).cycle().take(EXAMPLE_FILE_LEN).collect();
    fs::write(folder.join("model.safetensors"), bytes).map_err(failed(&folder))?;
    let Some(library) = library else {
        report.step("README's examples", false);
        return Ok(());
    };
    let rustdoc = std::env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into());
    let mut command = Command::new(rustdoc);
    command.current_dir(&folder).args(["--edition", "2024", "--crate-name", "readme", "--test"]);
    command.arg(root.join("README.md"));
    command.arg("-L").arg(format!("dependency={}", target.join("debug/deps").display()));
    command.arg("--extern").arg(format!("forebay={}", library.display()));
    command.arg("--test-args"); // the option that follows is for the tests, not for rustdoc
    executables::run(report, "README's examples", &mut command, &[]);
    Ok(())
}

/// Checks the dependencies against `deny.toml`; their advisories if these can be fetched.
fn dependencies(report: &mut Report, cargo: impl Fn(&[&str]) -> Command) -> Result<()> {
    if process::find("cargo-deny").is_none() {
        report.skip("dependencies: no `cargo-deny` (`cargo install cargo-deny`)");
        return Ok(());
    }
    let kept = &mut cargo(&["deny", "check", "bans", "licenses", "sources"]);
    report.step("dependencies", process::succeeds(kept)?);
    let mut fetched = true;
    let passed = process::each_line(&mut cargo(&["deny", "check", "advisories"]), |_, line| {
        fetched &= !line.contains("failed to fetch advisory database");
        say!("{line}");
    })?;
    if fetched {
        report.step("advisories", passed);
    } else {
        report.skip("advisories: their database cannot be fetched here");
    }
    Ok(())
}

/// The steps that take minutes: the package with torch and servers, the sanitizers, the wheel, a
/// short soak, the dependencies' licences and advisories, the bundle with every test
/// run from it, and the virtual machine with every kind of storage.
fn slow(report: &mut Report, root: &Path, cargo: impl Fn(&[&str]) -> Command) -> Result<()> {
    python::slow(report, root)?;
    heading("torch and servers");
    servers::run(report, root)?;
    heading("documentation");
    pages::run(report, root)?;
    sanitize::run(report, root, &[])?;
    heading("wheel");
    wheel::run(report, root)?;
    heading("soak");
    report.step("soak", soak::for_tests(root)?);
    heading("dependencies");
    dependencies(report, &cargo)?;
    heading("bundle");
    let folder = target(root)?.join("bundle");
    remove(&folder)?; // whatever an earlier version left in it
    let built = bundle::run(root, &folder);
    if let Err(message) = &built {
        say!(err, "error: {message}");
    }
    let passed = built.is_ok() && process::succeeds(&mut Command::new(folder.join("run")))?;
    report.step("bundle", passed);
    heading("lab");
    lab::run(report, root, &lab::Arguments::default())
}

/// Cargo's target folder.
pub(crate) fn target(root: &Path) -> Result<PathBuf> {
    let metadata = process::output(process::cargo().current_dir(root).args([
        "metadata",
        "--no-deps",
        "--format-version=1",
    ]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let folder = metadata["target_directory"].as_str().ok_or("cargo names no target folder")?;
    Ok(folder.into())
}

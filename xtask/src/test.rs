//! `cargo xtask test`: everything that must hold before a change is accepted, in one command and
//! one last line `N passed, N failed, N skipped`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use crate::process::{self, Result, say};
use crate::report::{Report, TestOutput};
use crate::{bundle, cufile, lab, prepare, python, sanitize, servers, soak, tidy, wheels};

/// Bytes of the file that the README's examples read.
const EXAMPLE_FILE_LEN: usize = 4 << 20;

/// How the bars run when only their running matters: on little data and a simulated GPU.
pub(crate) const BARS: [&str; 3] = ["--tiny", "--gpu", "sim"];

/// Rebuilds the tests, which costs nothing by then, to learn where their output is.
const LIBRARY: [&str; 4] = ["test", "--workspace", "--no-run", "--message-format=json"];

/// Runs every step, also after one failed, so that one run shows everything that is wrong.
pub(crate) fn run(root: &Path, all: bool) -> Result<bool> {
    let start = Instant::now();
    let mut report = Report::default();
    prepare::run(&mut report, all);
    cufile::prepare(&mut report, root)?;
    let wheels_of_cufile = cufile::folder(root)?;
    let cargo = |arguments: &[&str]| {
        let mut command = process::cargo();
        command.current_dir(root).env("PATH", process::full_path()).args(arguments);
        command.env(cufile::VARIABLE, &wheels_of_cufile);
        command
    };

    component(&mut report, "format", cargo(&["fmt", "--version"]), cargo(&["fmt", "--check"]));
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    component(&mut report, "clippy", cargo(&["clippy", "--version"]), cargo(&clippy));
    heading("tidy");
    report.step("tidy", tidy::run(root)?);

    heading("tests");
    tests(&mut report, "tests", cargo(&["test", "--workspace", "--no-fail-fast"]), &[])?;
    benches(&mut report, root, cargo)?;
    readme(&mut report, root, cargo)?;
    heading("Python package");
    python::run(&mut report, root)?;
    heading("bars in miniature");
    let mut bars = cargo(&["run", "-q", "-p", "xtask", "--bin", "forebay-bars", "--"]);
    bars.args(BARS).arg("--scratch").arg(target(root)?);
    report.step("bars in miniature", process::succeeds(&mut bars)?);
    heading("documentation");
    // Libraries only: the library and the command share the name `forebay`, and so a page.
    let mut docs = cargo(&["doc", "--workspace", "--no-deps", "--lib"]);
    report.step("documentation", process::succeeds(docs.env("RUSTDOCFLAGS", "-D warnings"))?);
    if all {
        slow(&mut report, root, cargo)?;
    }
    say!("\ntook {} s", start.elapsed().as_secs());
    Ok(report.finish())
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

/// Runs test executables by cargo and adds up their counts.
fn tests(report: &mut Report, name: &str, mut cargo: Command, extra: &[&str]) -> Result<()> {
    let mut output = TestOutput::default();
    cargo.args(["--", "--show-output"]).args(extra);
    let succeeded = output.run(&mut cargo)?;
    report.add(name, &output, succeeded);
    Ok(())
}

/// Runs every micro-benchmark once, so that all keep working.
fn benches(report: &mut Report, root: &Path, cargo: impl Fn(&[&str]) -> Command) -> Result<()> {
    for package in folders(&root.join("crates")) {
        for file in files(&package.join("benches")).iter().filter(|f| is_rust(f)) {
            let bench = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            heading(&format!("micro-benchmark {bench}"));
            // Under `cargo test` a benchmark is built quickly and runs each case once. It covers
            // the whole workspace, like the tests; otherwise all dependencies would be built again.
            let mut command = cargo(&["test", "--workspace", "--bench", &bench, "--", "--test"]);
            report.step(&format!("micro-benchmark {bench}"), process::succeeds(&mut command)?);
        }
    }
    Ok(())
}

/// Runs the README's Rust examples as documentation tests, in a folder with the file they read.
fn readme(report: &mut Report, root: &Path, cargo: impl Fn(&[&str]) -> Command) -> Result<()> {
    heading("README's examples");
    let target = target(root)?;
    let folder = target.join("readme");
    let error = |error| format!("cannot prepare the README's examples: {error}");
    fs::create_dir_all(&folder).map_err(error)?;
    let bytes: Vec<u8> = (0_u8..=250).cycle().take(EXAMPLE_FILE_LEN).collect();
    fs::write(folder.join("model.safetensors"), bytes).map_err(error)?;
    let Some(library) = library(&mut cargo(&LIBRARY))? else {
        report.step("README's examples", false);
        return Ok(());
    };
    let rustdoc = std::env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into());
    let mut command = Command::new(rustdoc);
    command.current_dir(&folder).args(["--edition", "2024", "--crate-name", "readme", "--test"]);
    command.arg(root.join("README.md"));
    command.arg("-L").arg(format!("dependency={}", target.join("debug/deps").display()));
    command.arg("--extern").arg(format!("forebay={}", library.display()));
    let mut output = TestOutput::default();
    let succeeded = output.run(&mut command)?;
    report.add("README's examples", &output, succeeded);
    Ok(())
}

/// The library as the tests have it, where cargo's messages name it.
fn library(cargo: &mut Command) -> Result<Option<PathBuf>> {
    let mut found = None;
    let built = process::each_line(cargo, |_, line| {
        let message: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        if message["target"]["name"] == "forebay" && message["profile"]["test"] == false {
            let files = message["filenames"].as_array().into_iter().flatten();
            let mut files = files.filter_map(serde_json::Value::as_str);
            found = files.find(|file| file.ends_with(".rlib")).map(PathBuf::from).or(found.take());
        }
    })?;
    Ok(found.filter(|_| built))
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

/// The tests that take minutes: ignored tests, the package with torch and servers, the sanitizers,
/// the wheels, a short soak, the dependencies' licences and advisories, the bundle with every test
/// run from it, and the virtual machine with every kind of storage.
fn slow(report: &mut Report, root: &Path, cargo: impl Fn(&[&str]) -> Command) -> Result<()> {
    heading("slow tests");
    tests(report, "slow tests", cargo(&["test", "--workspace", "--no-fail-fast"]), &["--ignored"])?;
    python::slow(report, root)?;
    heading("torch and servers");
    servers::run(report, root)?;
    sanitize::for_tests(report, root)?;
    wheels::for_tests(report, root)?;
    heading("soak");
    report.step("soak", soak::for_tests(root)?);
    heading("dependencies");
    dependencies(report, &cargo)?;
    heading("bundle");
    let folder = target(root)?.join("bundle");
    // It is this command's own, whatever an earlier version left in it.
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .map_err(|error| format!("cannot remove `{}`: {error}", folder.display()))?;
    }
    let built = bundle::run(root, &folder);
    if let Err(message) = &built {
        say!(err, "error: {message}");
    }
    let passed = built.is_ok() && process::succeeds(&mut Command::new(folder.join("run")))?;
    report.step("bundle", passed);
    heading("lab");
    match lab::for_tests(root) {
        Ok(lab::End::Ran(passed)) => report.step("lab", passed),
        Ok(lab::End::Skipped(reason)) => report.skip(format!("lab: {reason}")),
        Err(message) => {
            say!(err, "error: {message}");
            report.step("lab", false);
        }
    }
    Ok(())
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

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_dir()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_file()).collect()
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

//! The wheel for aarch64, built here, and its tests on an emulated machine.

use std::path::Path;
use std::process::Command;

use super::emulated::{Linker, Machine};
use super::workshop::Workshop;
use crate::process::{self, Result, say};
use crate::python::{PYTEST, suite};
use crate::report::{Report, TestOutput};

pub(super) const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Packages whose unit tests an emulated machine can run.
const WHOLE: [&str; 4] = ["-p", "forebay-base", "-p", "forebay-topology"];

/// Tests of the engine that an emulated machine can run: those that decide and move bytes. The rest
/// needs kernel features that the emulator lacks (`statx` for O_DIRECT, `cachestat`, io_uring), or
/// takes an hour.
const ENGINE: [&str; 18] = [
    "error::",
    "gpu::sim::",
    "memory::",
    "options::",
    "plan::",
    "queue::closers::",
    "queue::idlers::",
    "queue::pool::",
    "queue::pread::",
    "queue::scheduler::",
    "queue::sim::",
    "queue::spans::",
    "queue::window::",
    "staging::",
    "statistics::",
    "trace::",
    "transfer::",
    "tune::depth::tests::depth_and_size_stay_within_their_bounds",
];

/// Tests among them that do not run, each with the reason.
const LEFT_OUT: [(&str, &str); 1] = [(
    "quota::tests::the_quota_of_this_process_is_read",
    "it has a shell start it, which cannot run another processor's program",
)];

/// Reads a cold file, and prints the processor and the route.
const READ: &str = "\
import forebay, platform, tempfile
with tempfile.NamedTemporaryFile(dir='.') as file:
    file.write(bytes(5_000_000))
    file.flush()
    with forebay.Engine().open(file.name) as opened:
        opened.evict()
        transfer = opened.start_read_into(bytearray(5_000_000))
        assert transfer.result() == 5_000_000
        print(platform.machine(), platform.python_version(), transfer.report()['routes'])
";

pub(super) fn run(report: &mut Report, workshop: &Workshop) -> Result<()> {
    if cfg!(target_arch = "aarch64") {
        report.skip("wheels: aarch64: it is this machine's own processor");
        return Ok(());
    }
    if let Err(reason) = target(&workshop.root) {
        report.skip(format!("wheels: aarch64: {reason}"));
        return Ok(());
    }
    let Some(wheel) = workshop.wheel(report, "aarch64", TARGET, &[])? else { return Ok(()) };
    let machine = match Machine::fetch(&workshop.home) {
        Ok(machine) => machine,
        Err(reason) => {
            report.skip(format!("wheels: aarch64: its tests: {reason}"));
            return Ok(());
        }
    };
    let others = ["pytest==9.*", "numpy"];
    let packages = machine.install(&workshop.system, &wheel, &others)?;
    let python = || {
        let mut python = Command::new(&machine.python);
        python.env("PYTHONPATH", &packages).env("PYTHONDONTWRITEBYTECODE", "1");
        python
    };
    let told = process::output(python().current_dir(&workshop.home).args(["-c", READ]))?;
    say!("wheels: emulated: {}", told.trim());
    report.step("wheels: aarch64: reads as aarch64", told.starts_with("aarch64 3.11"));
    suite(report, "wheels: aarch64".to_owned(), &workshop.root, python().args(PYTEST))?;
    for (test, reason) in LEFT_OUT {
        report.skip(format!("wheels: aarch64: {test}: {reason}"));
    }
    unit_tests(report, workshop, &machine, &WHOLE, &[])?;
    unit_tests(report, workshop, &machine, &["-p", "forebay"], &ENGINE)
}

/// Has the Rust toolchain know the target, or says why it does not.
pub(super) fn target(root: &Path) -> Result<()> {
    let rustup = || {
        let mut rustup = Command::new("rustup");
        rustup.current_dir(root).arg("target");
        rustup
    };
    if process::find("rustup").is_none() {
        return Err(format!("no `rustup`, which brings the target `{TARGET}`"));
    }
    let known = process::output(rustup().args(["list", "--installed"]))?;
    if known.lines().any(|line| line == TARGET) {
        return Ok(());
    }
    say!("wheels: rustup target add {TARGET}");
    process::must_succeed(rustup().args(["add", TARGET]))
}

/// Unit tests of these packages, on the emulated machine: those of these names, or all.
fn unit_tests(
    report: &mut Report,
    workshop: &Workshop,
    machine: &Machine,
    packages: &[&str],
    names: &[&str],
) -> Result<()> {
    let linker = Linker::new(workshop)?;
    let mut cargo = process::cargo();
    cargo.current_dir(&workshop.root).args(["test", "--lib", "--no-fail-fast"]);
    cargo.args(packages).args(["--target", TARGET, "--", "--show-output"]).args(names);
    for (test, _) in LEFT_OUT {
        cargo.args(["--skip", test]);
    }
    // A few of each are enough, as each takes twenty times as long.
    cargo.env("FOREBAY_SEEDS", "10").env("PROPTEST_CASES", "16");
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &linker.compiler);
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &machine.runner);
    cargo.env("CC_aarch64_unknown_linux_gnu", &linker.compiler);
    cargo.env("AR_aarch64_unknown_linux_gnu", &linker.archiver);
    cargo.env("CARGO_TARGET_DIR", workshop.home.join("build-tests")).env("PATH", workshop.path());
    cargo.env("XDG_CACHE_HOME", workshop.root.join("target/test-cache"));
    let mut output = TestOutput::default();
    let succeeded = output.run(&mut cargo)?;
    report.add("wheels: aarch64: unit tests", &output, succeeded);
    Ok(())
}

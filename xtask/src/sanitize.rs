//! `cargo xtask sanitize [address|thread|miri]`: the engine's tests under tools that detect what a
//! test alone cannot: invalid memory accesses, leaks, data races, and undefined behaviour.
//!
//! All need a nightly toolchain; missing tools are reported as skipped. A tool first runs a
//! deliberately wrong program, so that a tool that detects nothing does not look like a clean
//! result. `xtask/sanitize` holds the suppressions, with reasons.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::ValueEnum as _;

use crate::folders::{failed, make};
use crate::process::{self, Result, say};
use crate::report::{Report, TestOutput};
use crate::test;

/// The only target: sanitizers need an explicit one, and the engine's tests run here.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Wrong in both ways: the first argument selects which.
const CANARY: &str = "\
static mut COUNT: u64 = 0;

fn count() {
    (0..1000).for_each(|_| unsafe { COUNT += 1 });
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some(\"race\") {
        let other = std::thread::spawn(count);
        count();
        other.join().unwrap();
    } else {
        let freed = std::hint::black_box(Box::into_raw(Box::new(7_u64)));
        drop(unsafe { Box::from_raw(freed) });
        println!(\"{}\", unsafe { freed.read_volatile() });
    }
}
";

const CANARY_MANIFEST: &str = "package = { name = 'canary', edition = '2021' }\nworkspace = {}\n";

/// A tool that sees faults while tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tool {
    /// Invalid memory accesses and leaks.
    Address,
    /// Data races.
    Thread,
    /// Undefined behaviour.
    Miri,
}

/// One call of cargo: some test executables, and which of their tests.
struct Part {
    /// Arguments before `--`.
    targets: &'static [&'static str],
    /// Arguments after it.
    tests: &'static [&'static str],
    /// Tests that do not run, by their whole names, with reasons.
    left_out: &'static [(&'static str, &'static str)],
}

/// The packages with the `unsafe` code of the data path, and of its counters.
const PACKAGES: [&str; 7] = [
    "--package=forebay",
    "--package=forebay-base",
    "--package=forebay-cufile",
    "--package=forebay-evidence",
    "--package=forebay-gpu",
    "--package=forebay-layers",
    "--package=forebay-topology",
];

/// Everything except tests that measure memory, of which the sanitizer uses a share.
const ADDRESS: [Part; 1] = [Part {
    targets: &["--lib", "--tests"],
    tests: &[],
    left_out: &[
        ("to_host_memory", "its bounds on resident memory leave nothing for the sanitizer's"),
        ("to_the_simulated_gpu", "its bounds on resident memory leave nothing for the sanitizer's"),
        (
            "control_groups::a_small_control_group_is_enough_and_more_than_it_has_is_an_error",
            "its control group has no room for the sanitizer's memory",
        ),
        (
            "live::without_proc_the_device_number_still_leads_to_the_drive",
            "leaks are looked for by way of `/proc`, which the test takes away",
        ),
    ],
}];

/// Code that hands memory from thread to thread. The simulation and the tuner are single-threaded.
const THREAD: [Part; 2] = [
    Part { targets: &["--lib"], tests: &["--skip=queue::sim::", "--skip=tune::"], left_out: &[] },
    Part {
        targets: &[
            "--test=crowd",
            "--test=gpus",
            "--test=lifetime",
            "--test=ordered",
            "--test=pieces",
            "--test=small",
            "--test=stress",
        ],
        tests: &[],
        left_out: &[(
            "many::a_cancel_and_a_hanging_drive_let_the_stream_continue",
            "the bytes of a cancelled read are undefined: the stream copies them while the drive \
             may still write them",
        )],
    },
];

/// Code without system calls unknown to Miri: the pure modules, and the locks.
#[rustfmt::skip]
const MIRI: [Part; 1] = [Part {
    targets: &["--lib"],
    tests: &[
        "clock::", "cuda::handles::", "lock::tests::a_panic_under_a_lock_leaves_it_open",
        "plan::", "queue::closers::", "transfer::gate::",
        "queue::kernel_threads::tests::rings_never_have_more_than_there_are",
        "queue::scheduler::link::", "queue::scheduler::round_robin::", "queue::window::",
        "statistics::", "order::", "schedule::", "slices::", "ties::", "together::",
        "tune::tests::small_requests_teach_nothing", "units::",
    ],
    left_out: &[],
}];

impl Tool {
    /// Its name, its tests, and the canary's argument with the tool's expected message.
    fn facts(self) -> (&'static str, &'static [Part], (&'static str, &'static str)) {
        match self {
            Self::Address => {
                ("address", &ADDRESS, ("stale", "AddressSanitizer: heap-use-after-free"))
            }
            Self::Thread => ("thread", &THREAD, ("race", "ThreadSanitizer: data race")),
            Self::Miri => ("miri", &MIRI, ("race", "Data race detected")),
        }
    }

    /// Nightly's cargo with `verb`, and all that makes it use the tool.
    fn cargo(self, root: &Path, target: &Path, verb: &str) -> Command {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "cargo"]);
        match self {
            Self::Address => {
                // Otherwise stacks of allocations lack functions, and suppressions do not match
                // them.
                command.env("RUSTFLAGS", "-Zsanitizer=address -Cforce-frame-pointers=yes");
                let options = "detect_leaks=1:detect_stack_use_after_return=1";
                let leaks = root.join("xtask/sanitize/leaks.txt");
                let leaks = format!("print_suppressions=0:suppressions={}", leaks.display());
                command.env("ASAN_OPTIONS", options).env("LSAN_OPTIONS", leaks);
                command.args([verb, "--target", TARGET]);
            }
            Self::Thread => {
                // Through the C library it sees memory mapped and unmapped. Otherwise a later
                // mapping at the same address would race with the earlier one.
                let libc = "--cfg=rustix_use_libc";
                let flags = "-Zsanitizer=thread -Cforce-frame-pointers=yes";
                command.env("RUSTFLAGS", format!("{flags} {libc}"));
                command.env("TSAN_OPTIONS", "history_size=4");
                // The standard library's own locks must be visible, or everything would look like a
                // race.
                command.args([verb, "-Zbuild-std", "--target", TARGET]);
            }
            Self::Miri => {
                // Time and the seeds of random tests come from the machine; a test of properties
                // runs a thousand times slower, so it tries few cases.
                command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "4");
                command.args(["miri", verb]);
            }
        }
        let cache = root.join("target/test-cache");
        command.env("CARGO_TARGET_DIR", target).env("XDG_CACHE_HOME", cache);
        command.env("PATH", process::full_path());
        command
    }

    /// The missing requirement of this machine, if any.
    fn lacking(self) -> Option<String> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Some("only on Linux on x86-64".into());
        }
        let list = ["component", "list", "--toolchain", "nightly", "--installed"];
        let Ok(installed) = process::output(Command::new("rustup").args(list)) else {
            return Some("no nightly toolchain (`rustup toolchain install nightly`)".into());
        };
        let needed: &[&str] = match self {
            Self::Address => &[],
            Self::Thread => &["rust-src"],
            Self::Miri => &["rust-src", "miri"],
        };
        let part = needed.iter().find(|part| !installed.contains(*part))?;
        let remedy = format!("`rustup component add --toolchain nightly {part}`");
        Some(format!("nightly without `{part}` ({remedy})"))
    }

    /// Runs the tests under the tool, after the program that is wrong.
    fn run(self, report: &mut Report, root: &Path) -> Result<()> {
        let (name, parts, canary) = self.facts();
        say!("\n== sanitize {name}");
        if let Some(reason) = self.lacking() {
            report.skip(format!("sanitize {name}: {reason}"));
            return Ok(());
        }
        let target = test::target(root)?.join("sanitize").join(name);
        let sees = self.sees(root, &target, canary)?;
        report.step(&format!("sanitize {name}: a fault made on purpose is seen"), sees);
        if !sees {
            return Ok(()); // its results would mean nothing
        }
        for part in parts {
            let mut cargo = self.cargo(root, &target, "test");
            cargo.current_dir(root).args(PACKAGES).arg("--no-fail-fast").args(part.targets);
            cargo.args(["--", "--show-output"]).args(part.tests);
            if !part.left_out.is_empty() {
                cargo.arg("--exact");
            }
            for (test, reason) in part.left_out {
                cargo.args(["--skip", test]);
                report.skip(format!("sanitize {name}: {test}: {reason}"));
            }
            let (mut output, mut printed) = (TestOutput::default(), String::new());
            let succeeded = output.run(&mut cargo, &mut printed)?;
            say!("{printed}");
            report.add(&format!("sanitize {name}"), output, succeeded);
        }
        Ok(())
    }

    /// Whether the tool detects the canary's fault.
    fn sees(self, root: &Path, target: &Path, (fault, message): (&str, &str)) -> Result<bool> {
        let folder = target.join("canary");
        let write = |file: &str, text: &str| {
            let file = folder.join(file);
            fs::write(&file, text).map_err(failed(&file))
        };
        make(&folder.join("src"))?;
        write("Cargo.toml", CANARY_MANIFEST)?;
        write("src/main.rs", CANARY)?;
        let mut cargo = self.cargo(root, target, "run");
        let mut lines = Vec::new();
        let passed =
            process::each_line(cargo.current_dir(&folder).args(["--", fault]), |_, line| {
                lines.push(line.to_owned())
            })?;
        let seen = !passed && lines.iter().any(|line| line.contains(message));
        if !seen {
            say!(err, "error: `{message}` was expected, not:\n{}", lines.join("\n"));
        }
        Ok(seen)
    }
}

/// Runs `tools`, or all.
pub(crate) fn run(report: &mut Report, root: &Path, tools: &[Tool]) -> Result<()> {
    let tools = if tools.is_empty() { Tool::value_variants() } else { tools };
    tools.iter().try_for_each(|tool| tool.run(report, root))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_suppressed_leak_has_a_reason() {
        // Each rule follows a comment, at once or after rules that share it.
        for block in include_str!("../sanitize/leaks.txt").split("\n\n") {
            let (reasons, rules): (Vec<&str>, _) =
                block.lines().partition(|line| line.starts_with('#'));
            assert!(!reasons.is_empty(), "{block}");
            assert!(rules.iter().all(|rule| rule.starts_with("leak:")), "{block}");
        }
    }
}

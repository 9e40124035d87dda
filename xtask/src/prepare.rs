//! Prepares the tests' dependencies beyond cargo, and reports what it did. Nothing here is
//! required: unavailable tools are reported as skipped, and the tests that need them skip
//! themselves.

use std::path::Path;
use std::process::Command;

use crate::process::{self, say};
use crate::report::Report;

/// A program, its Debian package, and its purpose.
struct Tool {
    program: &'static str,
    package: &'static str,
    purpose: &'static str,
}

const TOOLS: [Tool; 6] = [
    Tool { program: "fio", package: "fio", purpose: "comparison with fio" },
    Tool { program: "mkfs.ext4", package: "e2fsprogs", purpose: "tests on ext4" },
    Tool { program: "mkfs.xfs", package: "xfsprogs", purpose: "tests on xfs" },
    Tool { program: "mkfs.btrfs", package: "btrfs-progs", purpose: "tests on btrfs" },
    Tool { program: "losetup", package: "mount", purpose: "tests on loop devices" },
    Tool { program: "setpriv", package: "util-linux", purpose: "tests as another user" },
];

/// Tools that only slow tests use.
const SLOW_TOOLS: [Tool; 1] =
    [Tool { program: "chromium", package: "chromium", purpose: "reports in a browser" }];

/// Installs missing tools where possible, and reports those still missing; `all` for the slow tests
/// too.
pub(crate) fn run(report: &mut Report, all: bool) {
    let root = process::is_root();
    let slow = if all { &SLOW_TOOLS[..] } else { &[] };
    let tools: Vec<&Tool> = TOOLS.iter().chain(slow).collect();
    let missing: Vec<&Tool> =
        tools.iter().copied().filter(|tool| process::find(tool.program).is_none()).collect();
    if !missing.is_empty() && root && process::find("apt-get").is_some() {
        install(&missing);
    }
    let (there, absent): (Vec<&Tool>, Vec<&Tool>) =
        tools.into_iter().partition(|tool| process::find(tool.program).is_some());
    let names: Vec<&str> = there.iter().map(|tool| tool.program).collect();
    say!("prepared: programs: {}", names.join(", "));
    for tool in absent {
        report.skip(format!("{}: no `{}` on this machine", tool.purpose, tool.program));
    }
    if root && Path::new("/dev/loop-control").exists() {
        say!("prepared: loop devices: as root");
    } else {
        let reason = if root { "no `/dev/loop-control`" } else { "only root may attach them" };
        report.skip(format!("loop devices: {reason}"));
    }
}

/// Installs the packages of `tools` by the package system; the tests do not depend on it.
fn install(tools: &[&Tool]) {
    let packages: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    say!("prepared: installing {} with apt-get", packages.join(", "));
    let get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq").args(arguments);
        process::succeeds(command.stdout(std::process::Stdio::null())).unwrap_or(false)
    };
    // Package lists are often absent in containers; one that is there may be good enough.
    let install = ["install", "-y", "--no-install-recommends"];
    let arguments: Vec<&str> = install.iter().chain(&packages).copied().collect();
    if !(get(&["update"]) & get(&arguments)) {
        // One unknown package must not prevent the rest.
        for package in packages {
            let _ = get(&[&install[..], &[package]].concat());
        }
    }
}

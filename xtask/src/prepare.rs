//! Prepares the tests' dependencies beyond cargo, and reports what it did. Nothing here is
//! required: unavailable tools are reported as skipped, and the tests that need them skip
//! themselves.

use std::path::Path;
use std::process::Command;

use crate::process::{self, say};
use crate::report::Report;

/// Programs, their Debian packages, and their purposes.
const TOOLS: [(&str, &str, &str); 7] = [
    ("fio", "fio", "comparison with fio"),
    ("mkfs.ext4", "e2fsprogs", "tests on ext4"),
    ("mkfs.xfs", "xfsprogs", "tests on xfs"),
    ("mkfs.btrfs", "btrfs-progs", "tests on btrfs"),
    ("losetup", "mount", "tests on loop devices"),
    ("setpriv", "util-linux", "tests as another user"),
    // It brings the library that fusepy loads.
    ("fusermount", "fuse", "Python's tests on FUSE"),
];

/// Tools that only slow tests use.
const SLOW_TOOLS: [(&str, &str, &str); 2] = [
    ("chromium", "chromium", "reports in a browser"),
    ("mpirun", "openmpi-bin", "ranks by `mpirun`"),
];

/// Reports missing tools, `all` for the slow tests too; `may_install` installs them first where
/// possible.
pub(crate) fn run(report: &mut Report, all: bool, may_install: bool) {
    let root = process::is_root();
    let slow = if all { &SLOW_TOOLS[..] } else { &[] };
    let tools = TOOLS.iter().chain(slow);
    let missing = tools.clone().filter(|(program, ..)| process::find(program).is_none());
    let packages: Vec<&str> = missing.map(|(_, package, _)| *package).collect();
    if may_install && !packages.is_empty() && root && process::find("apt-get").is_some() {
        install(&packages);
    }
    let mut names = Vec::new();
    for (program, _, purpose) in tools {
        match process::find(program) {
            Some(_) => names.push(*program),
            None => report.skip(format!("{purpose}: no `{program}` on this machine")),
        }
    }
    say!("prepared: programs: {}", names.join(", "));
    if root && Path::new("/dev/loop-control").exists() {
        say!("prepared: loop devices: as root");
    } else {
        let reason = if root { "no `/dev/loop-control`" } else { "only root may attach them" };
        report.skip(format!("loop devices: {reason}"));
    }
}

/// Installs packages by the package system; the tests do not depend on it.
fn install(packages: &[&str]) {
    say!("prepared: installing {} with apt-get", packages.join(", "));
    let get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq").args(arguments);
        process::succeeds(command.stdout(std::process::Stdio::null())).unwrap_or(false)
    };
    // Package lists are often absent in containers; one that is there may be good enough.
    let install = ["install", "-y", "--no-install-recommends"];
    if !(get(&["update"]) & get(&[&install, packages].concat())) {
        // One unknown package must not prevent the rest.
        for package in packages {
            let _ = get(&[&install[..], &[package]].concat());
        }
    }
}

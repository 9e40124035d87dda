//! Machines that were recorded: what they say is known.

use std::process::Command;

use forebay_doctor::{GpuWish, Report, State, Wish, examine, recorded_answer};
use forebay_topology::System;

use crate::lab::{Offer, or_skip};
use crate::{check, those};

/// The diagnosis of the machine in the archive `bytes`, whose folder is `name`.
fn examined(name: &str, bytes: &[u8], path: Option<&str>) -> Offer<Report> {
    let folder = crate::scratch();
    let archive = folder.path().join("record.tar.gz");
    std::fs::write(&archive, bytes).expect("a small file");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(folder.path());
    let unpacked = tar.output().map_err(|e| format!("recorded machine: no `tar`: {e}"))?;
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    let dir = folder.path().join(name);
    let system = System::fixture(&dir).expect("a recorded system");
    let path = path.map(Into::into).or_else(|| system.recorded_paths().into_iter().next());
    let wish = Wish { path: path.expect("a path"), gpu: GpuWish::First };
    let answer = recorded_answer(&dir).expect("a file, or none");
    Ok(examine(&system, &wish, answer))
}

#[test]
fn a_drive_with_two_paths_says_by_which_policy_they_are_taken() {
    let bytes = include_bytes!("../../../forebay-topology/tests/topology/lab-whole.tar.gz");
    let reported = |path| or_skip(examined("record-whole", bytes, Some(path)));
    let Some(report) = reported("/mnt/paths/file") else { return };
    let found = check(&report, "multipath_policy");
    assert!(found.state == State::Warning && found.seen.ends_with(": `numa`"), "{found:?}");
    assert!(found.step.as_ref().unwrap().contains("`round-robin`"));
    let Some(report) = reported("/mnt/plain/file") else { return };
    assert!(report.check("multipath_policy").is_none(), "it has one path");
}

/// A virtual machine with an H200 and cuFile 1.15: no nvidia-fs, no P2PDMA, no NVMe drive.
const H200: &[u8] = include_bytes!("h200.tar.gz");

#[test]
fn an_h200_without_a_direct_path_says_what_it_lacks() {
    let Some(report) = or_skip(examined("h200", H200, None)) else { return };
    let problems = [
        "drive",
        "udev",
        "nvidia_fs",
        "gpu_driver_keys",
        "gpu_p2p_memory",
        "kernel_p2pdma",
        "cufile_p2pdma",
    ];
    assert_eq!(those(&report, State::Problem), problems, "{report:#?}");
    assert_eq!(those(&report, State::Warning), ["mount_options"]);
    assert_eq!(those(&report, State::Unknown), ["acs"]);
    let seen = |name: &str| check(&report, name).seen.as_str();
    assert_eq!(seen("gpu_class"), "NVIDIA H200");
    assert_eq!(seen("gpu_driver"), "Open Kernel Module for x86_64  580.159.04");
    assert_eq!(seen("bar1"), "256 GiB");
    assert_eq!(seen("kernel_p2pdma"), "/proc/config.gz: `CONFIG_PCI_P2PDMA` is not set");
    assert_eq!(seen("cufile_library"), "1.15, libcufile.so.0; its driver opens");
    assert_eq!(seen("cufile_p2pdma"), "`properties.use_pci_p2pdma` is false");
    assert_eq!(seen("nvidia_fs"), "the module `nvidia_fs` is not loaded");
    assert!(seen("udev").starts_with("there is no /run/udev"));
    assert!(!report.is_broken(), "nothing was set up");
    assert_eq!(
        report.sentence(),
        "bytes of `/tmp/w` have to go to NVIDIA H200 at 0000:00:06.0 through pinned host memory, \
         since the direct path (nvidia-fs) would take an NVMe drive, a udev that says what is on \
         the block device and the module `nvidia-fs`"
    );
}

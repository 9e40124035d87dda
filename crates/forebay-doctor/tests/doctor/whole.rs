//! Machines without a fault of their own.

use forebay_doctor::{DirectPath, State};

use crate::machine::Machine;
use crate::{check, those};

#[test]
fn a_virtual_machine_says_what_a_direct_path_would_take() {
    let machine = Machine::virtual_h200();
    let report = machine.examine("/data/f");
    let problems = those(&report, State::Problem);
    let expected = [
        "drive",
        "udev",
        "nvidia_fs",
        "gpu_driver_keys",
        "gpu_p2p_memory",
        "kernel_p2pdma",
        "cufile_p2pdma",
    ];
    assert_eq!(problems, expected, "{report:#?}");
    assert!(!report.is_broken(), "nothing was set up: {report:#?}");
    assert_eq!(check(&report, "gpu_class").state, State::Ok);
    assert!(report.ways.iter().all(|way| !way.is_open && way.is_final));
    let change = report.change().unwrap();
    assert!(change.contains("an NVMe drive"), "{change}");
    assert!(report.sentence().contains("through pinned host memory"), "{}", report.sentence());
}

#[test]
fn with_all_that_p2pdma_takes_nothing_is_a_problem() {
    let report = Machine::p2pdma().examine("/data/f");
    assert!(those(&report, State::Problem).is_empty(), "{report:#?}");
    assert!(those(&report, State::Warning).is_empty(), "{report:#?}");
    assert_eq!(those(&report, State::Unknown), ["file_attributes"], "its place was not recorded");
    assert_eq!((report.ways[0].way, report.ways[0].is_open), (DirectPath::P2pdma, true));
    assert_eq!(report.change(), None);
    let module = check(&report, "nvidia_fs");
    assert!(module.state == State::Ok && module.seen.contains("not needed"), "{module:?}");
    assert_eq!(check(&report, "distance").seen, "nvme1n1: same switch");
    assert!(report.sentence().ends_with("directly (p2pdma)"), "{}", report.sentence());
}

#[test]
fn with_all_that_nvidia_fs_takes_nothing_is_a_problem() {
    let report = Machine::nvidia_fs().examine("/data");
    assert!(those(&report, State::Problem).is_empty(), "{report:#?}");
    assert!(those(&report, State::Warning).is_empty(), "{report:#?}");
    assert_eq!((report.ways[0].way, report.ways[0].is_open), (DirectPath::NvidiaFs, true));
    assert!(!report.ways[1].is_open);
    let kernel = check(&report, "kernel_p2pdma");
    assert!(kernel.seen.contains("not needed: nvidia-fs is open"), "{kernel:?}");
}

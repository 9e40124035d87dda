//! Facts that a machine does not show are unknown, with a way to see them; none is guessed.

use forebay_doctor::{DirectPath, Report, State};

use crate::check;
use crate::faults::{P2PDMA, after, closes, other, stacked, warns};
use crate::machine::{GPU, KEYS, Machine, driver, gpu_folder, kernel};

/// A check is unknown, closes nothing, and says how to know.
#[track_caller]
fn unknown(report: &Report, name: &str, seen: &str, step: &str) {
    let check = check(report, name);
    assert_eq!(check.state, State::Unknown, "{check:?}");
    assert!(check.seen.contains(seen) && check.blocks.is_empty(), "{check:?}");
    assert!(check.step.as_ref().is_some_and(|reported| reported.contains(step)), "{check:?}");
    assert!(!check.is_broken, "{check:?}");
}

#[test]
fn a_gpu_without_bar1() {
    let file = format!("{}/resource", gpu_folder());
    let with = |lines: Option<&str>| {
        let lines = lines.map(str::to_owned);
        after(|m| match lines {
            Some(lines) => m.tree.write(&file, lines),
            None => m.remove(&file),
        })
    };
    let first = "0x00000000f8000000 0x00000000f8ffffff 0x0000000000040200\n";
    let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    for lines in [None, Some(""), Some("x\n"), Some(first), Some(&format!("{first}{none}")[..])] {
        unknown(&with(lines), "bar1", "shows no second range", "nvidia-smi -q -d MEMORY");
    }
    // The third range is in its place: as much as others reach, which is too little.
    let third = "0x00000000fa000000 0x00000000fbffffff 0x000000000014220c\n";
    closes(&with(Some(&format!("{first}{none}{third}"))), "bar1", P2PDMA, "32 MiB");
}

#[test]
fn kernels_and_drivers_that_hide() {
    let report = after(|m| m.remove("proc/sys/kernel/osrelease"));
    unknown(&report, "kernel_version", "osrelease cannot be read", "uname -r");
    let settings = "CONFIG_PCI_P2PDMA=y\nCONFIG_ZONE_DEVICE=y\n";
    let report = after(|m| kernel(&m.tree, "custom", settings));
    unknown(&report, "kernel_version", "`custom` begins with no version", "uname -r");
    let report = after(|m| m.remove("proc/driver/nvidia/params"));
    unknown(&report, "gpu_driver_keys", "params cannot be read", "as root");
    let report = after(|m| driver(&m.tree, "Open Kernel Module for x86_64  unknown", KEYS));
    unknown(&report, "gpu_driver", "has no version", "nvidia-smi");
    let report = after(|m| m.remove(&format!("proc/driver/nvidia/gpus/{GPU}")));
    unknown(&report, "gpu_class", "names no model", "nvidia-smi -L");
    let machine = Machine::nvidia_fs();
    machine.remove("proc/driver/nvidia-fs/modules");
    unknown(&machine.examine("/data/f"), "nvidia_fs_modules", "no such file", "as root");
    let report = after(|m| m.remove("proc/self"));
    unknown(&report, "locked_memory", "limits does not show", "ulimit -l");
    unknown(&report, "rights", "status does not show", "/proc");
}

#[test]
fn a_helper_that_says_nothing_of_cufile() {
    let says = |text: &str| {
        let text = text.to_owned();
        after(move |m| m.cufile = Some(text))
    };
    let lost = says("end not-run `x`: no such file\n");
    unknown(&lost, "cufile_library", "cannot be run: `x`: no such file", "forebay probe");
    let ended = says("library /l.so\nversion 1.19\nend exited 3\n");
    unknown(&ended, "cufile_library", "1.19, /l.so: the helper ended with 3", "forebay probe");
    let bare = says("library /l.so\nfailed no\nhint \n");
    let step = check(&bare, "cufile_library").step.clone();
    assert_eq!(step.as_deref(), Some("`forebay probe` shows what it says"));
}

#[test]
fn networks_that_hide() {
    let rest = "nfs4 host:/x rw,vers=4.2,proto=rdma,port=20049";
    let report = other("0:60", rest, |m| {
        m.tree.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    });
    unknown(&report, "nfs_transport", "no /sys/module/rpcrdma", "modprobe rpcrdma");
    let contained = |has_cards: bool| {
        other("0:60", rest, move |m| {
            m.tree.write(".dockerenv", "");
            if has_cards {
                m.tree.write("dev/infiniband/uverbs0", "");
            }
        })
    };
    closes(&contained(false), "container", &[DirectPath::NvidiaFs], "/dev/infiniband is not");
    assert_eq!(check(&contained(true), "container").state, State::Ok);
}

#[test]
fn arrays_that_only_newer_libraries_know() {
    let array = |version: &str| {
        let mut machine = Machine::p2pdma();
        machine.cufile =
            Some(format!("library /l.so\nversion {version}\nopened\nstorage nvme p2pdma\n"));
        machine
    };
    let report = |version: &str| {
        stacked(array(version), "9:0", "md0", &[("md/level", "raid10"), ("md/raid_disks", "2")])
    };
    let old = report("1.18");
    let found = check(&old, "raid");
    assert_eq!(
        (found.state, found.blocks.as_slice()),
        (State::Problem, &[DirectPath::NvidiaFs][..])
    );
    assert!(found.step.as_ref().unwrap().contains("cuFile 1.19"), "{found:?}");
    assert_eq!(check(&report("1.19"), "raid").state, State::Warning);
}

#[test]
fn little_memory_is_a_warning() {
    let left = |max: u64| {
        after(move |m| {
            m.tree.write("proc/self/cgroup", "0::/job\n");
            m.tree.write("sys/fs/cgroup/job/cgroup.controllers", "memory\n");
            m.tree.write("sys/fs/cgroup/job/memory.max", format!("{max}\n"));
            m.tree.write("sys/fs/cgroup/job/memory.current", "1048576\n");
        })
    };
    warns(&left(200 << 20), "memory_limit", "leaves 199 MiB");
    assert_eq!(check(&left(2 << 30), "memory_limit").state, State::Ok);
}

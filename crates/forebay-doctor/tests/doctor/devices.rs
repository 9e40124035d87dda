//! Machines whose GPU may not be opened, by mode or by control group.

use forebay_doctor::{GpuWish, State};

use crate::check;
use crate::machine::{GPU, Machine};

/// A machine whose devices answer so: a name, and the number of the error if it is refused.
fn with(devices: &[(&str, Option<i32>)]) -> Machine {
    let mut machine = Machine::p2pdma();
    for (name, errno) in devices {
        if *errno != Some(libc::ENOENT) {
            machine.tree.write(&format!("dev/{name}"), "");
        }
        let errno = errno.map_or_else(String::new, |errno| format!(",\"errno\":{errno}"));
        machine.tree.answer(&format!("{{\"access\":\"/dev/{name}\"{errno}}}"));
    }
    machine
}

const OPEN: [(&str, Option<i32>); 3] =
    [("nvidiactl", None), ("nvidia0", None), ("nvidia-uvm", None)];

#[test]
fn devices_that_may_be_opened_are_fine() {
    let report = with(&OPEN).examine("/data/f");
    let found = check(&report, "gpu_devices");
    let seen = "/dev/nvidiactl and 1 of 1 GPUs may be opened";
    assert_eq!((found.state, found.seen.as_str()), (State::Ok, seen));
    let some = [OPEN.as_slice(), &[("nvidia1", Some(libc::EPERM))]].concat();
    let report = with(&some).examine("/data/f");
    assert!(check(&report, "gpu_devices").seen.contains("1 of 2 GPUs"), "others have the other");
    assert_eq!(check(&report, "gpu_devices").state, State::Ok);
    let report = Machine::p2pdma().examine("/data/f");
    assert!(report.check("gpu_devices").is_none(), "older records say nothing of them");
}

#[test]
fn the_cause_of_a_closed_device_is_reported() {
    let report = with(&[("nvidiactl", Some(libc::ENOENT))]).examine("/data/f");
    let found = check(&report, "gpu_devices");
    assert!(found.state == State::Problem && found.blocks.len() == 2 && !found.is_broken);
    assert!(found.step.as_ref().unwrap().contains("nvidia-modprobe"), "{found:?}");
    let machine = with(&[("nvidiactl", Some(libc::ENOENT))]);
    machine.tree.write(".dockerenv", "");
    let report = machine.examine_gpu("/data/f", GpuWish::At(GPU.into()));
    let found = check(&report, "gpu_devices");
    assert!(found.step.as_ref().unwrap().contains("--gpus all") && found.is_broken, "{found:?}");

    let refused = [("nvidiactl", Some(libc::EPERM)), ("nvidia0", Some(libc::EPERM))];
    let machine = with(&refused);
    machine.tree.write("proc/self/cgroup", "5:devices:/job\n0::/job\n");
    machine.tree.write("sys/fs/cgroup/devices/job/cgroup.procs", "");
    let list = "c 1:3 rwm\nc 1:5 rwm\nc 5:2 rwm\nc 136:* rwm\nc 10:200 rwm\n";
    machine.tree.write("sys/fs/cgroup/devices/job/devices.list", list);
    let report = machine.examine("/data/f");
    let found = check(&report, "gpu_devices");
    assert_eq!(
        found.seen,
        "/dev/nvidia0, /dev/nvidiactl may not be opened: the control group of devices refuses \
         (/sys/fs/cgroup/devices/job/devices.list has `c 1:3 rwm`, `c 1:5 rwm`, `c 5:2 rwm`, \
         `c 136:* rwm`, …)"
    );
    assert!(found.step.as_ref().unwrap().contains("DeviceAllow="), "{found:?}");
    assert!(report.change().unwrap().contains("devices of the GPU that this process may open"));

    let report = with(&[("nvidiactl", None), ("nvidia0", Some(libc::EACCES))]).examine("/data/f");
    let found = check(&report, "gpu_devices");
    assert_eq!(found.seen, "/dev/nvidia0 may not be opened: the modes do not let this user");
    assert!(found.step.as_ref().unwrap().contains("`ls -l /dev/nvidia*`"), "{found:?}");
}

#[test]
fn devices_of_nvidia_fs_close_its_way_alone() {
    let mut machine = Machine::nvidia_fs();
    for (name, errno) in [("nvidiactl", ""), ("nvidia-fs0", ",\"errno\":1")] {
        machine.tree.answer(&format!("{{\"access\":\"/dev/{name}\"{errno}}}"));
    }
    let report = machine.examine("/data/f");
    let found = check(&report, "gpu_devices");
    assert_eq!(found.blocks, [forebay_doctor::DirectPath::NvidiaFs], "{found:?}");
    assert!(found.seen.starts_with("/dev/nvidia-fs0 may not be opened"), "{found:?}");
}

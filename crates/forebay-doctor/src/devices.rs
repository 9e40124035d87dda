//! Checks whether this process may open the GPU devices in `/dev`. They are not opened, because
//! that may start a GPU.

use std::path::PathBuf;

use forebay_topology::{Absent, is_number};

use super::facts::{Facts, GpuWish};
use super::report::{BOTH, Check, NVIDIA_FS};
use super::topics::*;

/// The device that every CUDA process opens first.
const FIRST: &str = "nvidiactl";
const MEMORY: &str = "nvidia-uvm";
/// Maximum number of devices checked: 64 GPUs, and nvidia-fs for all of them.
const DEVICES_MAX: usize = 160;
/// Maximum number of device names, and of entries of the control group's list, that are shown.
const SHOWN_MAX: usize = 4;

/// A device, and whether it may be opened.
type Device = (String, Result<(), Absent>);
/// The device list of a version 1 control group, and its file.
type Listed = Option<(PathBuf, Vec<String>)>;

pub(super) fn check(facts: &Facts) -> Option<Check> {
    let system = &facts.system;
    let mut names = system.names("dev", is_device).unwrap_or_default();
    names.truncate(DEVICES_MAX);
    if !names.iter().any(|name| name == FIRST) {
        names.push(FIRST.to_owned());
    }
    let may_open = |name| {
        let answer = system.may_open(&format!("/dev/{name}"))?;
        Some((name, answer))
    };
    let devices: Vec<Device> = names.into_iter().filter_map(may_open).collect();
    let listed = system.listed_devices();
    if devices.is_empty() || !facts.driver.is_there() {
        return None;
    }
    let is_contained = facts.process.is_container();
    if devices.iter().any(|device| *device == (FIRST.into(), Err(Absent::Missing))) {
        let step = match is_contained {
            true => "give the container the GPU (`--gpus all`)",
            false => "`nvidia-modprobe -u -c 0` makes them, or `nvidia-smi` as root",
        };
        return GPU_DEVICES
            .problem(format!("the driver is loaded, and there is no /dev/{FIRST}"), BOTH)
            .step(step)
            .needs("the GPU's devices in /dev")
            .broken_if(matches!(facts.gpu_wish, GpuWish::At(_)))
            .into();
    }
    let of_gpus = || devices.iter().filter(|(name, _)| is_gpu(name));
    let open = of_gpus().filter(|(_, answer)| answer.is_ok()).count();
    let closed = |wanted: &dyn Fn(&str) -> bool| {
        let closed = devices.iter().filter(|(name, answer)| answer.is_err() && wanted(name));
        closed.collect::<Vec<_>>()
    };
    // A process may be given only some of several GPUs.
    let all = closed(&|name| name == FIRST || name == MEMORY || (open == 0 && is_gpu(name)));
    if !all.is_empty() {
        let refused = refused(&all, &listed, is_contained);
        return Some(GPU_DEVICES.problem(refused.0, BOTH).step(refused.1).needs(NEED));
    }
    let lending = closed(&|name| name.starts_with("nvidia-fs"));
    if !lending.is_empty() && facts.driver.nvidia_fs.is_some() {
        let refused = refused(&lending, &listed, is_contained);
        return Some(GPU_DEVICES.problem(refused.0, NVIDIA_FS).step(refused.1).needs(NEED));
    }
    let count = of_gpus().count();
    Some(GPU_DEVICES.ok(format!("/dev/{FIRST} and {open} of {count} GPUs may be opened")))
}

/// The finding and the next step for devices that may not be opened.
fn refused(closed: &[&Device], listed: &Listed, contained: bool) -> Words {
    let names = closed.iter().take(SHOWN_MAX).map(|(name, _)| format!("/dev/{name}"));
    let names = names.collect::<Vec<_>>().join(", ");
    let reason = closed.iter().find_map(|(_, answer)| answer.err());
    let mut seen = format!("{names} may not be opened");
    match reason {
        Some(Absent::Denied) => {
            seen += ": the modes do not let this user";
            let step = "`ls -l /dev/nvidia*` shows who may: join that group, or set \
                            `NVreg_DeviceFileMode` of the driver's module";
            (seen, step.to_owned())
        }
        Some(Absent::Failed(rustix::io::Errno::PERM)) => {
            seen += ": the control group of devices refuses";
            // If the list still begins by allowing everything, it does not show what was
            // denied.
            let is_whole = |lines: &[String]| !lines.iter().any(|line| line.starts_with("a "));
            if let Some((file, lines)) = listed.as_ref().filter(|(_, l)| is_whole(l)) {
                let shown = lines.iter().take(SHOWN_MAX).map(|line| format!("`{line}`"));
                let shown = shown.collect::<Vec<_>>().join(", ");
                let more = if lines.len() > SHOWN_MAX { ", …" } else { "" };
                seen += &format!(" ({} has {shown}{more})", file.display());
            }
            let step = match contained {
                true => "give the container the GPU (`--gpus all`), or its devices (`--device`)",
                false => "name them in `DeviceAllow=` of the service or slice that this runs in",
            };
            (seen, step.to_owned())
        }
        reason => {
            seen += &reason.map_or_else(String::new, |reason| format!(": {reason}"));
            (seen, "`nvidia-smi` says whether the driver itself can use the GPU".to_owned())
        }
    }
}

fn is_gpu(name: &str) -> bool {
    name.strip_prefix("nvidia").is_some_and(is_number)
}

fn is_device(name: &str) -> bool {
    let lends = name.strip_prefix("nvidia-fs").is_some_and(is_number);
    name == FIRST || name == MEMORY || lends || is_gpu(name)
}

/// The finding, and the next step.
type Words = (String, String);

const NEED: &str = "devices of the GPU that this process may open";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_distinguished_by_their_names() {
        for name in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia-fs15"] {
            assert!(is_device(name), "{name}");
        }
        for name in ["nvidia", "nvidia-caps", "nvidia-modeset", "nvidia-fs", "null", "nvidia0x"] {
            assert!(!is_device(name), "{name}");
        }
    }
}

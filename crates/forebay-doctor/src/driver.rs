//! Checks of the GPU, its driver, and nvidia-fs.

use super::facts::{Driver, Facts, GpuWish, number};
use super::report::{BOTH, Check, NVIDIA_FS, P2PDMA};
use super::topics::*;

/// GPUs that NVIDIA names for P2PDMA (troubleshooting guide, "P2PDMA Supported GPUs").
const NAMED: [&str; 10] =
    ["A100", "A40", "L4", "L40S", "H100", "H200", "B100", "B200", "B300", "GB300"];
/// GPUs of the Pascal and Volta generations, which cuFile 1.15 dropped (its release notes).
const DROPPED: [&str; 5] = ["P100", "P40", "P4", "P6", "V100"];
/// Options of the driver's module that P2PDMA needs on x86 (NVIDIA's troubleshooting guide,
/// "Setting the Driver Registries for Enabling PCI P2PDMA"). The second is needed only before
/// Hopper, as NVIDIA's own check (`gds-diag`) requires.
const WANTED: [(&str, u64); 3] =
    [("RMForceStaticBar1", 1), ("ForceP2P", 0), ("RmForceDisableIomapWC", 1)];

impl Driver {
    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks = vec![self.class(facts), self.driver(facts)];
        if !self.is_arm() && self.line.is_ok() {
            checks.push(self.options(facts));
        }
        checks.push(self.given(facts));
        checks.push(self.module(facts));
        checks.extend(self.registered(facts));
        checks
    }

    fn class(&self, facts: &Facts) -> Check {
        if let Err(reason) = &facts.gpu {
            let check = GPU_CLASS
                .problem(reason.clone(), BOTH)
                .needs("an NVIDIA GPU that this machine can see")
                .broken_if(matches!(facts.gpu_wish, GpuWish::At(_)));
            if let GpuWish::None(_) = facts.gpu_wish {
                return check;
            }
            return check
                .step("`lspci -d 10de:` lists NVIDIA's devices; a container takes `--gpus all`");
        }
        let Some(model) = facts.model() else {
            return GPU_CLASS.unknown("the driver names no model").step("`nvidia-smi -L` names it");
        };
        let parts: Vec<&str> = model.split([' ', '-']).collect();
        let has = |names: &[&str]| parts.iter().any(|part| names.contains(part));
        if has(&["GeForce", "TITAN"]) || has(&["GB10"]) {
            return GPU_CLASS.problem(model, BOTH).needs("a data-centre GPU").last();
        }
        if has(&DROPPED) {
            let seen = format!("{model}: cuFile serves it up to 1.14 only");
            return GPU_CLASS.problem(seen, BOTH).needs("a GPU of Ampere's or later").last();
        }
        if has(&NAMED) {
            return GPU_CLASS.ok(model);
        }
        GPU_CLASS
            .warning(format!("{model} is not among those that NVIDIA names for P2PDMA"))
            .step("a transfer shows it: `forebay bench --route direct`")
    }

    fn driver(&self, facts: &Facts) -> Check {
        let line = match &self.line {
            Ok(line) => line,
            Err(reason) if facts.gpu.is_err() => {
                return GPU_DRIVER
                    .unknown(reason.clone())
                    .step("look for the GPU first (`gpu_class`)");
            }
            Err(reason) => {
                let is_free = facts.gpu.as_ref().is_ok_and(|gpu| gpu.pci.driver.is_none());
                let step = if facts.process.is_container() {
                    "give the container the GPU (`--gpus all`)"
                } else {
                    "install NVIDIA's driver with the open kernel module, 565 or later"
                };
                return GPU_DRIVER
                    .problem(reason.clone(), BOTH)
                    .step(step)
                    .needs("NVIDIA's driver")
                    .broken_if(is_free && !facts.process.is_container());
            }
        };
        let seen = line.split_once("NVIDIA UNIX").map_or(line.as_str(), |(_, rest)| rest.trim());
        let seen = seen.split("  Release").next().unwrap_or(seen);
        // Source: NVIDIA's "GDS Support for NVMe", "Installing Open RM Driver 565 or Above".
        match self.version {
            _ if !self.is_open() => GPU_DRIVER
                .problem(format!("{seen}: not the open kernel module"), P2PDMA)
                .step("install the driver's open kernel module (`nvidia-open`)")
                .needs("the driver's open kernel module"),
            Some((major, _)) if major < 565 => GPU_DRIVER
                .problem(seen, P2PDMA)
                .step("install driver 565 or later")
                .needs("driver 565 or later"),
            Some(_) => GPU_DRIVER.ok(seen),
            None => GPU_DRIVER
                .unknown(format!("`{line}` has no version"))
                .step("`nvidia-smi` shows the driver's version"),
        }
    }

    fn options(&self, facts: &Facts) -> Check {
        let Some(keys) = &self.keys else {
            return GPU_DRIVER_KEYS
                .unknown("/proc/driver/nvidia/params cannot be read")
                .step("`grep RegistryDwords /proc/driver/nvidia/params` as root");
        };
        let is_set = |wanted: &str, value: u64| {
            keys.iter().filter_map(|key| key.split_once('=')).any(|(name, found)| {
                name.trim().eq_ignore_ascii_case(wanted) && number(found.trim()) == Some(value)
            })
        };
        // For an unknown GPU the options are those of newer ones, so that no needless option is
        // required.
        let is_hopper = facts.model().is_none_or(|model| {
            let mut parts = model.split([' ', '-']);
            parts.any(|part| part.starts_with(['H', 'B']) || part.starts_with("GH"))
        });
        let wanted = WANTED.iter().filter(|(name, _)| *name != "ForceP2P" || !is_hopper);
        let text = |(name, value): &(&str, u64)| format!("{name}={value}");
        let missing: Vec<String> =
            wanted.clone().filter(|(name, value)| !is_set(name, *value)).map(text).collect();
        let options = wanted.map(|option| text(option) + ";").collect::<String>();
        if missing.is_empty() {
            return GPU_DRIVER_KEYS.ok(format!("`{}`", keys.join(";")));
        }
        let has = |key: &String| key.to_ascii_lowercase().contains("forcestaticbar1");
        let is_half = keys.iter().any(has) && facts.config.wants_p2pdma();
        let names = missing.iter().map(|option| format!("`{option}`")).collect::<Vec<_>>();
        GPU_DRIVER_KEYS
            .problem(format!("/proc/driver/nvidia/params has no {}", names.join(", ")), P2PDMA)
            .step(format!(
                "put `options nvidia NVreg_RegistryDwords=\"{options}\"` into \
                 /etc/modprobe.d/nvidia-p2pdma.conf, build the initial file system again \
                 (`update-initramfs -u` or `dracut -f`), and boot"
            ))
            .needs("the options of the driver that map all of the GPU's memory")
            .broken_if(is_half)
    }

    fn given(&self, facts: &Facts) -> Check {
        let Ok(gpu) = &facts.gpu else {
            let check = GPU_P2P_MEMORY.unknown("there is no GPU to look at");
            return check.step("look for the GPU first (`gpu_class`)");
        };
        let folder = format!("/sys/bus/pci/devices/{}/p2pmem", gpu.pci.address);
        // If the kernel or the driver is the cause, the other check names the remedy.
        let needs = "a driver that gives the GPU's memory to the kernel";
        let follows = facts.kernel.lacks_p2pdma() || self.line.is_err();
        let check = match self.pool {
            Some(0) => GPU_P2P_MEMORY
                .problem(format!("{folder}/size is 0"), P2PDMA)
                .step("update the driver: some versions were seen to give nothing (610.57)")
                .broken_if(!follows),
            Some(size) => return GPU_P2P_MEMORY.ok(format!("{folder}: {} MiB", size >> 20)),
            None => GPU_P2P_MEMORY
                .problem(format!("there is no {folder}"), P2PDMA)
                .step("update the driver, and see that it is the open kernel module"),
        };
        match follows {
            true => check.step("it follows from `kernel_p2pdma` or `gpu_driver`: begin there"),
            false => check.needs(needs),
        }
    }

    fn module(&self, facts: &Facts) -> Check {
        let devices = facts.system.names("dev", |name| name.starts_with("nvidia-fs"));
        // The kernel's lockdown mode restricts even root (`kernel_lockdown(7)`).
        let lockdown = facts.system.text("sys/kernel/security/lockdown").ok().and_then(|text| {
            let chosen = text.split_once('[')?.1.split_once(']')?.0.to_owned();
            (chosen != "none").then_some(chosen)
        });
        let Some(version) = &self.nvidia_fs else {
            let seen = match &lockdown {
                Some(mode) => format!("the module `nvidia_fs` is not loaded (lockdown: {mode})"),
                None => "the module `nvidia_fs` is not loaded".to_owned(),
            };
            // Source: NVIDIA's page of nvidia-fs, "Getting Started"; issue 81 of nvidia-fs.
            return NVIDIA_FS_LOADED
                .problem(seen, NVIDIA_FS)
                .step(match lockdown {
                    Some(_) => {
                        "install `nvidia-gds` (`nvidia-fs-dkms`) and sign the module, or switch \
                         Secure Boot off: this kernel takes signed modules only"
                    }
                    None => "install `nvidia-gds` (`nvidia-fs-dkms`) and `modprobe nvidia-fs`",
                })
                .needs("the module `nvidia-fs`");
        };
        if facts.process.is_container() && devices.unwrap_or_default().is_empty() {
            return NVIDIA_FS_LOADED
                .problem("it is loaded, but /dev/nvidia-fs* is not in this container", NVIDIA_FS)
                .step("give the container the devices /dev/nvidia-fs*")
                .needs("/dev/nvidia-fs* in the container")
                .broken_if(true);
        }
        NVIDIA_FS_LOADED.ok(version.clone())
    }

    /// Checks whether the storage driver of this path is registered with nvidia-fs.
    fn registered(&self, facts: &Facts) -> Option<Check> {
        self.nvidia_fs.as_ref()?;
        let wanted = facts.storage.module()?;
        let users = match &self.users {
            Ok(users) => users.join(", "),
            Err(reason) => {
                let seen = format!("/proc/driver/nvidia-fs/modules: {reason}");
                return Some(NVIDIA_FS_MODULES.unknown(seen).step("run `forebay doctor` as root"));
            }
        };
        if self.serves(wanted) == Some(true) {
            return Some(NVIDIA_FS_MODULES.ok(format!("/proc/driver/nvidia-fs/modules: {users}")));
        }
        // Source: issues 4, 31 and 87 of nvidia-fs. The kernel's own drivers do not support it.
        let seen = format!("/proc/driver/nvidia-fs/modules has no `{wanted}`: {users}");
        let check = NVIDIA_FS_MODULES
            .problem(seen, NVIDIA_FS)
            .step(format!(
                "install the drivers of DOCA-OFED that know nvidia-fs, of a version that fits it, \
                 and load `{wanted}` again, or use P2PDMA"
            ))
            .needs(format!("a driver `{wanted}` that knows nvidia-fs"));
        Some(check.broken_if(!facts.driver.has_pool()))
    }
}

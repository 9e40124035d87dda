//! Checks of the GPU, its driver, and nvidia-fs.

use forebay_topology::{Absent, NvidiaFsModule, System};

use super::GpuWish;
use super::facts::Facts;
use super::peers::number;
use super::report::{BOTH, Check, NVIDIA_FS, P2PDMA, Topic};

const DRIVER: Topic =
    Topic { name: "gpu_driver", why: "P2PDMA takes NVIDIA's open kernel module, 565 or later" };
const CLASS: Topic = Topic {
    name: "gpu_class",
    why: "the driver gives other PCI devices the memory of some kinds of GPUs only",
};
const KEYS: Topic = Topic {
    name: "gpu_driver_keys",
    why: "on x86 the driver maps all GPU memory for other devices only with this option",
};
const POOL: Topic = Topic {
    name: "gpu_p2p_memory",
    why: "P2PDMA reaches the memory that the GPU's driver has given to the kernel, and no other",
};
const MODULE: Topic = Topic {
    name: "nvidia_fs",
    why: "nvidia-fs is the other way: it lends the GPU's memory to drivers that know it",
};
const USERS: Topic = Topic {
    name: "nvidia_fs_modules",
    why: "nvidia-fs serves only drivers that have registered with it",
};

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

const LEN_MAX: usize = 64 << 10;

/// The facts about a GPU's driver.
#[derive(Debug)]
pub(super) struct Driver {
    /// Its version line, or the reason why it is missing.
    line: Result<String, String>,
    pub(super) version: Option<(u32, u32)>,
    /// The options given to it, as `NAME=VALUE`; `None` if they cannot be read.
    keys: Option<Vec<String>>,
    /// Its name for the GPU.
    pub(super) model: Option<String>,
    /// Bytes of GPU memory published to the kernel; `None` if there are none.
    pool: Option<u64>,
    /// The version of nvidia-fs, if it is loaded.
    pub(super) nvidia_fs: Option<String>,
    /// The storage drivers registered with nvidia-fs.
    users: Result<Vec<String>, Absent>,
    /// The kernel's lockdown mode, if it is on: it restricts even root (`kernel_lockdown(7)`).
    lockdown: Option<String>,
}

impl Driver {
    pub(super) fn read(system: &System, gpu: Option<&str>) -> Self {
        let text = |path: &str| system.text(path);
        let line = text("proc/driver/nvidia/version")
            .map(|text| text.lines().next().unwrap_or_default().to_owned())
            .map_err(|absent| format!("/proc/driver/nvidia/version: {absent}"));
        let version = line.as_deref().ok().and_then(version);
        let keys = system.lines_of("proc/driver/nvidia/params", LEN_MAX, |line| {
            line.starts_with("RegistryDwords")
        });
        let keys = keys.ok().map(|lines| lines.iter().flat_map(|line| options(line)).collect());
        let model = gpu.and_then(|address| gpu_model(system, address));
        let pool = gpu.and_then(|address| {
            let folder = format!("sys/bus/pci/devices/{address}/p2pmem");
            for file in ["available", "published"] {
                let _ = text(&format!("{folder}/{file}")); // for the record
            }
            text(&format!("{folder}/size")).ok()?.parse().ok()
        });
        let NvidiaFsModule { version: nvidia_fs, users, .. } = NvidiaFsModule::read(system);
        let lockdown = text("sys/kernel/security/lockdown").ok().and_then(|text| {
            let chosen = text.split_once('[')?.1.split_once(']')?.0.to_owned();
            (chosen != "none").then_some(chosen)
        });
        Self { line, version, keys, model, pool, nvidia_fs, users, lockdown }
    }

    pub(super) fn version_text(&self) -> String {
        self.version.map_or_else(|| "?".into(), |(major, minor)| format!("{major}.{minor}"))
    }

    /// Whether the driver publishes GPU memory to the kernel.
    pub(super) fn has_pool(&self) -> bool {
        self.pool.is_some_and(|size| size > 0)
    }

    /// Whether this is an ARM machine, which needs neither the options nor a disabled IOMMU.
    pub(super) fn is_arm(&self) -> bool {
        self.line.as_deref().is_ok_and(|line| line.contains("aarch64"))
    }

    /// Whether `module` is registered with nvidia-fs; `None` if unknown.
    pub(super) fn serves(&self, module: &str) -> Option<bool> {
        Some(self.users.as_ref().ok()?.iter().any(|user| user == module))
    }

    /// Whether the driver is loaded.
    pub(super) fn is_there(&self) -> bool {
        self.line.is_ok()
    }

    fn is_open(&self) -> bool {
        self.line.as_deref().is_ok_and(|line| line.contains("Open Kernel Module"))
    }

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
            let check = CLASS
                .problem(reason.clone(), BOTH)
                .needs("an NVIDIA GPU that this machine can see")
                .broken_if(matches!(facts.gpu_wish, GpuWish::At(_)));
            if let GpuWish::None(_) = facts.gpu_wish {
                return check;
            }
            return check
                .step("`lspci -d 10de:` lists NVIDIA's devices; a container takes `--gpus all`");
        }
        let Some(model) = &self.model else {
            return CLASS.unknown("the driver names no model").step("`nvidia-smi -L` names it");
        };
        let parts: Vec<&str> = model.split([' ', '-']).collect();
        let has = |names: &[&str]| parts.iter().any(|part| names.contains(part));
        if has(&["GeForce", "TITAN"]) || has(&["GB10"]) {
            return CLASS.problem(model.clone(), BOTH).needs("a data-centre GPU").last();
        }
        if has(&DROPPED) {
            let seen = format!("{model}: cuFile serves it up to 1.14 only");
            return CLASS.problem(seen, BOTH).needs("a GPU of Ampere's or later").last();
        }
        if has(&NAMED) {
            return CLASS.ok(model.clone());
        }
        CLASS
            .warning(format!("{model} is not among those that NVIDIA names for P2PDMA"))
            .step("a transfer shows it: `forebay bench --route direct`")
    }

    fn driver(&self, facts: &Facts) -> Check {
        let line = match &self.line {
            Ok(line) => line,
            Err(reason) if facts.gpu.is_err() => {
                return DRIVER.unknown(reason.clone()).step("look for the GPU first (`gpu_class`)");
            }
            Err(reason) => {
                let is_free = facts.gpu.as_ref().is_ok_and(|gpu| gpu.pci.driver.is_none());
                let step = if facts.process.is_container() {
                    "give the container the GPU (`--gpus all`)"
                } else {
                    "install NVIDIA's driver with the open kernel module, 565 or later"
                };
                return DRIVER
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
            _ if !self.is_open() => DRIVER
                .problem(format!("{seen}: not the open kernel module"), P2PDMA)
                .step("install the driver's open kernel module (`nvidia-open`)")
                .needs("the driver's open kernel module"),
            Some((major, _)) if major < 565 => DRIVER
                .problem(seen, P2PDMA)
                .step("install driver 565 or later")
                .needs("driver 565 or later"),
            Some(_) => DRIVER.ok(seen),
            None => DRIVER
                .unknown(format!("`{line}` has no version"))
                .step("`nvidia-smi` shows the driver's version"),
        }
    }

    fn options(&self, facts: &Facts) -> Check {
        let Some(keys) = &self.keys else {
            return KEYS
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
        let is_hopper = self.model.as_deref().is_none_or(|model| {
            let mut parts = model.split([' ', '-']);
            parts.any(|part| part.starts_with(['H', 'B']) || part.starts_with("GH"))
        });
        let wanted = WANTED.iter().filter(|(name, _)| *name != "ForceP2P" || !is_hopper);
        let text = |(name, value): &(&str, u64)| format!("{name}={value}");
        let missing: Vec<String> =
            wanted.clone().filter(|(name, value)| !is_set(name, *value)).map(text).collect();
        let options = wanted.map(|option| text(option) + ";").collect::<String>();
        if missing.is_empty() {
            return KEYS.ok(format!("`{}`", keys.join(";")));
        }
        let has = |key: &String| key.to_ascii_lowercase().contains("forcestaticbar1");
        let is_half = keys.iter().any(has) && facts.config.wants_p2pdma();
        let names = missing.iter().map(|option| format!("`{option}`")).collect::<Vec<_>>();
        KEYS.problem(format!("/proc/driver/nvidia/params has no {}", names.join(", ")), P2PDMA)
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
            let check = POOL.unknown("there is no GPU to look at");
            return check.step("look for the GPU first (`gpu_class`)");
        };
        let folder = format!("/sys/bus/pci/devices/{}/p2pmem", gpu.pci.address);
        // If the kernel or the driver is the cause, the other check names the remedy.
        let needs = "a driver that gives the GPU's memory to the kernel";
        let follows = facts.kernel.lacks_p2pdma() || self.line.is_err();
        let check = match self.pool {
            Some(0) => POOL
                .problem(format!("{folder}/size is 0"), P2PDMA)
                .step("update the driver: some versions were seen to give nothing (610.57)")
                .broken_if(!follows),
            Some(size) => return POOL.ok(format!("{folder}: {} MiB", size >> 20)),
            None => POOL
                .problem(format!("there is no {folder}"), P2PDMA)
                .step("update the driver, and see that it is the open kernel module"),
        };
        match follows {
            true => check.step("it follows from `kernel_p2pdma` or `gpu_driver`: begin there"),
            false => check.needs(needs),
        }
    }

    fn module(&self, facts: &Facts) -> Check {
        let Some(version) = &self.nvidia_fs else {
            let seen = match self.lockdown.as_deref() {
                Some(mode) => format!("the module `nvidia_fs` is not loaded (lockdown: {mode})"),
                None => "the module `nvidia_fs` is not loaded".to_owned(),
            };
            // Source: NVIDIA's page of nvidia-fs, "Getting Started"; issue 81 of nvidia-fs.
            return MODULE
                .problem(seen, NVIDIA_FS)
                .step(match self.lockdown {
                    Some(_) => {
                        "install `nvidia-gds` (`nvidia-fs-dkms`) and sign the module, or switch \
                         Secure Boot off: this kernel takes signed modules only"
                    }
                    None => "install `nvidia-gds` (`nvidia-fs-dkms`) and `modprobe nvidia-fs`",
                })
                .needs("the module `nvidia-fs`");
        };
        if facts.process.is_container() && !facts.process.has_nvidia_fs {
            return MODULE
                .problem("it is loaded, but /dev/nvidia-fs* is not in this container", NVIDIA_FS)
                .step("give the container the devices /dev/nvidia-fs*")
                .needs("/dev/nvidia-fs* in the container")
                .broken_if(true);
        }
        MODULE.ok(version.clone())
    }

    /// Checks whether the storage driver of this path is registered with nvidia-fs.
    fn registered(&self, facts: &Facts) -> Option<Check> {
        self.nvidia_fs.as_ref()?;
        let wanted = facts.storage.module()?;
        let users = match &self.users {
            Ok(users) => users.join(", "),
            Err(reason) => {
                let seen = format!("/proc/driver/nvidia-fs/modules: {reason}");
                return Some(USERS.unknown(seen).step("run `forebay doctor` as root"));
            }
        };
        if self.serves(wanted) == Some(true) {
            return Some(USERS.ok(format!("/proc/driver/nvidia-fs/modules: {users}")));
        }
        // Source: issues 4, 31 and 87 of nvidia-fs. The kernel's own drivers do not support it.
        let seen = format!("/proc/driver/nvidia-fs/modules has no `{wanted}`: {users}");
        let check = USERS
            .problem(seen, NVIDIA_FS)
            .step(format!(
                "install the drivers of DOCA-OFED that know nvidia-fs, of a version that fits it, \
                 and load `{wanted}` again, or use P2PDMA"
            ))
            .needs(format!("a driver `{wanted}` that knows nvidia-fs"));
        Some(check.broken_if(!facts.driver.has_pool()))
    }
}

/// The driver's name of the GPU at this PCI address.
#[must_use]
pub fn gpu_model(system: &System, address: &str) -> Option<String> {
    let file = format!("proc/driver/nvidia/gpus/{address}/information");
    system.line_of(&file, "Model:").filter(|name| !name.is_empty())
}

/// Finds `580.159` in a line with `580.159.04`.
fn version(line: &str) -> Option<(u32, u32)> {
    line.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.');
        let version = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        numbers.all(|number| number.parse::<u32>().is_ok()).then_some(version)
    })
}

/// The options in `RegistryDwords: "A=1;B=2"`.
fn options(line: &str) -> Vec<String> {
    let value = line.split_once(':').map_or("", |(_, value)| value).trim().trim_matches('"');
    let options = value.split([';', ',']).map(str::trim).filter(|option| !option.is_empty());
    options.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_options_are_read_as_the_driver_writes_them() {
        let line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release";
        assert_eq!(version(line), Some((580, 159)));
        assert_eq!(version("NVRM version: x.y 99999999999.1"), None);
        let line = "RegistryDwords: \"RMForceStaticBar1=1; RmForceDisableIomapWC=1;\"";
        assert_eq!(options(line), ["RMForceStaticBar1=1", "RmForceDisableIomapWC=1"]);
        assert!(options("RegistryDwordsPerDevice: \"\"").is_empty());
        assert!(options("").is_empty());
    }
}

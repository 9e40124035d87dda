//! Checks of the calling process: its limits, its rights, and its container.

use super::facts::Facts;
use super::report::{BOTH, Check, NVIDIA_FS, Topic};
use forebay::units::{MIB, format_size};
use forebay_topology::System;

const LOCKED: Topic = Topic {
    name: "locked_memory",
    why: "what the kernel or a network card is to reach has to be locked in memory",
};
const LIMIT: Topic = Topic {
    name: "memory_limit",
    why: "pinned memory counts against the limit of the control group, and is never given back",
};
const RIGHTS: Topic = Topic {
    name: "rights",
    why: "registers of bridges and tables of volumes are shown to root only",
};
const CONTAINER: Topic = Topic {
    name: "container",
    why: "a container shows only the devices and folders that it was given",
};
const MODULES: Topic = Topic {
    name: "proc_modules",
    why: "cuFile from 1.16 on was seen to spin endlessly while its driver opens if this is missing",
};

/// Bits of `CapEff` (`linux/capability.h`).
const CAP_IPC_LOCK: u64 = 1 << 14;
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// Locked memory below which rings cannot register their buffers.
const LOCKED_MIN: u64 = 64 * MIB;
/// Memory below which the engine uses fewer slots.
const MEMORY_MIN: u64 = 512 * MIB;
/// Files that container runtimes create.
const MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];

/// The facts about the process.
#[derive(Debug)]
pub(super) struct Process {
    /// Bytes that may be locked; `u64::MAX` if unlimited, `None` if unknown.
    locked: Option<u64>,
    rights: Option<u64>,
    /// Memory available in the control group, and the file of its limit.
    memory: Option<(u64, String)>,
    /// The sign that it runs in a container.
    container: Option<String>,
    pub(super) has_nvidia_fs: bool,
    has_infiniband: bool,
    has_modules: bool,
}

impl Process {
    pub(super) fn read(system: &System) -> Self {
        let locked = system.line_of("proc/self/limits", "Max locked memory");
        let rights = system.line_of("proc/self/status", "CapEff:");
        let mark = MARKS.into_iter().find(|mark| system.exists(mark));
        let variable = system.environment(|name| name == "container").remove("container");
        let container = mark.map(|mark| format!("/{mark} is there"));
        let container = container.or_else(|| variable.map(|name| format!("`container={name}`")));
        let devices = |prefix: &str| {
            system
                .names("dev", |name| name.starts_with(prefix))
                .is_ok_and(|names| !names.is_empty())
        };
        Self {
            locked: locked.and_then(|limits| locked_bytes(&limits)),
            rights: rights.and_then(|rights| u64::from_str_radix(&rights, 16).ok()),
            memory: system
                .memory_limit()
                .map(|limit| (limit.available, limit.file.display().to_string())),
            container,
            has_nvidia_fs: devices("nvidia-fs"),
            has_infiniband: system.exists("dev/infiniband"),
            has_modules: system.exists("proc/modules"),
        }
    }

    pub(super) fn is_container(&self) -> bool {
        self.container.is_some()
    }

    fn may(&self, right: u64) -> bool {
        self.rights.is_some_and(|rights| rights & right != 0)
    }

    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks = vec![self.modules(facts)];
        checks.extend(self.contained(facts));
        checks.push(self.locking());
        checks.extend(self.limit());
        checks.push(match (self.rights, self.may(CAP_SYS_ADMIN)) {
            (_, true) => RIGHTS.ok("running with `CAP_SYS_ADMIN`"),
            (None, _) => RIGHTS
                .unknown("/proc/self/status does not show them")
                .step("mount `/proc`, and run `forebay doctor` as root"),
            _ => RIGHTS
                .unknown("without root some of these could not be seen")
                .step("run `forebay doctor` as root"),
        });
        checks
    }

    fn modules(&self, facts: &Facts) -> Check {
        if self.has_modules {
            return MODULES.ok("/proc/modules is there");
        }
        let may_hang = facts.library_version().is_some_and(|version| version >= (1, 16));
        let seen = "there is no /proc/modules: this kernel loads none";
        match (may_hang, facts.cufile_opened()) {
            (true, false) => MODULES
                .problem(seen, BOTH)
                .step("use cuFile 1.15, or a kernel with loadable modules")
                .needs("/proc/modules"),
            _ => MODULES.warning(seen).step("keep to cuFile 1.15, or try `forebay probe`"),
        }
    }

    fn contained(&self, facts: &Facts) -> Option<Check> {
        let seen = self.container.clone()?;
        if facts.storage.is_remote() && !self.has_infiniband {
            return Some(
                CONTAINER
                    .problem(format!("{seen}, /dev/infiniband is not"), NVIDIA_FS)
                    .step("give the container the cards: `--device /dev/infiniband`")
                    .needs("/dev/infiniband in the container"),
            );
        }
        Some(CONTAINER.ok(seen))
    }

    fn locking(&self) -> Check {
        match self.locked {
            _ if self.may(CAP_IPC_LOCK) => LOCKED.ok("the process may lock any memory"),
            None => LOCKED
                .unknown("/proc/self/limits does not show the limit")
                .step("`ulimit -l` prints it"),
            Some(u64::MAX) => LOCKED.ok("unlimited"),
            Some(bytes) if bytes >= LOCKED_MIN => LOCKED.ok(format_size(bytes)),
            Some(bytes) => LOCKED
                .warning(format_size(bytes))
                .step("`ulimit -l unlimited`, for good in /etc/security/limits.conf (`memlock`)"),
        }
    }

    fn limit(&self) -> Option<Check> {
        let (left, file) = self.memory.as_ref()?;
        let seen = format!("{file} leaves {}", format_size(*left));
        Some(match *left < MEMORY_MIN {
            true => LIMIT.warning(seen).step("raise the limit of the control group or container"),
            false => LIMIT.ok(seen),
        })
    }
}

/// The first number of `8388608  8388608  bytes`.
fn locked_bytes(limits: &str) -> Option<u64> {
    match limits.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let limits = "8388608              8388608              bytes";
        assert_eq!(locked_bytes(limits), Some(8 << 20));
        assert_eq!(locked_bytes("unlimited    unlimited"), Some(u64::MAX));
        assert_eq!(locked_bytes(""), None);
    }
}

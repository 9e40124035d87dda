//! Checks of the calling process: its limits, its rights, and its container.

use super::facts::{Facts, Process};
use super::report::{BOTH, Check, NVIDIA_FS};
use super::topics::*;
use forebay::units::{MIB, format_size};
use forebay_topology::System;

/// Bits of `CapEff` (`linux/capability.h`).
const CAP_IPC_LOCK: u64 = 1 << 14;
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// Locked memory below which rings cannot register their buffers.
const LOCKED_MIN: u64 = 64 * MIB;
/// Memory below which the engine uses fewer slots.
const MEMORY_MIN: u64 = 512 * MIB;

impl Process {
    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks = vec![self.modules(facts)];
        checks.extend(self.contained(facts));
        checks.push(self.locking(&facts.system));
        checks.extend(limit(&facts.system));
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
        if facts.system.exists("proc/modules") {
            return PROC_MODULES.ok("/proc/modules is there");
        }
        let may_hang = facts.library_version().is_some_and(|version| version >= (1, 16));
        let seen = "there is no /proc/modules: this kernel loads none";
        match (may_hang, facts.cufile_opened()) {
            (true, false) => PROC_MODULES
                .problem(seen, BOTH)
                .step("use cuFile 1.15, or a kernel with loadable modules")
                .needs("/proc/modules"),
            _ => PROC_MODULES.warning(seen).step("keep to cuFile 1.15, or try `forebay probe`"),
        }
    }

    fn contained(&self, facts: &Facts) -> Option<Check> {
        let has_infiniband = facts.system.exists("dev/infiniband");
        let seen = self.container.clone()?;
        if facts.storage.is_remote() && !has_infiniband {
            return CONTAINER
                .problem(format!("{seen}, /dev/infiniband is not"), NVIDIA_FS)
                .step("give the container the cards: `--device /dev/infiniband`")
                .needs("/dev/infiniband in the container")
                .into();
        }
        Some(CONTAINER.ok(seen))
    }

    fn locking(&self, system: &System) -> Check {
        let limits = system.line_of("proc/self/limits", "Max locked memory");
        match limits.and_then(|limits| locked_bytes(&limits)) {
            _ if self.may(CAP_IPC_LOCK) => LOCKED_MEMORY.ok("the process may lock any memory"),
            None => LOCKED_MEMORY
                .unknown("/proc/self/limits does not show the limit")
                .step("`ulimit -l` prints it"),
            Some(u64::MAX) => LOCKED_MEMORY.ok("unlimited"),
            Some(bytes) if bytes >= LOCKED_MIN => LOCKED_MEMORY.ok(format_size(bytes)),
            Some(bytes) => LOCKED_MEMORY
                .warning(format_size(bytes))
                .step("`ulimit -l unlimited`, for good in /etc/security/limits.conf (`memlock`)"),
        }
    }
}

fn limit(system: &System) -> Option<Check> {
    let limit = system.memory_limit()?;
    let seen = format!("{} leaves {}", limit.file.display(), format_size(limit.available));
    Some(match limit.available < MEMORY_MIN {
        true => {
            MEMORY_LIMIT.warning(seen).step("raise the limit of the control group or container")
        }
        false => MEMORY_LIMIT.ok(seen),
    })
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

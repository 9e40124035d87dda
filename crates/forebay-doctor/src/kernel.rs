//! Checks of the kernel: its support of peer-to-peer DMA, and known problems of its version.

use super::facts::{Facts, Kernel};
use super::report::{Check, P2PDMA};
use super::topics::*;

const UNAME: &str = "`uname -r` shows the version: kernels from 6.15 on need a newer driver";

impl Kernel {
    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks = vec![self.transfers()];
        checks.extend(self.versions(facts));
        checks
    }

    fn transfers(&self) -> Check {
        let source = &self.source;
        let missing = |name: &str| {
            // Source: NVIDIA's troubleshooting guide, "Linux Kernel Requirements" of NVMe P2PDMA.
            KERNEL_P2PDMA
                .problem(format!("{source}: `{name}` is not set"), P2PDMA)
                .step(
                    "boot a kernel with `CONFIG_PCI_P2PDMA=y` and `CONFIG_ZONE_DEVICE=y`: Ubuntu's \
                     from 6.2 on, or one that is built so",
                )
                .needs("a kernel with `CONFIG_PCI_P2PDMA`")
        };
        match (self.p2pdma, self.zone_device) {
            (Some(false), _) => missing("CONFIG_PCI_P2PDMA"),
            (_, Some(false)) => missing("CONFIG_ZONE_DEVICE"),
            (Some(true), _) => KERNEL_P2PDMA.ok(format!("{source}: `CONFIG_PCI_P2PDMA` is set")),
            (None, _) => KERNEL_P2PDMA
                .unknown(source.clone())
                .step("`grep -i p2pdma /boot/config-$(uname -r)` on the machine itself, as root"),
        }
    }

    fn versions(&self, facts: &Facts) -> Vec<Check> {
        let Some(release) = &self.release else {
            return vec![
                KERNEL_VERSION.unknown("/proc/sys/kernel/osrelease cannot be read").step(UNAME),
            ];
        };
        let Some(version) = self.version() else {
            let seen = format!("`{release}` begins with no version");
            return vec![KERNEL_VERSION.unknown(seen).step(UNAME)];
        };
        let mut checks = Vec::new();
        // Source: NVIDIA's release notes. Drives with scatter-gather lists hang with nvidia-fs.
        if version >= (6, 17) && facts.driver.nvidia_fs.is_some() {
            let seen = format!("{release}, and nvidia-fs is loaded");
            checks.push(KERNEL_VERSION.warning(seen).step(
                "use P2PDMA in the place of nvidia-fs from 6.17 on: drives that take \
                 scatter-gather lists were seen to hang",
            ));
        }
        // Source: user reports. CUDA's query for P2PDMA fails with `INVALID_VALUE`.
        let is_old = facts.driver.version.is_some_and(|(major, _)| (565..595).contains(&major));
        if version >= (6, 15) && is_old && facts.driver.has_pool() {
            let seen = format!("{release} with driver {}", facts.driver.version_text());
            checks.push(KERNEL_VERSION.warning(seen).step(
                "use driver 595 or later: users saw that earlier ones refuse P2PDMA on 6.15 and \
                 later",
            ));
        }
        if checks.is_empty() {
            checks.push(KERNEL_VERSION.ok(release.clone()));
        }
        checks
    }
}

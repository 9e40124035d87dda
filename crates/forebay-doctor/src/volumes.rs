//! Checks of the devices below a path: drives, arrays, volumes, multipath, networks.

use std::collections::BTreeSet;

use forebay_topology::{Layer, LayerKind, System, Transport, is_number};

use super::facts::{Facts, Storage};
use super::report::{BOTH, Check, NVIDIA_FS, P2PDMA};
use super::topics::*;

impl Storage {
    /// The checks of the devices below the file system.
    pub(super) fn below(&self, facts: &Facts) -> Vec<Check> {
        let found = [
            self.drive(),
            self.arrays(facts),
            self.volumes(),
            self.paths(facts),
            self.policy(),
            self.protection(&facts.system),
            self.fabrics(),
            self.emulated(),
        ];
        found.into_iter().flatten().collect()
    }

    fn drive(&self) -> Option<Check> {
        let drives = || self.map.drives.iter().filter(|drive| drive.device.is_some());
        let seen = few(drives().map(|drive| format!("{}: {}", drive.name, drive.transport())));
        if self.layers(LayerKind::Loop).next().is_some() {
            return DRIVE
                .problem("a loop device", BOTH)
                .step("use a path on the drive itself")
                .needs("a path that is on no loop device")
                .into();
        }
        let is_nvme = |transport: &Transport| {
            use Transport::{Emulated, Fabric, Pcie};
            matches!(transport, Pcie | Emulated { .. } | Fabric { .. })
        };
        if seen.is_empty() {
            return None;
        }
        if drives().all(|drive| is_nvme(drive.transport())) {
            return Some(DRIVE.ok(seen));
        }
        // cuFile knows a flag for SCSI, but no kernel driver supports it.
        DRIVE
            .problem(seen, BOTH)
            .step("use a path on a local NVMe drive")
            .needs("an NVMe drive")
            .last()
            .into()
    }

    fn arrays(&self, facts: &Facts) -> Option<Check> {
        let md = self.layers(LayerKind::Md).next()?;
        let level = md.text("level").unwrap_or("of no known level");
        let seen = format!("{}: {level}", md.name);
        let step = "a transfer shows it (`forebay bench --route direct`): NVIDIA names kernel 7.1 \
                    for RAID-0 and 7.2 for RAID-1 and RAID-10";
        Some(match level {
            "raid0" => RAID.warning(seen).step(step),
            "raid1" | "raid10" => {
                let is_old = facts.library_version().is_some_and(|version| version < (1, 19));
                match is_old {
                    true => RAID
                        .problem(seen, NVIDIA_FS)
                        .step("install cuFile 1.19 or later, or use RAID-0")
                        .needs("cuFile 1.19 or later"),
                    false => RAID.warning(seen).step(step),
                }
            }
            _ => RAID
                .problem(seen, BOTH)
                .step("use RAID-0, RAID-1 or RAID-10, or a separate drive")
                .needs("an array of level 0, 1 or 10"),
        })
    }

    fn volumes(&self) -> Option<Check> {
        let seen = few(self.layers(LayerKind::DeviceMapper).map(|dm| {
            let kind = dm.text("target").or_else(|| dm.text("made_by"));
            format!("{}: {}", dm.name, kind.unwrap_or("device mapper"))
        }));
        if seen.is_empty() {
            return None;
        }
        VOLUME
            .problem(seen, BOTH)
            .step("use a path on a partition or drive itself")
            .needs("a path without volumes of the device mapper (LVM, dm-crypt, multipath)")
            .into()
    }

    /// Sources: NVIDIA's troubleshooting guide, "Disable multipathing support". Commit
    /// `fb0eeeed91f3` of the kernel passes such requests on.
    fn paths(&self, facts: &Facts) -> Option<Check> {
        let paths = facts.system.names("sys/block", |name| head(name).is_some());
        let heads: Vec<String> = paths.unwrap_or_default().iter().filter_map(|n| head(n)).collect();
        let nvme = || self.map.drives.iter().filter(|drive| drive.name.starts_with("nvme"));
        nvme().next()?;
        let several = nvme().filter(|drive| drive.paths.len() > 1 || heads.contains(&drive.name));
        let found = few(several.map(|drive| {
            format!("{} has {} paths", drive.name, drive.paths.len().max(1)) //
        }));
        if found.is_empty() {
            return Some(MULTIPATH.ok("no drive of this path has several"));
        }
        // The commit reached the kernel in May 2026, so no unpatched kernel before 7.2 includes it.
        let may_pass = facts.kernel.version().is_none_or(|version| version >= (7, 2));
        let seen = format!("{found}, by the kernel's own multipath");
        let step = "put `options nvme_core multipath=N` into /etc/modprobe.d/nvme.conf, build the \
                    initial file system again, and boot";
        Some(match may_pass {
            true => MULTIPATH.warning(seen).step(step),
            false => MULTIPATH
                .problem(seen, P2PDMA)
                .step(step)
                .needs("NVMe without multipath (`nvme_core.multipath=N`)"),
        })
    }

    /// Source: `Documentation/admin-guide/nvme-multipath.rst` of the kernel.
    fn policy(&self) -> Option<Check> {
        let of = |layer: &Layer| Some(format!("{}: `{}`", layer.name, layer.text("path_policy")?));
        let found: Vec<String> = self.layers(LayerKind::NvmeNamespace).filter_map(of).collect();
        let is_numa = found.iter().any(|policy| policy.ends_with(": `numa`"));
        let seen = few(found);
        if !is_numa {
            return (!seen.is_empty()).then(|| MULTIPATH_POLICY.ok(seen));
        }
        Some(MULTIPATH_POLICY.warning(seen).step(
            "write `round-robin` to the drive's /sys/class/nvme-subsystem/*/iopolicy to take all \
             paths in turn, where they are alike; `queue-depth` (Linux 6.11) where not",
        ))
    }

    fn protection(&self, system: &System) -> Option<Check> {
        let protected = self.map.drives.iter().take(64).filter_map(|drive| {
            let text =
                |file: &str| system.text(format!("sys/block/{}/integrity/{file}", drive.name));
            let capable = text("device_is_integrity_capable").ok()?;
            let format = text("format").unwrap_or_default();
            (capable == "1").then(|| format!("{} ({format})", drive.name))
        });
        let protected: Vec<String> = protected.collect();
        if protected.is_empty() {
            return None;
        }
        PROTECTION_INFORMATION
            .problem(protected.join("; "), BOTH)
            .step(
                "`nvme id-ns -H DEVICE` lists the drive's formats: use one without metadata \
                 (`nvme format` erases the drive)",
            )
            .needs("a drive formatted without metadata")
            .into()
    }

    fn fabrics(&self) -> Option<Check> {
        let kinds = self.map.drives.iter().filter_map(|drive| match drive.transport() {
            Transport::Fabric { kind, .. } => Some(kind.as_str()),
            _ => None,
        });
        let kinds: BTreeSet<&str> = kinds.collect();
        let kinds: Vec<&str> = kinds.into_iter().collect();
        let seen = format!("NVMe over {}", kinds.join(", "));
        match kinds.as_slice() {
            [] => None,
            // Source: issue 1063 of NIXL. Commit `23528aa3320a` of the kernel (April 2026) fixes
            // it.
            ["rdma"] => Some(NVME_OVER_FABRICS.warning(seen).step(
                "where reads fail with P2PDMA, set `use_pci_p2pdma` of `block.nvmeof` to false",
            )),
            _ => NVME_OVER_FABRICS
                .problem(seen, BOTH)
                .step("connect the drive by RDMA (`nvme connect -t rdma`)")
                .needs("NVMe over RDMA")
                .into(),
        }
    }

    fn emulated(&self) -> Option<Check> {
        let emulated = self.map.drives.iter().find_map(|drive| match drive.transport() {
            Transport::Emulated { by, certain, signs } => Some((drive, by, *certain, signs)),
            _ => None,
        })?;
        let (drive, by, certain, signs) = emulated;
        let likely = if certain { "" } else { "likely " };
        let seen = format!("{} is {likely}emulated by {by}: {}", drive.name, signs.join(", "));
        let step = "compare where the card and the GPU are (`forebay doctor --tree`), as for a \
                    network card";
        Some(DPU.warning(seen).step(step))
    }
}

/// The first eight findings.
fn few(found: impl IntoIterator<Item = String>) -> String {
    found.into_iter().take(8).collect::<Vec<_>>().join("; ")
}

/// The head `nvmeXnZ` of the path `nvmeXcYnZ`.
fn head(name: &str) -> Option<String> {
    let (before, rest) = name.strip_prefix("nvme")?.split_once('c')?;
    let (number, after) = rest.split_once('n')?;
    [before, number, after].into_iter().all(is_number).then(|| format!("nvme{before}n{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_drive_is_recognized_by_its_head() {
        assert_eq!(head("nvme0c1n2").as_deref(), Some("nvme0n2"));
        for name in ["nvme0n2", "nvme0c1n2p1", "nvmec1n2", "sdc1", "nvme0c1", ""] {
            assert_eq!(head(name), None, "{name}");
        }
    }
}

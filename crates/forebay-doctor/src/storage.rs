//! Checks of a path's storage: file system and mount, the file itself, and udev's facts about the
//! device.
//!
//! `volumes` checks the devices below the file system.

use forebay_topology::{Layer, LayerKind, StorageMap, System, Transport, Value, is_number, shown};

use super::facts::Facts;
use super::report::{BOTH, Check, Topic};

const ANSWER: Topic = Topic {
    name: "path_answers",
    why: "a process that opens a file there waits for a reply, and may not be killed before",
};
const FILE_SYSTEM: Topic = Topic {
    name: "file_system",
    why: "cuFile moves bytes directly on few file systems; on all others it copies them",
};
const MOUNT: Topic = Topic {
    name: "mount_options",
    why: "on ext4 cuFile takes files only where the table of mounts says `data=ordered`",
};
const ATTRIBUTES: Topic = Topic {
    name: "file_attributes",
    why: "bytes that are encrypted, compressed or checked have to pass the processor",
};
const UDEV: Topic = Topic {
    name: "udev",
    why: "cuFile needs udev to identify the file system; without it every file fails with 5027, \
          also in compat mode",
};
const ARRAY_UDEV: Topic = Topic {
    name: "udev_raid",
    why: "cuFile needs udev to identify the level of an array; without it every file fails",
};

/// Flags of extents whose bytes on the drive differ from the file's: encoded, encrypted, inline
/// (`linux/fiemap.h`).
const NOT_AS_THEY_ARE: [(u32, &str); 3] =
    [(0x8, "encoded"), (0x80, "encrypted"), (0x200, "in the inode")];
const LEN_MAX: usize = 64 << 10;

/// The facts about the storage below a path.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) map: StorageMap,
    /// The flags of the file's first extent.
    flags: Result<u32, String>,
    /// Namespaces with several paths, or with multipath enabled.
    pub(super) heads: Vec<String>,
    /// Block devices with protection information, and its format.
    pub(super) protected: Vec<String>,
    /// The device below the file system, and udev's facts about it; `None` if udev recorded
    /// nothing.
    device: Option<(String, Option<Vec<String>>)>,
    has_udev: bool,
}

impl Storage {
    pub(super) fn read(system: &System, map: StorageMap) -> Self {
        let is_file = map.exists && map.root.number("size_bytes").is_some();
        let flags = if is_file { system.extent_flags(&map.path) } else { Ok(0) };
        let heads = system.names("sys/block", |name| name.starts_with("nvme") && is_path(name));
        let heads = heads.unwrap_or_default().iter().filter_map(|name| head(name)).collect();
        let protected = map.drives.iter().take(64).filter_map(|drive| {
            let text = |file: &str| system.text(format!("sys/block/{}/{file}", drive.name));
            let capable = text("integrity/device_is_integrity_capable").ok()?;
            let format = text("integrity/format").unwrap_or_default();
            (capable == "1").then(|| format!("{} ({format})", drive.name))
        });
        let device = device(&map.root).map(|number| {
            let file = format!("run/udev/data/b{number}");
            let wanted =
                |line: &str| line.starts_with("E:ID_FS_") || line.starts_with("E:MD_LEVEL");
            let keeps =
                |line: &str| wanted(line) && !line.contains("UUID") && !line.contains("LABEL");
            (number, system.lines_of(&file, LEN_MAX, keeps).ok())
        });
        Self {
            flags,
            heads,
            protected: protected.collect(),
            device,
            has_udev: system.exists("run/udev/data"),
            map,
        }
    }

    pub(super) fn layers(&self, kind: LayerKind) -> impl Iterator<Item = &Layer> {
        self.map.root.walk().map(|(_, layer)| layer).filter(move |layer| layer.kind == kind)
    }

    /// The file system of the path.
    pub(super) fn file_system(&self) -> Option<&Layer> {
        self.layers(LayerKind::FileSystem).next()
    }

    fn kind(&self) -> &str {
        self.file_system().map_or("", |layer| layer.name.as_str())
    }

    pub(super) fn is_nfs(&self) -> bool {
        matches!(self.kind(), "nfs" | "nfs4")
    }

    /// Whether the bytes cross a network.
    pub(super) fn is_remote(&self) -> bool {
        self.map.drives.iter().any(|drive| drive.transport().is_network())
    }

    /// The step of the file server.
    pub(super) fn server(&self) -> Option<&Layer> {
        self.layers(LayerKind::Network).next()
    }

    /// The section and the key for this kind of storage in cuFile's settings, if there are any.
    pub(super) fn key(&self) -> Option<(&'static str, &'static str)> {
        if self.kind() == "virtiofs" {
            return Some(("fs", "virtiofs"));
        }
        if let Some(md) = self.layers(LayerKind::Md).next() {
            return Some(match md.text("level") {
                Some("raid1") => ("block", "raid1"),
                Some("raid10") => ("block", "raid10"),
                _ => ("block", "raid"),
            });
        }
        match self.map.drives.first()?.transport() {
            Transport::Pcie | Transport::Emulated { .. } => Some(("block", "nvme")),
            Transport::Fabric { .. } => Some(("block", "nvmeof")),
            _ => None,
        }
    }

    /// The kernel module that must support nvidia-fs for this storage.
    pub(super) fn module(&self) -> Option<&'static str> {
        if self.is_nfs() {
            return Some("rpcrdma");
        }
        match self.map.drives.first()?.transport() {
            Transport::Pcie | Transport::Emulated { .. } => Some("nvme"),
            Transport::Fabric { kind, .. } if kind == "rdma" => Some("nvme_rdma"),
            _ => None,
        }
    }

    /// The names of all steps below the path, which may be devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = &str> {
        self.map.root.walk().map(|(_, layer)| layer.name.as_str())
    }

    pub(super) fn mount_point(&self) -> Option<&str> {
        self.layers(LayerKind::Mount).next().map(|layer| layer.name.as_str())
    }

    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks: Vec<Check> = self.silence().into_iter().collect();
        checks.push(self.system_check());
        checks.extend(self.mount());
        checks.extend(self.attributes());
        checks.extend(self.below(facts));
        checks.extend(self.udev(facts));
        checks
    }

    fn silence(&self) -> Option<Check> {
        let root = &self.map.root;
        let Some(Value::Unknown(reason)) = root.fact("exists").filter(|_| root.flag("silent"))
        else {
            return None;
        };
        let point = self.mount_point().unwrap_or("the mount point");
        // umount(8): with `-f`, NFS and FUSE abort pending requests.
        let step = match self.kind() {
            "nfs" | "nfs4" => format!(
                "see whether the server answers (`rpcinfo -t SERVER nfs`); `umount -f {point}` \
                 lets go of those who wait"
            ),
            kind if kind.starts_with("fuse") => format!(
                "start the program behind {point} again; `umount -f {point}` lets go of those who \
                 wait"
            ),
            _ => "`dmesg` says what the kernel waits for".to_owned(),
        };
        let check = ANSWER.problem(format!("{}: {reason}", shown(&self.map.real_path)), BOTH);
        Some(check.step(step).needs("a path that answers").broken_if(true))
    }

    fn system_check(&self) -> Check {
        let Some(layer) = self.file_system() else {
            let is_device = self.map.drives.iter().any(|drive| drive.device.is_some());
            return match is_device {
                true => FILE_SYSTEM.ok("none: the path is a block device"),
                false => FILE_SYSTEM
                    .unknown("the storage below the path is unknown")
                    .step("`findmnt -T PATH` shows it; `/proc` has to be mounted for that"),
            };
        };
        let closed = |what: &str| {
            // Source: NVIDIA's release notes, from 1.16 and 1.17 on for zfs and btrfs.
            FILE_SYSTEM
                .problem(what.to_owned(), BOTH)
                .step("use a path on ext4 (mounted with `data=ordered`) or xfs, on an NVMe drive")
                .needs("a path on ext4 or xfs")
        };
        match layer.name.as_str() {
            "ext4" | "xfs" | "nfs" | "nfs4" => FILE_SYSTEM.ok(layer.name.clone()),
            "lustre" | "wekafs" | "gpfs" | "beegfs" | "panfs" | "scatefs" | "virtiofs" => {
                FILE_SYSTEM
                    .unknown(format!("{}: its own client decides", layer.name))
                    .step("`/usr/local/cuda/gds/tools/gdscheck -p` says whether cuFile knows it")
            }
            other => closed(other),
        }
    }

    /// NVIDIA's page of nvidia-fs requires ext4 "in ordered mode". In issue 3972 of DALI the mode
    /// was not shown.
    fn mount(&self) -> Option<Check> {
        let layer = self.file_system().filter(|layer| layer.name == "ext4")?;
        let options = layer.text("options").unwrap_or_default();
        let mode = options.split(',').find_map(|option| option.strip_prefix("data="));
        let step = "mount it again with `data=ordered` (`umount`, then `mount -o data=ordered`), \
                    and in /etc/fstab";
        Some(match mode {
            Some("ordered") => MOUNT.ok("data=ordered"),
            Some(other) => MOUNT
                .problem(format!("data={other}"), BOTH)
                .step(step)
                .needs("ext4 mounted with `data=ordered`"),
            None => MOUNT
                .warning("the table of mounts shows no `data=`, as kernels do for the default")
                .step(step),
        })
    }

    fn attributes(&self) -> Option<Check> {
        let root = &self.map.root;
        let mut found: Vec<&str> = ["compressed", "encrypted", "verity"]
            .into_iter()
            .filter(|name| root.flag(name))
            .collect();
        match &self.flags {
            Ok(flags) => found.extend(
                NOT_AS_THEY_ARE.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name),
            ),
            Err(reason) if found.is_empty() => {
                let seen = format!("where its bytes lie: {reason}");
                return Some(ATTRIBUTES.unknown(seen).step("`lsattr FILE` and `filefrag -v FILE`"));
            }
            Err(_) => {}
        }
        if found.is_empty() {
            return root.number("size_bytes").map(|_| ATTRIBUTES.ok("none that matters"));
        }
        let check = ATTRIBUTES.problem(found.join(", "), BOTH);
        Some(
            check
                .step("copy the file to a folder without these (`lsattr -d FOLDER` shows them)")
                .needs("a file that is not encrypted, compressed, checked or in its inode"),
        )
    }

    fn udev(&self, facts: &Facts) -> Vec<Check> {
        let Some((number, reported)) = &self.device else { return Vec::new() };
        let has = |name: &str| {
            let lines = reported.as_ref();
            lines.is_some_and(|lines| lines.iter().any(|line| line.starts_with(name)))
        };
        let file = format!("/run/udev/data/b{number}");
        let seen = match (self.has_udev, reported.is_some()) {
            (false, _) => "there is no /run/udev".to_owned(),
            (true, false) => format!("there is no {file}"),
            (true, true) => format!("{file} has no `ID_FS_USAGE`"),
        };
        // Source: issue 795 of LMCache, for containers.
        let step = match facts.process.is_container() {
            true => "give the container the host's folder: `-v /run/udev:/run/udev:ro`",
            false => "start udev: `systemctl start systemd-udevd`, then `udevadm trigger`",
        };
        let mut checks = vec![match has("E:ID_FS_USAGE=") {
            true => UDEV.ok(format!("{file} says what is on the device")),
            false => UDEV
                .problem(seen, BOTH)
                .step(step)
                .needs("a udev that says what is on the block device")
                .broken_if(facts.cufile_is_wanted()),
        }];
        if self.layers(LayerKind::Md).next().is_some() {
            checks.push(match has("E:MD_LEVEL=") {
                true => ARRAY_UDEV.ok(format!("{file} says the level")),
                // Source: NVIDIA's troubleshooting guide, "Adding udev Rules for RAID Volumes".
                false => ARRAY_UDEV
                    .problem(format!("{file} has no `MD_LEVEL`"), BOTH)
                    .step(
                        "add a rule that imports what `mdadm --detail --export` says, as Ubuntu's \
                         63-md-raid-arrays.rules does, and `udevadm trigger`",
                    )
                    .needs("udev's rule for arrays"),
            });
        }
        checks
    }
}

/// Whether this is `nvmeXcYnZ`, a path to a namespace.
fn is_path(name: &str) -> bool {
    head(name).is_some()
}

/// The head `nvmeXnZ` of the path `nvmeXcYnZ`.
fn head(name: &str) -> Option<String> {
    let (before, rest) = name.strip_prefix("nvme")?.split_once('c')?;
    let (number, after) = rest.split_once('n')?;
    [before, number, after].into_iter().all(is_number).then(|| format!("nvme{before}n{after}"))
}

/// The device number of the block device that the file system is on.
fn device(root: &Layer) -> Option<String> {
    let mut layers = root.walk().map(|(_, layer)| layer);
    layers.find(|layer| layer.kind == LayerKind::FileSystem)?;
    let block = layers.next()?;
    let is_block = block.kind.is_block() || block.kind == LayerKind::Unknown;
    block.text("device").filter(|_| is_block).map(str::to_owned)
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

//! Checks of a path's storage: file system and mount, the file itself, and udev's facts about the
//! device.
//!
//! `volumes` checks the devices below the file system.

use forebay_topology::{Layer, LayerKind, System, Value, shown};

use super::facts::{Facts, LEN_MAX, Storage};
use super::report::{BOTH, Check};
use super::topics::*;

/// Flags of extents whose bytes on the drive differ from the file's: encoded, encrypted, inline
/// (`linux/fiemap.h`).
const NOT_AS_THEY_ARE: [(u32, &str); 3] =
    [(0x8, "encoded"), (0x80, "encrypted"), (0x200, "in the inode")];

impl Storage {
    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks: Vec<Check> = self.silence().into_iter().collect();
        checks.push(self.system_check());
        checks.extend(self.mount());
        checks.extend(self.attributes(&facts.system));
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
        let check = PATH_ANSWERS.problem(format!("{}: {reason}", shown(&self.map.real_path)), BOTH);
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
            Some("ordered") => MOUNT_OPTIONS.ok("data=ordered"),
            Some(other) => MOUNT_OPTIONS
                .problem(format!("data={other}"), BOTH)
                .step(step)
                .needs("ext4 mounted with `data=ordered`"),
            None => MOUNT_OPTIONS
                .warning("the table of mounts shows no `data=`, as kernels do for the default")
                .step(step),
        })
    }

    fn attributes(&self, system: &System) -> Option<Check> {
        let root = &self.map.root;
        let is_file = self.map.exists && root.number("size_bytes").is_some();
        let flags = if is_file { system.extent_flags(&self.map.path) } else { Ok(0) };
        let mut found: Vec<&str> = ["compressed", "encrypted", "verity"]
            .into_iter()
            .filter(|name| root.flag(name))
            .collect();
        match flags {
            Ok(flags) => found.extend(
                NOT_AS_THEY_ARE.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name),
            ),
            Err(reason) if found.is_empty() => {
                let seen = format!("where its bytes lie: {reason}");
                return FILE_ATTRIBUTES
                    .unknown(seen)
                    .step("`lsattr FILE` and `filefrag -v FILE`")
                    .into();
            }
            Err(_) => {}
        }
        if found.is_empty() {
            return root.number("size_bytes").map(|_| FILE_ATTRIBUTES.ok("none that matters"));
        }
        let check = FILE_ATTRIBUTES.problem(found.join(", "), BOTH);
        check
            .step("copy the file to a folder without these (`lsattr -d FOLDER` shows them)")
            .needs("a file that is not encrypted, compressed, checked or in its inode")
            .into()
    }

    fn udev(&self, facts: &Facts) -> Vec<Check> {
        let has_udev = facts.system.exists("run/udev/data");
        let Some(number) = device(&self.map.root) else { return Vec::new() };
        let file = format!("run/udev/data/b{number}");
        let keeps = |line: &str| {
            let is_wanted = line.starts_with("E:ID_FS_") || line.starts_with("E:MD_LEVEL");
            is_wanted && !line.contains("UUID") && !line.contains("LABEL")
        };
        let reported = facts.system.lines_of(&file, LEN_MAX, keeps).ok();
        let has = |name: &str| {
            let lines = reported.as_ref();
            lines.is_some_and(|lines| lines.iter().any(|line| line.starts_with(name)))
        };
        let file = format!("/{file}");
        let seen = match (has_udev, reported.is_some()) {
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
                true => UDEV_RAID.ok(format!("{file} says the level")),
                // Source: NVIDIA's troubleshooting guide, "Adding udev Rules for RAID Volumes".
                false => UDEV_RAID
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

/// The device number of the block device that the file system is on.
fn device(root: &Layer) -> Option<&str> {
    let mut layers = root.walk().map(|(_, layer)| layer);
    layers.find(|layer| layer.kind == LayerKind::FileSystem)?;
    let block = layers.next()?;
    let is_block = block.kind.is_block() || block.kind == LayerKind::Unknown;
    block.text("device").filter(|_| is_block)
}

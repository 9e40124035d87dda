//! The initial state of the virtual machine: a kernel, its first file system, and a disk with a
//! whole Debian system on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::Archive;
use crate::folders::{copy, entries, failed, make, remove};
use crate::packages::{Origin, Tree};
use crate::process::{self, Result, say};

/// The guest's packages, besides their dependencies.
const PACKAGES: [&str; 32] = [
    "bash",
    "btrfs-progs",
    "busybox-static",
    "coreutils",
    "cryptsetup-bin",
    "dmsetup",
    "e2fsprogs",
    "fdisk",
    "findutils",
    "grep",
    "iproute2",
    "kmod",
    "linux-image-amd64",
    "lvm2",
    "mdadm",
    "mount",
    "multipath-tools",
    "nfs-common",
    "nfs-kernel-server",
    "nvme-cli",
    "passwd",
    "procps",
    "sed",
    "tar",
    "thin-provisioning-tools",
    "udev",
    "util-linux",
    "util-linux-extra",
    "xfsprogs",
    "xxhash",
    "xz-utils",
    "netbase",
];

/// The guest's modules; their dependencies are added. A name that the kernel does not know is left
/// out: a situation that needs it then fails to build.
const MODULES: [&str; 48] = [
    "9p",
    "9pnet_virtio",
    "aesni_intel",
    "algif_skcipher",
    "authenc",
    "btrfs",
    "cbc",
    "crc32c_generic",
    "crc32c_intel",
    "dm_crypt",
    "dm_mod",
    "dm_multipath",
    "dm_round_robin",
    "dm_service_time",
    "dm_snapshot",
    "dm_thin_pool",
    "ecb",
    "essiv",
    "ext4",
    "linear",
    "loop",
    "md_mod",
    "nfs",
    "nfsd",
    "nfsv4",
    "nvme",
    "nvme_tcp",
    "nvmet",
    "nvmet_tcp",
    "overlay",
    "raid0",
    "raid1",
    "raid10",
    "raid456",
    "scsi_dh_alua",
    "sd_mod",
    "sha256_generic",
    "sha256_ssse3",
    "virtio_blk",
    "virtio_pci",
    "virtio_scsi",
    "xfs",
    "xts",
    "xxhash_generic",
    "aes_generic",
    "raid6_pq",
    "xor",
    "configfs",
];

/// Modules without which the disk with the system cannot be mounted.
const FIRST_MODULES: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];

/// Parts of the system that the guest does not need.
const UNREAD: [&str; 5] = ["share/doc", "share/man", "share/locale", "share/info", "share/perl"];

/// Bytes of the guest's disk; it is sparse.
const DISK_LEN: u64 = 2 << 30;

/// The files that a virtual machine starts from.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) first: PathBuf,
    pub(crate) disk: PathBuf,
    /// The kernel's release.
    pub(crate) release: String,
}

impl Image {
    /// Makes the missing parts in `cache`; `script` is the first program that runs.
    pub(crate) fn build(cache: &Path, script: &Path) -> Result<Self> {
        let tree = Tree::fetch(cache, "guest", Origin::Machine, &PACKAGES)?;
        let name =
            |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kernel = entries(&tree.folder.join("boot"))?
            .into_iter()
            .find(|path| name(path).starts_with("vmlinuz-"))
            .ok_or("the packages hold no kernel")?;
        let release = name(&kernel).trim_start_matches("vmlinuz-").to_owned();
        let image = Self {
            kernel,
            first: cache.join("first.cpio"),
            disk: cache.join("system.img"),
            release,
        };
        image.make_disk(cache, &tree)?;
        // Its script is the project's and may have changed.
        image.make_first(&tree, script)?;
        Ok(image)
    }

    /// The modules that `names` need, as paths inside the tree, in the order of loading.
    fn modules(&self, tree: &Tree, names: &[&str]) -> Vec<String> {
        let mut files = Vec::new();
        for name in names {
            let mut command = tree.inside("modprobe");
            command.args(["--show-depends", "--set-version", &self.release, name]);
            let Ok(output) = command.output() else { continue };
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                // Options that the system's configuration has for a module follow its file.
                let words = line.strip_prefix("insmod ").and_then(|rest| rest.split(' ').next());
                files.extend(words.map(str::to_owned).filter(|file| !files.contains(file)));
            }
        }
        files
    }

    /// Makes the disk, unless one was made from the same lists before.
    fn make_disk(&self, cache: &Path, tree: &Tree) -> Result<()> {
        let note = cache.join("system.txt");
        let made_of = format!("{} {:?} {MODULES:?}", self.release, PACKAGES);
        if self.disk.exists() && fs::read_to_string(&note).is_ok_and(|there| there == made_of) {
            return Ok(());
        }
        say!("lab: making the guest's disk, kernel {}", self.release);
        process::must_succeed(tree.inside("depmod").arg(&self.release))?;
        let stage = cache.join("system");
        remove(&stage)?;
        // Hard links: files removed here stay in the tree.
        let mut copy_all = Command::new("cp");
        process::must_succeed(copy_all.arg("-al").arg(&tree.folder).arg(&stage))?;
        for unread in UNREAD {
            remove(&stage.join("usr").join(unread))?;
        }
        let modules = Path::new("usr/lib/modules").join(&self.release);
        remove(&stage.join(&modules).join("kernel"))?;
        for file in self.modules(tree, &MODULES) {
            let (source, target) = (below(&tree.folder, &file), below(&stage, &file));
            make(target.parent().unwrap_or(&stage))?;
            copy(&source, &target)?;
        }
        let stage = Tree { folder: stage };
        process::must_succeed(stage.inside("depmod").arg(&self.release))?;
        for folder in ["lab", "mnt"] {
            make(&stage.folder.join(folder))?;
        }
        let disk = fs::File::create(&self.disk).map_err(failed(&self.disk))?;
        disk.set_len(DISK_LEN).map_err(failed(&self.disk))?;
        let mut format = tree.command("mke2fs");
        format.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&stage.folder).arg(&self.disk);
        process::must_succeed(&mut format)?;
        remove(&stage.folder)?;
        fs::write(&note, made_of).map_err(failed(&note))
    }

    /// Makes the first file system: a shell, the modules that the disk needs, and the script.
    fn make_first(&self, tree: &Tree, script: &Path) -> Result<()> {
        let mut archive = Archive::default();
        for folder in ["bin", "dev", "modules", "new", "proc", "sys"] {
            archive.folder(folder);
        }
        let read = |path: &Path| fs::read(path).map_err(failed(path));
        archive.file("init", &read(script)?);
        archive.file("bin/busybox", &read(&tree.folder.join("usr/bin/busybox"))?);
        // Names that sort in the order of loading.
        for (index, file) in self.modules(tree, &FIRST_MODULES).iter().enumerate() {
            let path = below(&tree.folder, file);
            archive.file(&format!("modules/{index:02}.ko"), &read(&path)?);
        }
        fs::write(&self.first, archive.finish()).map_err(failed(&self.first))
    }
}

/// A path that a program saw inside `folder`, as seen from outside.
fn below(folder: &Path, path: &str) -> PathBuf {
    folder.join(path.trim_start_matches('/'))
}

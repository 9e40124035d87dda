//! The table of file systems that are not on a single block device of this machine.
//!
//! Any other file system is on the block device whose number its mount shows.

/// The storage of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ground {
    /// The host's memory.
    Memory,
    /// Other machines.
    Network,
    /// Drives of this machine that the file system does not report.
    Pool,
    /// A user-space program.
    Program,
    /// The host of this virtual machine.
    Host,
    /// The kernel itself; no drives.
    Kernel,
    /// Folders of other file systems; read by `overlay`.
    Overlay,
    /// Several block devices; read by `btrfs`.
    Btrfs,
    /// A folder of a file system below, named as the mount's source.
    Folder,
}

/// Type as in `/proc/filesystems`, display name, storage. A FUSE type may end with a program's
/// name, so the exact names are looked up first.
const TABLE: &[(&str, &str, Ground)] = &[
    ("tmpfs", "tmpfs", Ground::Memory),
    ("ramfs", "ramfs", Ground::Memory),
    ("hugetlbfs", "huge pages", Ground::Memory),
    ("devtmpfs", "devtmpfs", Ground::Memory),
    ("rootfs", "rootfs", Ground::Memory),
    ("overlay", "overlay", Ground::Overlay),
    ("btrfs", "btrfs", Ground::Btrfs),
    ("nfs", "NFS", Ground::Network),
    ("nfs4", "NFS", Ground::Network),
    ("cifs", "SMB", Ground::Network),
    ("smb3", "SMB", Ground::Network),
    ("lustre", "Lustre", Ground::Network),
    ("wekafs", "WekaFS", Ground::Network),
    ("beegfs", "BeeGFS", Ground::Network),
    ("gpfs", "GPFS (IBM Storage Scale)", Ground::Network),
    ("ceph", "CephFS", Ground::Network),
    ("panfs", "PanFS", Ground::Network),
    ("scatefs", "ScaTeFS", Ground::Network),
    ("pvfs2", "OrangeFS", Ground::Network),
    ("quobyte", "Quobyte", Ground::Network),
    ("afs", "AFS", Ground::Network),
    ("ocfs2_dlmfs", "OCFS2 lock space", Ground::Kernel),
    ("fuse.glusterfs", "GlusterFS", Ground::Network),
    ("fuse.sshfs", "SSHFS", Ground::Network),
    ("fuse.s3fs", "s3fs", Ground::Network),
    ("fuse.mount-s3", "Mountpoint for S3", Ground::Network),
    ("fuse.gcsfuse", "Cloud Storage FUSE", Ground::Network),
    ("fuse.juicefs", "JuiceFS", Ground::Network),
    ("fuse.ceph", "CephFS", Ground::Network),
    ("fuse.quobyte", "Quobyte", Ground::Network),
    ("fuse.wekafs", "WekaFS", Ground::Network),
    ("fuse.fuse-overlayfs", "fuse-overlayfs", Ground::Program),
    ("fuse", "FUSE", Ground::Program),
    ("9p", "9P", Ground::Host),
    ("virtiofs", "virtiofs", Ground::Host),
    ("vboxsf", "VirtualBox shared folder", Ground::Host),
    ("zfs", "ZFS", Ground::Pool),
    ("bcachefs", "bcachefs", Ground::Pool),
    ("ecryptfs", "eCryptfs", Ground::Folder),
    ("proc", "proc", Ground::Kernel),
    ("sysfs", "sysfs", Ground::Kernel),
    ("cgroup", "control groups", Ground::Kernel),
    ("cgroup2", "control groups", Ground::Kernel),
    ("configfs", "configfs", Ground::Kernel),
    ("debugfs", "debugfs", Ground::Kernel),
    ("tracefs", "tracefs", Ground::Kernel),
    ("devpts", "devpts", Ground::Kernel),
    ("mqueue", "message queues", Ground::Kernel),
    ("securityfs", "securityfs", Ground::Kernel),
    ("bpf", "bpf", Ground::Kernel),
    ("pstore", "pstore", Ground::Kernel),
    ("efivarfs", "EFI variables", Ground::Kernel),
    ("binfmt_misc", "binfmt_misc", Ground::Kernel),
    ("nsfs", "namespaces", Ground::Kernel),
];

/// The display name and the storage of a file system type; `None` for one on the block device of
/// its mount.
pub(super) fn look_up(kind: &str) -> Option<(&'static str, Ground)> {
    let exact = TABLE.iter().find(|(name, ..)| *name == kind);
    let of_fuse = || {
        let is_fuse = kind.starts_with("fuse.");
        TABLE.iter().find(|(name, ..)| is_fuse && *name == "fuse")
    };
    exact.or_else(of_fuse).map(|&(_, called, ground)| (called, ground))
}

/// Options with private values.
const SECRETS: [&str; 9] = [
    "username",
    "user",
    "password",
    "password2",
    "pass",
    "passwd",
    "secret",
    "domain",
    "credentials",
];

/// A list of options with user names and secrets masked.
pub(super) fn without_secrets(options: &str) -> String {
    let items = options.split(',').map(|item| match item.split_once('=') {
        Some((name, _)) if SECRETS.contains(&name.to_ascii_lowercase().as_str()) => {
            format!("{name}=***")
        }
        _ => item.to_owned(),
    });
    items.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_in_the_table_once() {
        for (index, (kind, ..)) in TABLE.iter().enumerate() {
            assert!(TABLE[..index].iter().all(|(other, ..)| other != kind), "{kind}");
        }
        assert_eq!(look_up("ext4"), None);
        assert_eq!(look_up("fuseblk"), None);
        assert_eq!(look_up("fuse.anything"), Some(("FUSE", Ground::Program)));
        assert_eq!(look_up("fuse.sshfs").map(|(_, ground)| ground), Some(Ground::Network));
    }

    #[test]
    fn secrets_do_not_show() {
        let options = "rw,username=me,PASSWORD=x,addr=10.0.0.1,secret=AQ==,user_xattr,vers=3";
        let shown = "rw,username=***,PASSWORD=***,addr=10.0.0.1,secret=***,user_xattr,vers=3";
        assert_eq!(without_secrets(options), shown);
    }
}

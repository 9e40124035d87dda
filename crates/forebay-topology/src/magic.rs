//! File systems by the magic number of `statfs`.

/// A file system type, identified by the magic number of `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem(pub(crate) u32);

const TMPFS: u32 = 0x0102_1994;
const RAMFS: u32 = 0x8584_58f6;
const HUGETLBFS: u32 = 0x9584_58f6;
const OVERLAY: u32 = 0x794c_7630;
const PROC: u32 = 0x9fa0;
const SYSFS: u32 = 0x6265_6572;
const CONFIGFS: u32 = 0x6265_6570;

/// File systems of this machine's drives whose code is known to keep the promises below.
const LOCAL: [&str; 4] = ["ext4", "xfs", "btrfs", "f2fs"];

impl FileSystem {
    /// The file system of a `statfs` answer.
    pub fn of(answer: &rustix::fs::StatFs) -> Self {
        // The field is signed and wider on some machines; every value fits 32 bits.
        let bits = answer.f_type.to_ne_bytes();
        let low = if cfg!(target_endian = "little") { 0 } else { bits.len() - 4 };
        Self(u32::from_ne_bytes([bits[low], bits[low + 1], bits[low + 2], bits[low + 3]]))
    }

    /// Its name as in `/proc/filesystems`, or `unknown`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(magic, _)| *magic == self.0).map_or("unknown", |(_, name)| name)
    }

    /// True if its files exist only in memory.
    pub fn is_memory(self) -> bool {
        matches!(self.0, TMPFS | RAMFS | HUGETLBFS)
    }

    /// True if its pages are the only copy of a file in memory, and every change updates the file's
    /// timestamps at once. No server and no file system below has other pages.
    pub fn owns_pages(self) -> bool {
        self.is_memory() || LOCAL.contains(&self.name())
    }

    /// True if the kernel is known to complete all O_DIRECT requests in full, to the end of the
    /// file or to an error. io_uring itself continues a request that came back short. On a FUSE
    /// file opened with `direct_io` it then reads from the wrong offset and reports success.
    pub fn completes_requests(self) -> bool {
        self.is_memory() || LOCAL.contains(&self.name())
    }

    /// True if its files are generated on read, so that their sizes are meaningless.
    pub fn makes_sizes_up(self) -> bool {
        matches!(self.0, PROC | SYSFS | CONFIGFS)
    }

    /// True if its files belong to a file system below, which holds their pages.
    pub fn is_overlay(self) -> bool {
        self.0 == OVERLAY
    }
}

/// Magic numbers of `linux/magic.h`, and of file systems that define them in their own headers.
/// ext2, ext3 and ext4 share a number.
const NAMES: &[(u32, &str)] = &[
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (TMPFS, "tmpfs"),
    (RAMFS, "ramfs"),
    (HUGETLBFS, "hugetlbfs"),
    (OVERLAY, "overlay"),
    (0x6573_5546, "fuse"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb3"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0xf15f, "ecryptfs"),
    (0x4d44, "vfat"),
    (0x2011_bab0, "exfat"),
    (0x7366_746e, "ntfs3"),
    (0x9660, "iso9660"),
    (0x7371_7368, "squashfs"),
    (0xe0f5_e1e2, "erofs"),
    (PROC, "proc"),
    (SYSFS, "sysfs"),
    (CONFIGFS, "configfs"),
];

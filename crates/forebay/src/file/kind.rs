//! Kinds of inodes.

use rustix::fs::{FileType, Stat};

/// Files that can be read and written at offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A regular file.
    Regular,
    /// A whole drive, a partition or a volume.
    BlockDevice,
}

impl Kind {
    /// The kind of an inode of this type, or the name of its actual type.
    pub(crate) fn of(inode: FileType) -> Result<Self, &'static str> {
        match inode {
            FileType::RegularFile => Ok(Self::Regular),
            FileType::BlockDevice => Ok(Self::BlockDevice),
            FileType::Directory => Err("folder"),
            FileType::Fifo => Err("FIFO"),
            FileType::Socket => Err("socket"),
            FileType::CharacterDevice => Err("character device"),
            FileType::Symlink => Err("symbolic link"),
            FileType::Unknown => Err("thing of unknown kind"),
        }
    }
}

/// Device and inode of the file; for a block device its device number, since it may have several
/// nodes.
pub(super) fn identity(stat: &Stat) -> (u64, u64) {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (stat.st_rdev, 0),
        _ => (stat.st_dev, stat.st_ino),
    }
}

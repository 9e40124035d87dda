//! Readers over `/sys`.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::DriveKey;

/// The most that is read of one file: the kernel's own are at most a page, of up to 64 KiB.
const FILE_LEN_MAX: u64 = 64 << 10;

/// The longest text that is taken for a name.
const NAME_LEN_MAX: usize = 128;

/// A system to read about: the real one, or a folder that plays it.
#[derive(Debug, Clone)]
pub(crate) struct System {
    root: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

impl System {
    /// The system whose `/sys` is the folder `sys` in `root`.
    #[cfg(test)]
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The drive that holds the device `number`: a partition's whole drive, and for a number that
    /// belongs to no block device (btrfs, overlay, network file systems) only the number itself.
    pub(crate) fn drive(&self, number: u64) -> Drive {
        let major = rustix::fs::major(number);
        let minor = rustix::fs::minor(number);
        let link = self.root.join(format!("sys/dev/block/{major}:{minor}"));
        let is_partition = read_text(&link.join("partition")).is_some();
        // The kernel resolves `..` behind the link, so this is the folder of the whole drive.
        let folder = if is_partition { link.join("..") } else { link.clone() };
        let whole = if is_partition {
            read_text(&folder.join("dev")).and_then(|text| device_number(&text))
        } else {
            None
        };
        let name = drive_name(&link, is_partition);
        Drive { key: DriveKey(whole.unwrap_or(number)), name, folder }
    }
}

/// The drive below a file, as far as it is known.
#[derive(Debug, Clone)]
pub(crate) struct Drive {
    key: DriveKey,
    name: Option<String>,
    folder: PathBuf,
}

impl Drive {
    /// Which queue serves it.
    pub(crate) fn key(&self) -> DriveKey {
        self.key
    }

    /// The kernel's name for it, such as `nvme1n1`.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The smallest piece that it reads or writes, in bytes.
    pub(crate) fn logical_block_size(&self) -> Option<u32> {
        let text = read_text(&self.folder.join("queue/logical_block_size"))?;
        text.parse().ok().filter(|size: &u32| size.is_power_of_two())
    }

    /// Whether the kernel takes it for a spinning disk.
    pub(crate) fn rotational(&self) -> Option<bool> {
        match read_text(&self.folder.join("queue/rotational"))?.as_str() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }

    /// What its maker calls it.
    pub(crate) fn model(&self) -> Option<String> {
        read_text(&self.folder.join("device/model")).filter(|text| is_name(text))
    }
}

/// The drive's name, from where the link leads: its last part, or the one before for a partition.
fn drive_name(link: &Path, is_partition: bool) -> Option<String> {
    let target = std::fs::read_link(link).ok()?;
    let device = if is_partition { target.parent()? } else { &target };
    let name = std::str::from_utf8(device.file_name()?.as_bytes()).ok()?;
    is_name(name).then(|| name.to_owned())
}

/// Whether `text` can stand in a report: short, and nothing in it moves a terminal's cursor.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_LEN_MAX && !text.chars().any(char::is_control)
}

/// `MAJ:MIN` as a device number.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The text of a small file without the white space around it; `None` where it is none.
fn read_text(path: &Path) -> Option<String> {
    // A FIFO in the place of a file must not hold us up, so the opening never waits.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?);
    let stat = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8(bytes).ok()?.trim().to_owned())
}

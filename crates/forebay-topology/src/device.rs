//! The block device whose number a file reports: the name of its drive and its queue limits.
//!
//! An open file uses only this, for error messages and alignment.

use rustix::fs::{major, minor};

use super::system::{Folder, System};

/// Maximum length of a name.
const NAME_LEN_MAX: usize = 128;

impl System {
    /// The drive that holds the device `number`: for a partition its whole drive. For a number that
    /// belongs to no block device (btrfs, overlay, network file systems) all facts are unknown.
    pub fn drive(&self, number: u64) -> BlockDevice {
        let path = format!("sys/dev/block/{}:{}", major(number), minor(number));
        // The kernel links every device into this folder; any other target is not the kernel's.
        let own = self.folder(path).ok().filter(|own| own.path().starts_with("sys/devices"));
        let Some(own) = own else {
            return BlockDevice::new(None);
        };
        if own.text("partition").is_err() {
            return BlockDevice::new(Some(own));
        }
        BlockDevice::new(own.parent())
    }
}

/// The drive below a file, as far as it is known.
#[derive(Debug, Clone)]
pub struct BlockDevice {
    name: Option<String>,
    folder: Option<Folder>,
}

impl BlockDevice {
    fn new(folder: Option<Folder>) -> Self {
        let name = folder.as_ref().map(Folder::name).filter(|name| is_name(name));
        Self { name, folder }
    }

    /// The kernel's name for it, such as `nvme1n1`.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Its logical block size in bytes, the smallest unit that it reads or writes.
    pub fn logical_block_size(&self) -> Option<u32> {
        self.folder.as_ref()?.logical_block_size()
    }

    /// Whether the kernel treats it as a spinning disk.
    pub fn rotational(&self) -> Option<bool> {
        self.folder.as_ref()?.flag("queue/rotational")
    }

    /// Its model name.
    pub fn model(&self) -> Option<String> {
        self.folder.as_ref()?.text("device/model").ok().filter(|text| is_name(text))
    }
}

/// Whether `text` is usable in a report: neither empty nor too long.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_LEN_MAX
}

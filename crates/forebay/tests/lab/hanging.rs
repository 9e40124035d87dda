//! A drive with a kernel's name that can hang: ext4 or XFS on a loop device over the one file of a
//! file system that fails on demand.
//!
//! The device is detached as soon as it is mounted, so that the kernel frees it with the mount.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::fuse::Fuse;
use super::{FileSystem, Offer, tool, undo, unmount};

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct HangingDrive {
    // Unmounted in `drop`, before the file system below goes.
    mounted: Option<PathBuf>,
    fuse: Fuse,
    _folder: TempDir,
}

impl HangingDrive {
    /// A drive of `len` bytes with ext4.
    pub(crate) fn new(len: usize) -> Offer<Self> {
        Self::with(FileSystem::Ext4, len)
    }

    /// A drive of `len` bytes; XFS wants 300 MiB.
    pub(crate) fn with(file_system: FileSystem, len: usize) -> Offer<Self> {
        let fuse = Fuse::new(vec![0; len])?;
        let folder = tempfile::tempdir().map_err(|e| format!("no mount point: {e}"))?;
        let mut drive = Self { mounted: None, fuse, _folder: folder };
        let image = drive.fuse.path();
        let words = ["--show", "--find", "--direct-io=on"].map(OsStr::new);
        let device = tool("losetup", words.into_iter().chain([image.as_os_str()]))?;
        let device = PathBuf::from(device.trim());
        let made = drive.format_and_mount(file_system, &device);
        undo("losetup", ["--detach".as_ref(), device.as_os_str()]);
        made.map(|()| drive)
    }

    fn format_and_mount(&mut self, file_system: FileSystem, device: &Path) -> Offer<()> {
        let words = file_system.make_arguments().iter().map(OsStr::new);
        let make = format!("mkfs.{}", file_system.name());
        tool(&make, words.chain([device.as_os_str()]))?;
        let target = self._folder.path().join("mounted");
        fs::create_dir(&target).map_err(|e| format!("no mount point: {e}"))?;
        let words = ["-t", file_system.name(), "-o", "noatime"].map(OsStr::new);
        tool("mount", words.into_iter().chain([device.as_os_str(), target.as_os_str()]))?;
        self.mounted = Some(target);
        Ok(())
    }

    /// Where its file system is mounted.
    ///
    /// # Panics
    /// If it was not mounted, which its maker would have reported.
    pub(crate) fn path(&self) -> &Path {
        self.mounted.as_deref().expect("a drive that was made is mounted")
    }

    /// Whether reads of the drive hang from now on.
    pub(crate) fn hang(&self, hangs: bool) {
        self.fuse.set(|faults| faults.hang_from = hangs.then_some(0));
    }

    /// Whether writes to the drive hang from now on.
    pub(crate) fn hang_writes(&self, hang: bool) {
        self.fuse.set(|faults| faults.hang_writes = hang);
    }

    /// What stands below it.
    pub(crate) fn fuse(&self) -> &Fuse {
        &self.fuse
    }
}

impl Drop for HangingDrive {
    fn drop(&mut self) {
        self.hang(false);
        self.hang_writes(false);
        if let Some(target) = self.mounted.take() {
            unmount(&target);
        }
    }
}

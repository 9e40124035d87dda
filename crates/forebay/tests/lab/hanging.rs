//! A drive with a kernel's name that can hang: ext4 on a loop device over the one file of a file
//! system that fails on demand.
//!
//! The device is detached as soon as it is mounted, so that the kernel frees it with the mount.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::fuse::Fuse;
use super::{Offer, tool, undo, unmount};

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct HangingDrive {
    // Unmounted in `drop`, before the file system below goes.
    mounted: Option<PathBuf>,
    fuse: Fuse,
    _folder: TempDir,
}

impl HangingDrive {
    /// A drive of `len` bytes.
    pub(crate) fn new(len: usize) -> Offer<Self> {
        let fuse = Fuse::new(vec![0; len])?;
        let folder = tempfile::tempdir().map_err(|e| format!("no mount point: {e}"))?;
        let mut drive = Self { mounted: None, fuse, _folder: folder };
        let image = drive.fuse.path();
        let words = ["--show", "--find", "--direct-io=on"].map(OsStr::new);
        let device = tool("losetup", words.into_iter().chain([image.as_os_str()]))?;
        let device = PathBuf::from(device.trim());
        let made = drive.format_and_mount(&device);
        undo("losetup", ["--detach".as_ref(), device.as_os_str()]);
        made.map(|()| drive)
    }

    fn format_and_mount(&mut self, device: &Path) -> Offer<()> {
        let whole = "lazy_itable_init=0,lazy_journal_init=0";
        let words = ["-q", "-F", "-b", "4096", "-E", whole].map(OsStr::new);
        tool("mkfs.ext4", words.into_iter().chain([device.as_os_str()]))?;
        let target = self._folder.path().join("mounted");
        fs::create_dir(&target).map_err(|e| format!("no mount point: {e}"))?;
        let words = ["-t", "ext4", "-o", "noatime"].map(OsStr::new);
        tool("mount", words.into_iter().chain([device.as_os_str(), target.as_os_str()]))?;
        self.mounted = Some(target);
        Ok(())
    }

    /// Where its file system is mounted.
    ///
    /// # Panics
    /// If it was not mounted, which its maker would have said.
    pub(crate) fn path(&self) -> &Path {
        self.mounted.as_deref().expect("a drive that was made is mounted")
    }

    /// Whether reads of the drive hang from now on.
    pub(crate) fn hang(&self, hangs: bool) {
        self.fuse.set(|faults| faults.hang_from = hangs.then_some(0));
    }

    /// What stands below it.
    pub(crate) fn fuse(&self) -> &Fuse {
        &self.fuse
    }
}

impl Drop for HangingDrive {
    fn drop(&mut self) {
        self.hang(false);
        if let Some(target) = self.mounted.take() {
            unmount(&target);
        }
    }
}

//! Loop drives: a block device over an image, with a file system of choice.
//!
//! A device detaches itself when its last user has closed it, so a killed process leaves none
//! behind; its mount goes with a mount namespace ([`start_apart`](super::child::start_apart)).

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use super::{Offer, needs_root, tool, undo, unmount};

/// What a loop drive is formatted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
    Btrfs,
}

impl FileSystem {
    pub(crate) const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    pub(super) fn make_arguments(self) -> &'static [&'static str] {
        match self {
            // Small file systems would get blocks of 1 KiB. What mkfs leaves to be made while
            // mounted would write to an image that was cut meanwhile, and make it whole again.
            Self::Ext4 => {
                &["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
            }
            Self::Xfs | Self::Btrfs => &["-q", "-f"],
        }
    }
}

/// How to make a [`LoopDrive`].
#[derive(Debug, Clone)]
pub(crate) struct LoopOptions {
    /// Bytes of the drive; its image is sparse. XFS wants 300 MiB at least.
    pub(crate) size: u64,
    /// The drive's logical block: 512 or 4096.
    pub(crate) sector_size: u32,
    /// What to format and mount; `None` leaves the drive bare.
    pub(crate) file_system: Option<FileSystem>,
    /// Where the image lies; the temporary folder by default.
    pub(crate) image_in: PathBuf,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self {
            size: 512 << 20,
            sector_size: 512,
            file_system: Some(FileSystem::Ext4),
            image_in: std::env::temp_dir(),
        }
    }
}

/// A loop device over an image of its own, formatted and mounted in a private folder.
#[derive(Debug)]
pub(crate) struct LoopDrive {
    // Unmounted and detached in `drop`, before the folder goes.
    mounted: Option<PathBuf>,
    device: Option<PathBuf>,
    /// Keeps the device attached: the kernel detaches it when the last user has closed it.
    held: Option<File>,
    partitions: u32,
    image: PathBuf,
    size: u64,
    folder: TempDir,
}

impl LoopDrive {
    /// A drive with this file system and the default size and sectors.
    pub(crate) fn with(file_system: FileSystem) -> Offer<Self> {
        Self::new(&LoopOptions { file_system: Some(file_system), ..LoopOptions::default() })
    }

    pub(crate) fn new(options: &LoopOptions) -> Offer<Self> {
        needs_root("a loop drive")?;
        let folder = tempfile::Builder::new()
            .prefix("forebay-lab-")
            .tempdir_in(&options.image_in)
            .map_err(|e| format!("no folder for an image: {e}"))?;
        let image = folder.path().join("image");
        File::create(&image)
            .and_then(|file| file.set_len(options.size))
            .map_err(|e| format!("no image: {e}"))?;
        // From here on a failure drops the guard, which undoes what was done.
        let mut drive = Self {
            mounted: None,
            device: None,
            held: None,
            partitions: 0,
            image,
            size: options.size,
            folder,
        };
        let device = tool(
            "losetup",
            [
                "--show".as_ref(),
                "--find".as_ref(),
                "--direct-io=on".as_ref(),
                "--sector-size".as_ref(),
                OsStr::new(&options.sector_size.to_string()),
                drive.image.as_os_str(),
            ],
        )?;
        let device = PathBuf::from(device.trim());
        drive.device = Some(device.clone());
        drive.held = Some(File::open(&device).map_err(|e| format!("no loop device: {e}"))?);
        // In use, it is detached only when its last user has closed it.
        tool("losetup", ["--detach".as_ref(), device.as_os_str()])?;
        if let Some(file_system) = options.file_system {
            drive.format(&device, file_system)?;
            drive.mount(&device, file_system)?;
        }
        Ok(drive)
    }

    fn format(&self, device: &Path, file_system: FileSystem) -> Offer<()> {
        let arguments = file_system.make_arguments().iter().map(OsStr::new);
        let target = self.folder.path().join("mounted");
        fs::create_dir(&target).map_err(|e| format!("no mount point: {e}"))?;
        tool(&format!("mkfs.{}", file_system.name()), arguments.chain([device.as_os_str()]))?;
        Ok(())
    }

    fn mount(&mut self, device: &Path, file_system: FileSystem) -> Offer<()> {
        let name = file_system.name();
        let target = self.folder.path().join("mounted");
        tool("mount", ["-t".as_ref(), name.as_ref(), device.as_os_str(), target.as_os_str()])?;
        self.mounted = Some(target);
        Ok(())
    }

    /// Where its file system is mounted.
    ///
    /// # Panics
    /// If it was made without one.
    pub(crate) fn path(&self) -> &Path {
        self.mounted.as_deref().expect("the drive was made with a file system")
    }

    /// Its block device, such as `/dev/loop3`.
    pub(crate) fn device(&self) -> &Path {
        self.device.as_deref().expect("a drive has its device until it is dropped")
    }

    /// The kernel's name for it, such as `loop3`.
    pub(crate) fn name(&self) -> String {
        let name = self.device().file_name().expect("a device has a name");
        name.to_str().expect("the kernel's names are text").to_owned()
    }

    /// Makes the next partition of a bare drive and returns its device.
    pub(crate) fn partition(&mut self, start: u64, len: u64) -> Offer<PathBuf> {
        let number = self.partitions + 1;
        let sectors = [u64::from(number), start / 512, len / 512].map(|n| n.to_string());
        let sectors = sectors.iter().map(OsStr::new);
        tool("addpart", std::iter::once(self.device().as_os_str()).chain(sectors))?;
        self.partitions = number;
        let path = PathBuf::from(format!("{}p{number}", self.device().display()));
        path.exists().then_some(path).ok_or_else(|| "no node for a partition here".into())
    }

    /// Where byte 0 of `file` lies on the drive, on ext4 and xfs; the following bytes follow as
    /// far as the first extent reaches. The file must have been written out.
    pub(crate) fn position_of(&self, file: &Path) -> Offer<u64> {
        let listing = tool("filefrag", ["-v".as_ref(), "-b512".as_ref(), file.as_os_str()])?;
        listing
            .lines()
            .find_map(|line| {
                let (number, rest) = line.trim().split_once(':')?;
                let physical = (number == "0").then(|| rest.split(':').nth(1))??;
                let first = physical.split("..").next()?.trim();
                first.parse::<u64>().ok()
            })
            .map(|sector| sector * 512)
            .ok_or_else(|| format!("no extent in what filefrag says:\n{listing}"))
    }

    /// Removes the drive's bytes from `len` on: reads of them from the drive get EIO.
    /// What is in the page cache stays readable, so evict it first.
    ///
    /// The file system is read-only from then on: where it writes something behind the cut, the
    /// time of an access for example, the image is as long as before, and holds zeros.
    pub(crate) fn cut(&self, len: u64) {
        if self.mounted.is_some() {
            self.remount("remount,ro").expect("nothing is being written");
        }
        self.resize_image(len);
    }

    /// Like [`cut`](Self::cut), for a file system that stays writable.
    pub(crate) fn cut_writable(&self, len: u64) {
        self.resize_image(len);
    }

    /// Shuts the file system down without flushing its log, as a power cut does: what was not made
    /// durable is lost, and nothing is written from now on.
    pub(crate) fn shut_down(&self) -> Offer<()> {
        let target = self.path().as_os_str();
        tool("xfs_io", ["-x".as_ref(), "-c".as_ref(), "shutdown".as_ref(), target]).map(drop)
    }

    /// Mounts a file system that was shut down again, which replays its log. While a process of
    /// another test has a copy of the mount, in a mount namespace of its own, it stays shut down.
    pub(crate) fn start_again(&mut self, file_system: FileSystem) -> Offer<()> {
        let target = self.path().to_owned();
        for _ in 0..300 {
            self.mounted = None;
            unmount(&target);
            let device = self.device().to_owned();
            self.mount(&device, file_system)?;
            let alive = target.join("alive");
            if fs::write(&alive, "").and_then(|()| fs::remove_file(&alive)).is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(100));
        }
        Err("another mount namespace keeps the file system that was shut down".into())
    }

    /// Mounts it again in another way, as with `remount,ro`.
    pub(crate) fn remount(&self, options: &str) -> Offer<()> {
        let target = self.path().as_os_str();
        tool("mount", ["-o".as_ref(), OsStr::new(options), target]).map(drop)
    }

    /// Gives the room back; what was cut away is now zeros.
    pub(crate) fn restore(&self) {
        self.resize_image(self.size);
    }

    fn resize_image(&self, len: u64) {
        let image = OpenOptions::new().write(true).open(&self.image).expect("the image is ours");
        image.set_len(len).expect("an image can be resized");
    }
}

impl Drop for LoopDrive {
    fn drop(&mut self) {
        if let Some(target) = self.mounted.take() {
            unmount(&target);
        }
        if let Some(device) = self.device.take() {
            for number in 1..=self.partitions {
                let number = number.to_string();
                undo("delpart", [device.as_os_str(), OsStr::new(&number)]);
            }
            if self.held.take().is_none() {
                undo("losetup", ["--detach".as_ref(), device.as_os_str()]);
            }
        }
    }
}

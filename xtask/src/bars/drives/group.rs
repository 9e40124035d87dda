//! A control group for the process of one bar, with caps on the bytes that it moves to and from a
//! drive.
//!
//! The throttle belongs to a group and a drive, so no other process is slowed. It uses version 1 of
//! the kernel's control groups, which caps reads, and writes with O_DIRECT. About a tenth of a
//! second's worth passes uncapped after a pause.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::Dev;

use crate::bar::Stop;
use crate::machine::printed;

/// The prefix of all such groups' names.
const PREFIX: &str = "forebay-bars-";

/// A group that is removed with this, which waits for the end of all that is in it.
#[derive(Debug)]
pub(super) struct Group {
    folder: PathBuf,
}

impl Group {
    /// Makes a group, and removes the groups of killed runs.
    pub(super) fn new() -> Result<Self, Stop> {
        let root = root()?;
        for entry in fs::read_dir(&root)?.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                // One that is still in use is refused.
                let _ = fs::remove_dir(entry.path());
            }
        }
        let folder = root.join(format!("{PREFIX}{}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => Ok(Self { folder }),
            Err(error) => Err(Stop::Skip(format!("no control group: {error}"))),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The servers of slow drives end a moment after the process that started them.
        for _ in 0..500 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// The parent folder of the controller's groups.
fn root() -> Result<PathBuf, Stop> {
    let mut findmnt = Command::new("findmnt");
    findmnt.args([
        "--noheadings",
        "--first-only",
        "--types=cgroup",
        "--options=blkio",
        "--output=TARGET",
    ]);
    let found = printed(&mut findmnt).map(PathBuf::from);
    found.ok_or_else(|| Stop::Skip("no control groups of version 1 with `blkio`".into()))
}

/// Moves this process into a group, along with its later children.
pub(super) fn enter(group: &Path) -> Result<(), Stop> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
        .map_err(|error| Stop::Skip(format!("the control group cannot be entered: {error}")))
}

/// Allows a group to read `rate` bytes per second from a drive.
pub(super) fn cap(group: &Path, drive: Dev, rate: u64) -> Result<(), Stop> {
    let (major, minor) = (rustix::fs::major(drive), rustix::fs::minor(drive));
    fs::write(group.join("blkio.throttle.read_bps_device"), format!("{major}:{minor} {rate}"))
        .map_err(|error| Stop::Skip(format!("the drive cannot be capped: {error}")))
}

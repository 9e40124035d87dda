//! Folders for test files that are removed with the run, or by the next run after a crash.
//!
//! A folder is marked by its name and locked through a file in it: a marked folder without a lock
//! was left by a run that died. Nothing else is ever removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statvfs};

/// The prefix of every such folder's name.
const PREFIX: &str = ".forebay-bars-";
/// The locked file in it.
const LOCK: &str = "lock";
/// Bytes that stay free on the file system, whatever a bar needs.
const FREE_LEN_MIN: u64 = 1 << 30;

/// A folder of this run.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Makes a folder in `parent`, and removes the folders of dead runs there.
    pub(crate) fn new(parent: &Path) -> io::Result<Self> {
        remove_stale(parent)?;
        let folder = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder)?;
        let lock = OpenOptions::new().create_new(true).write(true).open(folder.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { folder, _lock: lock })
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether `len` more bytes fit without filling the file system.
    pub(crate) fn has_room(&self, len: u64) -> io::Result<bool> {
        let room = statvfs(&self.folder)?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize) >= len.saturating_add(FREE_LEN_MIN))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next run removes the rest.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn remove_stale(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_folders_go_and_all_others_stay() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join(".forebay-bars-dead");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(LOCK), "").unwrap();
        let foreign = parent.path().join(".forebay-bars-foreign");
        fs::create_dir(&foreign).unwrap();
        let alive = Scratch::new(parent.path()).unwrap();
        remove_stale(parent.path()).unwrap();
        assert!(!dead.exists());
        assert!(foreign.exists() && alive.folder.exists());
        let folder = alive.folder.clone();
        drop(alive);
        assert!(!folder.exists());
    }
}

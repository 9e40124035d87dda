//! The state of a path while queue counts are set: this process has closed it before, and it is
//! back afterwards.

use std::fs::{self, FileType};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_measure::environment::file_system;
use forebay_measure::steps::Step;
use forebay_topology::Resolver;

/// The interval between checks.
const LOOK: Duration = Duration::from_millis(50);

/// The identity of a path at the start, by which it is recognized: an empty mount point differs.
#[derive(Debug, Clone)]
pub(super) struct Home {
    path: PathBuf,
    kind: FileType,
    mount_point: Option<String>,
}

impl Home {
    /// The current identity of `path`.
    ///
    /// # Errors
    /// It does not exist.
    pub(super) fn of(path: &Path) -> Result<Self, String> {
        let facts = fs::metadata(path).map_err(|error| error.to_string())?;
        let map = Resolver::default().resolve(path);
        let mount_point = file_system(&map).map(|found| found.mount_point);
        Ok(Self { path: path.to_owned(), kind: facts.file_type(), mount_point })
    }

    /// Whether the path is the same as before.
    fn look(&self) -> Result<(), String> {
        let now = Self::of(&self.path)?;
        if now.kind != self.kind {
            return Err("it has another kind than before".into());
        }
        match (&self.mount_point, &now.mount_point) {
            (Some(before), Some(now)) if before != now => {
                Err(format!("it is below the mount point `{now}`, and was below `{before}`"))
            }
            _ => Ok(()),
        }
    }

    /// Waits until the path is back, for `limit` at most.
    ///
    /// # Errors
    /// The reason why it is not back.
    pub(super) fn wait(&self, limit: Duration) -> Result<(), String> {
        wait(limit, || {
            let _step = Step::begin("inspect", &self.path);
            self.look()
        })
    }
}

/// Looks until it is well, for `limit` at most.
fn wait<E>(limit: Duration, look: impl Fn() -> Result<(), E>) -> Result<(), E> {
    let begun = Instant::now();
    loop {
        let found = look();
        if found.is_ok() || begun.elapsed() >= limit {
            return found;
        }
        std::thread::sleep(LOOK);
    }
}

/// The device of a path's file system; none for the root file system.
fn device(path: &Path) -> Option<u64> {
    let root = fs::metadata("/").ok()?.dev();
    Some(fs::metadata(path).ok()?.dev()).filter(|found| *found != root)
}

/// A descriptor that this process has open at a path, or in its file system.
fn open(path: &Path) -> Option<PathBuf> {
    let own = device(path);
    let block = fs::metadata(path).ok().filter(|facts| facts.file_type().is_block_device());
    let block = block.map(|facts| facts.rdev());
    // A node of `/dev` is in a file system where we have other files open.
    let own = own.filter(|_| block.is_none());
    let descriptors = fs::read_dir("/proc/self/fd").ok()?.flatten();
    let mut held = descriptors.filter_map(|entry| {
        let facts = fs::metadata(entry.path()).ok()?;
        let is_it = facts.file_type().is_block_device() && Some(facts.rdev()) == block;
        (is_it || Some(facts.dev()) == own).then(|| fs::read_link(entry.path()).ok())?
    });
    held.next()
}

/// Waits until this process has nothing below a path open, for `limit` at most.
///
/// # Errors
/// The path that is still open.
pub(super) fn let_go(path: &Path, limit: Duration) -> Result<(), PathBuf> {
    wait(limit, || open(path).map_or(Ok(()), Err))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(120);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_path_is_waited_for_and_known_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("path");
        assert!(Home::of(&path).unwrap_err().contains("No such file"));
        fs::create_dir(&path).unwrap();
        let home = Home::of(&path).unwrap();
        assert_eq!(home.wait(SOON), Ok(()));
        fs::remove_dir(&path).unwrap();
        assert!(home.wait(SOON).unwrap_err().contains("No such file"));
        let comes = std::thread::spawn({
            let path = path.clone();
            move || {
                std::thread::sleep(SOON);
                fs::create_dir(&path).unwrap();
            }
        });
        assert_eq!(home.wait(LONG), Ok(()));
        comes.join().unwrap();
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert!(home.wait(SOON).unwrap_err().contains("another kind"));
        // As if nothing were mounted there any more.
        let elsewhere = Home { mount_point: Some("/nowhere".into()), ..Home::of(&path).unwrap() };
        let why = elsewhere.wait(SOON).unwrap_err();
        assert!(why.contains("and was below `/nowhere`"), "{why}");
    }

    #[test]
    fn what_is_open_is_named() {
        assert_eq!(let_go(Path::new("/nonexistent"), SOON), Ok(()));
        let Some((folder, _alone)) = super::super::tests::memory() else { return };
        let path = folder.path().join("open");
        let file = fs::File::create(&path).unwrap();
        if device(&path).is_none() {
            println!("skipped: the name of an open file: there is only one file system");
            return;
        }
        assert_eq!(let_go(folder.path(), SOON), Err(path));
        drop(file);
        assert_eq!(let_go(folder.path(), LONG), Ok(()));
    }
}

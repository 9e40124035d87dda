//! Scratch: writable files of one run, which it removes.
//!
//! A scratch file has an unpredictable name and mode 0600, and is opened through its descriptor
//! ([`held`]). So no other user can read it, or have another file written by taking its name. It
//! has a name at all because cuFile opens files by their names: with cuFile, use a folder that only
//! you can write to. A run holds a lock on each of its files, and on the note by which ranks meet.
//! A locked file is never empty. A killed run leaves its files unlocked, and the next one that
//! measures in that folder removes them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

pub use forebay_base::random::random;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cleanup::{self, Entry, Undo};
use crate::failure::{Failure, Result};
use crate::held::{self, SCRATCH as PREFIX};
use crate::output::{self, New};
use crate::steps::Step;

/// From this number of files on, the soft limit on open files (1024 on most systems) is raised.
const MANY: usize = 256;

/// Hexadecimal digits that follow [`PREFIX`].
const DIGITS: usize = 16;

/// The start of the name of a note by which ranks meet; their number and a word follow.
pub(crate) const NOTE: &str = ".forebay-ranks-";

/// Allows as many open files as this process may. The error of a file beyond that says what to do.
pub(crate) fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Makes this many files of scratch in `folder`, all of which stay open.
///
/// # Errors
/// System errors, if `folder` cannot be written.
pub fn create(folder: &Path, count: usize) -> Result<Vec<New>> {
    let step = Step::begin("make scratch in", folder);
    if count > MANY {
        allow_many_files();
    }
    let create = |_| {
        step.goes_on();
        let name = format!("{PREFIX}{:0DIGITS$x}", random());
        let made = New::create(&folder.join(name), 0o600)?;
        // If the file system has no locks, another run cannot lock it either, and removes nothing.
        let _ = lock(&made.file);
        made.file.set_len(1)?;
        Ok(made)
    };
    let made = (0..count).map(create).collect::<io::Result<_>>();
    made.map_err(|error| {
        let failure = Failure::at("make a scratch file in", folder, &error);
        match error.raw_os_error() {
            Some(libc::EMFILE) => {
                failure.hint("raise the limit on open files (`ulimit -n`), or give fewer `--files`")
            }
            _ => failure.hint("use a folder that you can write to, or name a file to read"),
        }
    })
}

/// A folder of scratch. It is removed with this value, or when the command ends early, with all
/// that is in it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _entry: Entry,
    _locked: File,
}

impl Folder {
    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes a folder of scratch in `place`, for a block store.
///
/// # Errors
/// System errors, if `place` cannot be written.
pub fn folder(place: &Path) -> Result<Folder> {
    let _step = Step::begin("make scratch in", place);
    let path = place.join(format!("{PREFIX}{:0DIGITS$x}", random()));
    let made = cleanup::with(|| {
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let name = path.clone();
        let undo = move || {
            let _step = Step::begin_long("remove", &name);
            let _ = fs::remove_dir_all(&name);
        };
        Ok((File::open(&path)?, Box::new(undo) as Undo))
    });
    let (file, entry) = made.map_err(|error| {
        Failure::at("make a scratch folder in", place, &error)
            .hint("use a folder that you can write to")
    })?;
    let _ = lock(&file);
    Ok(Folder { path, _entry: entry, _locked: file })
}

/// Locks a file of this run.
pub(crate) fn lock(file: &File) -> rustix::io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// Removes the scratch that killed runs left in `folder`.
pub fn remove_leftovers(folder: &Path) {
    let step = Step::begin("look for scratch in", folder);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        step.goes_on();
        let path = entry.path();
        match is_name(&entry.file_name()).then(|| leftover(&path)).flatten() {
            Some((_locked, true)) => _ = fs::remove_dir_all(&path),
            Some((file, false)) => _ = output::remove(&file, &path),
            None => {}
        }
    }
}

/// Whether scratch and notes have such names.
fn is_name(name: &OsStr) -> bool {
    let note = name.to_str().and_then(|name| name.strip_prefix(NOTE)?.split_once('-'));
    if let Some((size, run)) = note {
        return size.parse::<u32>().is_ok() && run.bytes().all(|byte| byte.is_ascii_alphanumeric());
    }
    let digits = name.as_bytes().strip_prefix(PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

/// The file or the folder of a block store at `path`, if no run uses it, and whether it is a
/// folder. An empty one may not be locked yet.
fn leftover(path: &Path) -> Option<(File, bool)> {
    let file = held::open(path).ok()?;
    let facts = file.metadata().ok()?;
    let is_own = facts.uid() == rustix::process::geteuid().as_raw();
    let is_store = facts.is_dir() && path.join("format").is_file();
    let is_used = is_store || facts.is_file() && facts.len() > 0;
    (is_own && is_used && lock(&file).is_ok()).then_some((file, is_store))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn scratch_is_private_and_goes_away() {
        let place = tempfile::tempdir().unwrap();
        let scratch = create(place.path(), 3).unwrap();
        assert_eq!(names(place.path()).len(), 3);
        for made in &scratch {
            let mode = fs::metadata(made.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            fs::write(made.path(), "data").unwrap();
        }
        drop(scratch);
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn scratch_is_reached_where_another_file_has_its_name() {
        let place = tempfile::tempdir().unwrap();
        let scratch = create(place.path(), 1).unwrap();
        let at = |name: &str| place.path().join(name);
        let name = at(&names(place.path())[0]);
        fs::write(at("other"), "precious").unwrap();
        fs::rename(&name, at("moved")).unwrap();
        symlink(at("other"), &name).unwrap();
        fs::write(scratch[0].path(), "data").unwrap();
        assert_eq!(fs::read(at("moved")).unwrap(), b"data");
        drop(scratch);
        assert_eq!(fs::read(at("other")).unwrap(), b"precious");
        assert!(name.is_symlink() && !at("moved").exists());
    }

    #[test]
    fn scratch_of_a_killed_run_is_removed_and_used_scratch_stays() {
        let place = tempfile::tempdir().unwrap();
        let used = create(place.path(), 1).unwrap();
        fs::write(used[0].path(), "data").unwrap();
        let used = names(place.path());
        let left = [format!("{PREFIX}0123456789abcdef"), format!("{NOTE}8-29501")];
        let left = left.map(|name| place.path().join(name));
        left.iter().for_each(|left| fs::write(left, "data").unwrap());
        remove_leftovers(place.path());
        let more = create(place.path(), 1).unwrap();
        let now = names(place.path());
        assert!(left.iter().all(|left| !left.exists()), "{now:?}");
        assert!(now.len() == 2 && now.contains(&used[0]));
        drop(more);
    }

    #[test]
    fn folders_of_block_stores_go_away_as_files_do() {
        let place = tempfile::tempdir().unwrap();
        let used = folder(place.path()).unwrap();
        fs::write(used.path().join("format"), "").unwrap();
        let left = place.path().join(format!("{PREFIX}0123456789abcdef"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("format"), "").unwrap();
        remove_leftovers(place.path());
        assert!(!left.exists() && used.path().exists());
        drop(used);
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn nothing_that_only_looks_like_scratch_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(format!("{PREFIX}{name}"));
        for name in ["", "mine", "0123456789abcdef0", "0123456789abcdeg"] {
            fs::write(at(name), "precious").unwrap();
        }
        for name in ["", "8", "a-1", "8-my notes"] {
            fs::write(place.path().join(format!("{NOTE}{name}")), "precious").unwrap();
        }
        fs::create_dir(at("0000000000000001")).unwrap();
        fs::write(place.path().join("other"), "precious").unwrap();
        symlink("other", at("0000000000000002")).unwrap();
        // Another run has just made it.
        fs::write(at("0000000000000003"), "").unwrap();
        remove_leftovers(place.path());
        assert_eq!(names(place.path()).len(), 12);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let failure = create(Path::new("/proc"), 1).unwrap_err();
        assert!(failure.message.contains("`/proc`"), "{failure:?}");
    }
}

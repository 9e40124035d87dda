//! Scratch: writable files of one run, in a folder that only this run may remove.
//!
//! A scratch folder has an unpredictable name and mode 0700. Next to the data it holds a `mark`: a
//! locked file that names its owner. A run that crashed leaves the mark unlocked, and the next run
//! in the same place removes the folder. A folder without a complete mark is never removed, and of
//! a marked one only the files that a run makes.
//!
//! If other users may write to the parent folder, they may put another folder there under the same
//! name. So files are made, opened and removed through a descriptor of the folder. Before each step
//! a run checks that the name still leads to its own folder.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, unlinkat,
};

use crate::cleanup::{self, Key, Undo};
use crate::failure::{Failure, Result};
use crate::held;
use crate::steps::Step;

/// The start of the names of folders of scratch.
pub const PREFIX: &str = ".forebay-scratch-";
const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);
/// The beginning of the files' names; a number follows.
const FILE: &str = "file-";
const MARK: &str = "mark";
const MARK_TEXT: &str =
    "scratch of `forebay bench`: it may be removed while this file is unlocked\n";

/// A folder of this program: its name, and a descriptor that remains valid if another folder takes
/// the name.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    itself: OwnedFd,
    /// The path through the descriptor; by name without `/proc`.
    at: PathBuf,
}

impl Folder {
    /// Creates it, for this user only.
    fn create(path: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let opened = rustix::fs::open(&path, FOLDER, Mode::empty()).map_err(io::Error::from);
        let folder = opened.and_then(|itself| match names_in(&itself).is_empty() {
            true => Ok(Self::of(path.clone(), itself)),
            // Between the two calls another folder got the name.
            false => Err(replaced()),
        });
        folder.inspect_err(|_| drop(fs::remove_dir(&path)))
    }

    fn of(path: PathBuf, itself: OwnedFd) -> Self {
        let at = held::path(&itself).unwrap_or_else(|| path.clone());
        Self { path, itself, at }
    }

    /// Creates a new file in it.
    fn create_file(&self, name: &str) -> io::Result<File> {
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let how = how | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(openat(&self.itself, name, how, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Checks that the folder is private to the owner of `file`, which was just created in it. On a
    /// file system without modes only the owner counts. Another user's folder may have taken the
    /// name before it was opened.
    fn is_of(&self, file: &File) -> io::Result<()> {
        let (own, file) = (fstat(&self.itself)?, fstat(file)?);
        let is_private = |facts: Stat| facts.st_mode & 0o077 == 0;
        let is_own = own.st_uid == file.st_uid && (is_private(own) || !is_private(file));
        if is_own { Ok(()) } else { Err(replaced()) }
    }

    /// Checks that its name still leads to it.
    fn is_there(&self) -> io::Result<()> {
        let named = held::identity(rustix::fs::lstat(&self.path)?);
        if named == held::identity(fstat(&self.itself)?) {
            return Ok(());
        }
        Err(replaced())
    }

    /// Removes the files of a run, even if the folder was moved. Removes the folder too if it still
    /// has its name and is empty.
    pub fn remove(&self) {
        let remove = |name: &CStr| unlinkat(&self.itself, name, AtFlags::empty());
        let own = names_in(&self.itself).into_iter().filter(|name| is_of_a_run(name.as_bytes()));
        let stay = own.filter(|name| remove(name).is_err()).count();
        // As long as there is a mark, another run can finish the removal.
        if stay == 0 {
            let _ = unlinkat(&self.itself, MARK, AtFlags::empty());
        }
        if self.is_there().is_ok() {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn replaced() -> io::Error {
    io::Error::other("another folder has its name now")
}

/// The names in a folder, without `.` and `..`.
fn names_in(folder: &OwnedFd) -> Vec<CString> {
    let Ok(entries) = Dir::read_from(folder) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_owned());
    names.filter(|name| !matches!(name.as_bytes(), b"." | b"..")).collect()
}

/// Whether a run uses such a file name.
fn is_of_a_run(name: &[u8]) -> bool {
    let number = name.strip_prefix(FILE.as_bytes());
    number.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// A scratch folder; removed when this is dropped or the command is stopped.
#[derive(Debug)]
pub struct Scratch {
    folder: Arc<Folder>,
    _lock: File,
}

impl Scratch {
    /// Makes scratch inside `folder`.
    ///
    /// # Errors
    /// System errors, if `folder` cannot be written.
    pub fn create(folder: &Path) -> Result<Self> {
        let failed = |error: &io::Error| {
            Failure::at("make a scratch file in", folder, error)
                .hint("use a folder that you can write to, or name a file to read")
        };
        let _step = Step::begin("make scratch in", folder);
        let (folder, lock) = cleanup::with(|| -> Result<_> {
            let path = folder.join(format!("{PREFIX}{:016x}", random().map_err(|e| failed(&e))?));
            let folder = Arc::new(Folder::create(path).map_err(|e| failed(&e))?);
            let mark = fill(&folder).map_err(|error| {
                folder.remove();
                failed(&error)
            })?;
            let (key, undone) = (Key::from(&folder.path), Arc::clone(&folder));
            Ok(((folder, mark), key, Box::new(move || undone.remove()) as Undo))
        })?;
        Ok(Self { folder, _lock: lock })
    }

    /// Creates the empty file `number`. Returns the path that opens it through the folder's
    /// descriptor.
    ///
    /// # Errors
    /// System errors.
    pub fn add(&self, number: u32) -> Result<PathBuf> {
        let name = format!("{FILE}{number}");
        let path = self.folder.at.join(&name);
        let _step = Step::begin("make", &path);
        let made = self.folder.create_file(&name);
        made.map_err(|error| Failure::at("make", &path, &error))?;
        Ok(path)
    }

    /// Checks that the folder still has its name.
    ///
    /// # Errors
    /// If it was moved or removed.
    pub fn check(&self) -> Result<()> {
        let _step = Step::begin("inspect", &self.folder.path);
        self.folder.is_there().map_err(|error| {
            let path = self.folder.path.display();
            Failure::io(format!("cannot use the scratch folder `{path}` any more"), &error).hint(
                "another program moved or removed it, or a folder above it; use a folder that \
                 only you can write to",
            )
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _step = Step::begin_long("remove", &self.folder.path);
        cleanup::end(&self.folder.path, false);
    }
}

/// Puts the mark into a new scratch folder. It is locked before it is complete, so that no
/// other run can ever see it complete and unlocked.
fn fill(folder: &Folder) -> io::Result<File> {
    let mut mark = folder.create_file(MARK)?;
    folder.is_of(&mark)?;
    // If the file system has no locks, the mark stays empty: then another run removes nothing, and
    // leftovers of a crash remain for the user to remove.
    if flock(&mark, FlockOperation::NonBlockingLockExclusive).is_ok() {
        mark.write_all(MARK_TEXT.as_bytes())?;
    }
    Ok(mark)
}

/// Removes the scratch that crashed runs left in `folder`; returns the number of removed folders.
#[must_use]
pub fn remove_leftovers(folder: &Path) -> usize {
    let step = Step::begin("look for scratch in", folder);
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let names = entries.flatten().map(|entry| {
        step.goes_on();
        entry.file_name()
    });
    names
        .filter(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))
        .filter(|name| remove_leftover(&folder.join(name)).is_some())
        .count()
}

/// Removes `path` if it is a marked, unlocked scratch folder of this user.
fn remove_leftover(path: &Path) -> Option<()> {
    let itself = rustix::fs::open(path, FOLDER, Mode::empty()).ok()?;
    if fstat(&itself).ok()?.st_uid != rustix::process::geteuid().as_raw() {
        return None;
    }
    let _lock = locked_mark(&itself)?;
    Folder::of(path.to_owned(), itself).remove();
    (!path.exists()).then_some(())
}

/// The mark of a scratch folder, locked now; `None` if it is incomplete or another run has the
/// lock.
fn locked_mark(folder: &OwnedFd) -> Option<File> {
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY | OFlags::NONBLOCK;
    let mut mark = File::from(openat(folder, MARK, flags, Mode::empty()).ok()?);
    flock(&mark, FlockOperation::NonBlockingLockExclusive).ok()?;
    let mut text = Vec::new();
    Read::take(&mut mark, 1024).read_to_end(&mut text).ok()?;
    (text == MARK_TEXT.as_bytes()).then_some(mark)
}

/// An unpredictable number.
///
/// # Errors
/// System errors.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn scratch_is_private_and_goes_away() {
        let place = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(place.path()).unwrap();
        assert_eq!(names(&scratch.folder.path), ["mark"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&scratch.folder.path), 0o700);
        assert_eq!(mode(&scratch.add(0).unwrap()), 0o600);
        drop(scratch);
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn files_are_reached_where_another_folder_has_the_name() {
        let place = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(place.path()).unwrap();
        let path = scratch.add(0).unwrap();
        let (name, moved) = (scratch.folder.path.clone(), place.path().join("moved"));
        let other = place.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file-0"), "precious").unwrap();
        fs::rename(&name, &moved).unwrap();
        symlink(&other, &name).unwrap();
        fs::write(path, "data").unwrap();
        assert_eq!(fs::read(moved.join("file-0")).unwrap(), b"data");
        assert_eq!(fs::read(other.join("file-0")).unwrap(), b"precious");
        scratch.check().unwrap_err();
    }

    #[test]
    fn a_folder_of_another_user_is_not_taken_for_a_new_one() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let folder = |name: &str| {
            let itself = rustix::fs::open(at(name), FOLDER, Mode::empty()).unwrap();
            Folder::of(at(name), itself)
        };
        for name in ["open", "own", "foreign"] {
            fs::create_dir(at(name)).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o755)).unwrap();
        fill(&folder("own")).unwrap();
        assert!(fill(&folder("open")).unwrap_err().to_string().contains("another folder"));
        if std::os::unix::fs::chown(at("foreign"), Some(65534), None).is_err() {
            println!("skipped: a folder of another user: this takes root");
            return;
        }
        assert!(fill(&folder("foreign")).unwrap_err().to_string().contains("another folder"));
    }

    #[test]
    fn files_by_numbers_go_with_their_folder() {
        let place = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(place.path()).unwrap();
        for number in 0..12 {
            fs::write(scratch.add(number).unwrap(), "data").unwrap();
        }
        assert!(scratch.add(3).is_err(), "it is there");
        // The rest is removed even if another program has removed a scratch file.
        fs::remove_file(scratch.folder.path.join("file-0")).unwrap();
        drop(scratch);
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn a_folder_that_was_replaced_is_seen_and_stays() {
        let place = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(place.path()).unwrap();
        scratch.check().unwrap();
        let (name, moved) = (scratch.folder.path.clone(), place.path().join("moved"));
        fs::rename(&name, &moved).unwrap();
        let other = place.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file-0"), "precious").unwrap();
        symlink(&other, &name).unwrap();
        let failure = scratch.check().unwrap_err();
        assert!(failure.causes[0].contains("another folder"), "{failure:?}");
        drop(scratch);
        assert_eq!(fs::read(other.join("file-0")).unwrap(), b"precious");
        assert!(name.is_symlink());
        assert!(names(&moved).is_empty(), "files in the moved folder are removed");
    }

    #[test]
    fn a_left_over_is_removed_and_one_in_use_is_not() {
        let place = tempfile::tempdir().unwrap();
        let used = Scratch::create(place.path()).unwrap();
        let left = Scratch::create(place.path()).unwrap();
        let name = left.folder.path.clone();
        // As after a crash: the lock is gone, the folder remains.
        let Scratch { folder, .. } = &left;
        assert!(folder.path.exists());
        flock(&left._lock, FlockOperation::Unlock).unwrap();
        std::mem::forget(left);
        assert_eq!(remove_leftovers(place.path()), 1);
        assert!(!name.exists());
        assert!(used.folder.path.exists());
    }

    #[test]
    fn nothing_that_only_looks_like_scratch_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(format!("{PREFIX}{name}"));
        fs::create_dir(at("unmarked")).unwrap();
        fs::write(at("unmarked").join("file-0"), "precious").unwrap();
        fs::create_dir(at("incomplete")).unwrap();
        fs::write(at("incomplete").join(MARK), &MARK_TEXT[..20]).unwrap();
        fs::write(at("file"), MARK_TEXT).unwrap();
        let other = place.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(MARK), MARK_TEXT).unwrap();
        fs::write(other.join("file-0"), "precious").unwrap();
        symlink(&other, at("link")).unwrap();
        assert_eq!(remove_leftovers(place.path()), 0);
        assert_eq!(fs::read(other.join("file-0")).unwrap(), b"precious");
        assert_eq!(fs::read(at("unmarked").join("file-0")).unwrap(), b"precious");
    }

    #[test]
    fn a_file_put_beside_the_data_stays() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join(format!("{PREFIX}x"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(MARK), MARK_TEXT).unwrap();
        fs::write(folder.join("file-0"), "data").unwrap();
        fs::write(folder.join("notes"), "precious").unwrap();
        assert_eq!(remove_leftovers(place.path()), 0);
        assert_eq!(names(&folder), ["notes"]);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let failure = Scratch::create(Path::new("/proc")).unwrap_err();
        assert!(failure.message.contains("`/proc`"), "{failure:?}");
    }
}

//! Files that this command makes, and removes unless they shall stay.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, statat, unlinkat};
use rustix::io::Errno;

use crate::cleanup::{self, Entry, Undo};
use crate::held;
use crate::steps::Step;

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

/// A new file. It is removed with this value, or when the command ends early, unless it is kept.
#[derive(Debug)]
pub struct New {
    /// The file, open for reads and to append to.
    pub file: Arc<File>,
    name: PathBuf,
    entry: Entry,
}

impl New {
    /// Makes the file `path` with this `mode`.
    ///
    /// # Errors
    /// It exists, even as a link; or system errors.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.read(true).append(true).create_new(true).mode(mode);
        let (file, entry) = cleanup::with(|| {
            let file = Arc::new(how.open(path)?);
            let (made, name) = (Arc::clone(&file), path.to_owned());
            let undo = move || {
                let _step = Step::begin_long("remove", &name);
                let _ = remove(&made, &name);
            };
            Ok((file, Box::new(undo) as Undo))
        })?;
        Ok(Self { file, name: path.to_owned(), entry })
    }

    /// The path that opens it, even if it was renamed.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        held::path(&self.file).unwrap_or_else(|| self.name.clone())
    }

    /// Lets the file stay.
    pub fn keep(self) {
        self.entry.keep();
    }
}

/// Removes `file`, which had the name `name`, even if it or its folder was renamed. No other file
/// is removed.
pub(crate) fn remove(file: &File, name: &Path) -> io::Result<()> {
    remove_name(file, name).or_else(|error| {
        let path = held::path(file).ok_or(error)?;
        remove_name(file, &fs::read_link(path)?)
    })
}

/// Removes `name` if it leads to `file`.
fn remove_name(file: &File, name: &Path) -> io::Result<()> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder_of(name), how, Mode::empty());
    let (folder, name) = match &opened {
        Ok(folder) => (folder.as_fd(), name.file_name().unwrap_or_default()),
        // No descriptor is free.
        Err(Errno::MFILE | Errno::NFILE) => (CWD, name.as_os_str()),
        Err(errno) => return Err((*errno).into()),
    };
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if held::identity(found) != held::identity(fstat(file)?) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(unlinkat(folder, name, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_removed_wherever_it_is_and_no_other() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        fs::create_dir(at("other")).unwrap();
        fs::write(at("other/file"), "precious").unwrap();
        let (file, renamed) = (at("folder/file"), at("folder/renamed"));
        let [made, next, kept] =
            [&file, &renamed, &at("kept")].map(|path| New::create(path, 0o600).unwrap());
        fs::rename(&renamed, at("next")).unwrap();
        fs::rename(at("folder"), at("moved")).unwrap();
        symlink(at("other"), at("folder")).unwrap();
        if held::path(&made.file).is_none() {
            return println!("skipped: files that were renamed: there is no /proc");
        }
        kept.keep();
        drop((made, next));
        assert_eq!(fs::read_dir(at("moved")).unwrap().count(), 0);
        assert!(!at("next").exists() && at("kept").exists());
        assert_eq!(fs::read(at("other/file")).unwrap(), b"precious");
        // Another file has the name.
        let made = New::create(&at("made"), 0o600).unwrap();
        fs::remove_file(at("made")).unwrap();
        fs::write(at("made"), "precious").unwrap();
        drop(made);
        assert_eq!(fs::read(at("made")).unwrap(), b"precious");
    }

    #[test]
    fn a_name_may_have_any_bytes() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join(OsStr::from_bytes(b"a\xff"));
        fs::create_dir(&folder).unwrap();
        drop(New::create(&folder.join("file"), 0o600).unwrap());
        let renamed = New::create(&folder.join("renamed"), 0o600).unwrap();
        fs::rename(folder.join("renamed"), folder.join(OsStr::from_bytes(b"\xfe"))).unwrap();
        let has_proc = held::path(&renamed.file).is_some();
        drop(renamed);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), usize::from(!has_proc));
    }

    #[test]
    fn only_new_files_are_made() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("at")).unwrap();
        symlink("nowhere", place.path().join("link")).unwrap();
        for wrong in ["..", "/", "new/", "new/.", "at", "link"] {
            New::create(&place.path().join(wrong), 0o600).unwrap_err();
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }
}

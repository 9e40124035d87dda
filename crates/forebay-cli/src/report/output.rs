//! Writes a report as a whole, or not at all. A file that replaces another has its access rights:
//! no user gains access who could not use the old one.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fremovexattr, fsetxattr, getxattr, listxattr};
use rustix::io::Errno;

use crate::bench::held;
use crate::bench::memory::close;
use crate::bench::scratch::random;
use crate::failure::{Failure, Result};
use crate::steps::Step;
use crate::{cleanup, output};

const ACL: &[u8] = b"system.posix_acl_access";
/// Attributes that describe a file, or control access. Others belong to the old contents.
const KEPT: [&[u8]; 4] = [b"user.", b"system.", b"security.selinux", b"security.SMACK64"];
/// Most bytes of an attribute, and of all names together (xattr(7)).
const ATTRIBUTE_MAX: usize = 64 << 10;

/// The file that is replaced.
#[derive(Debug)]
struct Old {
    file: File,
    path: PathBuf,
    facts: Metadata,
}

impl Old {
    /// The file or link with this name; `None` if it does not exist.
    fn find(path: &Path) -> io::Result<Option<Self>> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => Ok(Some(Self { facts: file.metadata()?, path: path.to_owned(), file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives `new` the owner, group, ACL, attributes and mode of this file, the mode last.
    ///
    /// The system may refuse some of it. Without the old group, the new group and all other users
    /// get only the rights that both the old group and all other users had. Without the old ACL,
    /// only the owner may use the file.
    fn give(&self, new: &File) -> io::Result<()> {
        let (user, group) = (self.facts.uid(), self.facts.gid());
        if fchown(new, Some(user), Some(group)).is_err() {
            let _ = fchown(new, None, Some(group));
        }
        let has_group = new.metadata()?.gid() == group;
        // Attributes cannot be read through a descriptor of `O_PATH`.
        let old = held::path(&self.file).unwrap_or_else(|| self.path.clone());
        let mut buffer = vec![0; ATTRIBUTE_MAX];
        // Some file systems have no attributes.
        let names = listxattr(&old, &mut buffer[..]).map_or(Vec::new(), |len| buffer[..len].into());
        let is_kept = |name: &&[u8]| *name != ACL && KEPT.iter().any(|kept| name.starts_with(kept));
        for name in names.split(|byte| *byte == 0).filter(is_kept) {
            if let Ok(len) = getxattr(&old, name, &mut buffer[..]) {
                let _ = fsetxattr(new, name, &buffer[..len], XattrFlags::empty());
            }
        }
        let acl = match getxattr(&old, ACL, &mut buffer[..]) {
            Ok(len) => Some(&buffer[..len]),
            Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => None,
            Err(error) => return Err(error.into()),
        };
        let set = |acl| has_group && fsetxattr(new, ACL, acl, XattrFlags::empty()).is_ok();
        let has_acl = acl.is_some_and(set);
        if !has_acl {
            // The folder may have a default ACL.
            match fremovexattr(new, ACL) {
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mode = self.facts.mode() & 0o777;
        let both = mode >> 3 & mode & 0o7;
        let mode = match (acl, has_group) {
            (Some(_), _) if has_acl => mode,
            // The group's bits are the ACL's mask.
            (Some(_), _) => mode & 0o700,
            (None, true) => mode,
            (None, false) => mode & 0o700 | both << 3 | both,
        };
        new.set_permissions(Permissions::from_mode(mode))
    }
}

/// A report must not overwrite its own input.
pub(super) fn refuse_input(output: &Path, inputs: &[PathBuf]) -> Result<()> {
    let identity = |path: &Path| fs::metadata(path).map(|facts| (facts.dev(), facts.ino())).ok();
    let Some(there) = identity(output) else { return Ok(()) };
    if inputs.iter().any(|input| identity(input) == Some(there)) {
        let text = format!("cannot write the report to `{}`", output.display());
        return Err(Failure::usage(text)
            .because("it holds the results that the report is made from")
            .hint("name a new file with `-o`"));
    }
    Ok(())
}

/// Writes a whole file, or none. A replaced file stays as private as it was.
pub(super) fn write(
    path: &Path,
    overwrite: bool,
    bytes: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> Result<()> {
    let _step = Step::of_thread("write", path);
    let failed = |error: &io::Error| {
        Failure::io(format!("cannot write the report to `{}`", path.display()), error)
    };
    let old = Old::find(path).map_err(|error| failed(&error))?;
    if let Some(old) = &old {
        if !overwrite {
            return Err(failed(&io::Error::from_raw_os_error(libc::EEXIST))
                .hint("name a new file, or give `--overwrite`"));
        }
        if !old.facts.is_file() {
            return Err(failed(&io::ErrorKind::InvalidInput.into())
                .because("only a regular file is replaced")
                .hint("name another file with `-o`"));
        }
    }
    // A concurrent reader gets the old report or the new one, complete.
    let new = if overwrite { new_name(path) } else { Ok(path.to_owned()) };
    let new = new.map_err(|error| failed(&error))?;
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let mut file = output::create(&new, mode).map_err(|error| failed(&error))?;
    let put = || {
        file.write_all(bytes)?;
        if let Some(old) = &old {
            old.give(&file)?;
        }
        // A network file system, or one that allocates late, reports a full disk only here.
        sync(&file)?;
        // Some file systems report a failed write only when a descriptor is closed.
        file.try_clone().and_then(close)?;
        if overwrite { fs::rename(&new, path) } else { Ok(()) }
    };
    let done = put();
    cleanup::end(&new, done.is_ok());
    done.map_err(|error| failed(&error))
}

/// A name in the folder of `path` that cannot be guessed.
fn new_name(path: &Path) -> io::Result<PathBuf> {
    Ok(path.with_file_name(format!(".forebay-report-{:016x}.new", random()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("report.html");
        fs::write(&page, "before").unwrap();
        let full = |_: &File| Err(io::Error::from_raw_os_error(libc::ENOSPC));
        for overwrite in [true, false] {
            let failure = write(&page, overwrite, b"after", full).unwrap_err();
            assert!(failure.message.contains("report.html"), "{failure:?}");
            let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
            assert_eq!(left.len(), usize::from(overwrite), "{left:?}");
            if overwrite {
                assert_eq!(fs::read_to_string(&page).unwrap(), "before");
                fs::remove_file(&page).unwrap();
            }
        }
    }
}

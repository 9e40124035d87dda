//! Paths that lead to an open descriptor, even if its file or folder was renamed.
//!
//! Every method, the engine and other programs accept a path. If another user can rename the
//! folders above a file, a path by names may lead to that user's file. A path through
//! `/proc/PID/fd/N` leads to the file that descriptor `N` of this process has open.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::fs::{Stat, fstat, stat};

/// `/proc/PID/fd`. Other processes open it too, so `self` does not work. The number is the one in
/// `/proc`, which may be that of another PID namespace.
static DESCRIPTORS: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let own = fs::read_link("/proc/self").ok()?;
    Some(Path::new("/proc").join(own).join("fd"))
});

/// The start of the names of scratch files.
pub(crate) const SCRATCH: &str = ".forebay-scratch-";

/// The path to the file that `fd` has open, for this process and others of the same user, as long
/// as `fd` is open. `None` without `/proc`.
pub fn path(fd: impl AsFd) -> Option<PathBuf> {
    let path = DESCRIPTORS.as_ref()?.join(fd.as_fd().as_raw_fd().to_string());
    (identity(stat(&path).ok()?) == identity(fstat(&fd).ok()?)).then_some(path)
}

/// The device and inode number of a file.
pub(crate) fn identity(facts: Stat) -> (u64, u64) {
    (facts.st_dev, facts.st_ino)
}

/// Opens `path`, which must not be a link, without blocking on special files.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// The current name of a path made by [`path`]; any other path unchanged.
pub fn name(path: &Path) -> PathBuf {
    PathBuf::from(replaced(&path.to_string_lossy(), |name| name))
}

/// `text` with paths to descriptors replaced by names; of scratch by that of its folder, since the
/// file will be gone.
pub fn named(text: &str) -> String {
    replaced(text, |mut name| {
        let file = name.file_name().unwrap_or_default().as_encoded_bytes();
        if file.starts_with(SCRATCH.as_bytes()) {
            name.pop();
        }
        name
    })
}

/// `text` with paths to descriptors replaced by what `of` makes of their names.
fn replaced(text: &str, of: impl Fn(PathBuf) -> PathBuf) -> String {
    let Some(folder) = DESCRIPTORS.as_ref().and_then(|path| path.to_str()) else {
        return text.to_owned();
    };
    let mut parts = text.split(folder);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.strip_prefix('/').unwrap_or_default();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        match fs::read_link(format!("{folder}/{}", &digits[..end])) {
            Ok(name) if end > 0 => {
                named.push_str(&of(name).to_string_lossy());
                named.push_str(&digits[end..]);
            }
            _ => {
                named.push_str(folder);
                named.push_str(part);
            }
        }
    }
    named
}

/// The flags to open `path` with. They refuse links for writing, except for the final link of a
/// path made by [`path`].
pub fn no_link(path: &Path, write: bool) -> i32 {
    let is_descriptor =
        path.starts_with("/proc") && path.parent().is_some_and(|it| it.ends_with("fd"));
    if write && !is_descriptor { libc::O_NOFOLLOW } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_to_a_descriptor_leads_to_its_file_whatever_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (at, moved) = (folder.path().join("folder"), folder.path().join("moved"));
        fs::create_dir(&at).unwrap();
        fs::write(at.join("file"), "ours").unwrap();
        let (held, file) = (File::open(&at).unwrap(), File::open(at.join("file")).unwrap());
        let (Some(held), Some(file)) = (path(&held), path(&file)) else {
            println!("skipped: paths to descriptors: there is no /proc");
            return;
        };
        let other = folder.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "precious").unwrap();
        fs::rename(&at, &moved).unwrap();
        symlink(&other, &at).unwrap();
        for path in [held.join("file"), file.clone()] {
            let mut how = OpenOptions::new();
            how.read(true).write(true).custom_flags(no_link(&path, true));
            let mut text = String::new();
            let mut found = how.open(&path).unwrap();
            found.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("ours"), "{text}");
            found.write_all(b" too").unwrap();
            assert_eq!(name(&path), moved.join("file"));
        }
        assert_eq!(fs::read(other.join("file")).unwrap(), b"precious");
        let text = format!("cannot read `{}` at 7", file.display());
        assert_eq!(named(&text), format!("cannot read `{}/file` at 7", moved.display()));
        let scratch = moved.join(format!("{SCRATCH}7"));
        let made = File::create(&scratch).unwrap();
        let at = path(&made).unwrap();
        assert_eq!(
            (name(&at), named(at.to_str().unwrap())),
            (scratch, moved.display().to_string())
        );
        assert_ne!(no_link(&moved, true), 0);
        assert_eq!(no_link(&moved, false), 0);
    }

    #[test]
    fn other_text_stays_as_it_is() {
        let own = DESCRIPTORS.as_ref().map(|path| path.display().to_string());
        let own = own.unwrap_or_else(|| "/proc/1/fd".into());
        for text in ["", "/a/b", &own, &format!("{own}/"), &format!("{own}/x {own}/99999999")] {
            assert_eq!(named(text), *text);
        }
    }
}

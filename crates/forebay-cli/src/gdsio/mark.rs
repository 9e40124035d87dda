//! Marks the files that `forebay gdsio` has made, and may therefore write to again.
//!
//! gdsio writes to any `gdsio.N` that it finds. Yet a file of that name may be valuable: written by
//! gdsio itself, or put there to be read. So files made here carry a mark, and nothing else is
//! written to unless the user allows it. The mark is an extended attribute, which moves with the
//! file and is not copied by accident. File systems without attributes get a list in the same
//! folder. Since the list uses inode numbers, which may be reused, it also records when each file
//! was made. It counts only if no other user can have written it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

const NAME: &str = "user.forebay";
const VALUE: &[u8] = b"gdsio";
/// The list next to files that cannot carry a mark.
const LIST: &str = ".forebay-gdsio";
/// At most this much of a list is read.
const LIST_MAX: u64 = 1 << 20;

/// Marks `file`, which was just made at `path`. With `only_attribute` no list is begun if the file
/// cannot carry a mark.
pub(super) fn set(file: &File, path: &Path, only_attribute: bool) -> io::Result<()> {
    if fsetxattr(file, NAME, VALUE, XattrFlags::empty()).is_ok() || only_attribute {
        return Ok(());
    }
    let entry = entry(file)?;
    let mut how = OpenOptions::new();
    how.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    how.open(list_of(path))?.write_all(format!("{entry}\n").as_bytes())
}

/// Whether `file` at `path` was made by this command.
pub(super) fn is_ours(file: &File, path: &Path) -> bool {
    let mut value = [0; 16];
    match fgetxattr(file, NAME, &mut value) {
        Ok(len) => value.get(..len) == Some(VALUE),
        Err(_) => entry(file).is_ok_and(|entry| is_listed(&entry, path).unwrap_or(false)),
    }
}

fn list_of(path: &Path) -> PathBuf {
    path.with_file_name(LIST)
}

/// A file's line in the list: device, number, and when it was made, if known.
fn entry(file: &File) -> io::Result<String> {
    let facts = file.metadata()?;
    let made = facts.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    let made = made.map_or(0, |made| made.as_nanos());
    Ok(format!("{}:{}:{made}", facts.dev(), facts.ino()))
}

fn is_listed(entry: &str, path: &Path) -> io::Result<bool> {
    let mut how = OpenOptions::new();
    how.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let list = how.open(list_of(path))?;
    let facts = list.metadata()?;
    let is_own = facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & 0o022 == 0;
    if !is_own || !facts.is_file() {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    list.take(LIST_MAX).read_to_end(&mut bytes)?;
    Ok(bytes.split(|byte| *byte == b'\n').any(|line| line == entry.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in(".").unwrap()
    }

    #[test]
    fn what_was_marked_is_ours_wherever_it_is() {
        let folder = folder();
        let (path, moved) = (folder.path().join("gdsio.0"), folder.path().join("moved"));
        let file = File::create(&path).unwrap();
        assert!(!is_ours(&file, &path));
        set(&file, &path, false).unwrap();
        assert!(is_ours(&file, &path));
        fs::rename(&path, &moved).unwrap();
        assert!(is_ours(&File::open(&moved).unwrap(), &moved));
        fs::write(&path, "precious").unwrap();
        assert!(!is_ours(&File::open(&path).unwrap(), &path));
        fsetxattr(File::open(&path).unwrap(), NAME, b"other", XattrFlags::empty())
            .unwrap_or_else(|error| println!("skipped: a foreign mark: {error}"));
        assert!(!is_ours(&File::open(&path).unwrap(), &path));
    }

    #[test]
    fn a_list_counts_only_where_nobody_else_wrote_it() {
        let folder = folder();
        let path = folder.path().join("gdsio.0");
        let file = File::create(&path).unwrap();
        let (list, line) = (list_of(&path), entry(&file).unwrap());
        let listed = || is_listed(&line, &path).unwrap_or(false);
        assert!(!listed(), "there is none");
        fs::write(&list, format!("nonsense\n\n{line}\n")).unwrap();
        fs::set_permissions(&list, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(listed());
        fs::set_permissions(&list, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(!listed(), "others may have written it");
        fs::write(&list, format!("{line}0\n1{line}\n")).unwrap();
        fs::set_permissions(&list, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!listed(), "another file");
        fs::remove_file(&list).unwrap();
        fs::write(folder.path().join("other"), format!("{line}\n")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("other"), &list).unwrap();
        assert!(!listed(), "a link");
    }

    proptest::proptest! {
        #[test]
        fn no_list_ends_the_command(bytes: Vec<u8>) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("gdsio.0");
            fs::write(list_of(&path), bytes).unwrap();
            assert!(!is_listed("1:2:3", &path).unwrap());
        }
    }
}

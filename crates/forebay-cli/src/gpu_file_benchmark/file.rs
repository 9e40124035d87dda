//! The file of the benchmark: scratch, a new temporary one, or one of the user's that may be
//! overwritten.
//!
//! An existing file is never touched without the user's permission.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use forebay::units::MIB;

use crate::bench::held;
use crate::bench::make::{self, Claimed, Room};
use crate::bench::scratch::{self, Part, Scratch};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::output;
use crate::steps::Step;

/// The user's permissions to overwrite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) files: bool,
    pub(super) devices: bool,
}

/// A file that is written and read back.
#[derive(Debug)]
pub(super) struct TestFile {
    name: PathBuf,
    /// The path that opens it, even if another file takes its name.
    path: PathBuf,
    /// Its folder.
    pub(super) folder: PathBuf,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Scratch(Scratch),
    /// Made by us at the user's path.
    New(File),
    /// The user's file, with its original length.
    Given(File, u64),
    /// A device, claimed so that no other program can use it.
    Device(Claimed),
}

impl Origin {
    fn held(&self) -> Option<&File> {
        match self {
            Self::Scratch(_) => None,
            Self::New(file) | Self::Given(file, _) => Some(file),
            Self::Device(claimed) => Some(&claimed.file),
        }
    }
}

impl TestFile {
    /// Uses the file `wanted`, if it may be overwritten, or makes it if it does not exist. If
    /// `wanted` is a folder, makes scratch there; without it, in the current folder.
    ///
    /// # Errors
    /// The file may not be overwritten, or is not a file; or system errors.
    pub(super) fn find(wanted: Option<&Path>, allowed: Allowed) -> Result<Self> {
        let Some(path) = wanted else { return Self::scratch(Path::new(".")) };
        let looking = Step::begin("inspect", path);
        let facts = fs::metadata(path);
        // A dangling link belongs to the user as well.
        let is_new = |error: &io::Error| error.kind() == ErrorKind::NotFound && !path.is_symlink();
        let is_new = facts.as_ref().is_err_and(is_new);
        drop(looking);
        match facts {
            Ok(facts) if facts.is_dir() => Self::scratch(path),
            Ok(facts) if facts.file_type().is_block_device() => Self::device(path, allowed.devices),
            Ok(facts) => Self::given(path, &facts, allowed.files),
            Err(_) if is_new => Self::create(path),
            Err(error) => Err(Failure::io(format!("cannot inspect `{}`", path.display()), &error)),
        }
    }

    fn scratch(folder: &Path) -> Result<Self> {
        let scratch = Scratch::create(folder)?;
        let (name, path) = (scratch.name(Part::Write), scratch.path(Part::Write));
        Ok(Self { name, path, folder: folder.to_owned(), origin: Origin::Scratch(scratch) })
    }

    fn create(path: &Path) -> Result<Self> {
        check_mounted(path)?;
        let step = Step::begin("create", path);
        let made = output::create(path, 0o666);
        drop(step);
        let made = made
            .map_err(|error| Failure::io(format!("cannot create `{}`", path.display()), &error))?;
        Ok(Self::at(path.to_owned(), Origin::New(made)))
    }

    fn at(name: PathBuf, origin: Origin) -> Self {
        let path = origin.held().and_then(held::path).unwrap_or_else(|| name.clone());
        let folder = folder_of(&name);
        Self { name, path, folder, origin }
    }

    fn given(path: &Path, facts: &Metadata, overwrite: bool) -> Result<Self> {
        let name = path.display();
        if !facts.is_file() {
            return Err(Failure::usage(format!("`{name}` is not a regular file"))
                .hint("give a new name, or a folder for a scratch file"));
        }
        if !overwrite {
            return Err(Failure::usage(format!("`{name}` exists and would be overwritten")).hint(
                "give a new name or a folder, or `--overwrite`, which destroys its content",
            ));
        }
        let _step = Step::begin("inspect", path);
        let failed = |error| Failure::io(format!("cannot inspect `{name}`"), &error);
        // Links are resolved here, and never later.
        let path = fs::canonicalize(path).map_err(failed)?;
        let file = held::open(&path).map_err(failed)?;
        // Between the two checks another file may have taken the name.
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(Failure::usage(format!("`{name}` is not a regular file")));
        }
        Ok(Self::at(path, Origin::Given(file, facts.len())))
    }

    fn device(path: &Path, overwrite: bool) -> Result<Self> {
        let name = path.display();
        if !overwrite {
            return Err(Failure::usage(format!("`{name}` is a device and would be overwritten"))
                .hint("give a folder on it, or `--overwrite-device`, which destroys its content"));
        }
        let _step = Step::begin("inspect", path);
        let path = fs::canonicalize(path)
            .map_err(|error| Failure::io(format!("cannot inspect `{name}`"), &error))?;
        let claimed = make::claim(&path)?;
        Ok(Self::at(path, Origin::Device(claimed)))
    }

    /// The path that opens it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its name.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// Checks that it has enough space.
    ///
    /// # Errors
    /// There is too little, or system errors.
    pub(super) fn check_room(&self, len: u64) -> Result<()> {
        let had = match &self.origin {
            Origin::Device(claimed) => return claimed.check(&self.name, len),
            Origin::Given(_, had) => *had,
            Origin::Scratch(_) | Origin::New(_) => 0,
        };
        Room::of(&self.folder)?.check(&self.folder, len.saturating_sub(had))
    }

    /// Its original length, if it is the user's.
    pub(super) fn given_len(&self) -> Option<u64> {
        match &self.origin {
            Origin::Given(_, len) if *len > 0 => Some((*len).min(MIB)),
            Origin::Device(claimed) => Some(claimed.len.min(MIB)),
            _ => None,
        }
    }

    /// Checks that its name still leads to it.
    ///
    /// # Errors
    /// It leads to another file.
    pub(super) fn check(&self) -> Result<()> {
        let file = match &self.origin {
            Origin::Scratch(scratch) => return scratch.check(),
            origin => origin.held().expect("all but scratch have one"),
        };
        let _step = Step::begin("inspect", &self.name);
        held::check(file, &self.name).map_err(|error| {
            Failure::io(format!("cannot continue with `{}`", self.name.display()), &error)
                .hint("give a folder that only you may write to")
        })
    }

    /// Removes the scratch of crashed runs from the same folder; returns how many there were.
    pub(super) fn remove_leftovers(&self) -> usize {
        scratch::remove_leftovers(&self.folder)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        if matches!(self.origin, Origin::New(_)) {
            let _step = Step::begin_long("remove", &self.name);
            cleanup::end(&self.name, false);
        }
    }
}

/// Refuses a new file where a file system should be mounted: directly in `/`, or at or in a mount
/// point of `/etc/fstab` without its file system.
///
/// # Errors
/// The file would be on the file system below.
fn check_mounted(path: &Path) -> Result<()> {
    let folder = fs::canonicalize(folder_of(path)).unwrap_or_default();
    let at = folder.join(path.file_name().unwrap_or_default());
    let text = fs::read_to_string("/etc/fstab").unwrap_or_default();
    let missing = if folder == Path::new("/") {
        Some(at.as_path())
    } else {
        [at.as_path(), folder.as_path()]
            .into_iter()
            .find(|place| is_listed(&text, place) && !is_mount(place))
    };
    missing.map_or(Ok(()), |place| {
        Err(Failure::usage(format!("cannot create `{}`", path.display()))
            .because(format!("no file system is mounted at `{}`", place.display()))
            .hint("mount it first, or give a folder for a scratch file"))
    })
}

/// Whether the text of a file like `/etc/fstab` has the mount point `place`.
fn is_listed(text: &str, place: &Path) -> bool {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut points = lines.filter_map(|line| line.split_whitespace().nth(1));
    place != Path::new("/") && points.any(|point| Path::new(point) == place)
}

/// Whether a file system is mounted at `place`.
fn is_mount(place: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|facts| facts.dev());
    match (device(place), device(&folder_of(place))) {
        (Ok(own), Ok(above)) => own != above,
        _ => false,
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const FILES: Allowed = Allowed { files: true, devices: false };

    #[test]
    fn a_file_that_is_there_takes_a_word_of_the_user() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("precious");
        fs::write(&path, "bytes").unwrap();
        let link = place.path().join("link");
        symlink(&path, &link).unwrap();
        let nowhere = place.path().join("nowhere");
        symlink(place.path().join("missing"), &nowhere).unwrap();
        for path in [&path, &link] {
            let failure = TestFile::find(Some(path), Allowed::default()).unwrap_err();
            assert!(failure.usage && failure.hint.unwrap().contains("`--overwrite`"));
        }
        for allowed in [Allowed::default(), FILES, Allowed { files: true, devices: true }] {
            assert!(TestFile::find(Some(&nowhere), allowed).is_err());
            assert!(TestFile::find(Some(Path::new("/dev/null")), allowed).unwrap_err().usage);
        }
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
        let taken = TestFile::find(Some(&link), FILES).unwrap();
        assert_eq!(taken.name(), fs::canonicalize(&path).unwrap());
        assert_eq!(taken.given_len(), Some(5));
        drop(taken);
        assert!(path.exists(), "it is the user's");
    }

    #[test]
    fn what_was_made_goes_away_and_what_took_its_place_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new");
        let file = TestFile::find(Some(&path), Allowed::default()).unwrap();
        assert_eq!((file.name(), file.given_len()), (path.as_path(), None));
        file.check().unwrap();
        drop(file);
        assert!(!path.exists());

        let file = TestFile::find(Some(&path), Allowed::default()).unwrap();
        fs::rename(&path, place.path().join("moved")).unwrap();
        fs::write(&path, "precious").unwrap();
        fs::write(file.path(), "data").unwrap();
        let failure = file.check().unwrap_err();
        assert!(failure.causes[0].contains("another file"), "{failure:?}");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_new_file_is_refused_where_a_file_system_is_not_mounted() {
        let failure = TestFile::find(Some(Path::new("/forebay-new")), FILES).unwrap_err();
        assert!(failure.usage && failure.causes[0].contains("mounted at `/forebay-new`"));
        let table = "# /data\nUUID=1 / ext4 rw 0 1\n/dev/sda1\t/data  xfs noauto\n";
        let listed = |place| is_listed(table, Path::new(place));
        assert!(listed("/data") && !listed("/") && !listed("/dat") && !listed("/data/file"));
        assert!(is_mount(Path::new("/proc")) && !is_mount(Path::new("/proc/self")));
    }

    #[test]
    fn a_folder_is_a_place_for_scratch() {
        let place = tempfile::tempdir().unwrap();
        let file = TestFile::find(Some(place.path()), Allowed::default()).unwrap();
        file.check().unwrap();
        assert!(file.name().starts_with(place.path()) && file.name() != place.path());
        file.check_room(MIB).unwrap();
        assert!(file.check_room(u64::MAX / 2).is_err());
        drop(file);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

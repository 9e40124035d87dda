//! The file of the benchmark: new, or one of the user's that may be overwritten. In a folder
//! `bench` makes scratch.
//!
//! An existing file is never touched without the user's permission.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::units::format_size;
use forebay::{Engine, Route};
use forebay_measure::cleanup;
use forebay_measure::data::Pattern;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::held;
use forebay_measure::make::{self, Room};
use forebay_measure::output::{self, folder_of};
use forebay_measure::route::try_route;
use forebay_measure::scratch::Scratch;
use forebay_measure::steps::Step;
use forebay_measure::target::Target;

use super::args::GpuFileArgs;
use crate::bench::files::may_write;
use crate::bench::{TRY_LEN, spinner};

/// A folder, or a file that is written and read back.
#[derive(Debug)]
pub(super) struct TestFile {
    pub(super) name: PathBuf,
    /// The open file: another one may take its name. `None` for a folder.
    pub(super) file: Option<Arc<File>>,
    /// Its bytes when it was found.
    had: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    New,
    Given,
    Device,
}

impl TestFile {
    /// Finds the file or folder, or makes the file if there is none.
    ///
    /// # Errors
    /// The file may not be overwritten, or is not a file; or system errors.
    pub(super) fn find(args: &GpuFileArgs) -> Result<Self> {
        let path = args.file.as_deref().unwrap_or(Path::new("."));
        let looking = Step::begin("inspect", path);
        let facts = fs::metadata(path);
        // A dangling link belongs to the user as well.
        let is_new = |error: &io::Error| error.kind() == ErrorKind::NotFound && !path.is_symlink();
        let is_new = facts.as_ref().is_err_and(is_new);
        drop(looking);
        match facts {
            Ok(facts) if facts.is_dir() => {
                Ok(Self { name: path.to_owned(), file: None, had: 0, kind: Kind::Folder })
            }
            Ok(facts) => Self::given(path, &facts, args),
            Err(_) if is_new => Self::create(path),
            Err(error) => Err(Failure::at("inspect", path, &error)),
        }
    }

    fn create(path: &Path) -> Result<Self> {
        check_mounted(path)?;
        let _step = Step::begin("create", path);
        let file =
            output::create(path, 0o666).map_err(|error| Failure::at("create", path, &error))?;
        Ok(Self { name: path.to_owned(), file: Some(Arc::new(file)), had: 0, kind: Kind::New })
    }

    fn given(path: &Path, facts: &Metadata, args: &GpuFileArgs) -> Result<Self> {
        let is_device = facts.file_type().is_block_device();
        let kind = if is_device { Kind::Device } else { Kind::Given };
        let (mut file, name) = may_write(path, args.overwrite, args.overwrite_device)?;
        let had =
            file.seek(SeekFrom::End(0)).map_err(|error| Failure::at("inspect", path, &error))?;
        Ok(Self { name, file: Some(Arc::new(file)), had, kind })
    }

    /// Checks that it has enough space.
    ///
    /// # Errors
    /// There is too little, or system errors.
    pub(super) fn check_room(&self, len: u64) -> Result<()> {
        let folder = match self.kind {
            Kind::Device if len <= self.had => return Ok(()),
            Kind::Device => {
                let (name, len) = (self.name.display(), format_size(len));
                return Err(Failure::new(format!("`{name}` has no room for {len}"))
                    .because(format!("the device has {}", format_size(self.had)))
                    .hint("give a smaller `--size`"));
            }
            Kind::Folder => &self.name,
            Kind::New | Kind::Given => folder_of(&self.name),
        };
        Room::of(folder)?.check(folder, len.saturating_sub(self.had))
    }

    /// Reads a part by the route `direct`, to find out if it is available. Content of the user's
    /// must not be lost if it is not.
    ///
    /// # Errors
    /// It is not available.
    pub(super) fn try_direct(&self, engine: &Engine, target: &Target) -> Result<()> {
        if target.device.is_none() {
            return Err(Failure::new("no GPU is available"));
        }
        let scratch = match self.kind {
            Kind::Folder => Some(Scratch::create(&self.name)?),
            _ => None,
        };
        let path = scratch.as_ref().map_or_else(|| Ok(self.path()), |one| one.add(0))?;
        let len = if self.had > 0 { self.had.min(TRY_LEN) } else { TRY_LEN };
        if self.had == 0 {
            make::fill(&path, Pattern::new(0), len)?;
        }
        try_route(engine, target, &path, len, Route::Direct)
    }

    /// Fills the file with `len` bytes.
    ///
    /// # Errors
    /// System errors.
    pub(super) fn fill(&self, len: u64) -> Result<()> {
        if self.kind == Kind::Folder {
            return Ok(());
        }
        let bar = spinner(len);
        let made = make::fill(&self.path(), Pattern::new(0), len);
        bar.finish_and_clear();
        made
    }

    /// The path that opens the file, even if another one has its name.
    fn path(&self) -> PathBuf {
        self.file.as_ref().and_then(held::path).unwrap_or_else(|| self.name.clone())
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        if self.kind == Kind::New {
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
    match (device(place), device(folder_of(place))) {
        (Ok(own), Ok(above)) => own != above,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: GpuFileArgs,
    }

    fn find(path: &Path, flags: &[&str]) -> Result<TestFile> {
        let words = ["x", "-f", path.to_str().unwrap()];
        TestFile::find(&Line::parse_from(words.iter().chain(flags)).args)
    }

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
            let failure = find(path, &[]).unwrap_err();
            assert!(failure.usage && failure.hint.unwrap().contains("`--overwrite`"));
        }
        for flags in [&[][..], &["--overwrite"], &["--overwrite", "--overwrite-device"]] {
            assert!(find(&nowhere, flags).is_err());
            assert!(find(Path::new("/dev/null"), flags).unwrap_err().usage);
        }
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
        let taken = find(&link, &["--overwrite"]).unwrap();
        assert_eq!((&taken.name, taken.had), (&fs::canonicalize(&path).unwrap(), 5));
        drop(taken);
        assert!(path.exists(), "it is the user's");
    }

    #[test]
    fn what_was_made_goes_away_and_what_took_its_place_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new");
        let file = find(&path, &[]).unwrap();
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
        let file = find(&path, &[]).unwrap();
        fs::rename(&path, place.path().join("moved")).unwrap();
        fs::write(&path, "precious").unwrap();
        file.fill(4096).unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_new_file_is_refused_where_a_file_system_is_not_mounted() {
        let failure = find(Path::new("/forebay-new"), &["--overwrite"]).unwrap_err();
        assert!(failure.usage && failure.causes[0].contains("mounted at `/forebay-new`"));
        let table = "# /data\nUUID=1 / ext4 rw 0 1\n/dev/sda1\t/data  xfs noauto\n";
        let listed = |place| is_listed(table, Path::new(place));
        assert!(listed("/data") && !listed("/") && !listed("/dat") && !listed("/data/file"));
        assert!(is_mount(Path::new("/proc")) && !is_mount(Path::new("/proc/self")));
    }

    #[test]
    fn room_is_that_of_the_folder() {
        let place = tempfile::tempdir().unwrap();
        for path in [place.path().to_owned(), place.path().join("new")] {
            let file = find(&path, &[]).unwrap();
            file.check_room(4096).unwrap();
            assert!(file.check_room(u64::MAX / 2).is_err());
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

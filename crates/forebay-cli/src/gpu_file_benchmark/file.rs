//! The file of the benchmark: new, or the user's that may be overwritten, or scratch in a folder.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use forebay::units::format_size;
use forebay::{Engine, Route};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::make::Room;
use forebay_measure::output::folder_of;
use forebay_measure::route::try_route;
use forebay_measure::steps::Step;
use forebay_measure::target::Target;

use crate::bench::TRY_LEN;
use crate::bench::args::BenchArgs;
use crate::bench::files::Place;

/// Finds the file or folder of `args`, or makes the file if there is none.
///
/// # Errors
/// The file may not be overwritten, or is not a file; or system errors.
pub(super) fn find(engine: &Engine, args: &BenchArgs) -> Result<Place> {
    let path = &args.paths[0];
    let step = Step::begin("inspect", path);
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        check_mounted(path)?;
    }
    drop(step);
    Place::find(engine, path, args, &args.direction)
}

/// Checks that `len` bytes fit.
///
/// # Errors
/// They do not fit, or system errors.
pub(super) fn check_room(place: &Place, name: &Path, len: u64) -> Result<()> {
    let step = Step::begin("inspect", name);
    let is_device =
        fs::metadata(&place.files[0]).is_ok_and(|facts| facts.file_type().is_block_device());
    drop(step);
    if !is_device {
        return Room::of(&place.folder)?.check(&place.folder, len.saturating_sub(place.len));
    }
    if len <= place.len {
        return Ok(());
    }
    let (name, len) = (name.display(), format_size(len));
    Err(Failure::new(format!("`{name}` has no room for {len}"))
        .because(format!("the device has {}", format_size(place.len)))
        .hint("give a smaller `--size`"))
}

/// Reads a part by the route `direct`, to find out if it is available. Content of the user's must
/// not be lost if it is not.
///
/// # Errors
/// It is not available.
pub(super) fn try_direct(place: &mut Place, engine: &Engine, target: &Target) -> Result<()> {
    if target.device.is_none() {
        return Err(Failure::new("no GPU is available"));
    }
    if place.len == 0 {
        place.fill_first(TRY_LEN)?;
    }
    try_route(engine, target, &place.files[0], place.len.min(TRY_LEN), Route::Direct)
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

/// Whether the text of a file like `/etc/fstab` lists the mount point `place`.
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
    use forebay_measure::held;

    use super::super::args::GpuFileArgs;
    use super::super::preset;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: GpuFileArgs,
    }

    fn find(path: &Path, flags: &[&str]) -> Result<Place> {
        let words = ["x", "-f", path.to_str().unwrap()];
        let engine = Engine::new(forebay::Options::default()).unwrap();
        super::find(&engine, &preset(&Line::parse_from(words.iter().chain(flags)).args))
    }

    #[test]
    fn an_existing_file_needs_overwrite() {
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
        assert_eq!((held::name(&taken.files[0]), taken.len), (fs::canonicalize(&path).unwrap(), 5));
        drop(taken);
        assert!(path.exists(), "it is the user's");
    }

    #[test]
    fn a_new_file_is_removed_and_its_replacement_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new");
        let file = find(&path, &[]).unwrap();
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
        let mut file = find(&path, &[]).unwrap();
        fs::rename(&path, place.path().join("moved")).unwrap();
        fs::write(&path, "precious").unwrap();
        file.fill_first(4096).unwrap();
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
            check_room(&file, &path, 4096).unwrap();
            assert!(check_room(&file, &path, u64::MAX / 2).is_err());
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

//! Fills scratch files, and prevents that they fill a disk.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt as _, OpenOptionsExt};
use std::path::Path;

use forebay::units::{GIB, MIB, format_size};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::data::Pattern;
use crate::failure::{Failure, Result};
use crate::held::{self, no_link};
use crate::memory::{close, put_bytes, whole};
use crate::steps::Step;

/// Bytes that are made in memory before they are written.
pub const STEP: u64 = 32 * MIB;

/// Fills `path`, existing scratch or a device that is long enough, with `len` bytes of `pattern`,
/// and syncs them.
///
/// Room is reserved first and checked afterwards: a concurrent run may have found the same room
/// free, and then at least one of the two gives it back.
///
/// # Errors
/// System errors, above all for lack of space.
pub fn fill(path: &Path, pattern: Pattern, len: u64) -> Result<()> {
    let failed = |error| Failure::at("write scratch to", path, &error);
    let opening = Step::begin("write scratch to", path);
    let file = open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    drop(opening); // reserving room may write all of it, so it has no time limit
    if !facts.file_type().is_block_device() {
        if len > facts.len() {
            reserve(&file, path, len).inspect_err(|_| drop(file.set_len(facts.len())))?;
        }
        let _step = Step::begin("write scratch to", path);
        file.set_len(len).map_err(failed)?;
    }
    put(path, pattern, 0, len)
}

/// Reserves room for `len` bytes, if the file system can, and checks that enough remains.
fn reserve(file: &File, path: &Path, len: u64) -> Result<()> {
    let name = held::name(path);
    let folder = name.parent().unwrap_or(&name);
    let before = Room::of(path)?;
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => {
            let after = Room::of(path)?;
            // The file system's metadata for that room may use a little more.
            let enough = after.free >= after.kept() - after.kept() / 64;
            if enough { Ok(()) } else { Err(before.refusal(folder, len)) }
        }
        Err(Errno::NOSPC) => Err(before.refusal(folder, len)),
        Err(Errno::DQUOT) => {
            let text =
                format!("cannot make {} of scratch in `{}`", format_size(len), folder.display());
            Err(Failure::new(text)
                .because("a quota of this user, group or project is exceeded (`quota -s`)")
                .hint("give a smaller `--size`, or a folder with more free space"))
        }
        // Space cannot be reserved, so only the free space is checked.
        Err(_) => before.check(folder, len),
    }
}

/// Opens a block device for writing, exclusively while it is open.
///
/// # Errors
/// If it is in use: mounted, or part of an array or a volume. System errors.
pub fn claim(path: &Path) -> Result<File> {
    let _step = Step::begin("open", path);
    let cannot = || format!("cannot write to the device `{}`", path.display());
    // Without O_CREAT this is the kernel's test whether a device is in use.
    let flags = libc::O_EXCL | no_link(path, true);
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    opened.map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => Failure::new(cannot())
            .because("it is in use: mounted, or part of an array or a volume")
            .hint("`forebay doctor --tree` shows what uses it; give a folder on it instead"),
        _ => Failure::io(cannot(), &error),
    })
}

/// Writes the bytes of `pattern` from `start`, a multiple of eight, to `end` into scratch at
/// `path`, and syncs them.
///
/// # Errors
/// System errors.
pub fn put(path: &Path, pattern: Pattern, start: u64, end: u64) -> Result<()> {
    let step = Step::begin("write to", path);
    let written = open(path).and_then(|file| {
        put_range(&file, pattern, (start, end), &step)?;
        drop(step);
        file.sync_all()?;
        close(file)
    });
    written.map_err(|error| {
        let (path, len) = (path.display(), format_size(end - start));
        let failure = Failure::io(format!("cannot write {len} to `{path}`"), &error);
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                failure.hint("give a smaller `--size`, or a folder with more free space")
            }
            _ => failure,
        }
    })
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(no_link(path, true)).open(path)
}

fn put_range(
    file: &File,
    pattern: Pattern,
    (mut start, end): (u64, u64),
    step_of: &Step,
) -> io::Result<()> {
    let mut step = vec![0; whole(STEP.min(end.saturating_sub(start)))];
    while start < end {
        let bytes = &mut step[..whole(STEP.min(end - start))];
        put_bytes(bytes, pattern, start);
        file.write_all_at(bytes, start)?;
        step_of.goes_on();
        start += bytes.len() as u64;
    }
    Ok(())
}

/// Room on a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The bytes that this user may still write.
    pub free: u64,
    /// Size of the file system.
    pub total: u64,
}

impl Room {
    /// The free room of the file system of `path`.
    ///
    /// # Errors
    /// System errors.
    pub fn of(path: &Path) -> Result<Self> {
        let _step = Step::begin("inspect", path);
        let facts = statvfs(path).map_err(|error| Failure::at("inspect", path, &error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
        Ok(Self { free: bytes(facts.f_bavail), total: bytes(facts.f_blocks) })
    }

    /// The room available for scratch: a tenth or 1 GiB stays free, whichever is less.
    #[must_use]
    pub fn usable(self) -> u64 {
        self.free.saturating_sub(self.kept())
    }

    fn kept(self) -> u64 {
        (self.total / 10).min(GIB)
    }

    /// Checks that `len` bytes of scratch fit into `folder`.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn check(self, folder: &Path, len: u64) -> Result<()> {
        if len <= self.usable() { Ok(()) } else { Err(self.refusal(folder, len)) }
    }

    fn refusal(self, folder: &Path, len: u64) -> Failure {
        let (len, free, kept) =
            (format_size(len), format_size(self.free), format_size(self.kept()));
        Failure::new(format!("cannot make {len} of scratch in `{}`", folder.display()))
            .because(format!("{free} are free, of which {kept} must stay free"))
            .hint("give a smaller `--size`, or a folder with more free space")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_filled_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let pattern = Pattern::new(5);
        fill(file.path(), pattern, STEP + 77).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!(bytes.len() as u64, STEP + 77);
        assert!(pattern.matches(0, &bytes));
        fill(file.path(), pattern.inverse(), 1000).unwrap();
        assert!(pattern.inverse().matches(0, &std::fs::read(file.path()).unwrap()));
    }

    #[test]
    fn a_link_in_the_place_of_scratch_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (other, link) = (folder.path().join("other"), folder.path().join("write"));
        std::fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        fill(&link, Pattern::new(1), MIB).unwrap_err();
        put(&link, Pattern::new(1), 0, MIB).unwrap_err();
        assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    }

    /// A small file system, removed with the value.
    struct Small(tempfile::TempDir);

    impl Small {
        fn mount() -> Option<Self> {
            let folder = tempfile::tempdir().unwrap();
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=32M", "tmpfs"]).arg(folder.path());
            let output = mount.output().ok()?;
            output.status.success().then_some(Self(folder))
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0.path()).output();
        }
    }

    #[test]
    fn room_that_another_run_took_meanwhile_is_given_back() {
        let Some(small) = Small::mount() else {
            println!("skipped: a small file system: it cannot be mounted");
            return;
        };
        // Simulates two runs that found 28 MiB free, of which each needs 20 MiB.
        let path = |name: &str| small.0.path().join(name);
        let free = || Room::of(small.0.path()).unwrap().free;
        File::create(path("first")).unwrap();
        File::create(path("second")).unwrap();
        fill(&path("first"), Pattern::new(1), 20 * MIB).unwrap();
        let left = free();
        for len in [20 * MIB, 10 * MIB] {
            let failure = fill(&path("second"), Pattern::new(1), len).unwrap_err();
            assert!(failure.causes[0].contains("stay free"), "{failure:?}");
            assert_eq!(free(), left, "room was kept");
        }
        // The existing bytes of a file need no new room.
        fill(&path("first"), Pattern::new(2), 20 * MIB).unwrap();
        fill(&path("second"), Pattern::new(1), 8 * MIB).unwrap();
    }

    #[test]
    fn a_disk_is_never_filled() {
        let room = |free, total| Room { free, total };
        assert_eq!(room(100 * GIB, 1000 * GIB).usable(), 99 * GIB);
        assert_eq!(room(100 * MIB, 1000 * MIB).usable(), 0);
        assert_eq!(room(300 * MIB, 1000 * MIB).usable(), 200 * MIB);
        let small = room(300 * MIB, 1000 * MIB);
        assert!(small.check(Path::new("x"), 200 * MIB).is_ok());
        let failure = small.check(Path::new("x"), 201 * MIB).unwrap_err();
        assert_eq!(failure.message, "cannot make 201 MiB of scratch in `x`");
        assert_eq!(failure.causes, ["300 MiB are free, of which 100 MiB must stay free"]);
    }
}

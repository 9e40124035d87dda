//! Fills scratch files, and keeps them from filling a disk.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay::units::{GIB, MIB, format_size};
use rustix::fs::statvfs;

use super::data::{PIECE, Pattern};
use super::memory::whole;
use super::parallel::{cores, each_piece};
use crate::failure::{Failure, Result};

/// Bytes that are made in memory before they are written.
const STEP: u64 = 32 * MIB;

/// Makes `path`, an existing file of ours, `len` bytes of `pattern`, all on the drive.
///
/// # Errors
/// The system's, for want of room above all.
pub fn fill(path: &Path, pattern: Pattern, len: u64) -> Result<()> {
    let failed = |error| {
        let verb = format!("cannot write {} of scratch to `{}`", format_size(len), path.display());
        let failure = Failure::io(verb, &error);
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                failure.hint("give a smaller `--size`, or go where there is more room")
            }
            _ => failure,
        }
    };
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    file.set_len(len).map_err(failed)?;
    put_range(&file, pattern, 0, len).map_err(failed)?;
    file.sync_all().map_err(failed)
}

/// Writes the bytes of `pattern` from `start`, a multiple of eight, to `end` into `path`, a file
/// of ours.
///
/// # Errors
/// The system's.
pub fn put(path: &Path, pattern: Pattern, start: u64, end: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    let written = file.and_then(|file| put_range(&file, pattern, start, end));
    let text = || format!("cannot write to `{}` at {start}", path.display());
    written.map_err(|error| Failure::io(text(), &error))
}

fn put_range(file: &File, pattern: Pattern, mut start: u64, end: u64) -> io::Result<()> {
    let mut step = vec![0; whole(STEP.min(end.saturating_sub(start)))];
    while start < end {
        let bytes = &mut step[..whole(STEP.min(end - start))];
        each_piece(bytes, whole(PIECE), cores(), |at, bytes| {
            pattern.fill(start + at, bytes);
            Ok::<(), io::Error>(())
        })?;
        file.write_all_at(bytes, start)?;
        start += bytes.len() as u64;
    }
    Ok(())
}

/// Room on a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What this user may still write.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

impl Room {
    /// The room where `folder` is.
    ///
    /// # Errors
    /// The system's.
    pub fn of(folder: &Path) -> Result<Self> {
        let facts = statvfs(folder).map_err(|error| {
            Failure::io(format!("cannot inspect `{}`", folder.display()), &error.into())
        })?;
        let unit = facts.f_frsize;
        Ok(Self {
            free: facts.f_bavail.saturating_mul(unit),
            total: facts.f_blocks.saturating_mul(unit),
        })
    }

    /// What scratch may take: a tenth or 1 GiB stays free, whichever is less.
    #[must_use]
    pub fn usable(self) -> u64 {
        self.free.saturating_sub(self.kept())
    }

    fn kept(self) -> u64 {
        (self.total / 10).min(GIB)
    }

    /// Whether `len` bytes of scratch fit into `folder`.
    ///
    /// # Errors
    /// They do not.
    pub fn check(self, folder: &Path, len: u64) -> Result<()> {
        if len <= self.usable() {
            return Ok(());
        }
        let (len, free, kept) =
            (format_size(len), format_size(self.free), format_size(self.kept()));
        Err(Failure::new(format!("cannot make {len} of scratch in `{}`", folder.display()))
            .because(format!("{free} are free there, of which {kept} stay free"))
            .hint("give a smaller `--size`, or go where there is more room"))
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
    fn a_disk_is_never_filled() {
        let room = |free, total| Room { free, total };
        assert_eq!(room(100 * GIB, 1000 * GIB).usable(), 99 * GIB);
        assert_eq!(room(100 * MIB, 1000 * MIB).usable(), 0);
        assert_eq!(room(300 * MIB, 1000 * MIB).usable(), 200 * MIB);
        let small = room(300 * MIB, 1000 * MIB);
        assert!(small.check(Path::new("x"), 200 * MIB).is_ok());
        let failure = small.check(Path::new("x"), 201 * MIB).unwrap_err();
        assert_eq!(failure.message, "cannot make 201 MiB of scratch in `x`");
        assert_eq!(failure.causes, ["300 MiB are free there, of which 100 MiB stay free"]);
    }
}

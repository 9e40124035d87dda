//! Experiments that show whether O_DIRECT and syncs of a file system reach its drive.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::Residency;
use forebay::units::{KIB, MIB};
use rustix::fs::{OFlags, fdatasync};

use crate::cache::PageCache;
use crate::memory::whole;
use crate::scratch;
use crate::steps::Step;

/// Bytes that are written before a sync. In [`SYNC_MIN`] a drive would write 84 GB/s.
const SYNC_LEN: u64 = 8 * MIB;
const SYNC_MIN: Duration = Duration::from_micros(100);
/// Each of so many syncs is too fast if none does anything: the kernel may have written the bytes
/// before one of them.
const SYNCS: usize = 3;
/// Bytes that are read with O_DIRECT, and their alignment.
const DIRECT_LEN: u64 = 64 * KIB;
const ALIGN: usize = 4096;

/// Whether syncs of new files in `folder` are faster than any drive writes. False if no file can be
/// made there: then rows fail with the reason.
#[must_use]
pub fn sync_does_nothing(folder: &Path) -> bool {
    let _step = Step::begin("sync scratch in", folder);
    let Ok(made) = scratch::create(folder, 1) else { return false };
    let file: &File = &made[0].file;
    let bytes = vec![1; whole(SYNC_LEN)];
    (0..SYNCS).all(|_| {
        let written = file.write_all_at(&bytes, 0);
        let begun = Instant::now();
        written.is_ok() && fdatasync(file).is_ok() && begun.elapsed() < SYNC_MIN
    })
}

/// Whether reads of a cold file with O_DIRECT leave its pages in the page cache: the kernel reads
/// some files so without an error. False if it refuses O_DIRECT.
#[must_use]
pub fn direct_is_cached(path: &Path, pages: &dyn PageCache) -> bool {
    let _step = Step::begin("read", path);
    let flags = OFlags::DIRECT.bits().cast_signed();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return false;
    };
    let mut buffer = vec![0; whole(DIRECT_LEN) + ALIGN];
    let start = buffer.as_ptr().align_offset(ALIGN);
    let read = file.read_at(&mut buffer[start..][..whole(DIRECT_LEN)], 0);
    let is_resident =
        |len| matches!(pages.residency(len), Ok(Residency::Known { resident, .. }) if resident > 0);
    read.is_ok_and(|len| len > 0 && is_resident(len as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{FileFrom, make_cold};

    #[test]
    fn syncs_in_memory_do_nothing_and_those_of_a_drive_write() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let shared = Path::new("/dev/shm");
        let is_memory = |path: &Path| {
            let answer = rustix::fs::statfs(path);
            answer.is_ok_and(|answer| forebay_topology::FileSystem::of(&answer).is_memory())
        };
        if !is_memory(folder.path()) {
            assert!(!sync_does_nothing(folder.path()));
        }
        match is_memory(shared) {
            // Another process may interrupt one of them.
            true => assert!((0..5).any(|_| sync_does_nothing(shared))),
            false => println!("skipped: syncs in memory: /dev/shm is no tmpfs"),
        }
        assert!(!sync_does_nothing(Path::new("/none")));
    }

    #[test]
    fn direct_reads_of_a_drive_leave_no_pages() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; whole(MIB)]).unwrap();
        let engine = forebay::Engine::new(forebay::Options::default()).unwrap();
        let file = engine.open(&path).unwrap();
        let pages = FileFrom(&file, 0);
        match make_cold(&pages, MIB).unwrap() {
            Ok(()) => assert!(!direct_is_cached(&path, &pages)),
            Err(reason) => println!("skipped: direct reads: {reason}"),
        }
    }
}

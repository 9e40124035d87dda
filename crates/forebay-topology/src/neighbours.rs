//! Links that other processes of the host use: they share its cores, caches and memory.
//!
//! A file in memory has an entry of eight bytes for each engine: the time of its last look, a
//! random number, and its links in use. An entry that is too old is free, so a process that is
//! killed leaves nothing. The file belongs to one user. A container with a `/dev/shm` of its own
//! sees its own processes only; its affinity and its quota still bound its readers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::lock::Lock;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};

/// Interval between looks, and the age at which an entry is free. So a change is noticed within a
/// second.
const EVERY_MS: u64 = 200;
const OLD_MS: u64 = 700;

/// Number of engines that the file has room for; those beyond are not counted.
const ENTRIES: usize = 128;

/// The engine's own entry, and the time of the next look.
#[derive(Debug)]
pub struct Neighbours {
    path: PathBuf,
    own: Lock<Own>,
    due_ms: AtomicU64,
}

#[derive(Debug, Default)]
enum Own {
    #[default]
    Unopened,
    /// The file cannot be used.
    Alone,
    Known(File, u16, Option<usize>),
}

/// An entry of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// The time of the monotonic clock, of which 40 bits are kept: 34 years.
    at_ms: u64,
    id: u16,
    links: u8,
}

impl Entry {
    fn of_bytes(bytes: [u8; 8]) -> Self {
        let word = u64::from_ne_bytes(bytes);
        let [links, low, high, ..] = word.to_le_bytes();
        Self { at_ms: word >> 24, id: u16::from_le_bytes([low, high]), links }
    }

    fn to_bytes(self) -> [u8; 8] {
        (self.at_ms << 24 | u64::from(self.id) << 8 | u64::from(self.links)).to_ne_bytes()
    }

    fn is_free(self, now_ms: u64) -> bool {
        now_ms.abs_diff(self.at_ms) > OLD_MS
    }
}

impl Default for Neighbours {
    fn default() -> Self {
        Self::new()
    }
}

impl Neighbours {
    /// Those of this user.
    #[must_use]
    pub fn new() -> Self {
        Self::at(format!("/dev/shm/forebay-{}", geteuid().as_raw()).into())
    }

    fn at(path: PathBuf) -> Self {
        Self { path, own: Lock::default(), due_ms: AtomicU64::new(0) }
    }

    /// Publishes how many links this engine uses, and returns how many others use; `None` if the
    /// last look was just now.
    pub fn look(&self, here: impl FnOnce() -> usize) -> Option<usize> {
        let now_ms = now_ms();
        let due_ms = self.due_ms.load(Ordering::Relaxed);
        let next_ms = now_ms + EVERY_MS;
        let takes_turn = |due| {
            let set =
                self.due_ms.compare_exchange(due, next_ms, Ordering::Relaxed, Ordering::Relaxed);
            set.is_ok()
        };
        let is_due = now_ms >= due_ms && takes_turn(due_ms);
        is_due.then(|| self.exchange(now_ms, u8::try_from(here()).unwrap_or(u8::MAX)))
    }

    /// Writes the number of links that this engine uses; returns that of all other engines.
    fn exchange(&self, now_ms: u64, links: u8) -> usize {
        let mut own = self.own.lock();
        if matches!(*own, Own::Unopened) {
            *own = open(&self.path).map_or(Own::Alone, |file| Own::Known(file, random(), None));
        }
        let Own::Known(file, id, place) = &mut *own else { return 0 };
        let mut bytes = [[0; 8]; ENTRIES];
        if file.read_at(bytes.as_flattened_mut(), 0).is_err() {
            return 0;
        }
        let entries = bytes.map(Entry::of_bytes);
        // Another engine may have taken the same entry at the same time.
        *place = place
            .filter(|&index| entries[index].id == *id)
            .or_else(|| entries.iter().position(|entry| entry.is_free(now_ms)));
        if let Some(index) = *place {
            let entry = Entry { at_ms: now_ms, id: *id, links };
            let _ = file.write_at(&entry.to_bytes(), 8 * index as u64);
        }
        let others = entries.iter().enumerate().filter(|(index, _)| Some(*index) != *place);
        let in_use = others.filter(|(_, entry)| !entry.is_free(now_ms));
        in_use.map(|(_, entry)| usize::from(entry.links)).sum()
    }
}

/// Opens the file, or makes it. What lies there may be of another user, or no plain file.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(flags).open(path)?;
    let facts = file.metadata()?;
    let is_ours = facts.is_file() && facts.uid() == geteuid().as_raw();
    is_ours.then_some(file).ok_or_else(|| io::ErrorKind::PermissionDenied.into())
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

/// A number that engines of a host hardly share.
fn random() -> u16 {
    use std::hash::{BuildHasher as _, RandomState};
    u16::try_from(RandomState::new().hash_one(0) >> 48).expect("16 bits")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn engines_count_each_others_links_while_they_look() {
        let folder = tempfile::tempdir().unwrap();
        let neighbours = || Neighbours::at(folder.path().join("links"));
        let [first, second, third] = [(); 3].map(|()| neighbours());
        assert_eq!(first.exchange(1000, 1), 0);
        assert_eq!(second.exchange(1100, 4), 1);
        assert_eq!(third.exchange(1200, 0), 5);
        assert_eq!(first.exchange(1300, 2), 4);
        assert_eq!(second.exchange(1400, 4), 2);
        // The second one was killed.
        assert_eq!(first.exchange(1500, 2), 4);
        assert_eq!(first.exchange(1400 + OLD_MS + 1, 2), 0);
        // Its entry is free for the next one.
        let next = neighbours();
        assert_eq!(next.exchange(2200, 1), 2);
        assert!(matches!(*next.own.lock(), Own::Known(_, _, Some(1))));
    }

    /// Set in the process that is killed: the path of its file.
    const INSIDE: &str = "FOREBAY_TEST_NEIGHBOURS";

    #[test]
    fn a_process_is_noticed_within_a_second_and_so_is_its_end() {
        if let Some(path) = std::env::var_os(INSIDE) {
            let own = Neighbours::at(path.into());
            loop {
                own.exchange(now_ms(), 3);
                std::thread::sleep(Duration::from_millis(EVERY_MS));
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("links");
        let own = Neighbours::at(path.clone());
        let becomes = |links| {
            let start = Instant::now();
            while own.exchange(now_ms(), 1) != links {
                assert!(start.elapsed() < Duration::from_secs(20), "{links} links are not noticed");
                std::thread::sleep(Duration::from_millis(EVERY_MS));
            }
            start.elapsed()
        };
        let name = "neighbours::tests::a_process_is_noticed_within_a_second_and_so_is_its_end";
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", name, "--nocapture"]).env(INSIDE, &path).stdout(Stdio::null());
        let mut other = other.spawn().unwrap();
        becomes(3);
        other.kill().unwrap(); // SIGKILL
        other.wait().unwrap();
        let noticed = becomes(0);
        assert!(noticed < Duration::from_secs(2), "{noticed:?}: 0.9 s where nothing else runs");
    }

    #[test]
    fn one_whose_entry_was_taken_takes_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("links");
        let [first, second] = [(); 2].map(|()| Neighbours::at(path.clone()));
        first.exchange(1000, 1);
        let taken = Entry { at_ms: 1000, id: 7, links: 3 };
        File::options().write(true).open(&path).unwrap().write_at(&taken.to_bytes(), 0).unwrap();
        if let Own::Known(_, id, _) = &mut *first.own.lock() {
            *id = 8;
        }
        assert_eq!(first.exchange(1100, 1), 3);
        assert_eq!(second.exchange(1200, 1), 4);
    }

    #[test]
    fn links_and_files_of_other_users_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("links");
        std::os::unix::fs::symlink(folder.path().join("victim"), &path).unwrap();
        assert_eq!(Neighbours::at(path.clone()).exchange(1000, 1), 0);
        assert!(!folder.path().join("victim").exists());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(Neighbours::at(path.clone()).exchange(1000, 1), 0);
        std::fs::remove_dir(&path).unwrap();
        // Nonsense is counted until it is old, and never panics.
        std::fs::write(&path, [0xff; 2000]).unwrap();
        let _ = Neighbours::at(path).exchange(1000, 1);
    }
}

//! Links that other processes of the host use: they share its cores, caches and memory.
//!
//! A file in memory holds an entry of eight bytes per engine: the time of its last look, a random
//! number, and the links used since the look before. Entries that are too old are free, so the
//! entry of a killed process expires. The file belongs to a user, and is opened for every look,
//! because it may have been removed. A container with a `/dev/shm` of its own sees its own
//! processes only; its affinity and its quota still bound its readers.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_base::lock::Lock;
use forebay_base::random::random;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};

/// Interval between looks, and the age at which an entry is free. So a change is noticed within a
/// second.
const EVERY_MS: u64 = 200;
const OLD_MS: u64 = 700;

/// Maximum number of entries; further engines are not counted.
const ENTRIES: usize = 128;

/// The engine's own entry, the links it uses, and the time of the next look.
#[derive(Debug)]
pub struct Neighbours {
    path: PathBuf,
    id: u16,
    /// The index of its entry.
    place: Lock<Option<usize>>,
    /// A bit per link used since the last look.
    used: AtomicU64,
    made: Instant,
    /// Since then.
    due_ms: AtomicU64,
    /// How far this process's monotonic clock is ahead of the host's.
    ahead_ms: i64,
}

/// An entry of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// The time of the host's monotonic clock, of which 40 bits are kept: 34 years.
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
    pub fn new() -> Self {
        Self::at(format!("/dev/shm/forebay-{}", geteuid().as_raw()).into())
    }

    /// None, for an engine that does not share with other processes.
    pub fn none() -> Self {
        Self::at(PathBuf::new())
    }

    fn at(path: PathBuf) -> Self {
        Self {
            path,
            id: u16::try_from(random() >> 48).expect("16 bits"),
            place: Lock::default(),
            used: AtomicU64::new(0),
            made: Instant::now(),
            due_ms: AtomicU64::new(0),
            ahead_ms: ahead_ms(
                &fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default(),
            ),
        }
    }

    /// Notes that the engine uses this link. Until the next look, all but the first note of a link
    /// cost a load of a shared cache line.
    pub fn note(&self, link: usize) {
        let bit = 1 << link.min(63);
        if self.used.load(Ordering::Relaxed) & bit == 0 {
            self.used.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Publishes how many links this engine used since its last look, with those that
    /// `note_used` notes. Returns how many all other engines use; `None` if the last look was just
    /// now.
    pub fn look(&self, now: Instant, note_used: impl FnOnce()) -> Option<usize> {
        let now_ms = now.saturating_duration_since(self.made).as_millis();
        let now_ms = u64::try_from(now_ms).expect("less than 500 million years");
        let due_ms = self.due_ms.load(Ordering::Relaxed);
        let next_ms = now_ms + EVERY_MS;
        let takes_turn = |due| {
            let set =
                self.due_ms.compare_exchange(due, next_ms, Ordering::Relaxed, Ordering::Relaxed);
            set.is_ok()
        };
        let is_due = now_ms >= due_ms && takes_turn(due_ms);
        is_due.then(|| {
            note_used();
            let used = self.used.swap(0, Ordering::Relaxed).count_ones();
            self.exchange(self.host_ms(), u8::try_from(used).expect("64 at most"))
        })
    }

    /// Writes the number of links that this engine uses; returns that of all other engines.
    fn exchange(&self, now_ms: u64, links: u8) -> usize {
        let Some(file) = open(&self.path) else { return 0 };
        let mut bytes = [[0; 8]; ENTRIES];
        if file.read_at(bytes.as_flattened_mut(), 0).is_err() {
            return 0;
        }
        let entries = bytes.map(Entry::of_bytes);
        let mut place = self.place.lock();
        // A second engine may have claimed the same entry at the same time.
        *place = place
            .filter(|&index| entries[index].id == self.id)
            .or_else(|| entries.iter().position(|entry| entry.is_free(now_ms)));
        if let Some(index) = *place {
            let entry = Entry { at_ms: now_ms, id: self.id, links };
            let _ = file.write_at(&entry.to_bytes(), 8 * index as u64);
        }
        let others = entries.iter().enumerate().filter(|(index, _)| Some(*index) != *place);
        let in_use = others.filter(|(_, entry)| !entry.is_free(now_ms));
        in_use.map(|(_, entry)| usize::from(entry.links)).sum()
    }

    /// The time of the host's monotonic clock.
    fn host_ms(&self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        let own_ms = now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000;
        own_ms.wrapping_sub(self.ahead_ms.cast_unsigned()) & (u64::MAX >> 24)
    }
}

/// How far the clock of a time namespace is ahead of the host's (`time_namespaces(7)`).
fn ahead_ms(offsets: &str) -> i64 {
    let of_line = |line: &str| {
        let mut numbers = line.strip_prefix("monotonic")?.split_ascii_whitespace();
        let mut number = || numbers.next()?.parse::<i64>().ok();
        Some(number()?.wrapping_mul(1000).wrapping_add(number()? / 1_000_000))
    };
    offsets.lines().find_map(of_line).unwrap_or(0)
}

/// Opens or creates the file. `None` if it may be foreign: owned by a different user, writable by
/// more users, with a second name, longer, or no plain file.
fn open(path: &Path) -> Option<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(flags).open(path).ok()?;
    let facts = file.metadata().ok()?;
    let is_ours = facts.is_file()
        && facts.uid() == geteuid().as_raw()
        && facts.mode() & 0o077 == 0
        && facts.nlink() == 1
        && facts.len() <= 8 * ENTRIES as u64;
    is_ours.then_some(file)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
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
        assert_eq!(*next.place.lock(), Some(1));
    }

    /// Set in the process that is killed: the path of its file.
    const INSIDE: &str = "FOREBAY_TEST_NEIGHBOURS";

    #[test]
    fn a_process_is_noticed_within_a_second_and_so_is_its_end() {
        if let Some(path) = std::env::var_os(INSIDE) {
            let own = Neighbours::at(path.into());
            loop {
                own.exchange(own.host_ms(), 3);
                std::thread::sleep(Duration::from_millis(EVERY_MS));
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("links");
        let own = Neighbours::at(path.clone());
        let becomes = |links| {
            let start = Instant::now();
            while own.exchange(own.host_ms(), 1) != links {
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
        let [mut first, second] = [(); 2].map(|()| Neighbours::at(path.clone()));
        first.exchange(1000, 1);
        let taken = Entry { at_ms: 1000, id: 7, links: 3 };
        File::options().write(true).open(&path).unwrap().write_at(&taken.to_bytes(), 0).unwrap();
        first.id = 8;
        assert_eq!(first.exchange(1100, 1), 3);
        assert_eq!(second.exchange(1200, 1), 4);
    }

    #[test]
    fn a_look_publishes_all_links_used_since_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let own = Neighbours::at(folder.path().join("links"));
        let look = |number: u64, in_use: Option<usize>| {
            let now = own.made + Duration::from_millis(number * EVERY_MS);
            own.look(now, || in_use.into_iter().for_each(|link| own.note(link))).unwrap();
            let bytes = std::fs::read(&own.path).unwrap();
            Entry::of_bytes(bytes.try_into().unwrap()).links
        };
        assert_eq!(look(0, None), 0);
        [3, 5, 3].into_iter().for_each(|link| own.note(link));
        assert_eq!(own.look(own.made, || panic!("it is too early")), None);
        assert_eq!(look(1, Some(5)), 2);
        assert_eq!(look(2, Some(5)), 1);
        assert_eq!(look(3, None), 0);
        (0..100).for_each(|link| own.note(link));
        assert_eq!(look(4, None), 64);
    }

    #[test]
    fn a_file_that_was_removed_or_replaced_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("links");
        let [first, second] = [(); 2].map(|()| Neighbours::at(path.clone()));
        assert_eq!((first.exchange(1000, 1), second.exchange(1000, 2)), (0, 1));
        std::fs::remove_file(&path).unwrap();
        assert_eq!((second.exchange(1200, 2), first.exchange(1200, 1)), (0, 2));
        std::fs::rename(&path, folder.path().join("away")).unwrap();
        assert_eq!((first.exchange(1400, 1), second.exchange(1400, 2)), (0, 1));
        assert_eq!(first.exchange(1600, 1), 2);
    }

    #[test]
    fn time_namespaces_have_the_clock_of_the_host() {
        assert_eq!(
            ahead_ms("monotonic           0         0\nboottime            0         0\n"),
            0
        );
        assert_eq!(ahead_ms("monotonic      100000         0\nboottime 7 7\n"), 100_000_000);
        assert_eq!(ahead_ms("monotonic   -5 250000000\nboottime 7 7\n"), -4750);
        for none in ["", "monotonic", "monotonic x 1", "boottime 7 7"] {
            assert_eq!(ahead_ms(none), 0);
        }
        let folder = tempfile::tempdir().unwrap();
        let mut own = Neighbours::at(folder.path().join("links"));
        let before = own.host_ms();
        own.ahead_ms -= 1 << 30;
        assert!(own.host_ms() >= before + (1 << 30));
    }

    #[test]
    fn what_may_be_another_file_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("links"), folder.path().join("victim"));
        let refuses = |what: &str| {
            let bytes = std::fs::read(&victim).ok();
            assert_eq!(Neighbours::at(path.clone()).exchange(1000, 1), 0, "{what}");
            assert_eq!(std::fs::read(&victim).ok(), bytes, "{what}");
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        };
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        refuses("a symbolic link");
        assert!(!victim.exists());
        let live = Entry { at_ms: 1000, id: 7, links: 3 };
        std::fs::write(&victim, live.to_bytes()).unwrap();
        std::fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
        std::fs::hard_link(&victim, &path).unwrap();
        refuses("a hard link");
        std::fs::copy(&victim, &path).unwrap();
        assert_eq!(Neighbours::at(path.clone()).exchange(1000, 1), 3, "a file of this kind");
        std::fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
        refuses("a file that others may write");
        std::fs::create_dir(&path).unwrap();
        refuses("a folder");
        std::fs::write(&path, [0xff; 2000]).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        refuses("a longer file");
        // Nonsense is counted until it is old, and never panics.
        std::fs::write(&path, [0xff; 1001]).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let _ = Neighbours::at(path).exchange(1000, 1);
    }
}

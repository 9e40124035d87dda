//! What control groups leave a process of the machine's memory.
//!
//! A group and each one above it may have limits: `memory.max` and `memory.high` in version 2 (the
//! kernel's `Documentation/admin-guide/cgroup-v2.rst`), `memory.limit_in_bytes` and the same with
//! swap in version 1 (`Documentation/admin-guide/cgroup-v1/memory.rst`). Beyond the first and the
//! last two the kernel ends a process; beyond `memory.high` it slows it down for ever, since pinned
//! memory cannot be taken back.

use std::path::{Path, PathBuf};

use super::groups::{Group, Version};
use super::system::System;

/// Limits of this size and above are none; version 1 writes a number all the same.
const NO_LIMIT: u64 = 1 << 60;

/// The most that is read of `memory.stat`, which has a line for each of some 80 counts.
const STAT_LEN_MAX: usize = 64 << 10;

/// A limit of a control group on memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) limit: u64,
    /// What may still be used: what is not, and what the kernel can take back at once.
    pub(crate) available: u64,
    /// The file that holds the limit.
    pub(crate) file: PathBuf,
}

/// Memory that a process may still use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryLeft {
    /// What the kernel says is available, with pages of files.
    pub(crate) available: u64,
    /// What of that may be pinned pages of files, which are not.
    pub(crate) pinned: u64,
    /// What there would be, were all of it free.
    pub(crate) all: u64,
}

/// A file with a limit, one with what is used of it, and whether what is swapped out is used no
/// more.
type Names = (&'static str, &'static str, bool);

impl Version {
    fn limits(self) -> [Names; 2] {
        match self {
            Self::One => [
                ("memory.limit_in_bytes", "memory.usage_in_bytes", true),
                ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", false),
            ],
            Self::Two => {
                [("memory.max", "memory.current", true), ("memory.high", "memory.current", true)]
            }
        }
    }
}

impl System {
    /// The limit that leaves the process least; `None` where it has none, or nothing is told.
    pub(crate) fn memory_limit(&self) -> Option<MemoryLimit> {
        let groups = self.groups("memory");
        let limits = groups.iter().flat_map(|group| self.limits_of(group));
        limits.min_by_key(|limit| limit.available)
    }

    fn limits_of(&self, group: &Group) -> Vec<MemoryLimit> {
        let limits = group.version.limits().into_iter().filter_map(|names| {
            let limit = self.count(&group.path.join(names.0))?;
            (limit < NO_LIMIT).then_some((limit, names))
        });
        let limits: Vec<_> = limits.collect();
        if limits.is_empty() {
            return Vec::new();
        }
        let stat = Stat::of(self, group);
        let swappable = stat.anonymous.min(self.swap_left(group));
        let left = |(limit, (name, used, swaps)): (u64, Names)| {
            let used = self.count(&group.path.join(used)).unwrap_or(0);
            let back = stat.files.saturating_add(if swaps { swappable } else { 0 });
            let available = limit.saturating_sub(used.saturating_sub(back));
            MemoryLimit { limit, available, file: Path::new("/").join(&group.path).join(name) }
        };
        limits.into_iter().map(left).collect()
    }

    /// A file of one number; `None` as well for `max`, which is none.
    fn count(&self, path: &Path) -> Option<u64> {
        self.text(path).ok()?.parse().ok()
    }

    /// What the process may still use of memory; `None` where nothing is told.
    pub(crate) fn memory_left(&self) -> Option<MemoryLeft> {
        let machine = (self.meminfo("MemAvailable:")?, self.meminfo("MemTotal:")?);
        let group = self.memory_limit().map(|limit| (limit.available, limit.limit));
        let (available, all) = group.filter(|group| group.0 < machine.0).unwrap_or(machine);
        Some(MemoryLeft { available, pinned: self.pinned_pages(), all })
    }

    /// What of the pages of files may be pinned, by anybody: no more than all that is, and no more
    /// than there is of them. The kernel counts them as pages that may be used.
    fn pinned_pages(&self) -> u64 {
        let table = self.bytes(Path::new("proc/vmstat"), STAT_LEN_MAX).unwrap_or_default();
        let table = String::from_utf8_lossy(&table);
        let count = |name: &str| {
            let line = table.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        let page = rustix::param::page_size() as u64;
        let times = ["nr_foll_pin_acquired ", "nr_foll_pin_released "].map(count);
        let [Some(acquired), Some(released)] = times else { return 0 };
        let pinned = acquired.saturating_sub(released).saturating_mul(page);
        pinned.min(self.meminfo("Cached:").unwrap_or(0))
    }

    /// A line of the kernel's table of memory, in bytes.
    fn meminfo(&self, name: &str) -> Option<u64> {
        let table = self.bytes(Path::new("proc/meminfo"), STAT_LEN_MAX).ok()?;
        let table = String::from_utf8_lossy(&table);
        let line = table.lines().find_map(|line| line.strip_prefix(name))?;
        let kib = line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
        Some(kib.saturating_mul(1024))
    }

    /// What may still be swapped out for a group.
    fn swap_left(&self, group: &Group) -> u64 {
        let free = self.meminfo("SwapFree:").unwrap_or(0);
        let count = |name: &str| self.count(&group.path.join(name));
        match (group.version, count("memory.swap.max")) {
            (Version::Two, Some(most)) => {
                free.min(most.saturating_sub(count("memory.swap.current").unwrap_or(0)))
            }
            _ => free,
        }
    }
}

/// What of a group's memory can be taken back.
#[derive(Debug, Default)]
struct Stat {
    /// Pages of files that hold what the drive holds as well.
    files: u64,
    /// Pages without a file, which can go to swap alone.
    anonymous: u64,
}

impl Stat {
    fn of(system: &System, group: &Group) -> Self {
        let text = system.bytes(&group.path.join("memory.stat"), STAT_LEN_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        // Of version 1 the counts of the group alone, without those below it, have the plain names.
        let names = match group.version {
            Version::One => "total_",
            Version::Two => "",
        };
        let count = |wanted: &str| {
            let line = text.lines().find_map(|line| {
                let (name, count) = line.split_once(' ')?;
                (name.strip_prefix(names)? == wanted).then_some(count)
            });
            line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        // Shared memory stands among what has no file. What is dirty has to be written first, and
        // the kernel may give up before.
        let [dirty, written] = match group.version {
            Version::One => ["dirty", "writeback"],
            Version::Two => ["file_dirty", "file_writeback"],
        };
        let files = count("inactive_file").saturating_add(count("active_file"));
        let waits = count(dirty).saturating_add(count(written));
        let anonymous = count("inactive_anon").saturating_add(count("active_anon"));
        Self { files: files.saturating_sub(waits), anonymous }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// What a system with these files leaves: the bytes, and the limit's file.
    fn left(files: &[(&str, &str)]) -> Option<(u64, u64, String)> {
        let folder = TempDir::new().expect("a temporary folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let MemoryLimit { limit, available, file } = System::at(folder.path()).memory_limit()?;
        Some((limit, available, file.display().to_string()))
    }

    const OWN: (&str, &str) = ("proc/self/cgroup", "0::/pod/box\n");
    const MARK: (&str, &str) = ("sys/fs/cgroup/pod/box/cgroup.controllers", "memory\n");

    #[test]
    fn the_limit_that_leaves_least_binds() {
        let with = |more: &[(&'static str, &'static str)]| left(&[&[OWN, MARK], more].concat());
        assert_eq!(with(&[("sys/fs/cgroup/pod/box/memory.max", "max\n")]), None);
        let own = [
            ("sys/fs/cgroup/pod/box/memory.max", "1000\n"),
            ("sys/fs/cgroup/pod/box/memory.current", "400\n"),
        ];
        let place = |rest: &str| format!("/sys/fs/cgroup/pod/{rest}");
        assert_eq!(with(&own), Some((1000, 600, place("box/memory.max"))));
        let high = ("sys/fs/cgroup/pod/box/memory.high", "900");
        assert_eq!(with(&[own[0], own[1], high]), Some((900, 500, place("box/memory.high"))));
        // The group above is larger, and others use most of it.
        let above = [
            ("sys/fs/cgroup/pod/memory.max", "5000"),
            ("sys/fs/cgroup/pod/memory.current", "4800"),
        ];
        let all = [&own[..], &above[..]].concat();
        assert_eq!(with(&all), Some((5000, 200, place("memory.max"))));
        let full = [own[0], ("sys/fs/cgroup/pod/box/memory.current", "1200")];
        assert_eq!(with(&full), Some((1000, 0, place("box/memory.max"))));
    }

    #[test]
    fn what_the_kernel_takes_back_is_left() {
        let with = |stat: &'static str, more: &[(&'static str, &'static str)]| {
            let own = [
                ("sys/fs/cgroup/pod/box/memory.max", "1000\n"),
                ("sys/fs/cgroup/pod/box/memory.current", "900\n"),
                ("sys/fs/cgroup/pod/box/memory.stat", stat),
            ];
            left(&[&[OWN, MARK], &own[..], more].concat()).expect("a limit").1
        };
        let files = "anon 300\nfile 600\nshmem 100\ninactive_file 300\nactive_file 200\n";
        assert_eq!(with(files, &[]), 600);
        let dirty = "inactive_file 300\nfile_dirty 200\nfile_writeback 50\n";
        assert_eq!(with(dirty, &[]), 150);
        assert_eq!(with("inactive_file 9\nfile_dirty 10\n", &[]), 100);
        assert_eq!(with("inactive_file 99999\n", &[]), 1000);
        assert_eq!(with("inactive_file -5\nactive_file x\n\n \n\u{0}", &[]), 100);
        // What has no file goes to swap, where there is any for this group.
        let anonymous = "inactive_anon 300\nactive_anon 200\n";
        let swap = ("proc/meminfo", "MemTotal: 9 kB\nSwapFree:    1 kB\n");
        assert_eq!(with(anonymous, &[]), 100);
        assert_eq!(with(anonymous, &[swap]), 600);
        let bounds = [
            ("sys/fs/cgroup/pod/box/memory.swap.max", "70"),
            ("sys/fs/cgroup/pod/box/memory.swap.current", "30"),
        ];
        assert_eq!(with(anonymous, &[swap, bounds[0], bounds[1]]), 140);
    }

    #[test]
    fn the_first_version_counts_swap_as_well() {
        let own = [
            ("proc/self/cgroup", "4:memory:/box\n0::/\n"),
            ("proc/meminfo", "SwapFree: 1 kB\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/box/cgroup.procs", ""),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "4000\n"),
            (
                "sys/fs/cgroup/memory/box/memory.stat",
                "inactive_file 9\ntotal_inactive_file 100\ntotal_dirty 40\ntotal_active_anon 500\n",
            ),
        ];
        let file = |name: &str| format!("/sys/fs/cgroup/memory/box/{name}");
        assert_eq!(left(&own), Some((5000, 1560, file("memory.limit_in_bytes"))));
        let both = [
            ("sys/fs/cgroup/memory/box/memory.memsw.limit_in_bytes", "5200\n"),
            ("sys/fs/cgroup/memory/box/memory.memsw.usage_in_bytes", "4100\n"),
        ];
        let all = [&own[..], &both[..]].concat();
        assert_eq!(left(&all), Some((5200, 1160, file("memory.memsw.limit_in_bytes"))));
    }
}

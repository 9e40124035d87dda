//! Limits that control groups set for the process: memory, and the number of processes.
//!
//! A group and its ancestors may set limits. Version 2 defines `memory.max` and `memory.high` (the
//! kernel's `Documentation/admin-guide/cgroup-v2.rst`). Version 1 defines `memory.limit_in_bytes`
//! and its counterpart that includes swap (`Documentation/admin-guide/cgroup-v1/memory.rst`). Above
//! `memory.max` or a version 1 limit the kernel kills a process. Above `memory.high` it throttles
//! the process permanently, because pinned memory cannot be reclaimed.

use std::path::{Path, PathBuf};

use super::groups::{Group, Version};
use super::system::System;
use super::text::entry;

/// Values of this size and above mean "no limit"; version 1 writes a number even then.
const NO_LIMIT: u64 = 1 << 60;

/// A limit of a control group on memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit.
    pub limit: u64,
    /// Bytes that may still be used: unused memory plus what the kernel can reclaim immediately.
    pub available: u64,
    /// The file that holds the limit.
    pub file: PathBuf,
}

/// Memory that a process may still use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLeft {
    /// Memory that the kernel reports as available, page cache included.
    pub available: u64,
    /// Upper bound on the pinned page-cache pages in `available`; these are not really available.
    pub pinned: u64,
    /// Total memory, or the control group's limit.
    pub all: u64,
}

/// The limit file, the usage file, and whether swapping memory out lowers the usage.
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
    /// The tightest limit; `None` if there is no limit or it cannot be read.
    pub fn memory_limit(&self) -> Option<MemoryLimit> {
        let groups = self.groups("memory");
        let limits = groups.iter().flat_map(|group| self.limits_of(group));
        limits.min_by_key(|limit| limit.available)
    }

    /// Whether a group runs as many processes and threads as its `pids.max` allows.
    pub fn process_limit_reached(&self) -> bool {
        let reached = |group: &Group| {
            let count = |name| self.count(&group.path.join(name));
            count("pids.max").zip(count("pids.current")).is_some_and(|(max, now)| now >= max)
        };
        self.groups("pids").iter().any(reached)
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

    /// Reads a file that holds a number. `max` means no limit and gives `None`.
    fn count(&self, path: &Path) -> Option<u64> {
        self.text(path).ok()?.parse().ok()
    }

    /// Memory that the process may still use; `None` if the kernel does not report it.
    pub fn memory_left(&self) -> Option<MemoryLeft> {
        let machine = (self.meminfo("MemAvailable:")?, self.meminfo("MemTotal:")?);
        let group = self.memory_limit().map(|limit| (limit.available, limit.limit));
        let (available, all) = group.filter(|group| group.0 < machine.0).unwrap_or(machine);
        Some(MemoryLeft { available, pinned: self.pinned_pages(), all })
    }

    /// Upper bound on the pinned page-cache pages of all processes: the lower of all pinned pages
    /// and the page cache. The kernel counts these pages as available.
    fn pinned_pages(&self) -> u64 {
        let table = self.table("proc/vmstat").unwrap_or_default();
        let count = |name: &str| entry(&table, name)?.parse::<u64>().ok();
        let page = rustix::param::page_size() as u64;
        let times = ["nr_foll_pin_acquired ", "nr_foll_pin_released "].map(count);
        let [Some(acquired), Some(released)] = times else { return 0 };
        let pinned = acquired.saturating_sub(released).saturating_mul(page);
        pinned.min(self.meminfo("Cached:").unwrap_or(0))
    }

    /// A line of `/proc/meminfo`, in bytes.
    fn meminfo(&self, name: &str) -> Option<u64> {
        let table = self.table("proc/meminfo").ok()?;
        let kib = entry(&table, name)?.strip_suffix(" kB")?.parse::<u64>().ok()?;
        Some(kib.saturating_mul(1024))
    }

    /// Bytes that can still be swapped out for a group.
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

/// Reclaimable memory of a group.
#[derive(Debug, Default)]
struct Stat {
    /// Clean page-cache pages.
    files: u64,
    /// Anonymous pages, which can only be swapped out.
    anonymous: u64,
}

impl Stat {
    fn of(system: &System, group: &Group) -> Self {
        let table = system.table(group.path.join("memory.stat")).unwrap_or_default();
        // In version 1 the plain names count the group without its descendants.
        let names = match group.version {
            Version::One => "total_",
            Version::Two => "",
        };
        let count = |name: &str| {
            let count = entry(&table, &format!("{names}{name} "));
            count.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0)
        };
        // Shared memory counts as anonymous. Dirty pages must be written back first, and the kernel
        // may give up before that.
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

    /// The bytes that a system with these files leaves available, and the file of the limit.
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
    fn a_full_group_starts_no_thread() {
        let reached = |now: &str| {
            let folder = TempDir::new().expect("a temporary folder");
            let group = folder.path().join("sys/fs/cgroup/pids/pod");
            fs::create_dir_all(group.join("box")).expect("a folder");
            fs::create_dir_all(folder.path().join("proc/self")).expect("a folder");
            for (path, text) in [
                (folder.path().join("proc/self/cgroup"), "8:pids:/pod/box\n"),
                (group.join("pids.max"), "9\n"),
                (group.join("pids.current"), now),
                (group.join("box/cgroup.procs"), ""),
                (group.join("box/pids.max"), "max\n"),
            ] {
                fs::write(path, text).expect("a file");
            }
            System::at(folder.path()).process_limit_reached()
        };
        assert!(!reached("8\n") && reached("9\n"));
    }

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
        // The parent group's limit is larger, but other groups use most of it.
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
    fn reclaimable_memory_counts_as_free() {
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
        // Anonymous pages are reclaimable only as far as the group may swap.
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

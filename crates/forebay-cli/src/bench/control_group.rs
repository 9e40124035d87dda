//! The memory that the control group allows this process, which in a container is often far less
//! than the machine's, and the process's own limits (`ulimit -v`, `ulimit -d`). Also determines
//! which limit keeps a thread from starting.
//!
//! Every group on the path to the root may have a limit, and the lowest binds. Both versions of
//! control groups are read (cgroups(7)); many machines mount both.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit, getuid};

use super::environment::unescaped;

/// A limit of this size or above means no limit: version 1 always reports a number.
const NO_LIMIT: u64 = 1 << 60;

/// The memory that a group grants, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// All that its processes may use.
    pub limit: u64,
    /// The unused part of the limit; file pages that the kernel can drop count as unused.
    pub available: u64,
    /// The limit that applies.
    pub by: By,
}

/// The source of this process's memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A control group.
    Group,
    /// `RLIMIT_AS`.
    AddressSpace,
    /// `RLIMIT_DATA`.
    Data,
}

impl By {
    /// Its name in a sentence.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Group => "this control group",
            Self::AddressSpace => "`ulimit -v`",
            Self::Data => "`ulimit -d`",
        }
    }

    /// The remedy, for a hint.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Group => "raise the group's memory limit",
            Self::AddressSpace => "raise `ulimit -v`",
            Self::Data => "raise `ulimit -d`",
        }
    }
}

/// Memory of a thread besides its stack.
const THREAD_REST: u64 = 1 << 20;

/// The names of the files of one version.
struct Names {
    kind: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The lines of `memory.stat` that count droppable pages of files.
    files: [&'static str; 2],
}

const VERSIONS: [Names; 2] = [
    Names {
        kind: "cgroup2",
        limit: "memory.max",
        used: "memory.current",
        files: ["inactive_file", "active_file"],
    },
    Names {
        kind: "cgroup",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        files: ["total_inactive_file", "total_active_file"],
    },
];

/// The lowest limit of this process's groups and its own limits; `None` if there is no limit.
#[must_use]
pub fn grant() -> Option<Grant> {
    let group = granted(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
    group.into_iter().chain(own()).min_by_key(|grant| grant.available)
}

/// The process's own limits.
fn own() -> impl Iterator<Item = Grant> {
    let sizes = text("/proc/self/statm");
    let of = |by, resource, field| {
        let limit = getrlimit(resource).current?;
        // In pages: size, resident, shared, text, lib, data (proc(5)).
        let used = sizes.split_whitespace().nth(field).and_then(|pages| pages.parse::<u64>().ok());
        let used = used.unwrap_or(0).saturating_mul(page_size() as u64);
        Some(Grant { limit, available: limit.saturating_sub(used), by })
    };
    [of(By::AddressSpace, Resource::As, 0), of(By::Data, Resource::Data, 5)].into_iter().flatten()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The limit that keeps this process from starting a thread with such a stack; `None` if it cannot
/// be determined.
pub(crate) fn of_threads(stack: u64) -> Option<&'static str> {
    let lacks_room = |grant: &Grant| grant.available < stack + THREAD_REST;
    if let Some(grant) = own().find(lacks_room) {
        return Some(match grant.by {
            By::Data => "memory (`ulimit -d`)",
            _ => "memory (`ulimit -v`)",
        });
    }
    if is_full(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo")) {
        return Some("processes of the control group (`pids.max`)");
    }
    let limit = getrlimit(Resource::Nproc).current?;
    (threads_of_user() >= limit).then_some("processes (`ulimit -u`)")
}

/// Whether a control group has reached its maximum number of processes and threads.
fn is_full(groups: &str, mounts: &str) -> bool {
    VERSIONS.iter().any(|names| {
        let folders = place(names.kind, "pids", groups, mounts).map(|(top, own)| way_up(&top, own));
        folders.into_iter().flatten().any(|folder| {
            let number = |name| number(&folder.join(name));
            number("pids.max").zip(number("pids.current")).is_some_and(|(max, now)| now >= max)
        })
    })
}

/// All visible threads of this user.
fn threads_of_user() -> u64 {
    let user = getuid().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let threads = processes.filter_map(|process| {
        let status = fs::read_to_string(process.path().join("status")).ok()?;
        let field = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()
        };
        (field("Uid:")? == user).then(|| field("Threads:")?.parse::<u64>().ok())?
    });
    threads.sum()
}

/// The grants of the groups in the text of `/proc/self/cgroup`, located by the text of `mountinfo`.
fn granted(groups: &str, mounts: &str) -> Option<Grant> {
    let grants = VERSIONS.iter().flat_map(|names| {
        let folders = place(names.kind, "memory", groups, mounts);
        let folders = folders.map(|(top, own)| way_up(&top, own));
        folders.into_iter().flatten().filter_map(|folder| grant_of(names, &folder))
    });
    grants.reduce(|one, other| Grant {
        limit: one.limit.min(other.limit),
        available: one.available.min(other.available),
        by: By::Group,
    })
}

/// The folders of the topmost visible group and of this process's own group.
fn place(
    version: &str,
    controller: &str,
    groups: &str,
    mounts: &str,
) -> Option<(PathBuf, PathBuf)> {
    let unified = version == "cgroup2";
    let own = groups.lines().find_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let has_it = controllers.split(',').any(|name| name == controller);
        (if unified { number == "0" && controllers.is_empty() } else { has_it }).then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let kind = what.next()?;
        let controllers = what.nth(1)?;
        let has_it = unified || controllers.split(',').any(|name| name == controller);
        if kind != version || !has_it {
            return None;
        }
        let mut place = place.split(' ').skip(3);
        let (root, top) = (unescaped(place.next()?), PathBuf::from(unescaped(place.next()?)));
        // A container may see only its own part of the tree, or nothing of the path to its own
        // group.
        let below = Path::new(own).strip_prefix(&root).unwrap_or(Path::new(""));
        let own = top.join(below);
        Some(if own.is_dir() { (top, own) } else { (top.clone(), top) })
    })
}

/// `own` and every folder above it, up to `top`.
fn way_up(top: &Path, own: PathBuf) -> Vec<PathBuf> {
    own.ancestors().take_while(|folder| folder.starts_with(top)).map(Path::to_owned).collect()
}

fn grant_of(names: &Names, folder: &Path) -> Option<Grant> {
    let number = |name| number(&folder.join(name));
    let limit = number(names.limit).filter(|limit| *limit < NO_LIMIT)?;
    let facts = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let droppable = facts.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        names.files.contains(&name).then(|| value.trim().parse::<u64>().ok())?
    });
    let used = number(names.used).unwrap_or(0).saturating_sub(droppable.sum());
    Some(Grant { limit, available: limit.saturating_sub(used), by: By::Group })
}

/// The number in a file; `max` is not a number, and means no limit.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_lowest_limit_on_the_way_up_binds() {
        let top = tempfile::tempdir().unwrap();
        let stat = "anon 600\ninactive_file 300\nactive_file 50\n";
        write(
            &top.path().join("pod"),
            &[("memory.max", "1000\n"), ("memory.current", "950\n"), ("memory.stat", stat)],
        );
        write(&top.path().join("pod/box"), &[("memory.max", "max\n"), ("memory.current", "9\n")]);
        write(&top.path().join("pod/box/deep"), &[("memory.max", "1200\n")]);
        let mounts = format!("41 1 0:38 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        let grant = granted("4:memory:/\n0::/pod/box/deep\n", &mounts).unwrap();
        assert_eq!(grant, Grant { limit: 1000, available: 400, by: By::Group });
        assert_eq!(granted("0::/\n", &mounts), None);
        assert_eq!(granted("", &mounts), None);
        assert_eq!(granted("0::/pod\n", ""), None);
    }

    #[test]
    fn a_group_that_is_full_keeps_threads_from_being_started() {
        let top = tempfile::tempdir().unwrap();
        write(&top.path().join("pod"), &[("pids.max", "9\n"), ("pids.current", "8\n")]);
        write(&top.path().join("pod/box"), &[("pids.max", "max\n"), ("pids.current", "8\n")]);
        let old = format!("35 31 0:32 / {} rw - cgroup cgroup rw,pids\n", top.path().display());
        let new = format!("41 1 0:38 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        let groups = "8:pids:/pod/box\n0::/pod/box\n";
        assert!(!is_full(groups, &old) && !is_full(groups, &new));
        write(&top.path().join("pod"), &[("pids.current", "9\n")]);
        assert!(is_full(groups, &old) && is_full(groups, &new));
        assert!(!is_full("8:cpu:/pod/box\n", &old) && !is_full(groups, ""));
        assert!(threads_of_user() > 1, "the tests have several threads");
    }

    #[test]
    fn version_1_counts_too_and_its_largest_number_is_no_limit() {
        let top = tempfile::tempdir().unwrap();
        let none = [("memory.limit_in_bytes", "9223372036854771712\n")];
        write(top.path(), &none);
        write(
            &top.path().join("box"),
            &[
                ("memory.limit_in_bytes", "5000\n"),
                ("memory.usage_in_bytes", "3000\n"),
                ("memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n"),
            ],
        );
        let mount = |root: &str| {
            let (first, top) = ("31 1 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", &top);
            format!(
                "{first}35 31 0:32 {root} {} rw - cgroup cgroup rw,memory\n",
                top.path().display()
            )
        };
        let grant = Some(Grant { limit: 5000, available: 3000, by: By::Group });
        assert_eq!(granted("4:cpu,memory:/box\n0::/\n", &mount("/")), grant);
        // The mounted tree begins below the root.
        assert_eq!(granted("4:memory:/docker/box\n", &mount("/docker")), grant);
        assert_eq!(granted("4:memory:/\n", &mount("/")), None);
        // The path to this process's group is not visible, so only the top group is read.
        assert_eq!(granted("4:memory:/elsewhere/box\n", &mount("/docker")), None);
    }
}

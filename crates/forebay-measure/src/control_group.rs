//! The memory that this process may use: the control group's limit, which in a container is often
//! far below the machine's memory, and the process's own limits (`ulimit -v`, `ulimit -d`). Also
//! determines which limit keeps a thread from starting.

use std::fs;

use forebay_topology::{MemoryLimit, System};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit, getuid};

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

/// The lowest limit of this process's groups and its own limits; `None` if there is no limit.
#[must_use]
pub fn grant() -> Option<Grant> {
    let group = System::live().memory_limit().map(|found| {
        let MemoryLimit { limit, available, .. } = found;
        Grant { limit, available, by: By::Group }
    });
    group.into_iter().chain(own()).min_by_key(|grant| grant.available)
}

/// The process's own limits.
fn own() -> impl Iterator<Item = Grant> {
    let sizes = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let of = |by, resource, field| {
        let limit = getrlimit(resource).current?;
        // In pages: size, resident, shared, text, lib, data (proc(5)).
        let used = sizes.split_whitespace().nth(field).and_then(|pages| pages.parse::<u64>().ok());
        let used = used.unwrap_or(0).saturating_mul(page_size() as u64);
        Some(Grant { limit, available: limit.saturating_sub(used), by })
    };
    [of(By::AddressSpace, Resource::As, 0), of(By::Data, Resource::Data, 5)].into_iter().flatten()
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
    if System::live().process_limit_reached() {
        return Some("processes of the control group (`pids.max`)");
    }
    let limit = getrlimit(Resource::Nproc).current?;
    (threads_of_user() >= limit).then_some("processes (`ulimit -u`)")
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

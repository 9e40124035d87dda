//! A resolver with a cache: the storage under a file system is read once, and again after a
//! remount.
//!
//! Keys are the mount id and the device, for an overlay also the inode; never the text of a path.
//! The kernel signals changes of the mount table (`poll` on `mountinfo`, `proc(5)`), which clears
//! the cache. Changes without a mount, such as an array that loses a member, are seen after
//! [`AGE_MAX`].

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::lock::Lock;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::answers::{Refusal, Stat};
use super::map::StorageMap;
use super::path as lookup;
use super::probe::stat_of;
use super::resolve::{Below, Resolve};
use super::system::System;
use super::text::device_text;

/// Maximum age of a cached result.
const AGE_MAX: Duration = Duration::from_secs(10);
/// Maximum number of cached results; a machine with more file systems in use clears the cache.
const ENTRIES_MAX: usize = 4096;

/// Resolves paths and open files to the storage below them.
#[derive(Debug, Default)]
pub struct Resolver {
    system: System,
    memory: Lock<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    watch: Option<Watch>,
    known: HashMap<Key, (Instant, Arc<Below>)>,
}

/// The key shared by all files with the same drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// The mount id; for a block device its sequence number.
    mount: u64,
    device: u64,
    /// The inode, if files of the mount may be on different drives.
    file: Option<u64>,
}

/// A descriptor that becomes ready when the mount table of a namespace changes.
#[derive(Debug)]
struct Watch {
    table: OwnedFd,
    namespace: (u64, u64),
}

impl Resolver {
    /// Creates a resolver for this system. Only results for the live system are cached.
    pub fn new(system: System) -> Self {
        Self { system, memory: Lock::default() }
    }

    /// The system that it reads.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// Resolves the storage under `path`. For a missing path, the folder that would contain it is
    /// used. Facts that cannot be found are marked as unknown in the result.
    pub fn resolve(&self, path: &Path) -> StorageMap {
        self.look_at_mounts();
        let found = lookup::find(&self.system, path);
        let below = self.below(&found.stat, || found.real.clone());
        lookup::map(found, (*below).clone())
    }

    /// Resolves the storage under an open file, which was opened as `path`.
    pub fn resolve_file(&self, file: BorrowedFd<'_>, path: &Path) -> Arc<Below> {
        self.look_at_mounts();
        let stat = stat_of(file);
        // The name is needed only for the layers of an overlay or a loop device.
        self.below(&stat, || lookup::find(&self.system, path).real)
    }

    /// Like [`resolve_file`](Self::resolve_file), but returns only a cached result: no server or
    /// drive is contacted.
    pub fn known(&self, file: BorrowedFd<'_>) -> Option<Arc<Below>> {
        self.look_at_mounts();
        let stat = stat_of(file).ok()?;
        let key = self.key(&stat)?; // before the lock: it reads sysfs
        self.memory.lock().find(key, stat.inode)
    }

    fn below(
        &self,
        stat: &Result<Stat, Refusal>,
        real: impl FnOnce() -> std::path::PathBuf,
    ) -> Arc<Below> {
        let key = stat.as_ref().ok().and_then(|stat| self.key(stat));
        if let (Some(key), Ok(stat)) = (key, stat)
            && let Some(below) = self.memory.lock().find(key, stat.inode)
        {
            return below;
        }
        // Checked before the read, so that concurrent changes are noticed afterwards.
        let keeps = key.is_some() && self.watches();
        let below = Arc::new(Resolve::new(&self.system).below(&real(), stat));
        if let (Some(key), Ok(stat), true) = (key, stat, keeps) {
            self.memory.lock().keep(key, stat.inode, &below);
        }
        below
    }

    /// The cache key of a file; `None` if a change of its drives would go unnoticed.
    fn key(&self, stat: &Stat) -> Option<Key> {
        if !self.system.is_live() {
            return None;
        }
        if stat.kind() != FileType::BlockDevice {
            return Some(Key { mount: stat.mount?, device: stat.device, file: None });
        }
        // A loop device keeps its number when it is reattached, but its sequence number increases.
        let folder = format!("sys/dev/block/{}", device_text(stat.rdev));
        let count = |path: String| self.system.text(path).ok()?.parse().ok();
        let count =
            count(format!("{folder}/diskseq")).or_else(|| count(format!("{folder}/../diskseq")))?;
        Some(Key { mount: count, device: stat.rdev, file: Some(u64::MAX) })
    }

    /// Clears the cache if mounts have changed since the last call.
    fn look_at_mounts(&self) {
        if !self.system.is_live() {
            return;
        }
        let mut memory = self.memory.lock();
        match &memory.watch {
            Some(watch) if watch.has_changed() => memory.known.clear(),
            Some(_) => {}
            None => memory.watch = Watch::namespace().and_then(Watch::new),
        }
    }

    /// Whether changes of the calling thread's mounts are watched; if not, watching starts with the
    /// next call. Mount ids are unique on the machine, so results cached for another namespace stay
    /// valid for open files of that mount.
    fn watches(&self) -> bool {
        let namespace = Watch::namespace();
        let mut memory = self.memory.lock();
        let watched = memory.watch.as_ref().map(|watch| watch.namespace);
        if namespace.is_none() || watched != namespace {
            memory.known.clear();
            memory.watch = None;
            return false;
        }
        true
    }
}

impl Memory {
    fn find(&self, key: Key, inode: u64) -> Option<Arc<Below>> {
        let mut answer = self.known.get(&key)?;
        if answer.1.per_file && key.file.is_none() {
            answer = self.known.get(&Key { file: Some(inode), ..key })?;
        }
        let (at, below) = answer;
        (at.elapsed() < AGE_MAX).then(|| Arc::clone(below))
    }

    fn keep(&mut self, key: Key, inode: u64, below: &Arc<Below>) {
        if self.known.len() >= ENTRIES_MAX {
            self.known.clear();
        }
        let now = Instant::now();
        if below.per_file && key.file.is_none() {
            self.known.insert(Key { file: Some(inode), ..key }, (now, Arc::clone(below)));
        }
        self.known.insert(key, (now, Arc::clone(below)));
    }
}

impl Watch {
    fn new(namespace: (u64, u64)) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = |path| rustix::fs::openat(CWD, path, flags, Mode::empty());
        let table = open("/proc/thread-self/mountinfo").or_else(|_| open("/proc/self/mountinfo"));
        Some(Self { table: table.ok()?, namespace })
    }

    /// The mount namespace of the calling thread, as device and inode.
    fn namespace() -> Option<(u64, u64)> {
        let stat = rustix::fs::stat("/proc/thread-self/ns/mnt").ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    fn has_changed(&self) -> bool {
        let mut polled = [PollFd::new(&self.table, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If it is interrupted or refused, assume a change.
        rustix::event::poll(&mut polled, Some(&now)) != Ok(0)
    }
}

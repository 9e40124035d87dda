//! Resolving with a memory: what is under a file system is read once, and again after a remount.
//!
//! Keys are the mount's id with the device, of an overlay also the file; a path's text is never
//! one. The kernel says when a mount table changes (`poll` on `mountinfo`, `proc(5)`), and then
//! all is forgotten. What changes without a mount, such as an array that loses a member, is seen
//! after [`AGE_MAX`].

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::map::StorageMap;
use super::path as asked;
use super::probe::{Refusal, Stat, stat_of};
use super::resolve::{self, Below, Resolve};
use super::system::System;
use crate::lock::Lock;

/// How long an answer is believed.
const AGE_MAX: Duration = Duration::from_secs(10);
/// Answers that are kept; a machine with more file systems in use starts over.
const ENTRIES_MAX: usize = 4096;

/// Resolves paths and open files to what is under them.
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

/// What several files share that have the same drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// The mount, or of a block device its sequence number.
    mount: u64,
    device: u64,
    /// The inode, where files of one mount lie on different drives.
    file: Option<u64>,
}

/// A descriptor that becomes ready when the mount table of a namespace changes.
#[derive(Debug)]
struct Watch {
    table: OwnedFd,
    namespace: (u64, u64),
}

impl Resolver {
    /// A resolver for this system. Only the live system's answers are kept.
    #[must_use]
    pub fn new(system: System) -> Self {
        Self { system, memory: Lock::default() }
    }

    /// The system that it reads.
    #[must_use]
    pub fn system(&self) -> &System {
        &self.system
    }

    /// What is under `path`; of a path that does not exist, what is under the folder that it
    /// would be in. What cannot be told is part of the answer.
    #[must_use]
    pub fn resolve(&self, path: &Path) -> StorageMap {
        self.look_at_mounts();
        let found = asked::find(&self.system, path);
        let below = self.below(&found.real, &found.stat);
        asked::map(found, (*below).clone())
    }

    /// What is under an open file, which was opened by the name `path`.
    #[must_use]
    pub fn resolve_file(&self, file: BorrowedFd<'_>, path: &Path) -> Arc<Below> {
        self.look_at_mounts();
        let stat = stat_of(file);
        // Only an overlay's or a loop device's layers have to be found by name.
        self.below_with(&stat, || asked::find(&self.system, path).real)
    }

    /// As [`resolve_file`](Self::resolve_file), where the answer is known: neither a server nor a
    /// drive is asked.
    pub(crate) fn known(&self, file: BorrowedFd<'_>) -> Option<Arc<Below>> {
        self.look_at_mounts();
        let stat = stat_of(file).ok()?;
        self.recall(self.key(&stat)?, &stat)
    }

    fn recall(&self, key: Key, stat: &Stat) -> Option<Arc<Below>> {
        let memory = self.memory.lock();
        memory.find(key, stat.inode)
    }

    /// Forgets all answers, so that the next ones are read anew.
    pub fn forget(&self) {
        self.memory.lock().known.clear();
    }

    fn below(&self, real: &Path, stat: &Result<Stat, Refusal>) -> Arc<Below> {
        self.below_with(stat, || real.to_owned())
    }

    fn below_with(
        &self,
        stat: &Result<Stat, Refusal>,
        real: impl FnOnce() -> std::path::PathBuf,
    ) -> Arc<Below> {
        let key = stat.as_ref().ok().and_then(|stat| self.key(stat));
        if let (Some(key), Ok(stat)) = (key, stat)
            && let Some(below) = self.recall(key, stat)
        {
            return below;
        }
        // Before the reading, so that what changes meanwhile is seen afterwards.
        let keeps = key.is_some() && self.watches();
        let below = Arc::new(Resolve::new(&self.system).below(&real(), stat));
        if let (Some(key), Ok(stat), true) = (key, stat, keeps) {
            let mut memory = self.memory.lock();
            memory.keep(key, stat.inode, &below);
        }
        below
    }

    /// What tells the drives of a file; `None` where nothing would say that they have changed.
    fn key(&self, stat: &Stat) -> Option<Key> {
        if !self.system.is_live() {
            return None;
        }
        if stat.kind() != FileType::BlockDevice {
            return Some(Key { mount: stat.mount?, device: stat.device, file: None });
        }
        // Detached and attached again, a loop device has its number still, but counts on.
        let folder = format!("sys/dev/block/{}", resolve::device_text(stat.rdev));
        let count = |path: String| self.system.text(path.as_ref()).ok()?.parse().ok();
        let count =
            count(format!("{folder}/diskseq")).or_else(|| count(format!("{folder}/../diskseq")))?;
        Some(Key { mount: count, device: stat.rdev, file: Some(u64::MAX) })
    }

    /// Forgets everything if mounts have changed since the last call.
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

    /// Whether the changes of the calling thread's mounts are seen; where they are not, they will
    /// be from the next call on. Mount ids are the machine's, so an answer that was kept for
    /// another namespace is right for whoever has a file of that mount.
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

    /// The mount namespace of the calling thread.
    fn namespace() -> Option<(u64, u64)> {
        let stat = rustix::fs::stat("/proc/thread-self/ns/mnt").ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    fn has_changed(&self) -> bool {
        let mut polled = [PollFd::new(&self.table, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut polled, Some(&now)) {
            Ok(0) => false,
            Ok(_) => true,
            // Interrupted or refused: nothing is known, so nothing is believed.
            Err(_) => true,
        }
    }
}

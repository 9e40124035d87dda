//! CPU affinity of the readers: close to the memory that they fill, if that has no cost.
//!
//! Slots are allocated on their GPU's NUMA node. Readers are pinned to that node if all GPUs of an
//! engine are attached to it and the allowed processors of the node suffice for the initial
//! readers. Readers beyond the number of processors are not pinned. With GPUs on several nodes none
//! are pinned: any reader fills any slot, and pinned ones would idle while the other GPU's are
//! busy. Readers never run on a processor that the thread which started the first of them may not
//! use.

use forebay_base::lock::Lock;
use forebay_topology::System;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use crate::memory::Node;

/// The node of a GPU, if the machine reports several nodes and this GPU's.
pub(super) fn node_of(system: &System, pci_address: &str) -> Option<Node> {
    if system.numa_nodes().len() < 2 {
        return None;
    }
    let number = system.numa_node_of(pci_address)?;
    Some(Node::new(number, system.numa_cpus(number)))
}

/// The nodes of an engine's GPUs, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum GpuNodes {
    #[default]
    Unknown,
    One(Node),
    Several,
}

impl GpuNodes {
    /// Adds a GPU.
    fn with(self, node: &Node) -> Self {
        match self {
            Self::Unknown => Self::One(node.clone()),
            Self::One(known) if known == *node => Self::One(known),
            _ => Self::Several,
        }
    }

    /// The `allowed` processors near all GPUs; `None` if there are not enough for the initial
    /// number of readers (`start`).
    fn near(&self, allowed: &CpuSet, start: usize) -> Option<CpuSet> {
        let Self::One(node) = self else { return None };
        let cpus = node.cpus(allowed);
        let is_enough = usize::try_from(cpus.count()).is_ok_and(|count| count >= start.max(1));
        is_enough.then_some(cpus)
    }
}

/// The affinity of an engine's readers.
#[derive(Debug)]
pub(super) struct ReaderAffinity {
    /// Initial number of readers.
    start: usize,
    state: Lock<AffinityState>,
}

#[derive(Debug, Default)]
struct AffinityState {
    place: GpuNodes,
    /// Processors that readers may use at all; `None` if unknown, so that affinity is not changed.
    allowed: Option<CpuSet>,
    /// The thread IDs of the readers, by index.
    threads: Vec<Option<Pid>>,
    refusal: Option<Errno>,
}

impl ReaderAffinity {
    pub(super) fn new(start: usize) -> Self {
        Self { start, state: Lock::default() }
    }

    /// Records the affinity of the calling thread, which will start the first readers.
    pub(super) fn allow(&self) {
        self.state.lock().allowed = sched_getaffinity(None).ok();
    }

    /// Adds a GPU's node.
    pub(super) fn add(&self, node: &Node) {
        let mut state = self.state.lock();
        let before = state.place.clone();
        state.place = before.clone().with(node);
        if state.place != before {
            (0..state.threads.len()).for_each(|index| state.apply(index, self.start));
        }
    }

    /// Registers the calling reader thread, until the result is dropped, and sets its affinity.
    pub(super) fn register(&self) -> Registered<'_> {
        let mut state = self.state.lock();
        let free = state.threads.iter().position(Option::is_none);
        let index = free.unwrap_or(state.threads.len());
        if index == state.threads.len() {
            state.threads.push(None);
        }
        state.threads[index] = Some(gettid());
        // It may have inherited the affinity of the reader that spawned it.
        if state.place != GpuNodes::Unknown {
            state.apply(index, self.start);
        }
        Registered { affinity: self, index }
    }

    /// The thread IDs of the readers.
    #[cfg(test)]
    pub(super) fn threads(&self) -> Vec<Pid> {
        self.state.lock().threads.iter().flatten().copied().collect()
    }

    /// Why setting the readers' affinity failed, if it did.
    pub(super) fn refusal(&self) -> Option<Errno> {
        self.state.lock().refusal
    }
}

impl AffinityState {
    /// Sets the affinity of a reader.
    fn apply(&mut self, index: usize, start: usize) {
        let (Some(allowed), Some(thread)) = (self.allowed, self.threads[index]) else { return };
        let near = self.place.near(&allowed, start);
        let near = near.filter(|cpus| usize::try_from(cpus.count()).is_ok_and(|n| index < n));
        let answer = sched_setaffinity(Some(thread), &near.unwrap_or(allowed));
        self.refusal = self.refusal.or(answer.err());
    }
}

/// A running reader.
#[derive(Debug)]
pub(super) struct Registered<'a> {
    affinity: &'a ReaderAffinity,
    index: usize,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // The thread ID may be reused soon.
        self.affinity.state.lock().threads[self.index] = None;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn set(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.into_iter().for_each(|cpu| set.set(cpu));
        set
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn a_gpus_node_is_found_where_there_are_several() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let gpu = |address: &str, node: &str| {
            write(root, &format!("sys/bus/pci/devices/{address}/numa_node"), node);
        };
        gpu("0000:41:00.0", "1\n");
        gpu("0000:01:00.0", "0\n");
        gpu("0000:02:00.0", "-1\n");
        write(root, "sys/devices/system/node/online", "0\n");
        write(root, "sys/devices/system/node/node0/cpulist", "0-3\n");
        let node_of = |address| super::node_of(&System::at(root), address);
        assert_eq!(node_of("0000:01:00.0"), None, "there is one node");
        write(root, "sys/devices/system/node/online", "0-1\n");
        write(root, "sys/devices/system/node/node1/cpulist", "4-5,8\n");
        assert_eq!(node_of("0000:01:00.0"), Some(Node::new(0, vec![0, 1, 2, 3])));
        assert_eq!(node_of("0000:41:00.0"), Some(Node::new(1, vec![4, 5, 8])));
        for unknown in ["0000:02:00.0", "0000:03:00.0", "", "../../x", "0000:41:00"] {
            assert_eq!(node_of(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn readers_are_near_all_gpus_or_anywhere() {
        let (one, two) = (Node::new(0, vec![0, 1, 2, 3]), Node::new(1, vec![4, 5, 6, 7]));
        let place = GpuNodes::default().with(&one);
        assert_eq!(GpuNodes::default().near(&set(0..8), 2), None);
        assert_eq!(place.near(&set(0..8), 2), Some(set(0..4)));
        assert_eq!(place.near(&set(0..8), 4), Some(set(0..4)));
        assert_eq!(place.near(&set(0..8), 5), None, "too few for the readers");
        assert_eq!(place.near(&set(2..8), 2), Some(set(2..4)), "only what the caller may use");
        assert_eq!(place.near(&set(3..8), 2), None);
        let place = place.with(&one);
        assert_eq!(place.near(&set(0..8), 2), Some(set(0..4)));
        let place = place.with(&two);
        assert_eq!(place.near(&set(0..8), 2), None);
        assert_eq!(place.with(&one).near(&set(0..8), 2), None);
    }

    #[test]
    fn threads_stay_near_a_gpu_until_another_is_used() {
        let all = sched_getaffinity(None).expect("an answer");
        let cpus: Vec<u32> = (0..1024).filter(|&cpu| all.is_set(cpu as usize)).collect();
        if cpus.len() < 2 {
            return println!("skipped: one processor");
        }
        let affinity = ReaderAffinity::new(1);
        let here = || sched_getaffinity(None).expect("an answer");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                affinity.allow();
                let first = affinity.register();
                assert_eq!(here(), all, "no GPU is known");
                let last = Node::new(1, cpus[1..].to_vec());
                affinity.add(&last);
                let near = set(cpus[1..].iter().map(|&cpu| cpu as usize));
                assert_eq!(here(), near);
                affinity.add(&last);
                assert_eq!(here(), near);
                let second = affinity.register();
                assert_eq!(here(), if cpus.len() > 2 { near } else { all }, "it roams alone");
                affinity.add(&Node::new(0, cpus[..1].to_vec()));
                assert_eq!(here(), all, "they are on several nodes");
                drop((first, second));
                assert!(affinity.state.lock().threads.iter().all(Option::is_none));
                assert_eq!(affinity.refusal(), None);
            });
            thread.join().expect("no panic");
        });
    }
}

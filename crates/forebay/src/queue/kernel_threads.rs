//! Kernel worker threads of rings, and the limit per ring.
//!
//! The kernel hands requests that would block to threads that it adds to the process: some requests
//! of btrfs, and requests that find a device's queue full. By default it starts up to four per core
//! and ring, and a drive that hangs occupies all of them. They count towards the engine's threads.
//! A ring starts with a single kernel thread, and reserves a quarter of the remaining threads when
//! it first serves a file system that may need them. `io_uring_register(2)` describes how to limit
//! them, from Linux 5.15 on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use io_uring::IoUring;
use rustix::io::Errno;

use crate::events;

/// A ring reserves the remaining threads divided by this, so that later rings get some too.
const PART: usize = 4;

/// State shared by all rings of an engine.
#[derive(Debug)]
pub(crate) struct KernelThreads {
    /// Threads not yet assigned to a ring.
    left: AtomicUsize,
    /// Kernels before Linux 6.4 apply the limit per NUMA node.
    nodes: usize,
    /// The kernel's error when it refused to limit the threads of a ring that needed more.
    refusal: OnceLock<Errno>,
}

impl KernelThreads {
    /// At most `all` threads for at most `rings` rings, on a machine with `nodes` NUMA nodes.
    pub(crate) fn new(all: usize, rings: usize, nodes: usize) -> Arc<Self> {
        let nodes = nodes.max(1);
        let left = AtomicUsize::new(all.saturating_sub(rings * nodes));
        Arc::new(Self { left, nodes, refusal: OnceLock::new() })
    }

    /// The error, if the kernel may start more threads than the limit.
    pub(crate) fn refusal(&self) -> Option<Errno> {
        self.refusal.get().copied()
    }

    /// Reserves a part of the remaining threads; returns the number per node.
    fn take(&self) -> usize {
        let mut each = 0;
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            each = left.div_ceil(PART) / self.nodes;
            Some(left - each * self.nodes)
        });
        debug_assert!(taken.is_ok(), "every number has a rest");
        each
    }

    /// Returns reserved threads.
    fn give(&self, each: usize) {
        self.left.fetch_add(each * self.nodes, Ordering::Relaxed);
    }
}

/// The kernel threads of a ring.
#[derive(Debug)]
pub(super) struct RingThreads {
    all: Arc<KernelThreads>,
    /// Threads per node beyond the first; `None` before `take_more`.
    more: Option<usize>,
}

impl RingThreads {
    /// Limits the ring to a single kernel thread. Must be called on the thread that uses the ring:
    /// the kernel's threads belong to that thread.
    pub(super) fn new(ring: &IoUring, all: Arc<KernelThreads>) -> Self {
        let _ = bound(ring, 1); // an error matters only to rings that take more
        Self { all, more: None }
    }

    /// Reserves more threads, once.
    pub(super) fn take_more(&mut self, ring: &IoUring) {
        if self.more.is_none() {
            let more = self.all.take();
            self.more = Some(more);
            if let Err(errno) = bound(ring, 1 + more)
                && self.all.refusal.set(errno).is_ok()
            {
                events::refused("to bound its own threads for io_uring", errno);
            }
        }
    }
}

impl Drop for RingThreads {
    fn drop(&mut self) {
        self.all.give(self.more.unwrap_or(0));
    }
}

/// Lets the kernel start `most` threads for a ring's requests to files, and a single thread for all
/// further requests.
fn bound(ring: &IoUring, most: usize) -> Result<(), Errno> {
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let answer = ring.submitter().register_iowq_max_workers(&mut [most, 1]);
    answer.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's limits for a ring: setting zero changes nothing and returns them.
    fn bounds(ring: &IoUring) -> [u32; 2] {
        let mut bounds = [0, 0];
        ring.submitter().register_iowq_max_workers(&mut bounds).unwrap();
        bounds
    }

    #[test]
    fn rings_never_have_more_than_there_are() {
        for (all, rings, nodes) in [(64, 32, 1), (64, 16, 2), (3, 2, 1), (1, 1, 1), (1, 1, 2)] {
            let threads = KernelThreads::new(all, rings, nodes);
            let taken: Vec<usize> = (0..rings).map(|_| threads.take()).collect();
            let sum: usize = taken.iter().map(|each| (1 + each) * nodes).sum();
            assert!(sum <= all.max(rings * nodes), "{taken:?} of {all}");
            assert!(taken.is_sorted_by(|one, next| one >= next), "{taken:?}");
            taken.iter().for_each(|&each| threads.give(each));
            assert_eq!(threads.take(), taken[0]);
        }
    }

    #[test]
    fn the_kernel_is_notified() {
        let ring = match IoUring::new(8) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: no io_uring: {error}"),
        };
        let threads = KernelThreads::new(41, 1, 1);
        if let Err(errno) = bound(&ring, 7) {
            return println!("skipped: the kernel does not bound its threads: {errno}");
        }
        let mut threads_of_ring = RingThreads::new(&ring, Arc::clone(&threads));
        assert_eq!(bounds(&ring), [1, 1]);
        threads_of_ring.take_more(&ring);
        assert_eq!(bounds(&ring), [11, 1]);
        threads_of_ring.take_more(&ring);
        assert_eq!((bounds(&ring), threads.take()), ([11, 1], 8));
    }
}

//! A NUMA node: placing memory on it, and running threads on its processors.
//!
//! Both are best effort. If the kernel refuses, memory and threads stay where they would be without
//! it.

#![expect(unsafe_code, reason = "has the kernel place memory that it maps itself")]

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

/// A NUMA node and its processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    number: u32,
    /// Its processors.
    cpus: Vec<u32>,
}

impl Node {
    pub(crate) fn new(number: u32, cpus: Vec<u32>) -> Self {
        Self { number, cpus }
    }

    /// The node's processors that are in `allowed`.
    pub(crate) fn cpus(&self, allowed: &CpuSet) -> CpuSet {
        let mut own = CpuSet::new();
        let known = |cpu: &usize| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu);
        let cpus = self.cpus.iter().filter_map(|&cpu| usize::try_from(cpu).ok());
        cpus.filter(known).for_each(|cpu| own.set(cpu));
        own
    }

    /// Restricts the calling thread to the node's processors.
    pub(super) fn run_here(&self) -> Result<(), Errno> {
        let cpus = self.cpus(&rustix::thread::sched_getaffinity(None)?);
        sched_setaffinity(None, &cpus)
    }

    /// Places pages that are touched from now on onto the node while it has room: `mbind(2)` with
    /// `MPOL_PREFERRED`.
    ///
    /// # Safety
    /// The range is mapped and starts at a page. No other thread maps or unmaps in it during the
    /// call.
    pub(super) unsafe fn prefer(&self, start: *mut u8, len: usize) -> Result<(), Errno> {
        const WORD: u32 = u64::BITS;
        let mut mask = vec![0_u64; self.number as usize / WORD as usize + 1];
        if let Some(word) = mask.last_mut() {
            *word = 1 << (self.number % WORD);
        }
        // The kernel uses one bit less than the given count.
        let bits = mask.len() * WORD as usize + 1;
        let mode = libc::c_long::from(libc::MPOL_PREFERRED);
        // SAFETY: the caller promises the range, the mask lives until the call returns, and a
        // policy changes no byte.
        let answer =
            unsafe { libc::syscall(libc::SYS_mbind, start, len, mode, mask.as_ptr(), bits, 0_u32) };
        if answer == 0 { Ok(()) } else { Err(errno()) }
    }
}

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The node of each page of a touched range (`move_pages(2)`).
#[cfg(test)]
pub(crate) fn nodes_of(address: u64, len: u64) -> Result<Vec<u32>, Errno> {
    let page = rustix::param::page_size();
    let pages: Vec<u64> = (address..address + len).step_by(page).collect();
    let mut nodes = vec![-1_i32; pages.len()];
    let none = std::ptr::null::<i32>();
    // SAFETY: without target nodes the call only reports the node of each page of this process.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            none,
            nodes.as_mut_ptr(),
            0,
        )
    };
    match answer {
        0 => nodes.iter().map(|&node| u32::try_from(node).map_err(|_| Errno::NODEV)).collect(),
        _ => Err(errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HostMemory;
    use forebay_topology::System;

    #[test]
    fn memory_is_on_the_requested_node() {
        const LEN: usize = 24 << 20;
        let system = System::live();
        let nodes = system.numa_nodes();
        if nodes.is_empty() {
            return println!("skipped: the kernel knows of no NUMA nodes");
        }
        for number in nodes {
            let node = Node::new(number, system.numa_cpus(number));
            let (memory, refusal) = HostMemory::map_near(LEN, Some(&node)).unwrap();
            if let Some(errno) = refusal {
                println!("skipped: node {number}: {errno}");
                continue;
            }
            match nodes_of(memory.address(), LEN as u64) {
                Ok(found) => assert!(found.iter().all(|&other| other == number), "{number}"),
                Err(errno) => {
                    println!("skipped: the system does not report where pages lie: {errno}")
                }
            }
        }
    }

    #[test]
    fn a_missing_node_is_refused_and_the_memory_is_good() {
        let (mut memory, refusal) =
            HostMemory::map_near(1 << 20, Some(&Node::new(1000, vec![5000]))).unwrap();
        assert!(refusal.is_some(), "there is no such node");
        memory.bytes_mut().fill(7);
        assert!(HostMemory::map_near(1 << 20, None).unwrap().1.is_none());
    }

    #[test]
    fn processors_are_those_that_are_allowed() {
        let mut allowed = CpuSet::new();
        [1, 2, 3, 70].into_iter().for_each(|cpu| allowed.set(cpu));
        let cpus = Node::new(0, vec![0, 2, 3, 4, 70, 2_000_000]).cpus(&allowed);
        assert_eq!(cpus.count(), 3);
        assert!([2, 3, 70].into_iter().all(|cpu| cpus.is_set(cpu)));
    }
}

//! Binds threads to the processors of a NUMA node.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::{Failure, Result};

/// Binds the calling thread, and threads that it starts, to a node; dropping it restores the
/// previous binding.
#[derive(Debug)]
pub(super) struct Kept(Option<CpuSet>);

impl Kept {
    /// Binds to `node`; does nothing without one, or if the kernel has no nodes.
    ///
    /// # Errors
    /// There is no such node, or this process may not use its processors.
    pub(super) fn to(node: Option<u32>) -> Result<Self> {
        let nodes = fs::read_to_string("/sys/devices/system/node/online");
        let (Some(node), Ok(nodes)) = (node, nodes) else { return Ok(Self(None)) };
        let text = format!("cannot bind threads to NUMA node {node}");
        let path = format!("/sys/devices/system/node/node{node}/cpulist");
        let list = fs::read_to_string(path).map_err(|_| {
            Failure::new(&text)
                .because(format!("the nodes of this machine are {}", nodes.trim()))
                .hint("give one of these with `-n` or `numa_node`, or omit it")
        })?;
        let failed = |error: rustix::io::Errno| Failure::io(&text, &io::Error::from(error));
        let before = sched_getaffinity(None).map_err(failed)?;
        let mut set = CpuSet::new();
        processors(&list).for_each(|cpu| set.set(cpu));
        sched_setaffinity(None, &set).map_err(failed)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// The numbers of a list in the kernel's notation, with ranges, as far as a set has room.
fn processors(list: &str) -> impl Iterator<Item = usize> {
    let ranges = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(CpuSet::MAX_CPU - 1))
    });
    ranges.flatten().filter(|cpu| *cpu < CpuSet::MAX_CPU)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_the_kernels() {
        let all = |list: &str| processors(list).collect::<Vec<_>>();
        assert_eq!(all("0-2,5,8-9\n"), [0, 1, 2, 5, 8, 9]);
        assert!(all("\n").is_empty());
        assert_eq!(all("3-99999999999999999").len(), CpuSet::MAX_CPU - 3);
    }

    #[test]
    fn a_thread_comes_back_from_a_node() {
        let now = || sched_getaffinity(None).unwrap();
        let before = now();
        match Kept::to(Some(0)) {
            Ok(kept) => drop(kept),
            Err(failure) => println!("skipped: a NUMA node: {failure:?}"),
        }
        assert_eq!(now(), before);
        assert!(Kept::to(None).unwrap().0.is_none());
        if fs::exists("/sys/devices/system/node/online").unwrap() {
            let failure = Kept::to(Some(4_000_000)).unwrap_err();
            assert!(failure.hint.unwrap().contains("`-n`"));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_list_ends_the_command(list: String) {
            let _ = processors(&list).count();
        }
    }
}

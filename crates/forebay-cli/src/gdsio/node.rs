//! Binds threads to the processors of a NUMA node.

use std::io;

use forebay_measure::failure::{Failure, Result};
use forebay_topology::System;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread, and threads that it starts, to a node; dropping it restores the
/// previous binding.
#[derive(Debug)]
pub(super) struct Kept(Option<CpuSet>);

impl Kept {
    /// Binds to `node`; does nothing without a node, or if the kernel reports none.
    ///
    /// # Errors
    /// There is no such node, or this process may not use its processors.
    pub(super) fn to(node: Option<u32>) -> Result<Self> {
        let (system, Some(node)) = (System::live(), node) else { return Ok(Self(None)) };
        let nodes = system.numa_nodes();
        if nodes.is_empty() {
            return Ok(Self(None));
        }
        let text = format!("cannot bind threads to NUMA node {node}");
        if !nodes.contains(&node) {
            let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            return Err(Failure::new(text)
                .because(format!("the nodes of this machine are {}", nodes.join(", ")))
                .hint("give one of these with `-n` or `numa_node`, or omit it"));
        }
        let failed = |error: rustix::io::Errno| Failure::io(&text, &io::Error::from(error));
        let before = sched_getaffinity(None).map_err(failed)?;
        let mut set = CpuSet::new();
        let cpus = system.numa_cpus(node).into_iter().map(|cpu| cpu as usize);
        cpus.filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_returns_from_a_node() {
        let now = || sched_getaffinity(None).unwrap();
        let before = now();
        match Kept::to(Some(0)) {
            Ok(kept) => drop(kept),
            Err(failure) => println!("skipped: a NUMA node: {failure:?}"),
        }
        assert_eq!(now(), before);
        assert!(Kept::to(None).unwrap().0.is_none());
        if !System::live().numa_nodes().is_empty() {
            let failure = Kept::to(Some(4_000_000)).unwrap_err();
            assert!(failure.hint.unwrap().contains("`-n`"));
        }
    }
}

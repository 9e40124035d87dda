//! Tests of memory on a NUMA node.

use rustix::thread::CpuSet;

use super::{HostMemory, Node, nodes_of};
use forebay_topology::System;

/// Asserts that all pages of `memory` are on this node.
pub(super) fn assert_on(memory: &HostMemory, number: u32) {
    match nodes_of(memory.address(), memory.len() as u64) {
        Ok(found) => assert!(found.iter().all(|&other| other == number), "{number}"),
        Err(errno) => println!("skipped: the system does not report where pages lie: {errno}"),
    }
}

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
        assert_on(&memory, number);
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

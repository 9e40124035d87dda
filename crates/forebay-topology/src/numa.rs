//! NUMA nodes: their sockets, and the distances between them.

use super::system::System;

/// The facts about a NUMA node.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    /// Its socket (the kernel's "package").
    pub(super) package: Option<u32>,
    /// Its distances to all nodes, where 10 is the distance to its own memory (ACPI, "System
    /// Locality Information Table").
    pub(super) distances: Vec<u32>,
}

impl Node {
    /// Reads the facts of a node. Without a number it reads the only node: kernels name no node on
    /// machines with a single node.
    pub(super) fn read(system: &System, node: Option<u32>) -> Self {
        let only = || (system.numa_nodes() == [0]).then_some(0);
        let Some(number) = node.or_else(only) else { return Self::default() };
        let package = || {
            let cpu = *system.numa_cpus(number).first()?;
            let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
            system.text(file).ok()?.parse().ok()
        };
        let row = || system.text(format!("sys/devices/system/node/node{number}/distance")).ok();
        let row = node.and_then(|_| row()).unwrap_or_default();
        let distances = row.split_whitespace().map_while(|number| number.parse().ok());
        Self { package: package(), distances: distances.collect() }
    }
}

/// An upper bound above the node and CPU numbers of any machine.
const NUMBERS_MAX: usize = 1 << 16;

impl System {
    /// The online NUMA nodes; empty if the kernel lacks NUMA support.
    pub fn numa_nodes(&self) -> Vec<u32> {
        self.numbers("sys/devices/system/node/online".into())
    }

    /// Bytes of all last-level caches of the online CPUs together, if the kernel knows them
    /// (`Documentation/ABI/testing/sysfs-devices-system-cpu`). All count as large as the first.
    pub fn last_level_cache(&self) -> Option<u64> {
        let text = |name: &str| self.text(format!("sys/devices/system/cpu/{name}")).ok();
        let last = (0..8).rev().find_map(|index| {
            let part = |name: &str| text(&format!("cpu0/cache/index{index}/{name}"));
            Some((part("size")?, part("shared_cpu_list")?))
        });
        let (size, sharers) = last?;
        let size = size.strip_suffix('K')?.parse::<u64>().ok()?.saturating_mul(1024);
        let (online, sharers) = (numbers(text("online")?).len(), numbers(sharers).len());
        Some(size.saturating_mul(online.div_ceil(sharers.max(1)) as u64))
    }

    /// The CPUs of a NUMA node.
    pub fn numa_cpus(&self, node: u32) -> Vec<u32> {
        self.numbers(format!("sys/devices/system/node/node{node}/cpulist"))
    }

    /// The numbers in a file; empty if it cannot be read.
    fn numbers(&self, path: String) -> Vec<u32> {
        self.text(path).map_or_else(|_| Vec::new(), numbers)
    }
}

/// Parses a kernel CPU list (`Documentation/admin-guide/kernel-parameters.rst`, "cpu lists"):
/// comma-separated numbers and ranges. Parsing stops at the first malformed part.
fn numbers(text: impl AsRef<str>) -> Vec<u32> {
    let parts = text.as_ref().split(',').map_while(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    });
    parts.flatten().take(NUMBERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_caches_of_all_cpus_are_added() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join("sys/devices/system/cpu").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let all = || System::at(folder.path()).last_level_cache();
        assert_eq!(all(), None);
        write("online", "0-15\n");
        write("cpu0/cache/index2/size", "1024K\n");
        write("cpu0/cache/index2/shared_cpu_list", "0\n");
        assert_eq!(all(), Some(16 << 20));
        write("cpu0/cache/index3/size", "32768K\n");
        write("cpu0/cache/index3/shared_cpu_list", "0-3,8-11\n");
        assert_eq!(all(), Some(64 << 20));
        write("cpu0/cache/index3/size", "much\n");
        assert_eq!(all(), None);
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(numbers("0"), [0]);
        assert_eq!(numbers("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(numbers("5-3"), [0_u32; 0]);
        assert_eq!(numbers("1,x,2"), [1]);
        for text in ["", "-", "-1", "1-2-3", "4294967296"] {
            assert_eq!(numbers(text), [0_u32; 0], "{text}");
        }
        assert_eq!(numbers("0-4294967295").len(), NUMBERS_MAX);
    }

    #[test]
    fn this_machine_has_a_node_or_none_is_reported() {
        let (system, mut cpus) = (System::live(), Vec::new());
        for node in system.numa_nodes() {
            let of_node = system.numa_cpus(node);
            assert!(of_node.iter().all(|cpu| !cpus.contains(cpu)), "{of_node:?} and {cpus:?}");
            cpus.extend(of_node);
        }
        println!("{} nodes, {} processors", system.numa_nodes().len(), cpus.len());
    }
}

//! NUMA nodes: the sockets that they belong to, and how far they are from each other.

use super::system::System;

/// What is known about a NUMA node.
#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    /// Its socket, which the kernel calls a package.
    pub(super) package: Option<u32>,
    /// How far it is from each node, where 10 is the way to its own memory (ACPI, "System
    /// Locality Information Table").
    pub(super) distances: Vec<u32>,
}

impl Node {
    /// Reads about a node of `system`; without a number about the only one, since kernels leave
    /// the number out on machines that have one.
    pub(super) fn read(system: &System, node: Option<u32>) -> Self {
        let text = |path: &str| system.text(path.as_ref()).ok();
        let only = || text("sys/devices/system/node/online").filter(|nodes| nodes == "0");
        let Some(number) = node.or_else(|| only().map(|_| 0)) else { return Self::default() };
        let folder = format!("sys/devices/system/node/node{number}");
        let package = || {
            let cpus = text(&format!("{folder}/cpulist"))?;
            let end = cpus.find(|c: char| !c.is_ascii_digit()).unwrap_or(cpus.len());
            let cpu: u32 = cpus[..end].parse().ok()?;
            text(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"))?
                .parse()
                .ok()
        };
        let row = if node.is_some() { text(&format!("{folder}/distance")) } else { None };
        let row = row.unwrap_or_default();
        let distances = row.split_whitespace().map_while(|number| number.parse().ok());
        Self { package: package(), distances: distances.collect() }
    }
}

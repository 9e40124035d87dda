//! NUMA nodes and the sockets that they belong to.

use super::system::{Folder, System};

/// The socket (the kernel's package) of a NUMA node.
///
/// A device without a node is on node 0 where that is the only one: kernels leave the node out on
/// machines that have one (`Documentation/ABI/testing/sysfs-devices-numa`).
pub(super) fn package(device: &Folder, node: Option<u32>) -> Option<u32> {
    let node = match node {
        Some(node) => node,
        None if is_only_node(device.system()) => 0,
        None => return None,
    };
    let cpus = text(device.system(), &format!("sys/devices/system/node/node{node}/cpulist"))?;
    let end = cpus.find(|c: char| !c.is_ascii_digit()).unwrap_or(cpus.len());
    let cpu: u32 = cpus[..end].parse().ok()?;
    let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
    text(device.system(), &path)?.parse().ok()
}

/// The row of a node in the table of distances, where 10 is a node's own memory (ACPI, "System
/// Locality Information Table").
pub(super) fn distances(system: &System, node: Option<u32>) -> Vec<u32> {
    let Some(node) = node else { return Vec::new() };
    let row = text(system, &format!("sys/devices/system/node/node{node}/distance"));
    let row = row.unwrap_or_default();
    row.split_whitespace().map_while(|number| number.parse().ok()).collect()
}

fn is_only_node(system: &System) -> bool {
    text(system, "sys/devices/system/node/online").is_some_and(|nodes| nodes == "0")
}

fn text(system: &System, path: &str) -> Option<String> {
    system.text(path.as_ref()).ok()
}

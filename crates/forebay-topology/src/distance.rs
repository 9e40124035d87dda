//! The distance between a drive and a GPU.
//!
//! It follows from their shared bridges, then from NUMA nodes and sockets. If a machine shows
//! neither, the distance is unknown.

use std::fmt;

use serde::Serialize;

use super::drive::Drive;
use super::pci::PciDevice;

/// The distance between two devices; the nearest is the least.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "distance", content = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Distance {
    /// Below a common PCI switch: bytes need not pass through the CPU.
    SameSwitch,
    /// Below a common root port without a switch, such as two functions of a device.
    SameRootPort,
    /// On the same socket, below different root ports.
    SameSocket,
    /// On different sockets: the kernel says so, or the distance of their NUMA nodes is at least
    /// twice the local one. (Virtual machines often show a single socket with such nodes.)
    AcrossSockets,
    /// The drive belongs to a remote machine.
    Network,
    /// Unknown; holds the reason.
    Unknown(String),
}

impl Distance {
    /// The distance from a GPU to a drive, by the drive's path in use.
    pub fn to_drive(gpu: &PciDevice, drive: &Drive) -> Self {
        if drive.transport().is_network() {
            return Self::Network;
        }
        match drive.pci() {
            Some(pci) => Self::between(gpu, pci),
            None => Self::Unknown(format!("`{}` is on no known PCI device", drive.name)),
        }
    }

    /// The distance between two PCI devices.
    pub fn between(one: &PciDevice, other: &PciDevice) -> Self {
        if one.host_bridge == other.host_bridge {
            let pairs = one.bridges.iter().zip(&other.bridges);
            match pairs.take_while(|(one, other)| one.address == other.address).count() {
                0 => {}
                1 => return Self::SameRootPort,
                // The second shared bridge is the upstream port of a switch.
                _ => return Self::SameSwitch,
            }
            // All buses of a host bridge belong to the same socket.
            if !one.host_bridge.is_empty() {
                return Self::SameSocket;
            }
        }
        Self::by_nodes(one, other)
    }

    fn by_nodes(one: &PciDevice, other: &PciDevice) -> Self {
        let packages = one.package.zip(other.package);
        if packages.is_some_and(|(one, other)| one != other) {
            return Self::AcrossSockets;
        }
        let untold = |pci: &PciDevice| Self::Unknown(format!("{} has no NUMA node", pci.address));
        let (node, to) = match (one.numa_node, other.numa_node) {
            (Some(node), Some(to)) => (node, to),
            // Both are on the only node, which the kernel does not report.
            (None, None) if packages.is_some() => return Self::SameSocket,
            (None, _) => return untold(one),
            (_, None) => return untold(other),
        };
        if node == to {
            return Self::SameSocket;
        }
        match one.node_distances.get(to as usize) {
            Some(20..) => Self::AcrossSockets,
            Some(_) => Self::SameSocket,
            None => Self::Unknown(format!("no known distance between nodes {node} and {to}")),
        }
    }

    /// Its name, in lower case with underscores.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SameSwitch => "same_switch",
            Self::SameRootPort => "same_root_port",
            Self::SameSocket => "same_socket",
            Self::AcrossSockets => "across_sockets",
            Self::Network => "network",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(reason) => write!(f, "unknown: {reason}"),
            known => f.write_str(&known.name().replace('_', " ")),
        }
    }
}

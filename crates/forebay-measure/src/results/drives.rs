//! Drives, PCI devices and links as JSON: the same in every verb that names them.

use forebay_topology::{Drive, DrivePath, Link, PciDevice, QueueId};
use serde::{Deserialize, Serialize};

/// A drive at the bottom of a path. A network or memory may take its place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DriveFacts {
    /// A unique id.
    pub id: String,
    /// The id of the hardware whose bandwidth it uses; most often its own.
    pub hardware: String,
    /// `block`, `network`, `memory` or `unknown`.
    pub kind: String,
    /// The kernel's name, as `nvme0n1`.
    pub name: String,
    /// Its model.
    pub model: Option<String>,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// The smallest piece that it reads or writes, in bytes.
    pub logical_block_size: Option<u32>,
    /// Whether the kernel reports a spinning disk.
    pub rotational: Option<bool>,
    /// How its bytes reach the host, by the path that serves it.
    pub transport: String,
    /// Whether it is reached over a network.
    pub network: bool,
    /// The PCI address of that path.
    pub pci_address: Option<String>,
    /// The state of its link when it was read.
    pub link: Option<LinkFacts>,
    /// The maximum of this link.
    pub link_max: Option<LinkFacts>,
    /// The NUMA node of that path.
    pub numa_node: Option<u32>,
    /// The queues that feed it, for the given files.
    pub queues: Vec<String>,
    /// All paths to it.
    pub paths: Vec<PathFacts>,
}

impl DriveFacts {
    /// The topology's facts about `drive`.
    #[must_use]
    pub fn of(drive: &Drive, queue: &QueueId) -> Self {
        let pci = drive.pci();
        Self {
            id: drive.id.as_str().into(),
            hardware: drive.hardware.as_str().into(),
            kind: drive.kind.name().into(),
            name: drive.name.clone(),
            model: drive.model.clone(),
            firmware: drive.firmware.clone(),
            serial: drive.serial.clone(),
            size: drive.size,
            logical_block_size: drive.logical_block_size,
            rotational: drive.rotational,
            transport: drive.transport().to_string(),
            network: drive.transport().is_network(),
            pci_address: pci.map(|pci| pci.address.clone()),
            link: pci.and_then(|pci| LinkFacts::of(pci.link)),
            link_max: pci.and_then(|pci| LinkFacts::of(pci.link_max)),
            numa_node: drive.numa_node(),
            queues: vec![queue.as_str().into()],
            paths: drive.paths.iter().map(PathFacts::of).collect(),
        }
    }
}

/// One path to a drive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathFacts {
    /// The controller, as `nvme3`, or the disk itself.
    pub name: String,
    /// How bytes travel on it.
    pub transport: String,
    /// Whether it can be used now.
    pub live: bool,
    /// Its state as the kernel reports it.
    pub state: Option<String>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// The PCI device at the host's end.
    pub pci: Option<PciFacts>,
}

impl PathFacts {
    fn of(path: &DrivePath) -> Self {
        Self {
            name: path.name.clone(),
            transport: path.transport.to_string(),
            live: path.live,
            state: path.state.clone(),
            numa_node: path.numa_node,
            pci: path.pci.as_ref().map(PciFacts::of),
        }
    }
}

/// A function of a device on PCI.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PciFacts {
    /// Its address.
    pub address: String,
    /// Its vendor and device IDs, `10de:2335`.
    pub id: Option<String>,
    /// Its kernel driver.
    pub driver: Option<String>,
    /// The state of its link when it was read. Idle GPUs lower their speed.
    pub link: Option<LinkFacts>,
    /// The maximum of this link.
    pub link_max: Option<LinkFacts>,
    /// The bridges above it, from the root port down.
    pub bridges: Vec<BridgeFacts>,
    /// The host bridge above these.
    pub host_bridge: String,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// The socket of that node.
    pub socket: Option<u32>,
    /// Its IOMMU group.
    pub iommu_group: Option<String>,
}

impl PciFacts {
    /// The topology's facts about `pci`.
    #[must_use]
    pub fn of(pci: &PciDevice) -> Self {
        let id = pci.vendor.zip(pci.device);
        let bridges = pci.bridges.iter().map(|bridge| BridgeFacts {
            address: bridge.address.clone(),
            link: LinkFacts::of(bridge.link),
            link_max: LinkFacts::of(bridge.link_max),
        });
        Self {
            address: pci.address.clone(),
            id: id.map(|(vendor, device)| format!("{vendor:04x}:{device:04x}")),
            driver: pci.driver.clone(),
            link: LinkFacts::of(pci.link),
            link_max: LinkFacts::of(pci.link_max),
            bridges: bridges.collect(),
            host_bridge: pci.host_bridge.clone(),
            numa_node: pci.numa_node,
            socket: pci.package,
            iommu_group: pci.iommu_group.clone(),
        }
    }
}

/// A bridge between a device and the processor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BridgeFacts {
    /// Its address.
    pub address: String,
    /// The state of its link when it was read.
    pub link: Option<LinkFacts>,
    /// The maximum of this link.
    pub link_max: Option<LinkFacts>,
}

/// Width and speed of a PCI Express link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LinkFacts {
    /// Lanes.
    pub width: Option<u32>,
    /// Millions of transfers a second on each lane: 16000 is PCIe 4.0.
    pub megatransfers_per_s: Option<u32>,
    /// The rate of both in each direction, before packet overhead.
    pub bytes_per_second: Option<u64>,
}

impl LinkFacts {
    /// The facts of `link`; `None` if nothing is known.
    #[must_use]
    pub fn of(link: Link) -> Option<Self> {
        let (width, megatransfers_per_s) = (link.width, link.megatransfers_per_s);
        let known = width.is_some() || megatransfers_per_s.is_some();
        let bytes_per_second = link.bytes_per_s();
        known.then_some(Self { width, megatransfers_per_s, bytes_per_second })
    }

    /// Whether it is narrower or slower than its maximum, `max`.
    #[must_use]
    pub fn is_below(&self, max: &Self) -> bool {
        let below = |now: Option<u32>, max: Option<u32>| now.zip(max).is_some_and(|(n, m)| n < m);
        below(self.width, max.width) || below(self.megatransfers_per_s, max.megatransfers_per_s)
    }

    /// As text, with the maximum if that is more: `x4 16 GT/s`, `x2 of x4, 8 of 16 GT/s`.
    #[must_use]
    pub fn text(&self, max: Option<&Self>) -> String {
        let of = |now: Option<u32>, max: Option<u32>, shown: fn(u32) -> String| {
            let (now, more) = (now?, max.filter(|max| now < Some(*max)));
            Some(more.map_or_else(|| shown(now), |max| format!("{} of {}", shown(now), shown(max))))
        };
        let width = of(self.width, max.and_then(|max| max.width), |lanes| format!("x{lanes}"));
        let speed_max = max.and_then(|max| max.megatransfers_per_s);
        let giga = |mega: u32| (f64::from(mega / 100) / 10.0).to_string();
        let speed = of(self.megatransfers_per_s, speed_max, giga).map(|text| text + " GT/s");
        [width, speed].into_iter().flatten().collect::<Vec<_>>().join(" at ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::drive;

    fn link(width: u32, rate: u32) -> LinkFacts {
        let bytes_per_second = None;
        LinkFacts { width: Some(width), megatransfers_per_s: Some(rate), bytes_per_second }
    }

    #[test]
    fn keys_of_a_drive_are_those_of_the_schema() {
        let text = serde_json::to_string_pretty(&drive()).unwrap();
        insta::assert_snapshot!(text, @r#"
        {
          "id": "nvme:nqn/1",
          "hardware": "nvme:nqn",
          "kind": "block",
          "name": "nvme0n1",
          "model": "Fast One",
          "firmware": "1.0",
          "serial": null,
          "size": null,
          "logical_block_size": null,
          "rotational": null,
          "transport": "pcie",
          "network": false,
          "pci_address": "0000:41:00.0",
          "link": {
            "width": 4,
            "megatransfers_per_s": 16000,
            "bytes_per_second": 7876923072
          },
          "link_max": {
            "width": 4,
            "megatransfers_per_s": 16000,
            "bytes_per_second": 7876923072
          },
          "numa_node": 0,
          "queues": [
            "nvme:nqn/1"
          ],
          "paths": []
        }
        "#);
    }

    #[test]
    fn a_link_is_written_with_what_it_lacks() {
        let max = link(4, 16_000);
        assert_eq!(link(4, 16_000).text(Some(&max)), "x4 at 16 GT/s");
        assert_eq!(link(2, 16_000).text(Some(&max)), "x2 of x4 at 16 GT/s");
        assert_eq!(link(4, 2_500).text(Some(&max)), "x4 at 2.5 of 16 GT/s");
        assert_eq!(link(4, 2_500).text(None), "x4 at 2.5 GT/s");
        assert!(link(2, 16_000).is_below(&max) && link(4, 8_000).is_below(&max));
        assert!(!max.is_below(&max) && !link(8, 32_000).is_below(&max));
        assert!(!LinkFacts::default().is_below(&max) && LinkFacts::default().text(None).is_empty());
    }
}

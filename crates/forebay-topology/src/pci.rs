//! PCI devices: their place in the tree, and the maximum and current rates of their links.
//!
//! A device's folder in `/sys/devices` is inside the folders of the bridges above it, so its path
//! is the path to the CPU. Facts are from the kernel's `Documentation/ABI/testing/sysfs-bus-pci`.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::numa::Node;
use super::system::{Folder, System};
use super::text::{clean, entry};

/// A PCI function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PciDevice {
    /// Its address, `DOMAIN:BUS:DEVICE.FUNCTION`.
    pub address: String,
    /// Its vendor id.
    pub vendor: Option<u16>,
    /// Its device id, assigned by the vendor.
    pub device: Option<u16>,
    /// Its standard class code: base class, subclass, interface.
    pub class: Option<u32>,
    /// The driver bound to it.
    pub driver: Option<String>,
    /// Its current link, if it is known. Idle devices may lower its speed.
    pub link: Option<Link>,
    /// The maximum of its link.
    pub link_max: Option<Link>,
    /// The bridges above it, from the root port down.
    pub bridges: Vec<Bridge>,
    /// The host bridge above its bridges, such as `pci0000:40`.
    pub host_bridge: String,
    /// The NUMA node that it is attached to.
    pub numa_node: Option<u32>,
    /// The socket of that node.
    #[serde(rename = "socket")]
    pub package: Option<u32>,
    /// The distances of that node to all nodes; 10 is the distance to its own memory.
    pub node_distances: Vec<u32>,
    /// Its IOMMU group, if an IOMMU is in use.
    pub iommu_group: Option<String>,
}

/// A bridge between a device and the CPU: a root port, or a port of a switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bridge {
    /// Its address.
    pub address: String,
    /// Its PCI Express link: the link below a downstream port, or above an upstream port.
    pub link: Option<Link>,
    /// The maximum of this link.
    pub link_max: Option<Link>,
}

/// Width and speed of a PCI Express link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Link {
    /// Lanes.
    pub width: Option<u32>,
    /// Millions of transfers per second and lane: 16000 is `16.0 GT/s`, PCIe 4.0.
    pub megatransfers_per_s: Option<u32>,
    /// Bytes per second and direction after line coding, before packet overhead.
    pub bytes_per_second: Option<u64>,
}

impl Link {
    /// A link of this width and speed; `None` if neither is known. The line code carries 8 of 10
    /// bits up to 5 GT/s, 128 of 130 above, and all from 64 GT/s on.
    pub fn new(width: Option<u32>, megatransfers_per_s: Option<u32>) -> Option<Self> {
        let bytes_per_second = width.zip(megatransfers_per_s).map(|(lanes, rate)| {
            let bits = u64::from(rate) * 1_000_000 * u64::from(lanes);
            match rate {
                0..=5_000 => bits / 10,
                5_001..64_000 => bits / 130 * 16,
                _ => bits / 8,
            }
        });
        let link = Self { width, megatransfers_per_s, bytes_per_second };
        (link != Self::default()).then_some(link)
    }

    fn read(folder: &Folder, when: &str) -> Option<Self> {
        // Conventional PCI devices and those of virtual machines have neither file.
        let width = folder.number(format!("{when}_link_width"))?;
        let speed = folder.text(format!("{when}_link_speed"));
        // The kernel reports 0 or 255 for a link that is down or unknown.
        let width = u32::try_from(width).ok().filter(|lanes| (1..=32).contains(lanes));
        Self::new(width, speed.ok().and_then(|text| megatransfers(&text)))
    }

    /// Whether it is narrower or slower than its maximum, `max`.
    pub fn is_below(&self, max: &Self) -> bool {
        let below = |now: Option<u32>, max: Option<u32>| now.zip(max).is_some_and(|(n, m)| n < m);
        below(self.width, max.width) || below(self.megatransfers_per_s, max.megatransfers_per_s)
    }

    /// As text, with the maximum if that is more: `x4 at 16 GT/s`, `x2 of x4 at 8 of 16 GT/s`.
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

/// Parses `16.0 GT/s PCIe` into millions of transfers per second.
fn megatransfers(text: &str) -> Option<u32> {
    let number = text.strip_suffix(" PCIe").unwrap_or(text).strip_suffix(" GT/s")?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = part.get(..1)?.parse::<u32>().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(tenths * 100)
}

/// The PCI function above `folder`, which is below `/sys/devices`.
pub(super) fn above(folder: &Folder) -> Option<PciDevice> {
    let mut at = folder.path();
    while !at.file_name()?.to_str().is_some_and(is_address) {
        at = at.parent()?;
    }
    read(&folder.above(at)?)
}

/// The maximum payload of packets between a device and the processor, in bytes: the least that the
/// device and the bridges above it are set to. `None` unless the process is root, which alone may
/// read more than the first 64 bytes of a configuration space.
pub fn payload(system: &System, pci: &PciDevice) -> Option<u32> {
    let addresses = pci.bridges.iter().map(|bridge| &bridge.address).chain([&pci.address]);
    let sizes = addresses.filter(|address| is_address(address)).filter_map(|address| {
        let file = format!("sys/bus/pci/devices/{address}/config");
        payload_in(&system.bytes(file, CONFIG_LEN).ok()?)
    });
    sizes.min()
}

/// The length of a configuration space, as the doctor's record also holds it.
const CONFIG_LEN: usize = 4096;

/// The maximum payload in a configuration space: bits 5 to 7 of the register at 8 in the PCI
/// Express capability, whose number is 16 (PCI Express Base Specification, 7.5.3.4).
fn payload_in(space: &[u8]) -> Option<u32> {
    let mut at = usize::from(*space.get(0x34)?) & !3;
    // A longer chain is circular.
    for _ in 0..48 {
        if at < 0x40 {
            return None;
        }
        if *space.get(at)? == 0x10 {
            let bits = *space.get(at + 8)? >> 5;
            return (bits < 6).then_some(128 << bits);
        }
        at = usize::from(*space.get(at + 1)?) & !3;
    }
    None
}

/// The PCI function in this folder.
pub(super) fn read(folder: &Folder) -> Option<PciDevice> {
    let address = folder.name();
    if !is_address(&address) {
        return None;
    }
    let mut bridges = Vec::new();
    let mut host_bridge = String::new();
    let mut above = folder.parent();
    while let Some(bridge) = above {
        let name = bridge.name();
        if is_address(&name) {
            bridges.push(Bridge {
                address: name,
                link: Link::read(&bridge, "current"),
                link_max: Link::read(&bridge, "max"),
            });
        } else if host_bridge.is_empty() && name.starts_with("pci") {
            host_bridge = name;
        }
        above = bridge.parent().filter(|parent| parent.path().components().count() > 2);
    }
    bridges.reverse();
    let numa_node = folder.text("numa_node").ok().and_then(|text| text.parse().ok());
    let node = Node::read(folder.system(), numa_node);
    let event = folder.table("uevent");
    let (vendor, device) = entry(&event, "PCI_ID=").and_then(|id| id.split_once(':')).unzip();
    let id = |text: Option<&str>| u16::from_str_radix(text?, 16).ok();
    Some(PciDevice {
        address,
        vendor: id(vendor),
        device: id(device),
        class: entry(&event, "PCI_CLASS=").and_then(|class| u32::from_str_radix(class, 16).ok()),
        driver: entry(&event, "DRIVER=").map(clean),
        link: Link::read(folder, "current"),
        link_max: Link::read(folder, "max"),
        bridges,
        host_bridge,
        numa_node,
        package: node.package,
        node_distances: node.distances,
        iommu_group: folder.link_name("iommu_group"),
    })
}

impl System {
    /// The NUMA node of a PCI device; `None` if the kernel reports none.
    pub fn numa_node_of(&self, pci_address: &str) -> Option<u32> {
        let address = pci_address.to_ascii_lowercase();
        let path = format!("sys/bus/pci/devices/{address}/numa_node");
        // The file holds -1 if the node is unknown.
        is_address(&address).then(|| self.text(path).ok()?.parse().ok())?
    }
}

pub(super) fn hex(folder: &Folder, name: &str) -> Option<u32> {
    u32::from_str_radix(folder.text(name).ok()?.strip_prefix("0x")?, 16).ok()
}

/// Whether this is `DOMAIN:BUS:DEVICE.FUNCTION`. Domains of more than four digits belong to a drive
/// controller that bundles drives (such as VMD).
pub fn is_address(text: &str) -> bool {
    let digits = |text: &str, lens: std::ops::RangeInclusive<usize>| {
        lens.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = text.split([':', '.']);
    let fits = digits(parts.next().unwrap_or(""), 4..=8)
        && digits(parts.next().unwrap_or(""), 2..=2)
        && digits(parts.next().unwrap_or(""), 2..=2)
        && digits(parts.next().unwrap_or(""), 1..=1)
        && parts.next().is_none();
    fits && text.matches(':').count() == 2
}

/// Whether `path` is below the folder of a PCI function.
pub(super) fn is_below(path: &Path) -> bool {
    path.components().any(|component| match component {
        Component::Normal(name) => name.to_str().is_some_and(is_address),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(width: u32, rate: u32) -> Option<Link> {
        Link::new(Some(width), Some(rate))
    }

    #[test]
    fn addresses_are_distinguished_from_other_names() {
        for address in ["0000:41:00.0", "10000:01:00.0", "ffff:ff:1f.7"] {
            assert!(is_address(address), "{address}");
        }
        for name in
            ["0000:41", "pci0000:40", "0000:41:00:0", "0000.41.00.0", "g000:41:00.0", "", ".."]
        {
            assert!(!is_address(name), "{name}");
        }
    }

    #[test]
    fn speeds_are_read_as_the_kernel_writes_them() {
        assert_eq!(megatransfers("16.0 GT/s PCIe"), Some(16_000));
        assert_eq!(megatransfers("2.5 GT/s"), Some(2_500));
        assert_eq!(megatransfers("8 GT/s"), Some(8_000));
        for text in ["Unknown", "", "GT/s", "99999999999 GT/s", "1. GT/s", "x.y GT/s PCIe"] {
            assert_eq!(megatransfers(text), None, "{text}");
        }
    }

    #[test]
    fn the_payload_is_in_the_capability_of_pci_express() {
        let mut space = [0_u8; 256];
        (space[0x34], space[0x50], space[0x51], space[0x70]) = (0x50, 0x05, 0x70, 0x10);
        for (bits, payload) in [(0, Some(128)), (1, Some(256)), (5, Some(4096)), (6, None)] {
            space[0x78] = bits << 5 | 0x1f;
            assert_eq!(payload_in(&space), payload, "{bits}");
        }
        // All that a user other than root may read.
        assert_eq!(payload_in(&space[..64]), None);
        assert_eq!(payload_in(&[]), None);
        space[0x70] = 0x11;
        assert_eq!(payload_in(&space), None);
        space[0x71] = 0x50; // a circle
        assert_eq!(payload_in(&space), None);
        assert_eq!(payload_in(&[0xff; 256]), None, "no device answers");
    }

    #[test]
    fn a_link_carries_what_its_line_code_leaves() {
        let rate = |link: Option<Link>| link.and_then(|link| link.bytes_per_second);
        assert_eq!(rate(link(16, 32_000)), Some(63_015_384_608));
        assert_eq!(rate(link(4, 2_500)), Some(1_000_000_000));
        assert_eq!((Link::new(None, None), rate(Link::new(Some(4), None))), (None, None));
    }

    #[test]
    fn a_link_is_written_with_what_it_lacks() {
        let link = |width, rate| link(width, rate).unwrap();
        let max = link(4, 16_000);
        assert_eq!(link(4, 16_000).text(Some(&max)), "x4 at 16 GT/s");
        assert_eq!(link(2, 16_000).text(Some(&max)), "x2 of x4 at 16 GT/s");
        assert_eq!(link(4, 2_500).text(Some(&max)), "x4 at 2.5 of 16 GT/s");
        assert_eq!(link(4, 2_500).text(None), "x4 at 2.5 GT/s");
        assert!(link(2, 16_000).is_below(&max) && link(4, 8_000).is_below(&max));
        assert!(!max.is_below(&max) && !link(8, 32_000).is_below(&max));
        assert!(!Link::default().is_below(&max) && Link::default().text(None).is_empty());
    }
}

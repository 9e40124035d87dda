//! The most that drives, links and network cards of a machine can carry, before anything is
//! measured. Pure.
//!
//! Devices hang below bridges, and what several send together is at most what the link of each
//! bridge above them carries. In theory a PCI Express link carries its line rate without the
//! overhead of packets; in practice it reaches a [`SHARE`] of that.

use std::fmt;

use serde::{Serialize, Serializer};

use super::drive::{Drive, Transport};
use super::memory::Channels;
use super::nic::Nic;
use super::pci::{Bridge, Link, PciDevice};

/// Bytes of a PCI Express packet besides its payload: the framing token of 4, the header, and the
/// checksum of 4. Writes to host memory have a header of 16 bytes with 64-bit addresses,
/// completions of reads one of 12 (PCI Express Base Specification, 2.2 and 4.2.2).
const TO_HOST: f64 = 24.0;
const TO_DEVICE: f64 = 20.0;
/// The payload of a packet: what servers set for GPUs and drives. The setting itself is in the
/// configuration space, which only root may read.
const PAYLOAD: f64 = 256.0;
/// From 64 GT/s on, packets travel in flits: 236 of 256 bytes are theirs (the same, 4.2.3).
const FLIT: f64 = 236.0 / 256.0;
/// SATA, and SAS up to 12 Gbit/s, send 10 bits for 8 (Serial ATA 3, 8.2; SAS-3, 5.8).
const CODED: f64 = 0.8;
/// Bytes of an Ethernet frame with RDMA, and the payload in it: 4,096, preamble, gap, and the
/// headers of Ethernet, IP, UDP and InfiniBand.
const FRAME: f64 = 4096.0 / (4096.0 + 82.0);

/// What practice reaches of the theory, and where it was seen.
///
/// | Part | Reached | Where |
/// |---|---|---|
/// | GPU, PCIe 5.0 x16 | 55.6 of 58.4 GB/s: 0.95 | H200, `docs/internals/layers.md` |
/// | GPU, PCIe 4.0 x16 | 26.4 of 28 GiB/s: 0.94 | published by others |
/// | four drives, PCIe 5.0 x4 | 53.0 of 58 GB/s: 0.91 | published by others |
/// | 400 GbE with RDMA | 43.4 of 45 GiB/s: 0.96 | published by others |
/// | memory | 0.80 to 0.85 | STREAM on servers of two sockets, published by their makers |
pub const SHARE: [(Part, f64); 4] =
    [(Part::Gpu, 0.95), (Part::Drive, 0.92), (Part::Network, 0.96), (Part::Memory, 0.8)];

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A GPU.
    Gpu,
    /// A drive of this machine.
    Drive,
    /// A port of a network card.
    Network,
    /// The memory of this machine.
    Memory,
}

impl Part {
    /// The share of a link's theory that practice reaches.
    fn share_of(self, link: Option<&Link>) -> f64 {
        let is_simulated = link.is_some_and(|link| link.width.is_none());
        let share = SHARE.into_iter().find(|(part, _)| *part == self && !is_simulated);
        share.map_or(1.0, |(_, share)| share)
    }
}

/// From the file to the GPU, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From drives to GPUs.
    Read,
    /// From GPUs to drives.
    Write,
}

/// A device at the end of links, in bytes per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub part: Part,
    /// Its place.
    pub pci: Option<PciDevice>,
    /// The rate of what is behind its PCI link, such as a network's line rate.
    pub line: Option<f64>,
    /// What it reached in a measurement, for reads and for writes.
    pub measured: [Option<f64>; 2],
}

/// The most that some devices carry together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceiling {
    /// Bytes per second in theory.
    pub theory: f64,
    /// Bytes per second in practice.
    pub expected: f64,
    /// The part that binds; in JSON its text.
    #[serde(serialize_with = "as_text")]
    pub binds: Binds,
    /// What would lift it.
    pub remedy: Option<String>,
}

fn as_text<S: Serializer>(binds: &Binds, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(binds)
}

/// The part that binds some devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binds {
    /// The PCI link of this device.
    Link(String),
    /// The network line of this port.
    Line(String),
    /// The channels of the memory.
    Memory,
    /// The link of this bridge above them.
    Uplink(String),
    /// The links of this many bridges.
    Uplinks(usize),
    /// The links of all these devices, which share none that is full.
    Links(String),
}

impl fmt::Display for Binds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(of) => write!(f, "link of {of}"),
            Self::Line(of) => write!(f, "line of {of}"),
            Self::Memory => f.write_str("memory"),
            Self::Uplink(address) => write!(f, "uplink {address}"),
            Self::Uplinks(count) => write!(f, "{count} uplinks"),
            Self::Links(of) => write!(f, "links of {of}"),
        }
    }
}

impl Leaf {
    /// A GPU.
    #[must_use]
    pub fn gpu(index: usize, pci: &PciDevice) -> Self {
        Self {
            name: format!("GPU {index}"),
            part: Part::Gpu,
            pci: Some(pci.clone()),
            line: None,
            measured: [None; 2],
        }
    }

    /// A drive on this machine's PCI; `None` for another.
    #[must_use]
    pub fn drive(drive: &Drive) -> Option<Self> {
        let (mut pci, mut line) = (drive.pci().cloned(), None);
        match drive.transport() {
            Transport::Pcie | Transport::Emulated { .. } => {}
            Transport::Scsi(link) if matches!(link.as_str(), "sata" | "sas") => {
                #[expect(clippy::cast_precision_loss, reason = "a rate")]
                let bits = drive.path()?.bits_per_second? as f64;
                line = Some(bits / 8.0 * CODED);
                pci = pci.map(behind);
            }
            _ => return None,
        }
        let (name, part, measured) = (drive.name.clone(), Part::Drive, [None; 2]);
        Some(Self { name, part, pci, line, measured })
    }

    /// A port of a network card.
    #[must_use]
    pub fn nic(nic: &Nic) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let line = nic.bits_per_second as f64 / 8.0 * FRAME;
        Self {
            name: nic.name.clone(),
            part: Part::Network,
            pci: nic.pci.clone(),
            line: Some(line),
            measured: [None; 2],
        }
    }

    /// The memory, which each byte passes `times`.
    #[must_use]
    pub fn memory(channels: &Channels, times: f64) -> Self {
        Self {
            name: format!("{} memory channels", channels.used),
            part: Part::Memory,
            pci: None,
            line: Some(channels.bytes_per_second / times),
            measured: [None; 2],
        }
    }

    /// Its own ceiling: that of its link, or of what is behind it.
    fn own(&self, way: Way) -> Option<Ceiling> {
        let link = self.pci.as_ref().and_then(own_link);
        let theory = link.as_ref().and_then(|link| in_theory(link, self.goes_to_host(way)));
        let behind = self.line.filter(|line| theory.is_none_or(|theory| *line < theory));
        let theory = behind.or(theory)?;
        let share = self.part.share_of(link.as_ref());
        let expected = self.measured[way as usize].unwrap_or(theory * share);
        let binds = match behind {
            Some(_) if self.part == Part::Memory => Binds::Memory,
            Some(_) => Binds::Line(self.name.clone()),
            None => Binds::Link(self.name.clone()),
        };
        let remedy = self.pci.as_ref().filter(|_| behind.is_none()).and_then(narrow);
        let remedy = remedy.map(|text| format!("{} has {text}", self.name));
        Some(Ceiling { theory, expected, binds, remedy })
    }

    /// Whether it sends to host memory on this way.
    fn goes_to_host(&self, way: Way) -> bool {
        (self.part == Part::Gpu) == (way == Way::Write)
    }
}

/// The place of a disk behind a controller, which it may share with others.
fn behind(mut controller: PciDevice) -> PciDevice {
    let PciDevice { address, link, link_max, .. } = &controller;
    let shared = Bridge { address: address.clone(), link: *link, link_max: *link_max };
    controller.bridges.push(shared);
    PciDevice { link: None, link_max: None, ..controller }
}

/// What a link carries after the overhead of packets. A simulated link has a rate alone, which it
/// reaches.
fn in_theory(link: &Link, to_host: bool) -> Option<f64> {
    if link.width.is_none() {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        return link.bytes_per_second.map(|rate| rate as f64);
    }
    let overhead = if to_host { TO_HOST } else { TO_DEVICE };
    let flits = link.megatransfers_per_s.is_some_and(|rate| rate >= 64_000);
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let raw = link.bytes_per_second? as f64;
    Some(raw * if flits { FLIT } else { 1.0 } * PAYLOAD / (PAYLOAD + overhead))
}

/// The link that a device trains when it works: the narrowest width, and the highest speed of both
/// ends. Devices at rest lower their speed.
fn own_link(pci: &PciDevice) -> Option<Link> {
    let port = pci.bridges.last().and_then(|bridge| bridge.link_max);
    let max = pci.link_max.or(pci.link)?;
    let width = [pci.link.and_then(|link| link.width), max.width, port.and_then(|port| port.width)];
    let speed = [max.megatransfers_per_s, port.and_then(|port| port.megatransfers_per_s)];
    let found = Link::new(width.into_iter().flatten().min(), speed.into_iter().flatten().min());
    // A simulated link has a rate alone.
    found.filter(|found| found.bytes_per_second.is_some()).or(Some(max))
}

/// A link with fewer lanes than its device has, in words.
fn narrow(pci: &PciDevice) -> Option<String> {
    let (link, max) = (own_link(pci)?, pci.link_max?);
    link.is_below(&max).then(|| format!("{}: use a slot with all lanes", link.text(Some(&max))))
}

/// The most that `leaves` carry at the same time; `None` if the rate of one is unknown.
#[must_use]
pub fn together(leaves: &[&Leaf], way: Way) -> Option<Ceiling> {
    below(leaves, 0, way)
}

/// The most of leaves that share their first `depth` bridges.
fn below(leaves: &[&Leaf], depth: usize, way: Way) -> Option<Ceiling> {
    let bridge = |leaf: &Leaf| {
        let bridges = &leaf.pci.as_ref()?.bridges;
        bridges.get(depth).map(|bridge| (bridge.address.clone(), bridge.link_max.or(bridge.link)))
    };
    let mut parts: Vec<Ceiling> = Vec::new();
    let mut rest: Vec<&Leaf> = leaves.to_vec();
    while let Some(first) = rest.first().copied() {
        let Some((address, link)) = bridge(first) else {
            parts.push(first.own(way)?);
            rest.remove(0);
            continue;
        };
        let is_below = |leaf: &&&Leaf| bridge(leaf).is_some_and(|(other, _)| other == address);
        let group: Vec<&Leaf> = rest.iter().filter(is_below).copied().collect();
        rest.retain(|leaf| !is_below(&leaf));
        let mut sum = below(&group, depth + 1, way)?;
        let to_host = first.goes_to_host(way);
        let carries = link.as_ref().and_then(|link| in_theory(link, to_host));
        if let Some(theory) = carries.filter(|theory| *theory < 0.999 * sum.theory) {
            let names: Vec<&str> = group.iter().map(|leaf| leaf.name.as_str()).collect();
            let text = link.map(|link| link.text(None)).unwrap_or_default();
            let remedy = match names.as_slice() {
                [one] => format!(
                    "{one} is below {address} with {text}: use a slot whose links are as wide and \
                     as fast as its own"
                ),
                _ => format!(
                    "{} share the uplink {address}, {:.*} GB/s in all: move one to another root \
                     port",
                    listed(&names),
                    if theory < 1e9 { 3 } else { 1 },
                    theory * 1e-9
                ),
            };
            sum = Ceiling {
                theory,
                expected: sum.expected.min(theory * first.part.share_of(link.as_ref())),
                binds: Binds::Uplink(address),
                remedy: Some(remedy),
            };
        }
        parts.push(sum);
    }
    let (theory, expected) =
        parts.iter().fold((0.0, 0.0), |sum, part| (sum.0 + part.theory, sum.1 + part.expected));
    let is_uplink = |part: &&Ceiling| matches!(part.binds, Binds::Uplink(_) | Binds::Uplinks(_));
    let uplinks: Vec<&Ceiling> = parts.iter().filter(is_uplink).collect();
    let binds = match (parts.as_slice(), uplinks.as_slice()) {
        ([], _) => return None,
        ([one], _) => one.binds.clone(),
        (_, []) => Binds::Links(listed(&leaves.iter().map(|leaf| &*leaf.name).collect::<Vec<_>>())),
        (_, [one]) => one.binds.clone(),
        (_, many) => Binds::Uplinks(many.len()),
    };
    let remedy = uplinks.first().copied().or(parts.iter().find(|part| part.remedy.is_some()));
    Some(Ceiling { theory, expected, binds, remedy: remedy.and_then(|part| part.remedy.clone()) })
}

/// `a and b`, `a, b and c`; of more than four only the first and the number.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).into(),
        [first, .., last] if names.len() > 4 => format!("{first} to {last} ({})", names.len()),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::DrivePath;

    const GIB: f64 = (1_u64 << 30) as f64;

    fn link(width: u32, megatransfers: u32) -> Option<Link> {
        Link::new(Some(width), Some(megatransfers))
    }

    /// A device below these bridges, all with the same link.
    fn device(address: &str, own: Option<Link>, bridges: &[(&str, Option<Link>)]) -> PciDevice {
        let bridges = bridges.iter().map(|(address, link)| Bridge {
            address: (*address).into(),
            link: *link,
            link_max: *link,
        });
        PciDevice {
            address: address.into(),
            link: own,
            link_max: own,
            bridges: bridges.collect(),
            ..PciDevice::default()
        }
    }

    fn of_all(leaves: &[Leaf], way: Way) -> Ceiling {
        together(&leaves.iter().collect::<Vec<_>>(), way).unwrap()
    }

    #[track_caller]
    fn near(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 0.05, "{found:.3e}, not {wanted:.3e}");
    }

    fn drive(index: usize, pci: PciDevice) -> Leaf {
        Leaf { name: format!("nvme{index}n1"), part: Part::Drive, ..Leaf::gpu(index, &pci) }
    }

    #[test]
    fn published_and_measured_rates_are_predicted() {
        let gen4 = Leaf::gpu(0, &device("a", link(16, 16_000), &[]));
        let found = of_all(&[gen4], Way::Read);
        near(found.theory, 28.0 * GIB);
        near(found.expected, 26.4 * GIB);
        let h200 = Leaf::gpu(0, &device("a", link(16, 32_000), &[]));
        near(of_all(std::slice::from_ref(&h200), Way::Read).expected, 55.5e9);
        near(of_all(&[h200], Way::Write).expected, 55.0e9);
        let drives = ["a", "b", "c", "d"].map(|name| drive(0, device(name, link(4, 32_000), &[])));
        let found = of_all(&drives, Way::Read);
        near(found.theory, 58e9);
        near(found.expected, 53.0e9);
        assert_eq!(found.binds.to_string(), "links of nvme0n1, nvme0n1, nvme0n1 and nvme0n1");
        let nic = Nic {
            name: "mlx5_0/1".into(),
            bits_per_second: 400_000_000_000,
            pci: Some(device("n", link(16, 32_000), &[])),
            source: String::new(),
        };
        let found = of_all(&[Leaf::nic(&nic)], Way::Read);
        near(found.theory, 45.0 * GIB);
        near(found.expected, 43.4 * GIB);
        assert_eq!(found.binds, Binds::Line("mlx5_0/1".into()));
        // A slot of PCIe 4.0 carries less than the network.
        let slow = Nic { pci: Some(device("n", link(16, 16_000), &[])), ..nic };
        assert_eq!(of_all(&[Leaf::nic(&slow)], Way::Read).binds, Binds::Link("mlx5_0/1".into()));
    }

    #[test]
    fn devices_below_one_switch_share_its_uplink() {
        let x16 = link(16, 32_000);
        let below = |index: usize, port: &str, switch: &str| {
            let down = format!("{switch}:{index}");
            let bridges = [(port, x16), (switch, x16), (down.as_str(), x16)];
            Leaf::gpu(index, &device(&format!("gpu{index}"), x16, &bridges))
        };
        let gpus = [
            below(0, "p0", "s0"),
            below(1, "p0", "s0"),
            below(2, "p1", "s1"),
            below(3, "p2", "s2"),
        ];
        let one = of_all(&gpus[..1], Way::Read);
        assert_eq!((&one.binds, &one.remedy), (&Binds::Link("GPU 0".into()), &None));
        let two = of_all(&gpus[..2], Way::Read);
        assert_eq!(two.binds, Binds::Uplink("s0".into()));
        assert!((two.theory - one.theory).abs() < 1.0);
        let remedy = two.remedy.unwrap();
        assert!(
            remedy.starts_with("GPU 0 and GPU 1 share the uplink s0, 58.4 GB/s in all"),
            "{remedy}"
        );
        let all = of_all(&gpus, Way::Read);
        assert!((all.expected - 3.0 * one.expected).abs() < 1.0);
        assert_eq!(all.binds, Binds::Uplink("s0".into()));
        let apart = of_all(&[gpus[0].clone(), gpus[2].clone()], Way::Write);
        assert_eq!(apart.binds.to_string(), "links of GPU 0 and GPU 2");
        // What one reached in a measurement counts instead of the share.
        let mut known = gpus.clone();
        known.iter_mut().for_each(|gpu| gpu.measured = [Some(20e9), None]);
        let two = of_all(&known[..2], Way::Read);
        assert!((two.expected - 40e9).abs() < 1.0, "{two:?}");
    }

    #[test]
    fn disks_have_their_lines_and_share_their_controller() {
        let disk = |index: usize| {
            let path = DrivePath {
                transport: Transport::Scsi("sas".into()),
                bits_per_second: Some(12_000_000_000),
                live: true,
                pci: Some(device("hba", link(8, 8_000), &[])),
                ..DrivePath::default()
            };
            let paths = vec![path];
            Leaf::drive(&Drive { name: format!("sd{index}"), paths, ..Drive::default() }).unwrap()
        };
        let one = of_all(&[disk(0)], Way::Read);
        assert!((one.theory - 1.2e9).abs() < 1.0 && one.binds == Binds::Line("sd0".into()));
        let disks: Vec<Leaf> = (0..4).map(disk).collect();
        assert!((of_all(&disks, Way::Read).theory - 4.8e9).abs() < 1.0);
        let many: Vec<Leaf> = (0..16).map(disk).collect();
        let all = of_all(&many, Way::Read);
        assert_eq!(all.binds, Binds::Uplink("hba".into()));
        near(all.theory, 7.2e9);
        let mut unknown = Drive::default();
        unknown
            .paths
            .push(DrivePath { transport: Transport::Scsi("sata".into()), ..DrivePath::default() });
        assert_eq!(Leaf::drive(&unknown), None);
    }

    #[test]
    fn a_narrow_link_is_named_and_an_unknown_one_is_unknown() {
        let mut pci = device("a", link(4, 32_000), &[]);
        pci.link = link(2, 32_000);
        let found = of_all(&[drive(3, pci)], Way::Read);
        near(found.theory, 58e9 / 8.0);
        assert_eq!(
            found.remedy.unwrap(),
            "nvme3n1 has x2 of x4 at 32 GT/s: use a slot with all lanes"
        );
        let unknown = drive(0, device("a", None, &[]));
        assert_eq!(together(&[&unknown], Way::Read), None);
        assert_eq!(together(&[], Way::Read), None);
        // A bridge above may carry less than the device, also for a single one.
        let above = [("p", link(8, 16_000)), ("s", link(16, 32_000)), ("d", link(16, 32_000))];
        let found = of_all(&[Leaf::gpu(1, &device("a", link(16, 32_000), &above))], Way::Read);
        near(found.theory, 14.0 * GIB);
        assert_eq!(found.binds, Binds::Uplink("p".into()));
        assert!(found.remedy.unwrap().starts_with("GPU 1 is below p with x8 at 16 GT/s: use"));
        // A device at rest has a lower speed, and the port of its slot may be slower than it is.
        let mut pci = device("a", link(16, 32_000), &[("p", link(16, 16_000))]);
        pci.link = link(16, 2_500);
        near(of_all(&[Leaf::gpu(0, &pci)], Way::Read).expected, 26.4 * GIB);
    }
}

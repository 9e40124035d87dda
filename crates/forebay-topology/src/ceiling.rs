//! The most that drives, links and network ports of a machine can carry, before anything is
//! measured. Pure.
//!
//! Bytes pass the line of a device, the PCI Express link above it, and those of all bridges above.
//! Several devices together send at most what their shared links carry. In theory a link
//! carries its rate without line code and the overhead of packets; in practice it reaches a
//! [`SHARE`] of that.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::{Serialize, Serializer};

use super::drive::{Drive, Transport};
use super::memory::Channels;
use super::nic::Nic;
use super::pci::{Link, PciDevice};
use super::volume::Way;

/// Bytes of the header of a packet: 16 for writes to host memory with 64-bit addresses, 12 for
/// completions of reads (PCI Express Base Specification, 2.2).
const TO_HOST: f64 = 16.0;
const TO_DEVICE: f64 = 12.0;
/// Bytes of a packet besides header and payload, up to 32 GT/s: its checksum of 4, and sequence
/// number and framing, together 4 in all generations (the same, 3.6 and 4.2). A link carries
/// `payload / (payload + header + 8)` of its rate: "Throughput for Posted Writes" in Intel's
/// application note 456.
const FRAMED: f64 = 8.0;
/// From 64 GT/s on, packets travel in flits, without checksum and framing of their own: 236 of 256
/// bytes are theirs (the same, 4.2.3).
const FLIT: f64 = 236.0 / 256.0;
/// The payload of a packet where the setting is unknown ([`super::payload`]): what servers set for
/// GPUs and drives.
const PAYLOAD: u32 = 256;
/// SATA, and SAS up to 12 Gbit/s, send 10 bits for 8 (Serial ATA 3, 8.2; SAS-3, 5.8).
const CODED: f64 = 0.8;

/// What practice reaches of the theory, and where it was seen.
///
/// | Part | Reached | Where |
/// |---|---|---|
/// | GPU, PCIe 5.0 x16 | 55.6 of 58.4 GB/s: 0.95 | H200, `docs/internals.md#layers` |
/// | GPU, PCIe 4.0 x16 | 26.4 of 28 GiB/s: 0.94 | published elsewhere |
/// | four drives, PCIe 5.0 x4 | 53.0 of 58 GB/s: 0.91 | published elsewhere |
/// | 400 GbE with RDMA | 43.4 of 45 GiB/s: 0.96 | published elsewhere |
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

/// A device at the end of links, in bytes per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub part: Part,
    /// Its place, or that of its controller.
    pub pci: Option<PciDevice>,
    /// The rate of what is behind its PCI link, such as a network's line rate.
    pub line: Option<f64>,
    /// The maximum payload of its packets in bytes, if it is known.
    pub payload: Option<u32>,
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
    /// The link of this bridge above them, or of the controller or card that they share.
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
    fn new(name: impl Into<String>, part: Part) -> Self {
        let (pci, line, payload, measured) = (None, None, None, [None; 2]);
        Self { name: name.into(), part, pci, line, payload, measured }
    }

    /// A GPU.
    pub fn gpu(index: usize, pci: &PciDevice) -> Self {
        Self { pci: Some(pci.clone()), ..Self::new(format!("GPU {index}"), Part::Gpu) }
    }

    /// A drive on this machine's PCI; else `None`.
    pub fn drive(drive: &Drive) -> Option<Self> {
        let line = match drive.transport() {
            Transport::Pcie | Transport::Emulated { .. } => None,
            Transport::Scsi(link) if matches!(link.as_str(), "sata" | "sas") => {
                #[expect(clippy::cast_precision_loss, reason = "a rate")]
                let bits = drive.path()?.bits_per_second? as f64;
                Some(bits / 8.0 * CODED)
            }
            _ => return None,
        };
        let pci = drive.pci().cloned();
        Some(Self { pci, line, ..Self::new(drive.name.as_str(), Part::Drive) })
    }

    /// A port of a network card.
    pub fn nic(nic: &Nic) -> Self {
        let line = Some(nic.bytes_per_second);
        Self { pci: nic.pci.clone(), line, ..Self::new(nic.name.as_str(), Part::Network) }
    }

    /// The memory, which a byte passes `times`.
    pub fn memory(channels: &Channels, times: f64) -> Self {
        let line = Some(channels.bytes_per_second / times);
        Self { line, ..Self::new(format!("{} memory channels", channels.used), Part::Memory) }
    }

    /// The parts that its bytes pass, from its line up to the root port; `None` if neither its line
    /// nor its link has a known rate.
    fn passes(&self, way: Way) -> Option<Vec<Passed>> {
        let measured = self.measured[way as usize];
        let mut passed = Vec::new();
        if let Some(theory) = self.line {
            let expected = measured.unwrap_or(theory * self.part.share_of(None));
            passed.push(Passed::new((Place::Line, &self.name), &self.name, [theory, expected]));
        }
        let Some(pci) = &self.pci else { return (!passed.is_empty()).then_some(passed) };
        let to_host = (self.part == Part::Gpu) == (way == Way::Write);
        let payload = self.payload.unwrap_or(PAYLOAD);
        let mut link = |place: Place, key: &str, of: &str, link: Option<Link>| {
            let theory = link.as_ref().and_then(|link| carries(link, to_host, payload))?;
            let share = self.part.share_of(link.as_ref());
            let own = measured.filter(|_| place == Place::Link && self.line.is_none());
            let rates = [theory, own.unwrap_or(theory * share)];
            passed.push(Passed { link, ..Passed::new((place, key), of, rates) });
            Some(())
        };
        // The last bridge is the other end of the device's link. All functions of a device share
        // it, and so do the namespaces of a controller.
        let (end, above) = match pci.bridges.split_last() {
            Some((port, above)) => (port.address.as_str(), above),
            None => (pci.address.rsplit_once('.').map_or(&*pci.address, |(end, _)| end), &[][..]),
        };
        let is_known = link(Place::Link, end, &pci.address, own_link(pci)).is_some();
        for (depth, bridge) in above.iter().enumerate().rev() {
            link(
                Place::Bridge(depth),
                &bridge.address,
                &bridge.address,
                trained(bridge.link, bridge.link_max, None),
            );
        }
        (is_known || self.line.is_some()).then_some(passed)
    }

    /// What widens its link, if lanes are unused.
    fn narrow(&self) -> Option<String> {
        let pci = self.pci.as_ref()?;
        let (link, max) = (own_link(pci)?, pci.link_max?);
        let text =
            || format!("{} has {}: use a slot with all lanes", self.name, link.text(Some(&max)));
        link.is_below(&max).then(text)
    }
}

/// What a link carries per direction after line code and the overhead of packets. A simulated link
/// is only a rate, which it reaches.
fn carries(link: &Link, to_host: bool, payload: u32) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = link.bytes_per_second? as f64;
    if link.width.is_none() {
        return Some(rate);
    }
    let header = if to_host { TO_HOST } else { TO_DEVICE };
    let has_flits = link.megatransfers_per_s.is_some_and(|rate| rate >= 64_000);
    let (whole, framed) = if has_flits { (FLIT, 0.0) } else { (1.0, FRAMED) };
    let payload = f64::from(payload);
    Some(rate * whole * payload / (payload + header + framed))
}

/// The link that a device trains when it works.
fn own_link(pci: &PciDevice) -> Option<Link> {
    trained(pci.link, pci.link_max, pci.bridges.last().and_then(|bridge| bridge.link_max))
}

/// A link with the narrowest width and the highest speed of its ends; idle devices lower their
/// speed. The `other` end of a bridge's link binds itself.
fn trained(now: Option<Link>, max: Option<Link>, other: Option<Link>) -> Option<Link> {
    let max = max.or(now)?;
    let width = [now, Some(max), other].into_iter().filter_map(|link| link?.width).min();
    let speeds = [Some(max), other].into_iter().filter_map(|link| link?.megatransfers_per_s);
    let found = Link::new(width, speeds.min());
    // A simulated link is only a rate.
    found.filter(|found| found.bytes_per_second.is_some()).or(Some(max))
}

/// The place of a part, from the root down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    /// A bridge below this many bridges.
    Bridge(usize),
    /// The link of a device.
    Link,
    /// What is behind the device.
    Line,
}

/// A part that bytes pass.
#[derive(Debug)]
struct Passed {
    /// Its place, and a name common to all leaves that share it.
    key: (Place, String),
    /// The leaf of a line, the device or the bridge.
    of: String,
    link: Option<Link>,
    /// Bytes per second in theory and in practice.
    rates: [f64; 2],
    /// Bytes on it per byte of a stream, by the stream's index.
    loads: Vec<(usize, f64)>,
    /// The leaves that share it.
    leaves: Vec<String>,
}

impl Passed {
    fn new((place, key): (Place, &str), of: &str, rates: [f64; 2]) -> Self {
        let (key, of) = ((place, key.to_owned()), of.to_owned());
        Self { key, of, link: None, rates, loads: Vec::new(), leaves: Vec::new() }
    }

    fn place(&self) -> Place {
        self.key.0
    }

    /// Bytes on it at these rates of the streams.
    fn load(&self, rates: &[f64]) -> f64 {
        self.loads.iter().map(|(stream, bytes)| rates[*stream] * bytes).sum()
    }

    /// Whether all its streams also pass `other`.
    fn is_within(&self, other: &Self) -> bool {
        let passes = |stream| other.loads.binary_search_by_key(stream, |(own, _)| *own).is_ok();
        self.loads.iter().all(|(stream, _)| passes(stream))
    }

    fn is_shared(&self) -> bool {
        self.leaves.len() > 1 || matches!(self.place(), Place::Bridge(_))
    }

    fn binds(&self, part: Part) -> Binds {
        match self.place() {
            _ if part == Part::Memory => Binds::Memory,
            _ if self.is_shared() => Binds::Uplink(self.of.clone()),
            Place::Line => Binds::Line(self.leaves[0].clone()),
            _ => Binds::Link(self.leaves[0].clone()),
        }
    }

    /// What would lift a shared part.
    fn remedy(&self) -> String {
        let (names, of) = (listed(&self.leaves), &self.of);
        let text = self.link.map(|link| link.text(None)).unwrap_or_default();
        let theory = self.rates[0];
        let digits = if theory < 1e9 { 3 } else { 1 };
        let all = format!("{:.digits$} GB/s in all", theory * 1e-9);
        match (self.place(), self.leaves.len()) {
            (_, 1) => format!(
                "{names} is below {of} with {text}: use a slot whose links are as wide and as fast \
                 as its own"
            ),
            (Place::Bridge(_), _) => {
                format!("{names} share the uplink {of}, {all}: move one to another root port")
            }
            _ => format!(
                "{names} share the link of {of}, {all}: use devices with links of their own"
            ),
        }
    }
}

/// The most that `leaves` carry concurrently; `None` if a rate is unknown.
pub fn together(leaves: &[&Leaf], way: Way) -> Option<Ceiling> {
    carried(&leaves.iter().map(|leaf| vec![(*leaf, 1.0)]).collect::<Vec<_>>(), way)
}

/// The most that `streams` carry concurrently. A stream lists the bytes on its leaves per byte of
/// its own. `None` if the rate of a leaf is unknown.
pub fn carried(streams: &[Vec<(&Leaf, f64)>], way: Way) -> Option<Ceiling> {
    let mut parts: Vec<Passed> = Vec::new();
    let mut known: HashMap<(Place, String), usize> = HashMap::new();
    for (stream, (leaf, bytes)) in
        streams.iter().enumerate().flat_map(|(index, all)| all.iter().map(move |one| (index, one)))
    {
        for passed in leaf.passes(way)? {
            let at = *known.entry(passed.key.clone()).or_insert(parts.len());
            if at == parts.len() {
                parts.push(passed);
            } else {
                // The smaller payload of two devices binds both.
                let own = &mut parts[at].rates;
                *own = [own[0].min(passed.rates[0]), own[1].min(passed.rates[1])];
            }
            let part = &mut parts[at];
            part.leaves.push(leaf.name.clone());
            match part.loads.last_mut().filter(|(last, _)| *last == stream) {
                Some((_, load)) => *load += bytes,
                None => part.loads.push((stream, *bytes)),
            }
        }
    }
    for part in &mut parts {
        let mut seen = HashSet::new();
        part.leaves.retain(|leaf| seen.insert(leaf.clone()));
    }
    parts.sort_by_key(|part| Reverse(part.place()));
    let (theory, _) = settled(&parts, streams.len(), 0);
    let (expected, full) = settled(&parts, streams.len(), 1);
    let leaves = || streams.iter().flatten().map(|(leaf, _)| *leaf);
    let part = leaves().next()?.part;
    let shared: Vec<&Passed> = full.iter().copied().filter(|part| part.is_shared()).collect();
    let binds = match (full.as_slice(), shared.as_slice()) {
        ([one], _) | (_, [one]) => one.binds(part),
        (_, []) => {
            let mut names: Vec<String> = full.iter().flat_map(|part| part.leaves.clone()).collect();
            names.dedup();
            Binds::Links(listed(&names))
        }
        (_, many) => Binds::Uplinks(many.len()),
    };
    let narrow = || {
        let links = full.iter().filter(|part| part.place() == Place::Link);
        let names: Vec<&String> = links.flat_map(|part| &part.leaves).collect();
        leaves().filter(|leaf| names.contains(&&leaf.name)).find_map(Leaf::narrow)
    };
    let remedy = shared.first().map(|part| part.remedy()).or_else(narrow);
    Some(Ceiling { theory, expected, binds, remedy })
}

/// The sum of the streams' rates with the rates of `parts` in theory (0) or in practice (1), and
/// the parts that bind. Each stream begins with what its own lines and links carry; from there up
/// to the root ports, a part that would carry too much slows down all streams that pass it.
fn settled(parts: &[Passed], streams: usize, column: usize) -> (f64, Vec<&Passed>) {
    /// Tolerance for errors of rounding.
    const FULL: f64 = 0.999;
    let is_own = |part: &Passed| !matches!(part.place(), Place::Bridge(_));
    let mut rates = vec![f64::INFINITY; streams];
    for part in parts.iter().filter(|part| is_own(part)) {
        for (stream, bytes) in &part.loads {
            rates[*stream] = rates[*stream].min(part.rates[column] / bytes);
        }
    }
    let mut full: Vec<&Passed> = Vec::new();
    for part in parts {
        let room = part.rates[column] / part.load(&rates);
        if room < FULL {
            part.loads.iter().for_each(|(stream, _)| rates[*stream] *= room);
            full.retain(|own| !own.is_within(part));
            full.push(part);
        } else if room < 1.0 / FULL && is_own(part) {
            full.push(part);
        }
    }
    (rates.iter().sum::<f64>().round(), full)
}

/// `a and b`, `a, b and c`; of more than four only the first and the number.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first, .., last] if names.len() > 4 => format!("{first} to {last} ({})", names.len()),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bridge;
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
        let drives = [0, 1, 2, 3].map(|n| drive(n, device(&n.to_string(), link(4, 32_000), &[])));
        let found = of_all(&drives, Way::Read);
        near(found.theory, 58e9);
        near(found.expected, 53.0e9);
        assert_eq!(found.binds.to_string(), "links of nvme0n1, nvme1n1, nvme2n1 and nvme3n1");
        let nic = Nic {
            name: "mlx5_0/1".into(),
            bytes_per_second: 50e9 * 4096.0 / 4178.0,
            pci: Some(device("n", link(16, 32_000), &[])),
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
    fn each_generation_loses_its_own_line_code_and_packets() {
        for (lanes, rate, payload, to_host, to_device) in [
            // 8 of 10 bits, and 24 or 20 bytes beside 256.
            (4, 2_500, 256, 1.0 * 256.0 / 280.0, 1.0 * 256.0 / 276.0),
            (8, 5_000, 128, 4.0 * 128.0 / 152.0, 4.0 * 128.0 / 148.0),
            // 128 of 130 bits.
            (16, 8_000, 256, 15.754 * 256.0 / 280.0, 15.754 * 256.0 / 276.0),
            (4, 16_000, 512, 7.877 * 512.0 / 536.0, 7.877 * 512.0 / 532.0),
            (16, 32_000, 128, 63.015 * 128.0 / 152.0, 63.015 * 128.0 / 148.0),
            // 236 of 256 bytes of a flit; 16 or 12 bytes of header.
            (4, 64_000, 256, 32.0 * 0.921_875 * 256.0 / 272.0, 32.0 * 0.921_875 * 256.0 / 268.0),
        ] {
            let link = link(lanes, rate).unwrap();
            for (way, wanted) in [(true, to_host), (false, to_device)] {
                let found = carries(&link, way, payload).unwrap() * 1e-9;
                assert!((found / wanted - 1.0).abs() < 1e-3, "{rate}: {found}, not {wanted}");
            }
        }
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
        assert!((all.expected - 3.0 * one.expected).abs() < 3.0);
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

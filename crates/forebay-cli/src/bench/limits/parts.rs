//! Theoretical rates of the parts between drives and GPUs, from the topology. Pure.

use std::collections::BTreeMap;

use forebay_topology::{Distance, Drive, Link, Nic, PciDevice, Transport};

use crate::report::drives::LinkFacts;
use crate::report::numbers::rate_text;
use crate::results::Ceiling;

/// The payload's share of a link's bytes, for packets of 256 bytes with a header of 16, a check of
/// 4 and framing of 4. Framing includes the sequence number (PCI Express Base Specification 3.0,
/// 4.2.2.3; with 8 of 10 bits, both take 4 as well). Only root can read a machine's packet size;
/// 256 bytes is the most common.
const PAYLOAD: f64 = 256.0 / 280.0;
/// The share from 64 GT/s on: flits of 256 bytes have 236 for packets, which need neither check nor
/// framing (PCI Express Base Specification 6.0, flit mode). So at most 87 % are left, less than
/// before, and a header of 16 bytes is the only overhead of packets.
const FLIT_PAYLOAD: f64 = 236.0 / 256.0 * 256.0 / 272.0;
/// From this rate on links use flits.
const FLITS_FROM: u32 = 64_000;
/// Drives of one path, and devices below one link, that are named.
const NAMED_MAX: usize = 64;

/// A GPU, with its place on PCI.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuAt {
    /// Its name in results.
    pub name: String,
    /// Its PCI location.
    pub pci: PciDevice,
    /// Whether host memory simulates it.
    pub simulated: bool,
}

/// A part of the path.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    /// `pcie`, `uplink`, `sockets`, `network`.
    pub name: &'static str,
    /// Which: a drive, a GPU, a bridge, a port.
    pub of: String,
    /// Bytes per second in each direction; none if the hardware does not report it.
    pub rate: Option<f64>,
    /// The basis of the rate, or why there is none.
    pub how: String,
    /// The source of the rate.
    pub source: Option<String>,
    /// Why it is below its maximum.
    pub limits: Option<String>,
    /// The devices that share it.
    pub shared_by: Vec<String>,
    /// Whether host memory simulates it.
    pub simulated: bool,
}

impl Part {
    /// As a record; none if nothing is known.
    #[must_use]
    pub fn record(&self) -> Option<Ceiling> {
        Some(Ceiling {
            name: self.name.into(),
            of: self.of.clone(),
            direction: None,
            theory: true,
            bytes_per_second: self.rate?,
            how: self.how.clone(),
            simulated: self.simulated,
            theory_bytes_per_second: self.rate,
            source: self.source.clone(),
            limits: self.limits.clone(),
            shared_by: self.shared_by.clone(),
        })
    }
}

/// All parts between these drives and GPUs, from the drives to the GPUs.
#[must_use]
pub fn parts(gpus: &[GpuAt], drives: &[Drive], nics: &[Nic]) -> Vec<Part> {
    let drives = &drives[..drives.len().min(NAMED_MAX)];
    let mut all: Vec<Part> = drives.iter().map(drive).collect();
    if drives.iter().any(|drive| drive.transport().is_network()) {
        all.extend(nics.iter().map(|nic| network(nic, nics.len())));
    }
    all.extend(uplinks(gpus, drives));
    all.extend(gpus.iter().flat_map(|gpu| drives.iter().filter_map(|drive| sockets(gpu, drive))));
    all.extend(gpus.iter().map(gpu));
    all
}

fn drive(drive: &Drive) -> Part {
    let named = Part { name: "pcie", of: drive.name.clone(), ..Part::default() };
    match on_pci(drive) {
        Some(pci) => Part { limits: limits(pci), ..with_link(named, &pci.address, pci.link) },
        None => Part { how: format!("no rate is reported ({})", drive.transport()), ..named },
    }
}

/// The PCI device of a drive that is directly on PCI, not behind a controller with its own links.
pub(super) fn on_pci(drive: &Drive) -> Option<&PciDevice> {
    let itself = matches!(drive.transport(), Transport::Pcie | Transport::Emulated { .. });
    drive.pci().filter(|_| itself)
}

fn gpu(gpu: &GpuAt) -> Part {
    let named = Part { name: "pcie", of: gpu.name.clone(), ..Part::default() };
    let named = with_link(named, &gpu.pci.address, gpu.pci.link);
    Part { limits: limits(&gpu.pci), simulated: gpu.simulated, ..named }
}

fn network(nic: &Nic, of: usize) -> Part {
    Part {
        name: "network",
        of: nic.name.clone(),
        rate: Some(float(nic.bytes_per_s)),
        how: "on the wire, with the headers of packets".into(),
        source: Some(nic.source.clone()),
        limits: (of > 1).then(|| format!("one of {of} ports; the one in use is not known")),
        ..Part::default()
    }
}

/// Each link above bridges, with all that are below.
fn uplinks(gpus: &[GpuAt], drives: &[Drive]) -> Vec<Part> {
    let gpus = gpus.iter().map(|gpu| (&gpu.name, &gpu.pci));
    let drives = drives.iter().filter_map(|drive| Some((&drive.name, drive.pci()?)));
    let mut found: BTreeMap<String, Part> = BTreeMap::new();
    for (name, pci) in drives.chain(gpus) {
        for wire in wires(pci) {
            let part = found.entry(wire.address.to_owned()).or_insert_with(|| {
                let part = Part { name: "uplink", of: wire.address.into(), ..Part::default() };
                let simulated = wire.link.simulated_bytes_per_s.is_some();
                Part { simulated, ..with_link(part, wire.address, wire.link) }
            });
            if !part.shared_by.contains(name) && part.shared_by.len() < NAMED_MAX {
                part.shared_by.push(name.clone());
            }
        }
    }
    found.into_values().collect()
}

/// The link between sockets, whose rate is not reported anywhere.
fn sockets(gpu: &GpuAt, drive: &Drive) -> Option<Part> {
    let away = Distance::to_drive(&gpu.pci, drive);
    let nodes = gpu.pci.numa_node.zip(drive.numa_node());
    let far = drive.numa_node().and_then(|node| gpu.pci.node_distances.get(node as usize));
    let limits = match (nodes, far) {
        (Some((one, other)), Some(far)) => format!("NUMA nodes {one} and {other}, distance {far}"),
        _ => "on different sockets".into(),
    };
    (away == Distance::AcrossSockets).then(|| Part {
        name: "sockets",
        of: format!("{} – {}", drive.name, gpu.name),
        how: "no rate is reported".into(),
        limits: Some(limits),
        ..Part::default()
    })
}

/// A link between two bridges, or between a bridge and the processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wire<'a> {
    /// The bridge at its upper end.
    pub(super) address: &'a str,
    pub(super) link: Link,
}

/// The links above a device, without its own, from the processor down. A downstream port and the
/// upstream port below it are the two ends of a link.
pub(super) fn wires(pci: &PciDevice) -> impl Iterator<Item = Wire<'_>> {
    pci.bridges.as_chunks::<2>().0.iter().map(|[upper, lower]| {
        let both = [upper.link, lower.link];
        // At some ends the link is unknown, or describes a link that the bridge emulates.
        let known = both.into_iter().filter(|link| link.bytes_per_s().is_some());
        let narrow = known.min_by_key(|link| link.bytes_per_s());
        Wire { address: &upper.address, link: narrow.unwrap_or_default() }
    })
}

/// The payload rate of a link; simulated links carry only payload.
#[must_use]
pub(super) fn payload(link: Link) -> Option<f64> {
    let share = if link.simulated_bytes_per_s.is_some() { 1.0 } else { share(link) };
    line(link).map(|rate| rate * share)
}

/// The raw rate of a link, headers included: it never moves more than this.
#[must_use]
pub(super) fn line(link: Link) -> Option<f64> {
    link.bytes_per_s().map(float)
}

/// The share of a link's bytes that are payload.
fn share(link: Link) -> f64 {
    let flits = link.megatransfers_per_s.is_some_and(|rate| rate >= FLITS_FROM);
    if flits { FLIT_PAYLOAD } else { PAYLOAD }
}

fn with_link(part: Part, address: &str, link: Link) -> Part {
    let facts = LinkFacts::of(link);
    let how = match (facts, link.megatransfers_per_s) {
        _ if link.simulated_bytes_per_s.is_some() => "simulated".to_owned(),
        (Some(facts), Some(rate)) if facts.bytes_per_second.is_some() => {
            let code = match rate {
                0..=5_000 => "8 of 10 bits, ",
                5_001..FLITS_FROM => "128 of 130 bits, ",
                _ => "flits, ",
            };
            format!("{}; {code}{:.0} % payload", facts.text(None), share(link) * 100.0)
        }
        _ => "no rate is reported, or less than was measured".into(),
    };
    let source = (link != Link::default() && link.simulated_bytes_per_s.is_none())
        .then(|| format!("/sys/bus/pci/devices/{address}"));
    Part { rate: payload(link), how, source, ..part }
}

/// Why a device's link carries less than the device could, or an uplink less than the link.
pub(super) fn limits(pci: &PciDevice) -> Option<String> {
    let (link, max) = LinkFacts::of(pci.link).zip(LinkFacts::of(pci.link_max))?;
    // The last of an odd number of bridges is the port that the device is plugged into.
    let slot = pci.bridges.last().filter(|_| pci.bridges.len() % 2 == 1);
    let slot = slot.and_then(|slot| LinkFacts::of(slot.link_max));
    if link.is_below(&max) {
        let runs = link.text(Some(&max));
        return Some(match slot {
            Some(slot) if !link.is_below(&slot) => {
                format!("runs at {runs}: its slot has no more than {}", slot.text(None))
            }
            _ => format!("trained down: it runs at {runs}"),
        });
    }
    let own = pci.link.bytes_per_s()?;
    let narrow = wires(pci).filter(|wire| wire.link.bytes_per_s().is_some_and(|rate| rate < own));
    let narrow = narrow.min_by_key(|wire| wire.link.bytes_per_s())?;
    let rate = payload(narrow.link)?;
    Some(format!("behind the uplink {} of {}", narrow.address, rate_text(rate)))
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
fn float(rate: u64) -> f64 {
    rate as f64
}

//! How much several devices on PCI can move at once, in theory: pure.

use std::collections::BTreeMap;

use forebay_topology::{Link, PciDevice};

use super::parts::{line, payload, wires};

/// The combined rate of devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Reach {
    /// Bytes per second in each direction.
    pub rate: f64,
    /// The uplink that reduces the devices' rate most, by its upper end; none if only their own
    /// links bind.
    pub uplink: Option<String>,
}

/// The combined rate of these devices; none if too little is known about their links. A device
/// named twice counts once.
#[must_use]
pub fn reach(devices: &[&PciDevice]) -> Option<Reach> {
    by(devices, payload)
}

/// The raw rate of the devices' links, with all headers; a higher measured rate refutes the links'
/// reports.
#[must_use]
pub(super) fn line_rate(devices: &[&PciDevice]) -> Option<f64> {
    by(devices, line).map(|reach| reach.rate)
}

/// The rate that a link lets through.
type Carries = fn(Link) -> Option<f64>;

fn by(devices: &[&PciDevice], carries: Carries) -> Option<Reach> {
    let mut known: Vec<&PciDevice> = Vec::new();
    for device in devices {
        if known.iter().all(|other| other.address != device.address) {
            known.push(device);
        }
    }
    let (rate, loss) = below(&known, 0, carries);
    let uplink = loss.map(|(_, address)| address.to_owned());
    (rate.is_finite() && rate > 0.0).then_some(Reach { rate, uplink })
}

/// The rate that reaches devices from the link at this depth on, and the link that reduces it most.
fn below<'a>(
    devices: &[&'a PciDevice],
    depth: usize,
    carries: Carries,
) -> (f64, Option<(f64, &'a str)>) {
    let (mut sum, mut worst) = (0.0, None);
    let mut groups: BTreeMap<&str, Vec<&PciDevice>> = BTreeMap::new();
    for device in devices {
        match wires(device).nth(depth) {
            Some(wire) => groups.entry(wire.address).or_default().push(device),
            None => sum += carries(device.link).unwrap_or(f64::INFINITY),
        }
    }
    for (address, group) in groups {
        let (mut rate, mut loss) = below(&group, depth + 1, carries);
        let wire = wires(group[0]).nth(depth).and_then(|wire| carries(wire.link));
        if let Some(wire) = wire.filter(|wire| *wire < rate) {
            loss = Some((rate - wire, address));
            rate = wire;
        }
        sum += rate;
        let lost = |loss: &Option<(f64, &str)>| loss.map_or(0.0, |(lost, _)| lost);
        if lost(&loss) > lost(&worst) {
            worst = loss;
        }
    }
    (sum, worst)
}

//! Network cards: their line rates.

use super::pci::{self, PciDevice};
use super::system::System;

/// A port of a network card.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// The kernel's name: `eth0`, or `mlx5_0/1` for RDMA.
    pub name: String,
    /// The line rate of its link now, in bits per second.
    pub bits_per_second: u64,
    /// Its PCI device.
    pub pci: Option<PciDevice>,
    /// The file that holds the rate.
    pub source: String,
}

/// Most cards that are read.
const CARDS_MAX: usize = 64;

/// The ports with a link: those for RDMA, or, if there are none, the network interfaces.
#[must_use]
pub fn nics(system: &System) -> Vec<Nic> {
    let cards = system.list("sys/class/infiniband".as_ref()).unwrap_or_default();
    let ports = cards.iter().take(CARDS_MAX).flat_map(|card| {
        let folder = format!("sys/class/infiniband/{card}/ports");
        let numbers = system.list(folder.as_ref()).unwrap_or_default();
        numbers.into_iter().take(CARDS_MAX).filter_map(move |number| {
            // `400 Gb/sec (4X NDR)`; a port that is down has the rate of one lane.
            let is_up = system.text(format!("{folder}/{number}/state").as_ref());
            let source = format!("{folder}/{number}/rate");
            let text = system.text(source.as_ref()).ok()?;
            let rate: f64 = text.split(' ').next()?.parse().ok()?;
            let tenths = Some(rate * 10.0).filter(|tenths| (1.0..1e6).contains(tenths))?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
            let bits_per_second = tenths as u64 * 100_000_000;
            is_up.is_ok_and(|state| state.contains("ACTIVE")).then(|| Nic {
                name: format!("{card}/{number}"),
                bits_per_second,
                pci: device(system, &format!("sys/class/infiniband/{card}/device")),
                source,
            })
        })
    });
    let ports: Vec<Nic> = ports.collect();
    if !ports.is_empty() {
        return ports;
    }
    let names = system.list("sys/class/net".as_ref()).unwrap_or_default();
    let interfaces = names.iter().take(CARDS_MAX).filter_map(|name| {
        let source = format!("sys/class/net/{name}/speed");
        // Megabits per second; -1 without a link, and an error for an interface that is down.
        let megabits: u64 = system.text(source.as_ref()).ok()?.parse().ok()?;
        // Bridges, bonds and tunnels have no device.
        let pci = device(system, &format!("sys/class/net/{name}/device"));
        let bits_per_second = megabits.checked_mul(1_000_000)?;
        pci.map(|pci| Nic { name: name.clone(), bits_per_second, pci: Some(pci), source })
    });
    interfaces.collect()
}

fn device(system: &System, path: &str) -> Option<PciDevice> {
    pci::above(&system.folder(path).ok()?)
}

//! Network cards and the rates of their ports.

use super::pci::{self, PciDevice};
use super::system::System;

/// Maximum number of cards, and of ports of each, that are read.
const CARDS_MAX: usize = 64;

/// A port of a network card that is up and reports its rate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// The interface, or for an RDMA card its name and port, such as `mlx5_0/1`.
    pub name: String,
    /// Wire rate in bytes per second in each direction, packet headers included.
    pub bytes_per_s: u64,
    /// The file that reports the rate.
    pub source: String,
    /// The PCI device of the card.
    pub pci: Option<PciDevice>,
}

/// Lists the ports that are up. An RDMA card is listed by port, not by interface.
#[must_use]
pub fn nics(system: &System) -> Vec<Nic> {
    let list = |path: &str| {
        let mut names = system.list(path.as_ref()).unwrap_or_default();
        names.truncate(CARDS_MAX);
        names
    };
    let text = |path: &str| system.text(path.as_ref()).ok();
    let mut found: Vec<Nic> = Vec::new();
    for card in list("sys/class/infiniband") {
        let folder = format!("sys/class/infiniband/{card}");
        for port in list(&format!("{folder}/ports")) {
            let state = text(&format!("{folder}/ports/{port}/state"));
            let source = format!("{folder}/ports/{port}/rate");
            let rate = text(&source).and_then(|rate| rdma_rate(&rate));
            if let Some(bytes_per_s) = rate.filter(|_| state.is_some_and(|s| s.contains("ACTIVE")))
            {
                let (name, pci) = (format!("{card}/{port}"), place(system, &folder));
                found.push(Nic { name, bytes_per_s, source: format!("/{source}"), pci });
            }
        }
    }
    for name in list("sys/class/net") {
        let folder = format!("sys/class/net/{name}");
        // Bridges, tunnels and the like have no PCI device.
        let Some(pci) = place(system, &folder) else { continue };
        let known = |nic: &Nic| nic.pci.as_ref().is_some_and(|own| own.address == pci.address);
        let source = format!("{folder}/speed");
        let up = text(&format!("{folder}/operstate")).is_some_and(|state| state == "up");
        let rate = text(&source).filter(|_| up).and_then(|speed| ethernet_rate(&speed));
        if let Some(bytes_per_s) = rate.filter(|_| !found.iter().any(known)) {
            found.push(Nic { name, bytes_per_s, source: format!("/{source}"), pci: Some(pci) });
        }
    }
    found
}

fn place(system: &System, folder: &str) -> Option<PciDevice> {
    pci::above(&system.folder(format!("{folder}/device")).ok()?)
}

/// Parses `100 Gb/sec (4X EDR)` into bytes per second.
fn rdma_rate(text: &str) -> Option<u64> {
    let (number, _) = text.split_once(" Gb/sec")?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = part.get(..1)?.parse::<u64>().ok()?;
    let tenths = whole.parse::<u64>().ok()?.checked_mul(10)?.checked_add(tenths)?;
    tenths.checked_mul(100_000_000 / 8).filter(|rate| *rate > 0)
}

/// Parses megabits per second into bytes per second; -1 means unknown.
fn ethernet_rate(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(1_000_000 / 8).filter(|rate| *rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_as_the_kernel_writes_them() {
        assert_eq!(rdma_rate("400 Gb/sec (4X NDR)"), Some(50_000_000_000));
        assert_eq!(rdma_rate("2.5 Gb/sec (1X SDR)"), Some(312_500_000));
        assert_eq!(ethernet_rate("25000"), Some(3_125_000_000));
        for text in ["", "0 Gb/sec", "fast Gb/sec", "1. Gb/sec", "99999999999999999999 Gb/sec"] {
            assert_eq!(rdma_rate(text), None, "{text}");
        }
        for text in ["-1", "", "0", "999999999999999999"] {
            assert_eq!(ethernet_rate(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text: String, number: u64) {
            let _ = (rdma_rate(&text), ethernet_rate(&text));
            let _ = (rdma_rate(&format!("{number}.9 Gb/sec")), ethernet_rate(&number.to_string()));
        }
    }
}

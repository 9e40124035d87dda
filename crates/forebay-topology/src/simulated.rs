//! Places simulated GPUs on PCI, below ports of a switch. GPUs that share an uplink share
//! the link of that switch to the CPU.

use super::pci::{Bridge, Link, PciDevice};

/// The host bridge of simulated devices; no real bridge is called so.
const HOST: &str = "sim";

/// The PCI place of the simulated GPU with this index. `bandwidth` is the rate of its link and
/// `uplink` that of the shared link above, in bytes per second.
pub fn simulated_gpu(index: u32, bandwidth: Option<u64>, uplink: Option<u64>) -> PciDevice {
    let link = |rate: Option<u64>| {
        rate.map(|rate| Link { bytes_per_second: Some(rate), ..Link::default() })
    };
    let bridge = |address: String, rate: Option<u64>| Bridge {
        address,
        link: link(rate),
        link_max: link(rate),
    };
    let bridges = uplink.map(|rate| {
        let (up, down) = ("sim:switch".to_owned(), format!("sim:switch:{index}"));
        vec![bridge("sim:port".into(), Some(rate)), bridge(up, Some(rate)), bridge(down, bandwidth)]
    });
    PciDevice {
        address: format!("sim:{index}"),
        link: link(bandwidth),
        link_max: link(bandwidth),
        bridges: bridges.unwrap_or_default(),
        host_bridge: HOST.into(),
        ..PciDevice::default()
    }
}

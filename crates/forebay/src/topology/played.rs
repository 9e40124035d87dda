//! Places simulated GPUs on PCI. Each is below a port of a switch; GPUs that share an uplink share
//! the link of that switch to the CPU.

use super::pci::{Bridge, Link, PciDevice};
use crate::gpu::DeviceInfo;
use crate::gpu::sim::SimConfig;

/// The host bridge of simulated devices; no real one has this name.
const HOST: &str = "sim";

/// The PCI place of a simulated GPU; `None` for a real one.
#[must_use]
pub fn played(info: &DeviceInfo) -> Option<PciDevice> {
    // The driver text of a simulated GPU is the configuration it was created with.
    let config: SimConfig = info.driver.parse().ok().filter(|_| info.simulated)?;
    let link = Link::played(config.bandwidth);
    let bridge = |address: String, rate: Option<u64>| {
        let link = Link::played(rate);
        Bridge { address, link, link_max: link }
    };
    let bridges = config.uplink.map(|rate| {
        let (up, down) = ("sim:switch".to_owned(), format!("sim:switch:{}", info.id.index));
        vec![
            bridge("sim:port".into(), Some(rate)),
            bridge(up, Some(rate)),
            bridge(down, config.bandwidth),
        ]
    });
    Some(PciDevice {
        address: info.id.to_string(),
        vendor: None,
        device: None,
        class: None,
        driver: None,
        link,
        link_max: link,
        bridges: bridges.unwrap_or_default(),
        host_bridge: HOST.into(),
        numa_node: None,
        package: None,
        node_distances: Vec::new(),
        iommu_group: None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::ManualClock;
    use crate::gpu::Device as _;
    use crate::gpu::sim::SimDevice;
    use crate::topology::Distance;

    #[test]
    fn those_of_one_uplink_are_below_one_switch() {
        let config: SimConfig = "sim:bandwidth=1GB/s,uplink=2GB/s".parse().unwrap();
        let first = SimDevice::new(0, config.clone(), Arc::new(ManualClock::new()));
        let second = first.beside(1, config);
        let places = [&first, &second].map(|gpu| played(gpu.info()).unwrap());
        assert_eq!(Distance::between(&places[0], &places[1]), Distance::SameSwitch);
        assert_eq!(places[1].address, "sim:1");
        assert_eq!(places[1].link.bytes_per_s(), Some(1_000_000_000));
        assert_eq!(places[1].bridges[1].link.bytes_per_s(), Some(2_000_000_000));
        let alone = first.beside(2, SimConfig::default());
        let alone = played(alone.info()).unwrap();
        assert_eq!((alone.bridges.len(), alone.link.bytes_per_s()), (0, None));
        let mut real = first.info().clone();
        real.simulated = false;
        assert_eq!(played(&real), None);
    }
}

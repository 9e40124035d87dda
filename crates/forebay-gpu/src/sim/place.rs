//! The place of a simulated GPU on PCI, for results that name links.

use forebay_topology::{PciDevice, simulated_gpu};

use super::SimConfig;
use crate::DeviceInfo;

/// The PCI place of a simulated GPU; `None` for a real one.
#[must_use]
pub fn place(info: &DeviceInfo) -> Option<PciDevice> {
    // The driver text of a simulated GPU is the configuration it was created with.
    let config: SimConfig = info.driver.parse().ok().filter(|_| info.simulated)?;
    Some(simulated_gpu(info.id.index, config.bandwidth, config.uplink))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_base::clock::ManualClock;
    use forebay_topology::Distance;

    use super::*;
    use crate::Device as _;
    use crate::sim::SimDevice;

    #[test]
    fn gpus_of_one_uplink_are_below_one_switch() {
        let config: SimConfig = "sim:bandwidth=1GB/s,uplink=2GB/s".parse().unwrap();
        let first = SimDevice::new(0, config.clone(), Arc::new(ManualClock::new()));
        let second = first.sibling(1, config);
        let places = [&first, &second].map(|gpu| place(gpu.info()).unwrap());
        assert_eq!(Distance::between(&places[0], &places[1]), Distance::SameSwitch);
        assert_eq!(places[1].address, "sim:1");
        assert_eq!(places[1].link.unwrap().bytes_per_second, Some(1_000_000_000));
        assert_eq!(places[1].bridges[1].link.unwrap().bytes_per_second, Some(2_000_000_000));
        let alone = first.sibling(2, SimConfig::default());
        let alone = place(alone.info()).unwrap();
        assert_eq!((alone.bridges.len(), alone.link), (0, None));
        let mut real = first.info().clone();
        real.simulated = false;
        assert_eq!(place(&real), None);
    }
}

//! Checks of the PCI path between a GPU and the drives: BAR1, IOMMU, ACS, links.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::peers;
use super::report::{BOTH, Check, P2PDMA};
use super::topics::*;
use forebay::units::{MIB, format_size};
use forebay_topology::{Distance, Drive, Gpu, Link, PciDevice, System};

/// Maximum number of drives checked for a path.
const DRIVES_MAX: usize = 64;
const CONFIG_LEN: usize = 4096;
const ACS_CAPABILITY: u16 = 0x0d;
/// BAR1 size of GPUs whose firmware does not expose all of their memory.
const BAR1_SMALL: u64 = 256 * MIB;
/// Bits of the ACS control register that redirect requests, completions and upstream traffic (PCI
/// Express Base Specification, "ACS Control Register").
const REDIRECTS: u16 = 0b1_1100;

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let drives: Vec<&Drive> = facts.storage.map.drives.iter().take(DRIVES_MAX).collect();
    let on_pci = drives.iter().filter_map(|drive| Some((&drive.name, drive.pci()?)));
    let links = on_pci.clone().filter_map(|(name, pci)| link(name, pci, false));
    let peers = peers::check(facts, on_pci.clone().map(|(_, pci)| pci));
    let gpu = facts.gpu.as_ref().map(|gpu| &gpu.pci).ok();
    let devices: Vec<&PciDevice> = gpu.into_iter().chain(on_pci.map(|(_, pci)| pci)).collect();
    let (iommu, acs) = (iommu(facts, &devices), Acs::read(&facts.system, &devices));
    let Ok(gpu) = &facts.gpu else { return links.collect() };
    let distances: Vec<(&str, Distance)> =
        drives.iter().map(|drive| (&*drive.name, Distance::to_drive(&gpu.pci, drive))).collect();
    let is_near = distances.iter().any(|(_, distance)| *distance == Distance::SameSwitch);
    let mut checks = vec![bar1(gpu), iommu, acs.check(&gpu.pci, facts, is_near)];
    // The farthest drive matters most.
    checks.extend(distances.iter().map(distance).min_by_key(|check| check.state));
    checks.extend(peers);
    checks.extend(link("the GPU", &gpu.pci, true));
    checks.extend(links);
    checks
}

fn iommu(facts: &Facts, devices: &[&PciDevice]) -> Check {
    let groups = devices.iter().filter_map(|pci| {
        let group = pci.iommu_group.as_ref()?;
        let file = format!("sys/kernel/iommu_groups/{group}/type");
        Some((pci.address.as_str(), facts.system.text(file).ok()))
    });
    let groups: BTreeMap<&str, Option<String>> = groups.collect();
    let units = facts.system.names("sys/class/iommu", |_| true).ok();
    let translating = |kind: &Option<String>| {
        kind.as_deref().is_some_and(|kind| kind.starts_with("DMA") || kind == "blocked")
    };
    let found: Vec<String> = groups
        .iter()
        .filter(|(_, kind)| translating(kind))
        .map(|(address, kind)| format!("{address} ({})", kind.as_deref().unwrap_or("?")))
        .collect();
    let booted = facts.kernel.booted_with(|word| word.contains("iommu"));
    if !found.is_empty() && facts.driver.is_arm() {
        let found = found.join(", ");
        return IOMMU.ok(format!("translates for {found}, as it may on ARM{booted}"));
    }
    if !found.is_empty() {
        // Source: NVIDIA's troubleshooting guide, "Before You Install GDS".
        return IOMMU
            .problem(format!("it translates for {}{booted}", found.join(", ")), BOTH)
            .step(
                "boot with `iommu=pt`, or with `intel_iommu=off` or `amd_iommu=off`, in \
                     `GRUB_CMDLINE_LINUX_DEFAULT` of /etc/default/grub",
            )
            .needs("an IOMMU that is off or passes through (`iommu=pt`)");
    }
    let (is_known, seen) = match (&units, groups.values().any(Option::is_none)) {
        (_, true) => (false, "the kernel does not say how it translates"),
        (None, _) if groups.is_empty() => (false, "/sys/class/iommu is not there"),
        (Some(units), _) if units.is_empty() => (true, "there is none, or it is off"),
        _ if groups.is_empty() => (true, "no device of this path is in a group"),
        _ => (true, "it passes through"),
    };
    let seen = format!("{seen}{booted}");
    match is_known {
        true => IOMMU.ok(seen),
        false => IOMMU.unknown(seen).step("`dmesg | grep -i iommu` as root"),
    }
}

/// What is known of ACS at the bridges above the devices.
struct Acs {
    /// Their control registers; `Ok(None)` without such a register.
    bridges: BTreeMap<String, Result<Option<u16>, &'static str>>,
    /// Bridges with any ACS feature on, by nvidia-fs; `None` if unknown.
    listed: Option<Vec<String>>,
}

impl Acs {
    fn read(system: &System, devices: &[&PciDevice]) -> Self {
        let bridges = devices.iter().flat_map(|pci| &pci.bridges).map(|bridge| {
            let file = format!("sys/bus/pci/devices/{}/config", bridge.address);
            let register = match system.bytes(file, CONFIG_LEN) {
                Ok(bytes) => control(&bytes),
                Err(_) => Err("its registers cannot be read"),
            };
            (bridge.address.clone(), register)
        });
        Self { bridges: bridges.collect(), listed: peers::bridges(system) }
    }

    /// Whether nvidia-fs lists a bridge; `None` if unknown.
    fn lists(&self, address: &str) -> Option<bool> {
        Some(self.listed.as_ref()?.iter().any(|bridge| bridge == address))
    }

    /// `is_near` if a drive is below the GPU's switch.
    fn check(&self, gpu: &PciDevice, facts: &Facts, is_near: bool) -> Check {
        if self.bridges.is_empty() {
            return ACS
                .unknown("no bridge above the GPU or the drives is shown")
                .step("of a virtual machine look at the host: `lspci -vv` as root shows `ACSCtl`");
        }
        let redirects: Vec<&str> = self
            .bridges
            .iter()
            .filter(|(_, register)| matches!(register, Ok(Some(bits)) if bits & REDIRECTS != 0))
            .map(|(address, _)| address.as_str())
            .collect();
        // Without root the registers are unreadable, but nvidia-fs's list of bridges with ACS is
        // not.
        let unseen = || self.bridges.iter().filter(|(_, register)| register.is_err());
        let listed: Vec<&str> = unseen()
            .filter(|(address, _)| self.lists(address) == Some(true))
            .map(|(address, _)| address.as_str())
            .collect();
        if let Some(first) = redirects.first().or(listed.first()) {
            let where_to = match is_near {
                true => "",
                false => "; the way of this path leads by the processor anyway",
            };
            let seen = match redirects.is_empty() {
                false => format!("{} redirect", redirects.join(", ")),
                true => format!("{} have ACS on, as nvidia-fs says", listed.join(", ")),
            };
            let booted = facts.kernel.booted_with(|w| w.starts_with("pci=") && w.contains("acs"));
            // Source: NCCL's guide, "PCI Access Control Services (ACS)".
            return ACS.warning(format!("{seen}{where_to}{booted}")).step(format!(
                "`setpci -s {first} ECAP_ACS+0x6.w=0000` as root (each boot), for each of them, or \
                 switch ACS off in the firmware's settings"
            ));
        }
        let unseen = unseen().find_map(|(address, register)| match self.lists(address) {
            Some(_) => None,
            None => register.as_ref().err().map(|reason| format!("{address}: {reason}")),
        });
        match unseen {
            Some(unseen) => ACS.unknown(unseen).step("run `forebay doctor` as root"),
            None => ACS.ok(format!("no bridge above {} or a drive redirects", gpu.address)),
        }
    }
}

/// The ACS control register in a function's configuration space.
fn control(bytes: &[u8]) -> Result<Option<u16>, &'static str> {
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    match bytes.len() {
        0..=64 => return Err("only root can read all of its registers"),
        65..=256 => return Ok(None), // conventional PCI has none
        _ => {}
    }
    let mut at = 0x100;
    // An entry is at least four bytes long, so a longer chain is circular.
    for _ in 0..CONFIG_LEN / 8 {
        let (Some(id), Some(next)) = (half(at), half(at + 2)) else { return Ok(None) };
        if id == ACS_CAPABILITY {
            return Ok(half(at + 6));
        }
        at = usize::from(next >> 4) & !3;
        if at < 0x100 {
            return Ok(None);
        }
    }
    Ok(None)
}

fn bar1(gpu: &Gpu) -> Check {
    match gpu.bar1_size {
        // In a virtual machine, or if the file is masked, this says nothing about the GPU.
        None => BAR1
            .unknown(format!(
                "/sys/bus/pci/devices/{}/resource shows no second range",
                gpu.pci.address
            ))
            .step("`nvidia-smi -q -d MEMORY` shows the size of BAR1"),
        // Source: NVIDIA's guide to GPUDirect RDMA, "PCI BAR sizes".
        Some(size) if size <= BAR1_SMALL => BAR1
            .problem(format_size(size), P2PDMA)
            .step(
                "where the board has them, switch `Above 4G Decoding` and `Resizable BAR` on in \
                 the firmware's settings, and look at `nvidia-smi -q -d MEMORY` again",
            )
            .needs("a BAR1 that shows all of the GPU's memory"),
        Some(size) => BAR1.ok(format_size(size)),
    }
}

fn distance((name, distance): &(&str, Distance)) -> Check {
    let seen = format!("{name}: {distance}");
    match distance {
        Distance::AcrossSockets => DISTANCE.warning(seen).step(
            "use a drive and a GPU of one socket (`forebay doctor --tree` shows the distances)",
        ),
        Distance::Unknown(reason) => DISTANCE
            .unknown(format!("{name}: {reason}"))
            .step("`forebay doctor --tree` shows the known devices on the way"),
        _ => DISTANCE.ok(seen),
    }
}

/// Checks whether the link of a device runs below its maximum. `rests` is set for devices that slow
/// down when idle.
fn link(name: &str, pci: &PciDevice, rests: bool) -> Option<Check> {
    let link = pci.link.filter(|link| link.width.is_some())?;
    // The device and the port above it share a link, which runs at the lower maximum of both.
    let ends = [pci.link_max, pci.bridges.last().and_then(|port| port.link_max)];
    let least = |of: fn(&Link) -> Option<u32>| ends.iter().flatten().filter_map(of).min();
    let max = Link::new(least(|max| max.width), least(|max| max.megatransfers_per_s));
    let seen = format!("{name} at {}: {}", pci.address, link.text(max.as_ref()));
    Some(match max.filter(|max| link.is_below(max)) {
        None => LINK.ok(seen),
        // An idle GPU lowers its link speed; only a copy shows the real speed.
        Some(max) if rests && link.width >= max.width => {
            LINK.ok(format!("{seen}, at rest")).step("`forebay bench` measures it")
        }
        Some(_) => LINK.warning(seen).step(both_ends(&pci.address)),
    })
}

/// The remedy for a slow link: compare its two ends with `lspci(8)`.
fn both_ends(address: &str) -> String {
    format!(
        "`lspci -vv -s {address}` shows what the device can (`LnkCap`) and does (`LnkSta`): look \
         what its slot carries, and how the firmware sets that slot"
    )
}

#[cfg(test)]
mod tests {
    use forebay_topology::Bridge;

    use super::*;
    use crate::report::State;
    use proptest::prelude::*;

    #[test]
    fn the_port_right_above_is_the_other_end_of_a_link() {
        let wide = |lanes| Link::new(Some(lanes), Some(16_000));
        let port = |lanes| Bridge { address: String::new(), link: None, link_max: wide(lanes) };
        let bridges = vec![port(4), port(4), port(16)];
        let (now, most) = (wide(8), wide(16));
        let pci = PciDevice { link: now, link_max: most, bridges, ..PciDevice::default() };
        let found = link("GPU", &pci, false).unwrap();
        assert_eq!(
            (found.state, found.seen.as_str()),
            (State::Warning, "GPU at : x8 of x16 at 16 GT/s")
        );
        let slow = PciDevice { bridges: vec![port(16), port(8)], ..pci };
        assert_eq!(link("GPU", &slow, false).unwrap().state, State::Ok);
    }

    fn registers(chain: &[(usize, u16, u16)]) -> Vec<u8> {
        let mut bytes = vec![0; CONFIG_LEN];
        for &(at, id, next) in chain {
            bytes[at..at + 2].copy_from_slice(&id.to_le_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&(next << 4 | 1).to_le_bytes());
        }
        bytes
    }

    #[test]
    fn the_register_is_found_along_the_chain() {
        let mut bytes = registers(&[(0x100, 1, 0x148), (0x148, 0x0d, 0)]);
        bytes[0x14e..0x150].copy_from_slice(&0x1d_u16.to_le_bytes());
        assert_eq!(control(&bytes), Ok(Some(0x1d)));
        assert_eq!(control(&registers(&[(0x100, 1, 0)])), Ok(None));
        assert_eq!(control(&bytes[..256]), Ok(None));
        assert!(control(&bytes[..64]).is_err(), "without root");
        let circle = registers(&[(0x100, 1, 0x148), (0x148, 2, 0x100)]);
        assert_eq!(control(&circle), Ok(None));
    }

    proptest! {
        #[test]
        fn no_registers_are_too_strange(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            chain in proptest::collection::vec((0x40_usize..0x3ff, 0_u16..16, 0_u16..0xfff), 0..40),
        ) {
            let _ = control(&bytes);
            let chain: Vec<_> = chain.iter().map(|(at, id, next)| (at * 4, *id, *next)).collect();
            let _ = control(&registers(&chain));
        }
    }
}

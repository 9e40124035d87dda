//! The GPUs of a machine, as `/sys` shows them: no driver is asked, none need be loaded.

use super::pci::{self, PciDevice};
use super::system::{Folder, System};

/// Makers whose display controllers count as GPUs.
const VENDORS: [u16; 1] = [0x10de];

/// A GPU on PCI.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// Where it hangs.
    pub pci: PciDevice,
    /// Bytes of its memory that others can reach over PCI at once: its second memory range.
    pub bar1_size: Option<u64>,
}

/// The GPUs of a system, in the order of their addresses.
#[must_use]
pub fn gpus(system: &System) -> Vec<Gpu> {
    let Ok(names) = system.list("sys/bus/pci/devices".as_ref()) else { return Vec::new() };
    let gpus = names.iter().filter(|name| pci::is_address(name)).filter_map(|name| {
        let folder = system.folder(format!("sys/bus/pci/devices/{name}")).ok()?;
        // The cheapest question first: there are thousands of other functions on some machines.
        if pci::hex(&folder, "class")? >> 16 != 3 {
            return None;
        }
        let pci =
            pci::read(&folder).filter(|pci| pci.vendor.is_some_and(|v| VENDORS.contains(&v)))?;
        Some(Gpu { pci, bar1_size: bar1(&folder) })
    });
    gpus.collect()
}

/// The GPU at this PCI address, whoever made it.
#[must_use]
pub fn gpu_at(system: &System, address: &str) -> Option<Gpu> {
    let pci = pci::at_address(system, &address.to_ascii_lowercase())?;
    let folder = system.folder(format!("sys/bus/pci/devices/{}", pci.address)).ok()?;
    Some(Gpu { pci, bar1_size: bar1(&folder) })
}

/// The size of the second memory range. A range of 64 bits takes two of the six lines, so this is
/// the second line or the third.
fn bar1(folder: &Folder) -> Option<u64> {
    let lines = folder.lines("resource");
    let mut ranges = lines.iter().take(6).filter_map(|line| {
        let mut numbers = line
            .split_whitespace()
            .map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let (start, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
        // Bit 9 marks memory (`IORESOURCE_MEM` in `linux/ioport.h`).
        (flags & 0x200 != 0 && end > start).then(|| (end - start).saturating_add(1))
    });
    ranges.nth(1)
}

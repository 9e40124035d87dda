//! Lists the GPUs of a machine from `/sys`; needs no driver.

use serde::Serialize;

use super::pci::{self, PciDevice};
use super::system::{Folder, System};

/// PCI vendors whose display controllers count as GPUs.
const VENDORS: [u16; 1] = [0x10de];

/// A GPU on PCI.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its place in the order of addresses, from 0; 0 if it was looked up by address.
    pub index: usize,
    /// The driver's name for it.
    pub name: Option<String>,
    /// Size of its second memory range (BAR1) in bytes: the window through which other devices
    /// access its memory.
    pub bar1_size: Option<u64>,
    /// Its PCI device. `link` is its current state: most likely idle.
    pub pci: PciDevice,
}

/// Lists the GPUs of a system in the order of their addresses.
pub fn gpus(system: &System) -> Vec<Gpu> {
    let Ok(names) = system.list("sys/bus/pci/devices") else { return Vec::new() };
    let gpus = names.iter().filter(|name| pci::is_address(name)).filter_map(|name| {
        let folder = system.folder(format!("sys/bus/pci/devices/{name}")).ok()?;
        // The cheapest check is first: some machines have thousands of PCI functions.
        if pci::hex(&folder, "class")? >> 16 != 3 {
            return None;
        }
        let gpu = read(&folder)?;
        gpu.pci.vendor.is_some_and(|vendor| VENDORS.contains(&vendor)).then_some(gpu)
    });
    gpus.enumerate().map(|(index, gpu)| Gpu { index, ..gpu }).collect()
}

/// The PCI device at this address, described as a GPU whatever its vendor.
pub fn gpu_at(system: &System, address: &str) -> Option<Gpu> {
    let address = address.to_ascii_lowercase();
    let path = pci::is_address(&address).then(|| format!("sys/bus/pci/devices/{address}"))?;
    read(&system.folder(path).ok()?)
}

fn read(folder: &Folder) -> Option<Gpu> {
    let pci = pci::read(folder)?;
    let file = format!("proc/driver/nvidia/gpus/{}/information", pci.address);
    let name = folder.system().line_of(&file, "Model:").filter(|name| !name.is_empty());
    Some(Gpu { index: 0, name, bar1_size: bar1(folder), pci })
}

/// The size of the second memory range. A 64-bit range fills two of the six lines, so this is the
/// second or the third line.
fn bar1(folder: &Folder) -> Option<u64> {
    let table = folder.table("resource");
    let mut ranges = table.lines().take(6).filter_map(|line| {
        let mut numbers = line
            .split_whitespace()
            .map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let (start, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
        // Bit 9 marks a memory range (`IORESOURCE_MEM` in `linux/ioport.h`).
        (flags & 0x200 != 0 && end > start).then(|| (end - start).saturating_add(1))
    });
    ranges.nth(1)
}

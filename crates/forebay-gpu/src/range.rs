//! Checks that a caller's address range is memory of one GPU, and if not, says what it is.

use std::fmt;
use std::fs;

use super::{AddressKind, Device, DeviceId};

/// Why a range is not memory of the GPU, with a message for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotDeviceMemory {
    /// The range is empty or wraps around the address space.
    NoRange,
    /// This address in the range is not GPU memory.
    Kind {
        /// The address.
        address: u64,
        /// The kind of memory there.
        kind: AddressKind,
    },
    /// The range ends after the allocation that it starts in.
    Beyond {
        /// First address of the allocation.
        base: u64,
        /// Its bytes.
        len: u64,
        /// Bytes of the range behind it.
        over: u64,
    },
    /// From this address on the range is in another allocation, which is not part of the same
    /// virtual memory.
    Other {
        /// The address.
        address: u64,
    },
    /// From this address on the range is on a different GPU.
    Elsewhere {
        /// The address.
        address: u64,
        /// The GPU.
        device: DeviceId,
    },
    /// The GPU has no read and write access to this mapping.
    NoAccess {
        /// First address of the mapping.
        base: u64,
        /// Its bytes.
        len: u64,
        /// The GPU that it is on.
        device: DeviceId,
    },
}

/// Limit of mappings that are followed in one range: at the usual 2 MiB they cover 8 TiB. It
/// bounds the loop if a driver reports shorter and shorter mappings.
const MAPPINGS_MAX: u32 = 1 << 22;

/// Finds the end of each allocation or mapping in the range and checks the one that follows it.
/// `first` is what `device` says of `address`.
///
/// # Errors
/// Why the range is not memory of `device`.
pub fn check_range(
    device: &dyn Device,
    first: AddressKind,
    address: u64,
    len: u64,
) -> Result<(), NotDeviceMemory> {
    let end = address.checked_add(len).filter(|&end| end > address);
    let end = end.ok_or(NotDeviceMemory::NoRange)?;
    let (mut at, mut mappings) = (address, 0);
    while at < end {
        let kind = if at == address { first } else { device.address_kind(at) };
        mappings += 1;
        if let Some(other) = kind.device().filter(|&other| other != device.id()) {
            return Err(NotDeviceMemory::Elsewhere { address: at, device: other });
        }
        // An allocation that starts after the address, or whose end overflows, is a wrong answer.
        let is_nonsense = |(base, len): (u64, u64)| base > at || base.checked_add(len).is_none();
        if kind.bounds().is_some_and(is_nonsense) || mappings > MAPPINGS_MAX {
            return Err(NotDeviceMemory::Kind { address: at, kind });
        }
        let next = match kind {
            // A neighbouring allocation belongs to someone else, even if it starts exactly at the
            // end.
            AddressKind::Device { base, len, .. } | AddressKind::Managed { base, len, .. } => {
                let behind = base.saturating_add(len);
                if at > address {
                    return Err(NotDeviceMemory::Other { address: at });
                }
                if behind < end {
                    return Err(NotDeviceMemory::Beyond { base, len, over: end - behind });
                }
                behind
            }
            AddressKind::Mapping { base, len, accessible: true, .. } => base.saturating_add(len),
            AddressKind::Mapping { base, len, device, .. } => {
                return Err(NotDeviceMemory::NoAccess { base, len, device });
            }
            kind => return Err(NotDeviceMemory::Kind { address: at, kind }),
        };
        // Stop if a driver contradicts itself; otherwise this loop would never end.
        if next <= at {
            return Err(NotDeviceMemory::Kind { address: at, kind });
        }
        at = next;
    }
    Ok(())
}

impl fmt::Display for NotDeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRange => {
                f.write_str("the length is zero, or the range exceeds the address space")
            }
            Self::Kind { address, kind } => write!(f, "{address:#x} is {}", words(*address, *kind)),
            Self::Beyond { base, len, over } => {
                write!(f, "the allocation {base:#x}+{len} ends {over} bytes before the range does")
            }
            Self::Other { address } => {
                write!(
                    f,
                    "the mapping ends at {address:#x}, and the memory there is another allocation"
                )
            }
            Self::Elsewhere { address, device } => {
                write!(f, "the memory from {address:#x} on belongs to {device}")
            }
            Self::NoAccess { base, len, device } => {
                write!(f, "{device} has no read and write access to the mapping {base:#x}+{len}")
            }
        }
    }
}

fn words(address: u64, kind: AddressKind) -> &'static str {
    match kind {
        AddressKind::PinnedHost => "pinned host memory",
        AddressKind::Reserved => "reserved virtual memory with nothing mapped to it",
        AddressKind::Unknown if is_host_memory(address) => "ordinary host memory",
        AddressKind::Unknown => "unknown memory: it was freed, or never allocated",
        AddressKind::Managed { .. } => "managed memory whose bounds the driver does not report",
        AddressKind::Device { .. } | AddressKind::Mapping { .. } => {
            "GPU memory whose bounds the driver does not report"
        }
    }
}

/// Whether this process can read or write the address. Ranges that drivers reserve are not
/// accessible.
fn is_host_memory(address: u64) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines()
        .any(|line| usable_range(line).is_some_and(|(from, to)| from <= address && address < to))
}

/// The range of a line of `/proc/PID/maps` (`START-END PERMISSIONS …`) if it is readable or
/// writable.
fn usable_range(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    words.next().filter(|allowed| allowed.starts_with('r') || allowed[1..].starts_with('w'))?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_map_are_read() {
        let line = "7f00-7fff rw-p 00000000 00:00 0 [heap]";
        assert_eq!(usable_range(line), Some((0x7f00, 0x7fff)));
        assert_eq!(usable_range("10-20 -w-s 0 00:00 0"), Some((0x10, 0x20)));
        assert_eq!(usable_range("10-20 ---p 0 00:00 0"), None);
        assert_eq!(usable_range("nonsense"), None);
        assert_eq!(usable_range(""), None);
    }

    #[test]
    fn the_kernel_knows_this_process_memory() {
        let bytes = [0_u8; 16];
        assert!(is_host_memory(bytes.as_ptr().addr() as u64));
        assert!(!is_host_memory(8));
    }
}

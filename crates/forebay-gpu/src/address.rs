//! Kinds of memory that an address can refer to, as a GPU's driver reports them.

use super::DeviceId;

/// The kind of memory at an address, as the driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    /// GPU memory: the allocation that holds the address.
    Device {
        /// The GPU.
        device: DeviceId,
        /// First address of the allocation.
        base: u64,
        /// Its bytes.
        len: u64,
    },
    /// GPU memory mapped into reserved virtual memory; further mappings may follow it directly.
    Mapping {
        /// The GPU.
        device: DeviceId,
        /// First address of the mapping.
        base: u64,
        /// Its bytes.
        len: u64,
        /// Whether the GPU itself may read and write it at this address.
        accessible: bool,
    },
    /// Managed memory, which moves between host and GPU.
    Managed {
        /// The GPU that owns it.
        device: DeviceId,
        /// First address of the allocation.
        base: u64,
        /// Its bytes.
        len: u64,
    },
    /// Reserved virtual memory with nothing mapped at this address.
    Reserved,
    /// Host memory that the driver has pinned.
    PinnedHost,
    /// Memory unknown to the driver: ordinary host memory, or an unmapped address.
    Unknown,
}

impl AddressKind {
    /// The GPU that owns the memory, if any.
    #[must_use]
    pub const fn device(self) -> Option<DeviceId> {
        match self {
            Self::Device { device, .. }
            | Self::Mapping { device, .. }
            | Self::Managed { device, .. } => Some(device),
            Self::Reserved | Self::PinnedHost | Self::Unknown => None,
        }
    }

    /// First address and length in bytes of the allocation or mapping, if there is one.
    #[must_use]
    pub const fn bounds(self) -> Option<(u64, u64)> {
        match self {
            Self::Device { base, len, .. }
            | Self::Mapping { base, len, .. }
            | Self::Managed { base, len, .. } => Some((base, len)),
            Self::Reserved | Self::PinnedHost | Self::Unknown => None,
        }
    }
}

//! What an address is, as a GPU's driver knows it.

use super::DeviceId;

/// What an address is, as the driver knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressKind {
    /// Memory of a GPU: the allocation that holds the address.
    Device {
        /// The GPU.
        device: DeviceId,
        /// First address of the allocation.
        base: u64,
        /// Its bytes.
        len: u64,
    },
    /// Memory of a GPU that is mapped to a range of virtual memory: others may lie beside it.
    Mapping {
        /// The GPU.
        device: DeviceId,
        /// First address of the mapping.
        base: u64,
        /// Its bytes.
        len: u64,
        /// Whether the GPU itself may read and write it here.
        accessible: bool,
    },
    /// Managed memory, which moves between host and GPU.
    Managed {
        /// The GPU that it belongs to.
        device: DeviceId,
        /// First address of the allocation.
        base: u64,
        /// Its bytes.
        len: u64,
    },
    /// Virtual memory that is reserved, with nothing mapped to it here.
    Reserved,
    /// Host memory that the driver has pinned.
    PinnedHost,
    /// Memory that the driver does not know: ordinary host memory, or nothing at all.
    Unknown,
}

impl AddressKind {
    /// The GPU that the memory belongs to, where it belongs to one.
    #[must_use]
    pub const fn device(self) -> Option<DeviceId> {
        match self {
            Self::Device { device, .. }
            | Self::Mapping { device, .. }
            | Self::Managed { device, .. } => Some(device),
            Self::Reserved | Self::PinnedHost | Self::Unknown => None,
        }
    }

    /// First address and bytes of the allocation or mapping, where there is one.
    pub(crate) const fn bounds(self) -> Option<(u64, u64)> {
        match self {
            Self::Device { base, len, .. }
            | Self::Mapping { base, len, .. }
            | Self::Managed { base, len, .. } => Some((base, len)),
            Self::Reserved | Self::PinnedHost | Self::Unknown => None,
        }
    }
}

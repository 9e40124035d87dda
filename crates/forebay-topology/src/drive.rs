//! The drives at the bottom of a map, and the paths to them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::pci::PciDevice;

/// Unique identity of a drive, stable across restarts for drives with a serial number or a
/// worldwide name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DriveId(pub String);

impl DriveId {
    /// The identity as text: `nvme:NQN/NSID`, `wwid:…`, `serial:…`, `device:MAJOR:MINOR`,
    /// `mount:…`, `memory`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A physical device, or its counterpart for other storage: a file server, the host's memory.
/// In JSON, a missing key means that the fact is unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Drive {
    /// Its unique identity.
    pub id: DriveId,
    /// The device whose bandwidth it uses. Two namespaces of a local NVMe controller are two
    /// drives on the same hardware. Equal to `id` for most drives.
    pub hardware: DriveId,
    /// Its kind.
    pub kind: DriveKind,
    /// The kernel's name, such as `nvme1n1`, or the source of a network mount.
    pub name: String,
    /// Its device number, if it is a block device.
    #[serde(skip)]
    pub device: Option<u64>,
    /// Its model name.
    pub model: Option<String>,
    /// Its firmware version.
    pub firmware: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// Its capacity in bytes.
    pub size: Option<u64>,
    /// Its logical block size in bytes, the smallest unit that it reads or writes.
    pub logical_block_size: Option<u32>,
    /// Whether the kernel treats it as a spinning disk.
    pub rotational: Option<bool>,
    /// The paths to it: several with multipath, else a single path.
    pub paths: Vec<DrivePath>,
}

impl Drive {
    pub(super) fn new(id: DriveId, kind: DriveKind, name: impl Into<String>) -> Self {
        Self { hardware: id.clone(), id, kind, name: name.into(), ..Self::default() }
    }

    /// The path in use: the first live path, or the first if none is live.
    pub fn path(&self) -> Option<&DrivePath> {
        self.paths.iter().find(|path| path.live).or(self.paths.first())
    }

    /// How its bytes reach the host.
    pub fn transport(&self) -> &Transport {
        static UNKNOWN: Transport = Transport::Unknown;
        self.path().map_or(&UNKNOWN, |path| &path.transport)
    }

    /// The PCI device that moves its bytes.
    pub fn pci(&self) -> Option<&PciDevice> {
        self.path()?.pci.as_ref()
    }
}

/// The kind of a [`Drive`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DriveKind {
    /// A block device with no other block device below it.
    Block,
    /// A file server or cluster, as seen by a mount.
    Network,
    /// The host's memory.
    Memory,
    /// Storage that could not be examined.
    #[default]
    Unknown,
}

/// A path to a drive.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DrivePath {
    /// The controller, such as `nvme3`, or the disk itself.
    pub name: String,
    /// The transport that it uses.
    pub transport: Transport,
    /// Whether it can be used now, according to the kernel.
    pub live: bool,
    /// The negotiated rate of a SATA or SAS link, in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits_per_second: Option<u64>,
    /// Its state as the kernel reports it, such as `live` or `live, optimized`.
    pub state: Option<String>,
    /// The PCI device at the host end.
    pub pci: Option<PciDevice>,
    /// The NUMA node that it is attached to.
    pub numa_node: Option<u32>,
}

impl DrivePath {
    /// A path without a controller.
    pub(super) fn plain(name: &str, transport: Transport) -> Self {
        Self { name: name.to_owned(), transport, live: true, ..Self::default() }
    }
}

/// The transport between a drive and the host. In JSON it is its text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(into = "String", from = "String")]
#[non_exhaustive]
pub enum Transport {
    /// NVMe on the host's own PCI.
    Pcie,
    /// NVMe on PCI, emulated by a network card, a DPU or a cloud.
    Emulated {
        /// The emulator.
        by: String,
        /// The evidence for it.
        signs: Vec<String>,
        /// Whether the drive identifies itself as emulated; otherwise it is only likely.
        certain: bool,
    },
    /// NVMe over a network.
    Fabric {
        /// `tcp`, `rdma`, `fc` or `loop`.
        kind: String,
        /// The address as the kernel reports it.
        address: String,
    },
    /// A SCSI disk; holds the kind of link, such as `sata`, `sas` or `iscsi`.
    Scsi(String),
    /// A virtio disk of a virtual machine.
    Virtio,
    /// A file system of a remote machine; holds its type.
    Network(String),
    /// The host's memory.
    Memory,
    /// Any other driver; holds its name.
    Other(String),
    /// Unknown.
    #[default]
    Unknown,
}

impl From<Transport> for String {
    fn from(transport: Transport) -> Self {
        transport.to_string()
    }
}

impl From<String> for Transport {
    fn from(text: String) -> Self {
        let known = [Self::Pcie, Self::Virtio, Self::Memory, Self::Unknown];
        known.into_iter().find(|one| one.to_string() == text).unwrap_or(Self::Other(text))
    }
}

impl Transport {
    /// Whether the bytes are known to come over a network.
    pub fn is_network(&self) -> bool {
        match self {
            Self::Fabric { kind, .. } => kind != "loop",
            Self::Scsi(link) => matches!(link.as_str(), "iscsi" | "fc"),
            Self::Network(_) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pcie => f.write_str("pcie"),
            Self::Emulated { by, certain: true, .. } => write!(f, "emulated by {by}"),
            Self::Emulated { by, .. } => write!(f, "likely emulated by {by}"),
            Self::Fabric { kind, address } => write!(f, "nvme over {kind}, {address}"),
            Self::Scsi(link) => f.write_str(link),
            Self::Virtio => f.write_str("virtio"),
            Self::Network(kind) => f.write_str(kind),
            Self::Memory => f.write_str("memory"),
            Self::Other(driver) => f.write_str(driver),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

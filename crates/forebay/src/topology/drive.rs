//! The drives at the bottom of a map, and the ways to them.

use std::fmt;

use super::pci::PciDevice;

/// What tells one drive from every other, the same after a restart where the drive has a serial
/// number or a worldwide name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DriveId(pub(super) String);

impl DriveId {
    /// As text: `nvme:NQN/NSID`, `wwid:…`, `serial:…`, `device:MAJOR:MINOR`, `mount:…`, `memory`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DriveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A physical device, or what stands for one: a file server, the host's memory.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Drive {
    /// What tells it from every other.
    pub id: DriveId,
    /// The device whose bandwidth it uses: two namespaces of one local NVMe controller are two
    /// drives to the kernel, and one piece of hardware. Equal to `id` for most.
    pub hardware: DriveId,
    /// What kind.
    pub kind: DriveKind,
    /// The kernel's name, such as `nvme1n1`, or the source of a network mount.
    pub name: String,
    /// Its device number, where it is a block device.
    pub device: Option<u64>,
    /// What its maker calls it.
    pub model: Option<String>,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// Bytes that it holds.
    pub size: Option<u64>,
    /// The smallest piece that it reads or writes, in bytes.
    pub logical_block_size: Option<u32>,
    /// Whether the kernel takes it for a spinning disk.
    pub rotational: Option<bool>,
    /// The ways to it: one for most, several with multipath.
    pub paths: Vec<DrivePath>,
}

impl Drive {
    pub(super) fn new(id: DriveId, kind: DriveKind, name: impl Into<String>) -> Self {
        Self {
            hardware: id.clone(),
            id,
            kind,
            name: name.into(),
            device: None,
            model: None,
            firmware: None,
            serial: None,
            size: None,
            logical_block_size: None,
            rotational: None,
            paths: Vec::new(),
        }
    }

    /// The path that serves it: the first live one, else the first.
    #[must_use]
    pub fn path(&self) -> Option<&DrivePath> {
        self.paths.iter().find(|path| path.live).or(self.paths.first())
    }

    /// How its bytes reach the host.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        static UNKNOWN: Transport = Transport::Unknown;
        self.path().map_or(&UNKNOWN, |path| &path.transport)
    }

    /// The PCI device that moves its bytes.
    #[must_use]
    pub fn pci(&self) -> Option<&PciDevice> {
        self.path()?.pci.as_ref()
    }

    /// The NUMA node of the path that serves it.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        self.path()?.numa_node
    }
}

/// What kind of thing a [`Drive`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DriveKind {
    /// A block device that stands on no other.
    Block,
    /// A file server or cluster, as one mount sees it.
    Network,
    /// The host's memory.
    Memory,
    /// Something that could not be looked into.
    Unknown,
}

impl DriveKind {
    /// Its name, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Unknown => "unknown",
        }
    }
}

/// One way to a drive.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DrivePath {
    /// The controller, such as `nvme3`, or the disk itself.
    pub name: String,
    /// How bytes travel on it.
    pub transport: Transport,
    /// Whether it can be used now, as far as the kernel says.
    pub live: bool,
    /// The kernel's words for its state, such as `live` or `live, optimized`.
    pub state: Option<String>,
    /// The PCI device at its end of the host.
    pub pci: Option<PciDevice>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
}

/// How bytes travel between a drive and the host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// NVMe on the host's own PCI.
    Pcie,
    /// NVMe on PCI that a network card or DPU plays.
    Emulated {
        /// Who plays it.
        by: String,
        /// What says so.
        signs: Vec<String>,
        /// Whether the drive itself says so; else it is likely only.
        certain: bool,
    },
    /// NVMe over a network.
    Fabric {
        /// `tcp`, `rdma`, `fc` or `loop`.
        kind: String,
        /// The address as the kernel tells it.
        address: String,
    },
    /// A disk of the SCSI layer; holds the kind of link, such as `sata`, `sas` or `iscsi`.
    Scsi(String),
    /// A disk of a virtual machine.
    Virtio,
    /// A mounted file system of another machine; holds its type.
    Network(String),
    /// The host's memory.
    Memory,
    /// Another driver; holds its name.
    Other(String),
    /// Not known.
    Unknown,
}

impl Transport {
    /// Whether the bytes come over a network, as far as is known.
    #[must_use]
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

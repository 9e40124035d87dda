//! What a resolver answers: the steps from a path down to its drives, the drives, and the queue
//! that serves the file.
//!
//! Plain data without any reading in it. A fact that could not be told is a
//! [`Value::Unknown`] with the reason, never a guess; text from the system has no control
//! characters in it, whatever the system holds.

use std::fmt;
use std::path::PathBuf;

use super::drive::{Drive, DriveId};
use super::placement::Spread;
use super::resolve::Span;

/// All that is under one path.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StorageMap {
    /// The path as it was asked for.
    pub path: PathBuf,
    /// The path without symbolic links; of a path to be created, where it would be.
    pub real_path: PathBuf,
    /// Whether there is something at the path, as far as the caller may see.
    pub exists: bool,
    /// The steps, from the path down.
    pub root: Layer,
    /// The drives at the bottom, each once, in the order in which they are met.
    pub drives: Vec<Drive>,
    /// Which queue serves the file.
    pub queue: Queue,
}

impl StorageMap {
    /// The drive with this identity.
    #[must_use]
    pub fn drive(&self, id: &DriveId) -> Option<&Drive> {
        self.drives.iter().find(|drive| drive.id == *id)
    }
}

/// One step on the way from a path to its drives.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Layer {
    /// What kind of step.
    pub kind: LayerKind,
    /// What it is called, such as `/mnt/data`, `ext4`, `md0` or `0000:41:00.0`.
    pub name: String,
    /// What is known about it, and what could not be told.
    pub facts: Vec<Fact>,
    /// What it stands on.
    pub children: Vec<Layer>,
    /// How it passes addresses on.
    pub(super) spread: Spread,
    /// The drives below it, where it is a block device.
    pub(super) span: Option<Span>,
}

impl Layer {
    pub(super) fn new(kind: LayerKind, name: impl Into<String>) -> Self {
        let (facts, children, spread) = (Vec::new(), Vec::new(), Spread::Untold);
        Self { kind, name: name.into(), facts, children, spread, span: None }
    }

    /// The value of the fact `name`.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&Value> {
        self.facts.iter().find(|fact| fact.name == name).map(|fact| &fact.value)
    }

    /// The fact `name` where it is text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.fact(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The fact `name` where it is a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.fact(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Whether the fact `name` is a flag that is set.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.fact(name), Some(Value::Flag(true)))
    }

    /// This step and all below it, each with its depth, from the top.
    pub fn walk(&self) -> impl Iterator<Item = (usize, &Layer)> {
        let mut rest = vec![(0, self)];
        std::iter::from_fn(move || {
            let (depth, layer) = rest.pop()?;
            rest.extend(layer.children.iter().rev().map(|child| (depth + 1, child)));
            Some((depth, layer))
        })
    }

    pub(super) fn say(&mut self, name: &'static str, value: impl Into<Value>) {
        self.facts.push(Fact { name, value: value.into() });
    }

    /// Says what is known, and nothing where nothing is.
    pub(super) fn say_if(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.say(name, value);
        }
    }

    /// Says that something could not be told.
    pub(super) fn unknown(&mut self, name: &'static str, reason: impl fmt::Display) {
        self.say(name, Value::Unknown(reason.to_string()));
    }
}

/// What kind of step a [`Layer`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LayerKind {
    /// The path that was asked for.
    Path,
    /// A symbolic link on the way.
    Symlink,
    /// A mount, told by its id.
    Mount,
    /// A file system.
    FileSystem,
    /// A partition of a drive or volume.
    Partition,
    /// An array of the kernel's `md`.
    Md,
    /// A volume of the device mapper.
    DeviceMapper,
    /// A loop device.
    Loop,
    /// The file behind a loop device, or the one that an overlay shows.
    BackingFile,
    /// Another block device that stands on block devices.
    Stacked,
    /// An NVMe namespace; with native multipath, its head.
    NvmeNamespace,
    /// One path to an NVMe namespace: its controller.
    NvmeController,
    /// A disk of the SCSI layer: SCSI, SAS, SATA, USB, Fibre Channel, iSCSI.
    ScsiDisk,
    /// A disk of a virtual machine.
    VirtioDisk,
    /// Another whole block device.
    Disk,
    /// A PCI device.
    PciDevice,
    /// A file server or cluster.
    Network,
    /// The host's memory.
    Memory,
    /// What could not be told.
    Unknown,
}

impl LayerKind {
    /// Its name, in lower case with underscores.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Symlink => "symlink",
            Self::Mount => "mount",
            Self::FileSystem => "file_system",
            Self::Partition => "partition",
            Self::Md => "md",
            Self::DeviceMapper => "device_mapper",
            Self::Loop => "loop",
            Self::BackingFile => "backing_file",
            Self::Stacked => "stacked",
            Self::NvmeNamespace => "nvme_namespace",
            Self::NvmeController => "nvme_controller",
            Self::ScsiDisk => "scsi_disk",
            Self::VirtioDisk => "virtio_disk",
            Self::Disk => "disk",
            Self::PciDevice => "pci_device",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Unknown => "unknown",
        }
    }
}

/// Something known about a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fact {
    /// What, in lower case with underscores; a unit ends the name.
    pub name: &'static str,
    /// The answer.
    pub value: Value,
}

/// The answer to a question about a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Text.
    Text(String),
    /// A count, or a size in the unit that ends the fact's name.
    Number(u64),
    /// Yes or no.
    Flag(bool),
    /// Several texts.
    List(Vec<String>),
    /// It could not be told; holds the reason.
    Unknown(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => f.write_str(if *flag { "yes" } else { "no" }),
            Self::List(list) => f.write_str(&list.join(", ")),
            Self::Unknown(reason) => write!(f, "unknown: {reason}"),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Vec<String>> for Value {
    fn from(list: Vec<String>) -> Self {
        Self::List(list)
    }
}

/// Which queue serves a file, and what stands behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queue {
    /// What tells it from every other queue.
    pub id: QueueId,
    /// The drives that it feeds.
    pub members: Vec<DriveId>,
    /// The hardware behind these; queues that have some in common share its bandwidth.
    pub hardware: Vec<DriveId>,
    /// How bytes are spread over the members.
    pub layout: Layout,
}

/// What tells a queue from every other: files with equal ids belong into one queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub(super) String);

impl QueueId {
    /// As text: that of the drive's identity, or `volume:…`, `unknown:…`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a volume spreads its bytes over its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// There is one drive.
    Single,
    /// In turn over all members.
    Striped,
    /// The same bytes on every member.
    Mirrored,
    /// In turn over sets of mirrors.
    StripedMirrors,
    /// In turn over all members, parity among them.
    Parity,
    /// One member after the other.
    Concatenated,
    /// Not known.
    Unknown,
}

impl Layout {
    /// Its name, in lower case with underscores.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Striped => "striped",
            Self::Mirrored => "mirrored",
            Self::StripedMirrors => "striped_mirrors",
            Self::Parity => "parity",
            Self::Concatenated => "concatenated",
            Self::Unknown => "unknown",
        }
    }
}

//! The result of a resolver: the steps from a path down to its drives, the drives, and the queue
//! that serves the file.
//!
//! Plain data without I/O. An unknown fact is a [`Value::Unknown`] with the reason, never a guess.
//! Text from the system is stripped of control characters.

use std::fmt;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::drive::{Drive, DriveId};
use super::system::Absent;
use super::volume::{Fan, Layout, Span, Spread};

/// The storage under a path.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StorageMap {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// The path without symbolic links; for a missing file, the path that it would have.
    pub real_path: PathBuf,
    /// Whether the path exists, as far as the caller may see.
    pub exists: bool,
    /// The steps, from the path down.
    pub root: Layer,
    /// The drives at the bottom, without duplicates, in the order of the walk.
    pub drives: Vec<Drive>,
    /// The queue that serves the file.
    pub queue: Queue,
}

/// A step between a path and its drives.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Layer {
    /// Its kind.
    pub kind: LayerKind,
    /// Its name, such as `/mnt/data`, `ext4`, `md0` or `0000:41:00.0`.
    pub name: String,
    /// The facts about it, including those that are unknown.
    #[serde(serialize_with = "by_name")]
    pub facts: Vec<Fact>,
    /// The steps below it.
    pub children: Vec<Layer>,
    /// How it maps addresses to its children.
    #[serde(skip)]
    pub(super) spread: Spread,
    /// The bytes that its children move for its own.
    #[serde(skip)]
    pub(super) fan: Fan,
    /// The drives below it, if it is a block device.
    #[serde(skip)]
    pub(super) span: Option<Span>,
}

fn by_name<S: Serializer>(facts: &[Fact], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(facts.iter().map(|fact| (fact.name, &fact.value)))
}

impl Layer {
    /// A step without facts.
    pub fn new(kind: LayerKind, name: impl Into<String>) -> Self {
        let (facts, children) = (Vec::new(), Vec::new());
        let (spread, fan) = (Spread::Untold, Fan::default());
        Self { kind, name: name.into(), facts, children, spread, fan, span: None }
    }

    /// The value of the fact `name`.
    pub fn fact(&self, name: &str) -> Option<&Value> {
        self.facts.iter().find(|fact| fact.name == name).map(|fact| &fact.value)
    }

    /// The fact `name`, if it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.fact(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The fact `name`, if it is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.fact(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Whether the fact `name` is a flag that is set.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.fact(name), Some(Value::Flag(true)))
    }

    /// Iterates over this step and all steps below it, from the top, with their depths.
    pub fn walk(&self) -> impl Iterator<Item = (usize, &Layer)> {
        let mut rest = vec![(0, self)];
        std::iter::from_fn(move || {
            let (depth, layer) = rest.pop()?;
            rest.extend(layer.children.iter().rev().map(|child| (depth + 1, child)));
            Some((depth, layer))
        })
    }

    /// Adds a fact.
    pub fn say(&mut self, name: &'static str, value: impl Into<Value>) {
        self.facts.push(Fact { name, value: value.into() });
    }

    /// Adds a fact if its value is known.
    pub(super) fn say_if(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.say(name, value);
        }
    }

    /// Adds a list, unless it is empty.
    pub(super) fn say_all(&mut self, name: &'static str, values: Vec<String>) {
        self.say_if(name, Some(values).filter(|values| !values.is_empty()));
    }

    /// Adds a step that could not be examined, with the reason why `fact` is unknown. It is on no
    /// known drive.
    pub(super) fn unexamined(
        &mut self,
        name: impl Into<String>,
        fact: &'static str,
        reason: impl fmt::Display,
    ) -> Span {
        let mut layer = Self::new(LayerKind::Unknown, name);
        layer.unknown(fact, reason);
        self.children.push(layer);
        Span::default()
    }

    /// Adds a fact as unknown, with the reason.
    pub(super) fn unknown(&mut self, name: &'static str, reason: impl fmt::Display) {
        self.say(name, Value::Unknown(reason.to_string()));
    }
}

/// The kind of a [`Layer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LayerKind {
    /// The requested path.
    Path,
    /// A symbolic link in the path.
    Symlink,
    /// A mount.
    Mount,
    /// A file system.
    FileSystem,
    /// A partition of a drive or volume.
    Partition,
    /// An array of the kernel's `md` driver.
    Md,
    /// A device-mapper volume.
    DeviceMapper,
    /// A loop device.
    Loop,
    /// The file behind a loop device, or the underlying file of an overlay.
    BackingFile,
    /// Any other block device on top of block devices.
    Stacked,
    /// An NVMe namespace; with native multipath, its head.
    NvmeNamespace,
    /// A controller: a path to an NVMe namespace.
    NvmeController,
    /// A SCSI disk: SCSI, SAS, SATA, USB, Fibre Channel, iSCSI.
    ScsiDisk,
    /// A virtio disk of a virtual machine.
    VirtioDisk,
    /// Any other whole block device.
    Disk,
    /// A PCI device.
    PciDevice,
    /// A file server or cluster.
    Network,
    /// The host's memory.
    Memory,
    /// A step that could not be examined.
    Unknown,
}

impl LayerKind {
    /// Whether it is a block device.
    pub fn is_block(self) -> bool {
        matches!(
            self,
            Self::Partition
                | Self::Md
                | Self::DeviceMapper
                | Self::Loop
                | Self::Stacked
                | Self::NvmeNamespace
                | Self::ScsiDisk
                | Self::VirtioDisk
                | Self::Disk
        )
    }
}

/// A fact about a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fact {
    /// Its name, in lower case with underscores; the name ends with the unit.
    pub name: &'static str,
    /// Its value.
    pub value: Value,
}

/// The value of a fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Value {
    /// Text.
    Text(String),
    /// A count, or a size in the unit at the end of the fact's name.
    Number(u64),
    /// A Boolean.
    Flag(bool),
    /// A list of texts.
    List(Vec<String>),
    /// Unknown; holds the reason.
    #[serde(serialize_with = "unknown")]
    Unknown(String),
}

fn unknown<S: Serializer>(reason: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map([("unknown", reason)])
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

/// The text that was read, or the reason why it is missing.
impl From<Result<String, Absent>> for Value {
    fn from(answer: Result<String, Absent>) -> Self {
        answer.map_or_else(|absent| Self::Unknown(absent.to_string()), Self::Text)
    }
}

macro_rules! into_value {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

into_value!(&str => Text, String => Text, u64 => Number, u32 => Number, bool => Flag);
into_value!(Vec<String> => List);

/// The queue that serves a file, with its drives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Its unique identity.
    pub id: QueueId,
    /// The drives that it serves.
    pub members: Vec<DriveId>,
    /// The hardware of these drives; queues with common hardware share its bandwidth.
    pub hardware: Vec<DriveId>,
    /// The layout of bytes over the members.
    pub layout: Layout,
}

/// Unique identity of a queue: files with equal ids share it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct QueueId(pub(super) String);

impl QueueId {
    /// The identity as text: that of the drive, or `volume:…`, `unknown:…`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

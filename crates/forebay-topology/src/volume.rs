//! How a volume lays its bytes over the devices below it. Pure.

use std::collections::BTreeSet;

use serde::Serialize;

/// From the file to the GPU, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From drives to GPUs.
    Read,
    /// From GPUs to drives.
    Write,
}

/// The layout of a volume's bytes over its members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Layout {
    /// A single drive.
    Single,
    /// Round-robin over all members.
    Striped,
    /// The same bytes on every member.
    Mirrored,
    /// Round-robin over sets of mirrors.
    StripedMirrors,
    /// Round-robin over all members, with parity.
    Parity,
    /// The members in sequence.
    Concatenated,
    /// Unknown.
    #[default]
    Unknown,
}

impl Layout {
    /// The layout of a RAID level of md or the device mapper, or of a profile of btrfs.
    pub(super) fn of_level(level: &str) -> Self {
        match level {
            "raid0" => Self::Striped,
            "raid1" | "raid1c3" | "raid1c4" => Self::Mirrored,
            "raid10" => Self::StripedMirrors,
            "raid4" | "raid5" | "raid6" => Self::Parity,
            "linear" | "single" | "dup" => Self::Concatenated,
            _ => Self::Unknown,
        }
    }

    /// Its name, in lower case with underscores.
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

/// The drives under a step, as indices into the list of all drives, and the volume they form.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Span {
    pub(super) drives: Vec<usize>,
    pub(super) volume: Option<(String, Layout)>,
    /// Whether the volume is a separate queue, whatever is below it.
    pub(super) own: bool,
}

impl Span {
    pub(super) fn one(drive: usize) -> Self {
        Self { drives: vec![drive], volume: None, own: false }
    }

    /// Combines members: forms a volume named `key` if they span several drives.
    pub(super) fn joined(members: Vec<Self>, key: impl FnOnce() -> String, layout: Layout) -> Self {
        let all: BTreeSet<usize> = members.iter().flat_map(|span| &span.drives).copied().collect();
        let all: Vec<usize> = all.into_iter().collect();
        let own: BTreeSet<&str> = members.iter().filter_map(Self::own_key).collect();
        if own.len() > 1 {
            return Self { volume: Some((key(), layout)), drives: all, own: true };
        }
        // A volume on the same drives as a volume below it shares that queue.
        let same = members.into_iter().find(|span| span.drives.len() == all.len());
        match same {
            Some(span) if all.len() <= 1 || span.volume.is_some() => span,
            _ => {
                let volume = (all.len() > 1).then(|| (key(), layout));
                Self { volume, drives: all, own: false }
            }
        }
    }

    /// Makes this a separate queue named `key`. A loop device is a request queue with its own
    /// limit and threads, and a file system may hold several loop devices.
    pub(super) fn owned(self, key: String) -> Self {
        Self { volume: Some((key, Layout::Single)), own: true, ..self }
    }

    fn own_key(&self) -> Option<&str> {
        self.volume.as_ref().filter(|_| self.own).map(|(key, _)| key.as_str())
    }
}

/// How a device maps addresses to the devices below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Spread {
    /// Unknown, or more than a move of addresses.
    #[default]
    Untold,
    /// To the only child, shifted by this many bytes.
    Shifted(u64),
    /// A list of runs, mapped to offsets of children.
    Runs(Vec<Run>),
    /// Round-robin in pieces of this size, beginning at these offsets of these children.
    Striped { piece: u64, starts: Vec<(usize, u64)> },
}

/// A run of a volume's bytes on a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) child: usize,
    pub(super) offset: u64,
}

/// The bytes that every child of a volume moves per byte of the volume, if all children move
/// the same. `None` where any child can serve a byte alone, so that several files use several
/// children.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Fan {
    read: Option<f64>,
    write: Option<f64>,
}

impl Fan {
    /// Stripes over `count` children.
    pub(super) fn striped(count: usize) -> Self {
        Self::copied(1, count, count)
    }

    /// `copies` of each stripe over `slots`, of which `count` are present. The partner of a
    /// missing child serves the reads of both.
    pub(super) fn copied(copies: usize, slots: usize, count: usize) -> Self {
        let written = part(copies, slots);
        let read = if count < slots { written } else { part(1, slots) };
        Self { read: Some(read), write: Some(written) }
    }

    /// All bytes on every child; any child can serve a read.
    pub(super) fn mirrored() -> Self {
        Self { read: None, write: Some(1.0) }
    }

    /// Both copies of a byte on the same child of `count`.
    pub(super) fn doubled(count: usize) -> Self {
        Self { read: None, write: Some(part(2, count)) }
    }

    /// Stripes with `parity` of `slots` for checksums, of which `count` have a child. Writes are
    /// full stripes: smaller writes also read old data or parity. Reads skip parity.
    pub(super) fn with_parity(parity: usize, slots: usize, count: usize) -> Self {
        let data = slots.saturating_sub(parity);
        Self { read: Some(part(1, count)), write: Some(part(1, data)) }
    }

    /// A RAID level of the kernel or of btrfs; unknown levels have independent children.
    pub(super) fn of_level(level: &str, copies: usize, slots: usize, count: usize) -> Self {
        match level {
            "raid0" => Self::striped(count),
            "raid1" => Self::mirrored(),
            "raid10" => Self::copied(copies, slots, count),
            "raid4" | "raid5" => Self::with_parity(1, slots, count),
            "raid6" => Self::with_parity(2, slots, count),
            _ => Self::default(),
        }
    }

    pub(super) fn get(self, way: Way) -> Option<f64> {
        if way == Way::Read { self.read } else { self.write }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of drives")]
pub(super) fn part(of: usize, count: usize) -> f64 {
    of as f64 / count.max(1) as f64
}

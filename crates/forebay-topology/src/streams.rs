//! The streams of bytes below a path: the drives that a stream reaches, and its bytes on every
//! drive per byte of the stream. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::ceiling::Way;
use super::drive::DriveId;
use super::map::Layer;

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

    fn get(self, way: Way) -> Option<f64> {
        if way == Way::Read { self.read } else { self.write }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of drives")]
fn part(of: usize, count: usize) -> f64 {
    of as f64 / count.max(1) as f64
}

/// Bytes on every drive per byte of a stream.
pub type Stream = BTreeMap<DriveId, f64>;

/// The streams of the path whose steps begin with `root`; `drives` are those of its map, in order.
/// Several streams add up: files on independent drives, or reads of a mirror.
#[must_use]
pub fn streams(root: &Layer, drives: &[DriveId], way: Way) -> Vec<Stream> {
    if let Some(id) = root.text("drive") {
        return vec![Stream::from([(DriveId(id.into()), 1.0)])];
    }
    if root.children.is_empty() {
        // A device whose steps are shown elsewhere.
        let indices = root.span.iter().flat_map(|span| &span.drives);
        let known = indices.filter_map(|&index| drives.get(index));
        return known.map(|id| Stream::from([(id.clone(), 1.0)])).collect();
    }
    let data = root.children.iter().filter(|child| !is_metadata(child));
    let below = data.map(|child| streams(child, drives, way));
    let Some(part) = root.fan.get(way) else {
        // Several volumes on the same drives, or several paths to a drive, are a single stream.
        let mut seen = BTreeSet::new();
        let is_new = |stream: &Stream| seen.insert(stream.keys().cloned().collect::<Vec<_>>());
        return below.flatten().filter(is_new).collect();
    };
    let mut whole = Stream::new();
    for own in below {
        let equal = part / self::part(own.len(), 1);
        for (id, bytes) in own.into_iter().flatten() {
            *whole.entry(id).or_default() += bytes * equal;
        }
    }
    vec![whole]
}

/// Whether a volume of LVM holds only metadata of another one.
fn is_metadata(layer: &Layer) -> bool {
    let volume = layer.text("volume").unwrap_or_default();
    ["_rmeta_", "_tmeta", "_cmeta"].iter().any(|word| volume.contains(word))
}

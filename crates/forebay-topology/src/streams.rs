//! The streams of bytes below a path: the drives that a stream reaches, and its bytes on every
//! drive per byte of the stream. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::drive::DriveId;
use super::map::Layer;
use super::volume::{Way, part};

/// Bytes on every drive per byte of a stream.
pub type Stream = BTreeMap<DriveId, f64>;

/// The streams of the path whose steps begin with `root`; `drives` are those of its map, in order.
/// Several streams add up: files on independent drives, or reads of a mirror.
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
    let Some(share) = root.fan.get(way) else {
        // Several volumes on the same drives, or several paths to a drive, are a single stream.
        let mut seen = BTreeSet::new();
        let is_new = |stream: &Stream| seen.insert(stream.keys().cloned().collect::<Vec<_>>());
        return below.flatten().filter(is_new).collect();
    };
    let mut whole = Stream::new();
    for own in below {
        let equal = share / part(own.len(), 1);
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

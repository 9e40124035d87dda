//! The number of queues and connections of a run's files, as the kernel reports it. A target may
//! grant another number than requested; results that differ in it do not belong to the same run.

use std::collections::HashSet;

use forebay_topology::{LayerKind, StorageMap};

/// The number of queues of each controller, or of connections of each mount, with its name and the
/// word for one.
fn counts(map: &StorageMap) -> impl Iterator<Item = (&str, u64, &'static str)> {
    map.root.walk().filter_map(|(_, layer)| {
        let (fact, word) = match layer.kind {
            LayerKind::NvmeController => ("io_queues", "I/O queue"),
            LayerKind::Network => ("connections", "connection"),
            _ => return None,
        };
        Some((layer.name.as_str(), layer.number(fact)?, word))
    })
}

/// Each controller's I/O queues, and each mount's connections to its server, in words. A controller
/// of several paths counts once.
#[must_use]
pub fn described(maps: &[StorageMap]) -> Vec<String> {
    let mut seen = HashSet::new();
    let new = maps.iter().flat_map(counts).filter(|(name, ..)| seen.insert(*name));
    // No names: a controller that is connected again may have another one.
    new.map(|(_, count, word)| format!("{count} {word}{}", if count == 1 { "" } else { "s" }))
        .collect()
}

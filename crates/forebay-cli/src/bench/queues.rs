//! The number of queues and connections of a run's files, as the kernel reports it. A target may
//! grant another number than requested; results that differ in it do not belong to the same run.

use forebay_topology::{LayerKind, StorageMap};

/// The number of queues or connections that a path has; none if the kernel does not report it. With
/// several controllers or mounts, the number that differs most from the requested number, `asked`.
#[must_use]
pub fn found(map: &StorageMap, asked: u32) -> Option<u32> {
    let counts = map.root.walk().filter_map(|(_, layer)| match layer.kind {
        LayerKind::NvmeController => layer.number("io_queues"),
        LayerKind::Network => layer.number("connections"),
        _ => None,
    });
    let counts = counts.filter_map(|count| u32::try_from(count).ok());
    counts.max_by_key(|count| count.abs_diff(asked))
}

/// Each controller's I/O queues, and each mount's connections to its server, in words. A controller
/// of several paths counts once.
#[must_use]
pub fn described(maps: &[StorageMap]) -> Vec<String> {
    let (mut seen, mut found) = (Vec::new(), Vec::new());
    for (_, layer) in maps.iter().flat_map(|map| map.root.walk()) {
        let (fact, one, several) = match layer.kind {
            LayerKind::NvmeController => ("io_queues", "I/O queue", "I/O queues"),
            LayerKind::Network => ("connections", "connection", "connections"),
            _ => continue,
        };
        let Some(count) = layer.number(fact) else { continue };
        if seen.contains(&&layer.name) {
            continue;
        }
        seen.push(&layer.name);
        // No names: a controller that is connected again may have another one.
        found.push(format!("{count} {}", if count == 1 { one } else { several }));
    }
    found
}

//! Over how many queues and connections a sweep's files are reached, as the kernel tells it: what
//! was asked of a target and what it gave may differ, and results that differ in it are not the
//! same sweep.

use forebay::topology::{LayerKind, StorageMap};

/// How many queues, or connections, a path has where `asked` were asked for; none where the kernel
/// does not tell. Of several controllers or mounts it is the number that is furthest from it.
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

/// Each controller's queues for I/O, and each mount's connections to its server, in words; a
/// controller that carries several of the paths once.
#[must_use]
pub fn told(maps: &[StorageMap]) -> Vec<String> {
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

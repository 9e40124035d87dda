//! Converts the topology's answers to the report. It decides and omits nothing.

use std::path::{Path, PathBuf};

use forebay_topology::{Distance, Layer, Resolver, StorageMap, System, Value};

use super::ceilings;
use super::extents;
use super::json::{Failed, MapReport, Pair, PathMap, SCHEMA};

/// The maps of `paths`; `record` is the folder that is replayed.
pub(crate) fn gather(
    resolver: &Resolver,
    paths: &[PathBuf],
    record: Option<&Path>,
    wants_extents: bool,
) -> MapReport {
    let mut report = MapReport {
        schema: SCHEMA,
        replay: record.map(|dir| dir.display().to_string()),
        gpus: forebay_topology::gpus(resolver.system()),
        rdma_devices: rdma_devices(resolver.system()),
        ..MapReport::default()
    };
    for path in paths {
        let map = resolver.resolve(path);
        if let Some(reason) = refusal(&map) {
            report.failures.push(Failed { path: path.display().to_string(), reason });
            continue;
        }
        for drive in &map.drives {
            if report.drives.iter().any(|known| known.id == drive.id) {
                continue;
            }
            report.drives.push(drive.clone());
            report.distances.extend(report.gpus.iter().map(|gpu| {
                let distance = Distance::to_drive(&gpu.pci, drive);
                Pair { gpu: gpu.index, drive: drive.id.clone(), distance }
            }));
        }
        report.maps.push(path_map(resolver, &map, wants_extents));
    }
    report.ceilings = ceilings::rows(&report, resolver.system(), &[]);
    report
}

/// Why a path cannot be mapped; `None` if it can.
fn refusal(map: &StorageMap) -> Option<String> {
    match (map.exists, map.root.fact("file")) {
        (false, Some(Value::Unknown(reason))) => Some(reason.clone()),
        _ => None,
    }
}

fn path_map(resolver: &Resolver, map: &StorageMap, wants_extents: bool) -> PathMap {
    // It matters for speed which of the concatenated members holds the bytes.
    let concatenated = || map.root.walk().any(|(_, step)| is_concatenated(step));
    let wanted = map.exists && (wants_extents || concatenated());
    PathMap {
        path: map.path.display().to_string(),
        real_path: map.real_path.display().to_string(),
        exists: map.exists,
        queue: map.queue.clone(),
        drives: map.drives.iter().map(|drive| drive.id.clone()).collect(),
        extents: wanted.then(|| extents::gather(resolver, map)),
        steps: map.root.clone(),
    }
}

/// Whether a step concatenates its members.
pub(crate) fn is_concatenated(step: &Layer) -> bool {
    step.text("layout") == Some("concatenated") && step.children.len() > 1
}

/// The names of network cards with RDMA. A record without the folder does not show whether there
/// are cards; on a live system there are none then.
fn rdma_devices(system: &System) -> Option<Vec<String>> {
    let cards = system.list("sys/class/infiniband").ok();
    cards.or_else(|| system.is_live().then(Vec::new))
}

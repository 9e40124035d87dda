//! The storage map: against recorded kernels, against live file systems, and against systems that
//! are damaged or hostile.

#[path = "../../../forebay/tests/lab/mod.rs"]
mod lab;

mod damage;
mod hostile;
mod live;
mod machine;
mod record;
mod recorded;
mod tree;

use forebay_topology::{Layer, LayerKind, StorageMap, Value};
use tempfile::TempDir;

/// A folder for thousands of small files: in memory where it can be.
fn scratch() -> TempDir {
    let folder = lab::memory_folder().or_else(|_| tempfile::tempdir());
    folder.expect("a temporary folder")
}

/// The kinds of the steps below the path and its links, from the top, without what hangs below
/// the first device that stands on no other.
fn kinds(map: &StorageMap) -> Vec<LayerKind> {
    let mut kinds = Vec::new();
    let mut at = &map.root;
    while let Some(next) = at.children.first() {
        kinds.push(next.kind);
        at = next;
    }
    kinds
}

/// The first step of this kind.
#[track_caller]
fn step(map: &StorageMap, kind: LayerKind) -> &Layer {
    let found = map.root.walk().map(|(_, layer)| layer).find(|layer| layer.kind == kind);
    found.unwrap_or_else(|| panic!("no {kind:?} under {}", map.path.display()))
}

/// Why the fact `name` of a step is not known.
#[track_caller]
fn reason<'a>(layer: &'a Layer, name: &str) -> &'a str {
    match layer.fact(name) {
        Some(Value::Unknown(reason)) => reason,
        other => panic!("`{name}` of {} is {other:?}", layer.name),
    }
}

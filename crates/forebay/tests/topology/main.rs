//! The storage map: against recorded kernels, against live file systems, and against systems that
//! are damaged or hostile.

#[path = "../lab/mod.rs"]
mod lab;

mod hostile;
mod live;
mod machine;
mod record;
mod recorded;
mod tree;

use std::time::Instant;

use forebay::topology::{Layer, LayerKind, Resolver, StorageMap, System, Value};

use lab::note;
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
    found.unwrap_or_else(|| panic!("no {} under {}", kind.name(), map.path.display()))
}

/// Why the fact `name` of a step is not known.
#[track_caller]
fn reason<'a>(layer: &'a Layer, name: &str) -> &'a str {
    match layer.fact(name) {
        Some(Value::Unknown(reason)) => reason,
        other => panic!("`{name}` of {} is {other:?}", layer.name),
    }
}

/// Prints how long it takes to resolve a path of this machine: run with `--ignored --nocapture`.
/// The best of many, since others use the machine too.
#[test]
#[ignore = "prints times and asserts nothing"]
fn how_long_resolving_takes() {
    let path = std::env::current_dir().expect("there is a folder");
    let best = |action: &mut dyn FnMut()| {
        let times = (0..2000).map(|_| {
            let start = Instant::now();
            action();
            start.elapsed()
        });
        times.min().expect("there were some")
    };
    let uncached = best(&mut || {
        std::hint::black_box(Resolver::new(System::live()).resolve(&path));
    });
    let resolver = Resolver::default();
    let forgotten = best(&mut || {
        resolver.forget();
        std::hint::black_box(resolver.resolve(&path));
    });
    let cached = best(&mut || {
        std::hint::black_box(resolver.resolve(&path));
    });
    let file = std::fs::File::open(&path).expect("it opens");
    let open = best(&mut || {
        use std::os::fd::AsFd;
        std::hint::black_box(resolver.resolve_file(file.as_fd(), &path));
    });
    note(format!("{}: first of all {uncached:?}, uncached {forgotten:?}", path.display()));
    note(format!("cached, by path {cached:?}, by descriptor {open:?}"));
}

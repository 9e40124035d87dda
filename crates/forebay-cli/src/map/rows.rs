//! What keeps rows of a benchmark from being what their titles say: caches that no eviction
//! reaches, bytes that no drive stores, and syncs that no drive sees. All verbs use it.
//!
//! A certain fault removes the rows, a possible one is a warning. Not visible from this machine:
//! discarded ranges of a block device, an NFS export with `async`, caches of a virtual machine's
//! host, and a drive that hides a volatile write cache.

use std::ops::Range;
use std::path::Path;

use forebay::units::format_size;
use forebay_measure::drive::sync_does_nothing;
use forebay_topology::{Drive, DriveKind, Layer, LayerKind, Resolver, StorageMap, Stored, Value};

use super::words::filled;
use crate::report::numbers::percent;

/// A kind of step, which of them, and a text with their facts in braces.
type Rule = (LayerKind, fn(&Layer) -> bool, &'static str);

/// Steps with a cache that no eviction reaches, with the end of "cold reads of `PATH` may not
/// reach its drive: ".
const CACHES: [Rule; 8] = [
    (
        LayerKind::FileSystem,
        |step| step.name == "zfs",
        "ZFS has a cache of its own (ARC): set `primarycache=metadata`",
    ),
    (
        LayerKind::FileSystem,
        |step| step.name == "ecryptfs",
        "the encrypted files below stay in the page cache: use a path on their file system",
    ),
    (
        LayerKind::FileSystem,
        |step| step.text("called") == Some("FUSE") || step.name.starts_with("fuse"),
        "a FUSE program serves `{source}` and may cache it: use the file system below it",
    ),
    (
        LayerKind::Network,
        |_| true,
        "the server or host of `{name}` may cache it: read more than its memory",
    ),
    (
        LayerKind::Loop,
        |step| step.fact("direct_io") == Some(&Value::Flag(false)),
        "`{name}` uses the page cache of its image: `losetup --direct-io=on /dev/{name}`",
    ),
    (
        LayerKind::DeviceMapper,
        |step| step.text("target").is_some_and(|target| target.contains("cache")),
        "`{volume}` caches on another drive ({target}): use the volume below it",
    ),
    (
        LayerKind::Stacked,
        |step| step.name.starts_with("bcache"),
        "`{name}` caches on another drive: use the drive below it",
    ),
    (
        LayerKind::Disk,
        |step| ["ram", "zram", "nullb"].iter().any(|name| step.name.starts_with(name)),
        "`{name}` is memory: use a path on a drive",
    ),
];
/// Mount options by which a sync does not flush the drive's write cache.
const WITHOUT_FLUSH: [&str; 5] =
    ["nobarrier", "barrier=0", "barrier=none", "barriers=off", "fsync_mode=nobarrier"];
/// Mount options of an overlay whose syncs do nothing.
const WITHOUT_SYNC: [&str; 2] = ["volatile", "fsync=volatile"];
/// The smallest share of a range that is reported.
const SHARE_MIN: f64 = 0.01;

/// What the rows of a path can be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Why none is cold, and why the storage lacks a limit.
    pub(crate) no_cold: Option<String>,
    /// Warnings about bytes that are not read from a drive as they are: the storage lacks a limit.
    pub(crate) unstored: Vec<String>,
    /// Why none is written and synced.
    pub(crate) no_sync: Option<String>,
    /// Warnings about cold reads.
    pub(crate) cold: Vec<String>,
    /// Warnings about synced writes.
    pub(crate) synced: Vec<String>,
}

/// Judges the rows of a path of which `range` is read. Syncs are tried in `folder`.
pub(crate) fn judge(
    resolver: &Resolver,
    map: &StorageMap,
    range: Range<u64>,
    folder: Option<&Path>,
) -> Rows {
    let stored = resolver.stored(&map.path, range).unwrap_or_default();
    let mut rows = of(&map.path, &map.root, &map.drives, &stored);
    // Stores to persistent memory need no more than a flush of the processor's caches.
    let is_pmem = |(_, step): (usize, &Layer)| step.name.starts_with("pmem");
    let folder = folder.filter(|_| rows.no_sync.is_none() && !map.root.walk().any(is_pmem));
    if folder.is_some_and(sync_does_nothing) {
        rows.no_sync = Some("a sync of new bytes ends faster than any drive writes".into());
    }
    rows
}

fn of(path: &Path, root: &Layer, drives: &[Drive], stored: &Stored) -> Rows {
    let (mut rows, file) = (Rows::default(), path);
    let path = path.display();
    for (_, step) in root.walk() {
        let caches = CACHES.iter().filter(|(kind, is_so, _)| *kind == step.kind && is_so(step));
        rows.cold.extend(caches.map(|(.., text)| {
            format!("cold reads of `{path}` may not reach its drive: {}", filled(text, step))
        }));
        let options = step.text("options").unwrap_or_default().split(',');
        for option in options.filter(|_| step.kind == LayerKind::FileSystem) {
            if step.name == "overlay" && WITHOUT_SYNC.contains(&option) {
                rows.no_sync = Some(format!("an overlay with `{option}` syncs nothing"));
            } else if WITHOUT_FLUSH.contains(&option) {
                rows.synced.push(format!(
                    "synced writes to `{path}` may still be in the drive's write cache: {} is \
                     mounted with `{option}`",
                    step.name
                ));
            }
        }
        if step.kind == LayerKind::Network {
            rows.synced.push(format!(
                "synced writes to `{path}` are on the drive only if `{}` writes them before it \
                 answers (NFS: an export without `async`)",
                step.name
            ));
        }
    }
    let is_memory = drives.iter().all(|drive| drive.kind == DriveKind::Memory);
    let is_loop = root.walk().any(|(_, step)| step.kind == LayerKind::Loop);
    if is_memory && is_loop {
        let text = "reach a loop device whose file is in memory, and no drive";
        rows.cold.push(format!("cold reads of `{path}` {text}"));
        rows.synced.push(format!("synced writes to `{path}` {text}"));
    } else if is_memory && !drives.is_empty() {
        let file_system = root.walk().find(|(_, step)| step.kind == LayerKind::FileSystem);
        let name = file_system.map_or("the kernel", |(_, step)| &step.name);
        rows.no_cold = Some(format!("{name} keeps its files in memory"));
        rows.no_sync.clone_from(&rows.no_cold);
    } else if stored.len > 0 && stored.unwritten == stored.len {
        rows.no_cold = Some("it has only holes and extents that were never written".into());
    } else {
        rows.unstored = unstored(file, stored);
    }
    rows
}

/// Warnings about bytes of a file that are not read from a drive as they are.
pub(crate) fn of_file(path: &Path, range: Range<u64>) -> Vec<String> {
    let stored = Resolver::default().stored(path, range);
    stored.map(|stored| unstored(path, &stored)).unwrap_or_default()
}

fn unstored(path: &Path, stored: &Stored) -> Vec<String> {
    let texts = [
        (
            stored.unwritten,
            "holes, or extents that were never written: no drive is read for them; \
             `cp --sparse=never` makes a whole file",
        ),
        (
            stored.compressed,
            "compressed by the file system: the drive reads fewer bytes, and O_DIRECT goes through \
             the page cache; `chattr +m` and a new copy avoid that",
        ),
        (stored.inline, "in the file system's metadata, which stays in memory: use a larger file"),
    ];
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = |bytes: u64| bytes as f64 / stored.len as f64;
    let is_reported = |(bytes, _): &(u64, &str)| *bytes > 0 && share(*bytes) >= SHARE_MIN;
    let text = |(bytes, text)| {
        let (share, len) = (percent(share(bytes)), format_size(stored.len));
        format!("{share} of {len} of `{}` are {text}", path.display())
    };
    texts.into_iter().filter(is_reported).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use LayerKind::{DeviceMapper, Disk, FileSystem, Loop, Network, NvmeNamespace, Stacked};

    const WHOLE: Stored = Stored { len: 100, unwritten: 0, compressed: 0, inline: 0, encrypted: 0 };

    type Step<'a> = (LayerKind, &'a str, &'a [(&'static str, Value)]);

    fn rows(steps: &[Step<'_>], stored: Stored) -> Rows {
        let mut root = Layer::new(LayerKind::Path, "/f");
        for (kind, name, facts) in steps {
            let mut step = Layer::new(*kind, *name);
            facts.iter().for_each(|(name, value)| step.say(name, value.clone()));
            root.children.push(step);
        }
        of(Path::new("/f"), &root, &[Drive { kind: DriveKind::Block, ..Drive::default() }], &stored)
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn a_loop_device_over_memory_is_a_doubt() {
        let mut root = Layer::new(LayerKind::Path, "/f");
        root.children.push(Layer::new(Loop, "loop0"));
        let drives = [Drive { kind: DriveKind::Memory, ..Drive::default() }];
        let found = of(Path::new("/f"), &root, &drives, &WHOLE);
        assert_eq!((found.no_cold, found.no_sync), (None, None));
        assert!(found.cold.last().unwrap().contains("whose file is in memory"), "{:?}", found.cold);
        assert_eq!(found.synced.len(), 1);
    }

    #[test]
    fn a_file_on_a_drive_has_all_rows() {
        let steps: [Step<'_>; 4] = [
            (FileSystem, "ext4", &[("options", text("rw,data=writeback,barrier=1"))]),
            (DeviceMapper, "dm-0", &[("target", text("striped"))]),
            (Loop, "loop0", &[("direct_io", Value::Flag(true))]),
            (NvmeNamespace, "nvme0n1", &[]),
        ];
        assert_eq!(rows(&steps, WHOLE), Rows::default());
    }

    #[test]
    fn caches_below_a_path_are_named() {
        let all: [Step<'_>; 10] = [
            (FileSystem, "zfs", &[]),
            (FileSystem, "ecryptfs", &[]),
            (FileSystem, "fuse.app", &[("source", text("app"))]),
            (Network, "server:/x", &[]),
            (Loop, "loop0", &[("direct_io", Value::Flag(false))]),
            (DeviceMapper, "dm-0", &[("target", text("cache")), ("volume", text("vg-lv"))]),
            (Stacked, "bcache0", &[]),
            (Disk, "zram0", &[]),
            (Disk, "ram0", &[]),
            (Disk, "nullb0", &[]),
        ];
        for step in all {
            let found = rows(&[step], WHOLE);
            assert_eq!((found.cold.len(), found.no_cold), (1, None), "{step:?}");
            assert!(found.cold[0].starts_with("cold reads of `/f` may not reach its drive: "));
            assert!(!found.cold[0].contains(['{', '}']) && !found.cold[0].contains("unknown"));
            assert_eq!(found.synced.len(), usize::from(step.0 == Network), "{step:?}");
        }
    }

    #[test]
    fn mounts_whose_syncs_do_less_are_found() {
        let of =
            |name, options: &str| rows(&[(FileSystem, name, &[("options", text(options))])], WHOLE);
        for options in ["rw,volatile", "rw,uuid=on,fsync=volatile"] {
            let found = of("overlay", options);
            assert!(found.no_sync.is_some() && found.no_cold.is_none(), "{found:?}");
            assert_eq!(of("ext4", options), Rows::default());
        }
        for option in WITHOUT_FLUSH {
            let found = of("ext4", &format!("rw,{option}"));
            assert!(found.no_sync.is_none() && found.synced[0].contains(option), "{found:?}");
        }
        assert_eq!(of("overlay", "rw,fsync=auto"), Rows::default());
    }

    #[test]
    fn the_share_that_no_drive_stores_is_named() {
        let of = |stored| rows(&[], stored);
        let all = of(Stored { unwritten: 100, ..WHOLE });
        assert!(all.no_cold.is_some_and(|why| why.contains("holes")) && all.cold.is_empty());
        let half = of(Stored { unwritten: 50, compressed: 20, inline: 10, ..WHOLE });
        assert!(half.no_cold.is_none() && half.no_sync.is_none());
        let starts = ["50 % of 100 B of `/f` are holes", "20 % of 100 B of `/f` are compressed"];
        assert!(starts.iter().zip(&half.unstored).all(|(start, text)| text.starts_with(start)));
        assert!(half.unstored.len() == 3 && half.unstored[2].contains("metadata"), "{half:?}");
        assert_eq!(of(Stored { len: 1000, unwritten: 9, ..WHOLE }), Rows::default());
        assert_eq!(of(Stored { len: 0, ..WHOLE }), Rows::default());
    }

    #[test]
    fn files_in_memory_have_neither_cold_rows_nor_syncs() {
        let mut root = Layer::new(LayerKind::Path, "/f");
        root.children.push(Layer::new(FileSystem, "tmpfs"));
        let memory = [Drive { kind: DriveKind::Memory, ..Drive::default() }];
        let found = of(Path::new("/f"), &root, &memory, &WHOLE);
        assert_eq!(found.no_cold.as_deref(), Some("tmpfs keeps its files in memory"));
        assert_eq!(found.no_sync, found.no_cold);
    }
}

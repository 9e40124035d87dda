//! The path to resolve: its links, its real path, and the file there.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::answers::{Refusal, Stat, Trail};
use super::map::{Layer, LayerKind, StorageMap};
use super::resolve::Below;
use super::system::System;
use super::text::{device_text, shown};

/// Bits of `stx_attributes` (`STATX_ATTR_…`), and the names of their facts.
const ATTRIBUTES: [(u32, &str); 4] =
    [(0x4, "compressed"), (0x800, "encrypted"), (0x10_0000, "verity"), (0x20_0000, "dax")];

/// The target of a path, before anything below it is read.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) trail: Result<Trail, Refusal>,
    pub(super) real: PathBuf,
    /// Whether the calling thread cannot reach the file by name.
    pub(super) is_elsewhere: bool,
    pub(super) exists: bool,
    pub(super) stat: Result<Stat, Refusal>,
}

/// Finds the target of `path`; for a missing path, the folder that would contain it.
pub(super) fn find(system: &System, path: &Path) -> Found {
    let absolute = if path.is_absolute() {
        path.to_owned()
    } else {
        std::env::current_dir().unwrap_or_else(|_| "/".into()).join(path)
    };
    let trail = system.trail(&absolute);
    let mut real = trail.as_ref().map_or_else(|_| absolute.clone(), |trail| trail.real.clone());
    let mut stat = system.stat(&absolute);
    let exists = stat.is_ok();
    // Some links in `/proc` are resolved by the kernel without their text: they lead to an open
    // file or into another mount namespace.
    let is_magic = |trail: &Trail| trail.links.iter().any(|(at, _)| at.starts_with("/proc"));
    let mut is_elsewhere = false;
    if let (Ok(reported), true) = (&stat, trail.as_ref().is_ok_and(is_magic)) {
        let there = system.stat(&real);
        let same = |there: Stat| (there.device, there.inode) == (reported.device, reported.inode);
        if !there.is_ok_and(same) {
            is_elsewhere = true;
            real.clone_from(&absolute);
        }
    }
    if let (Err(Refusal::Errno(Errno::NOENT)), Ok(trail)) = (&stat, &trail) {
        stat = system.stat(&trail.there);
    }
    Found { path: path.to_owned(), trail, real, is_elsewhere, exists, stat }
}

/// Combines the target of the path with the storage below it.
pub(super) fn map(found: Found, below: Below) -> StorageMap {
    let mut bottom = below.layer;
    let mut links = found.trail.as_ref().map(|trail| trail.links.clone()).unwrap_or_default();
    while let Some((at, target)) = links.pop() {
        let mut layer = Layer::new(LayerKind::Symlink, shown(&at));
        layer.say("target", shown(&target));
        layer.children.push(bottom);
        bottom = layer;
    }
    let mut root = Layer::new(LayerKind::Path, shown(&found.path));
    if found.is_elsewhere {
        root.unknown("real_path", "a link of `/proc` leads where no name of this process does");
    } else {
        root.say("real_path", shown(&found.real));
    }
    match &found.stat {
        // For a missing file, `stat` describes its folder.
        Ok(_) | Err(Refusal::Errno(Errno::NOENT)) => root.say("exists", found.exists),
        Err(refusal) => root.unknown("exists", refusal),
    }
    if let Ok(stat) = &found.stat
        && found.exists
    {
        if stat.kind() == FileType::RegularFile {
            root.say("size_bytes", stat.size);
        }
        let is_device = stat.kind() == FileType::BlockDevice;
        root.say("device", device_text(if is_device { stat.rdev } else { stat.device }));
        if let Some(direct) = stat.direct {
            root.say("direct_memory_align_bytes", direct.memory);
            root.say("direct_offset_align_bytes", direct.offset);
        }
        for (flag, name) in ATTRIBUTES {
            if stat.attributes & flag != 0 {
                root.say(name, true);
            }
        }
    }
    if let (false, Ok(trail)) = (found.exists, &found.trail) {
        root.say("resolved_as", shown(&trail.there));
        if !trail.links.is_empty() {
            root.say("dangling", true);
        }
    }
    if matches!(found.stat, Err(Refusal::Silent)) {
        root.say("silent", true);
    }
    // Even if the drive does not answer, the mount table says where the file is.
    let is_mute = matches!(found.stat, Err(Refusal::Silent | Refusal::Errno(Errno::IO)));
    if let Err(refusal) = &found.stat
        && (!is_mute || below.drives.is_empty())
    {
        root.unknown("file", refusal);
    }
    root.children.push(bottom);
    StorageMap {
        path: found.path,
        real_path: found.real,
        exists: found.exists,
        root,
        drives: below.drives,
        queue: below.queue,
    }
}

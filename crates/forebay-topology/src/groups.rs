//! The control groups that limit a process: its own group and its ancestors.
//!
//! A machine may mount the trees of both versions (the kernel's
//! `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/`); a controller is active in only one
//! of them. A container sees only part of a tree, and the groups above that part are invisible to
//! it.

use std::path::{Component, Path, PathBuf};

use super::mount::{self, Mount};
use super::system::System;

/// Maximum depth of nested groups.
const DEPTH_MAX: usize = 64;

/// The version of a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

impl Version {
    /// The usual mount points of its tree for a controller.
    fn places(self, controller: &str) -> Vec<PathBuf> {
        let place = Path::new("sys/fs/cgroup");
        match (self, controller) {
            (Self::One, "cpu") => vec![place.join("cpu"), place.join("cpu,cpuacct")],
            (Self::One, controller) => vec![place.join(controller)],
            (Self::Two, _) => vec![place.to_owned()],
        }
    }

    fn is_of(self, mount: &Mount, controller: &str) -> bool {
        match self {
            Self::One => mount.file_system == "cgroup" && mount.option(controller).is_some(),
            Self::Two => mount.file_system == "cgroup2",
        }
    }

    /// A file that all groups of this version contain, and no other folder.
    fn mark(self) -> &'static str {
        match self {
            Self::One => "cgroup.procs",
            Self::Two => "cgroup.controllers",
        }
    }
}

/// A control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) version: Version,
    /// Its folder below the system's root.
    pub(super) path: PathBuf,
}

impl System {
    /// The process's groups for a controller: by version, its own group and then its ancestors.
    pub(super) fn groups(&self, controller: &str) -> Vec<Group> {
        let Ok(table) = self.own_table("cgroup") else { return Vec::new() };
        let table = String::from_utf8_lossy(&table);
        let found = table.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let version = match fields.next()? {
                "" => Version::Two,
                list if list.split(',').any(|name| name == controller) => Version::One,
                _ => return None,
            };
            let path = Path::new(fields.next()?).strip_prefix("/").ok()?;
            // A group outside this process's cgroup namespace is above the visible tree.
            let outside = path.components().any(|part| part == Component::ParentDir);
            (!outside).then(|| self.way_up(version, controller, path))
        });
        found.flatten().collect()
    }

    /// The group at `path` and its ancestors.
    fn way_up(&self, version: Version, controller: &str, path: &Path) -> Vec<Group> {
        let usual = version.places(controller).into_iter();
        let found = usual
            .map(|place| (place.clone(), place.join(path)))
            .find(|(_, group)| self.exists(group.join(version.mark())))
            .or_else(|| self.mounted_at(version, controller, path));
        let Some((root, own)) = found else { return Vec::new() };
        let above = own.ancestors().take_while(|above| above.starts_with(&root)).take(DEPTH_MAX);
        above.map(|path| Group { version, path: path.to_owned() }).collect()
    }

    /// Finds the group if the tree, or a part of it, is mounted elsewhere. This is the case in a
    /// container without a cgroup namespace.
    fn mounted_at(
        &self,
        version: Version,
        controller: &str,
        path: &Path,
    ) -> Option<(PathBuf, PathBuf)> {
        let table = self.own_table("mountinfo").ok()?;
        mount::all(&table).filter(|mount| version.is_of(mount, controller)).find_map(|mount| {
            let inside = path.strip_prefix(mount.subtree.strip_prefix("/").ok()?).ok()?;
            let root = mount.point.strip_prefix("/").ok()?.to_owned();
            let group = root.join(inside);
            self.exists(group.join(version.mark())).then_some((root, group))
        })
    }
}

//! Walks from a path down to the drives, and combines the steps into drives and a queue.
//!
//! Every kind of step is a module, which calls back here for the device below it. Depth,
//! steps and links are bounded, and a device seen before is named without its steps. So the walk
//! ends quickly, however tangled the system is.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::answers::{Refusal, Stat};
use super::drive::{Drive, DriveId, DriveKind, DrivePath, Transport};
use super::file_systems::{self, Ground};
use super::map::{Layer, LayerKind, Queue, QueueId};
use super::mount::{self, Mount};
use super::system::{Absent, Folder, System};
use super::text::{clean, device_text, shown};
use super::volume::{Layout, Span};

/// Maximum depth of stacked devices.
const DEPTH_MAX: usize = 32;
/// Maximum depth of files behind loop devices and overlays.
const FILES_MAX: usize = 8;
/// Maximum number of steps; 10,000 members of an array are 30,000.
const LAYERS_MAX: usize = 64 << 10;

/// The storage under a file system, which all its files share, or under a file.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Below {
    /// The steps, from the mount or the block device down.
    pub layer: Layer,
    /// The drives at the bottom, without duplicates.
    pub drives: Vec<Drive>,
    /// The queue that serves the file.
    pub queue: Queue,
    /// Whether other files of the mount may be on other drives.
    pub(super) per_file: bool,
}

impl Below {
    /// The placeholder for a file with this device number whose storage was not found in time.
    pub fn unknown(device: u64) -> Self {
        let layer = Layer::new(LayerKind::Unknown, device_text(device));
        let id = QueueId(format!("unknown:{}", device_text(device)));
        let (members, hardware) = (Vec::new(), Vec::new());
        let queue = Queue { id, members, hardware, layout: Layout::Unknown };
        Self { layer, drives: Vec::new(), queue, per_file: true }
    }

    /// Whether the storage was found.
    pub fn is_known(&self) -> bool {
        !(self.per_file && self.layer.kind == LayerKind::Unknown && self.drives.is_empty())
    }
}

/// The state of resolving a path.
#[derive(Debug)]
pub(super) struct Resolve<'a> {
    pub(super) system: &'a System,
    mounts: Option<Result<Vec<u8>, Absent>>,
    pub(super) drives: Vec<Drive>,
    by_id: HashMap<DriveId, usize>,
    /// Devices already visited, by folder; `None` during the read.
    met: HashMap<PathBuf, Option<(LayerKind, Span)>>,
    layers: usize,
    depth: usize,
    files: usize,
    pub(super) per_file: bool,
}

impl<'a> Resolve<'a> {
    pub(super) fn new(system: &'a System) -> Self {
        Self {
            system,
            mounts: None,
            drives: Vec::new(),
            by_id: HashMap::new(),
            met: HashMap::new(),
            layers: 0,
            depth: 0,
            files: 0,
            per_file: false,
        }
    }

    /// Resolves the storage under the file at `real`, given the result of `stat`.
    pub(super) fn below(mut self, real: &Path, stat: &Result<Stat, Refusal>) -> Below {
        let mut above = Layer::new(LayerKind::Path, "");
        let span = match stat {
            Ok(stat) => self.file(&mut above, real, Some(stat)),
            // A drive that was pulled or a server that is down fails every `stat`, but the mount
            // table still describes it.
            Err(Refusal::NotRecorded | Refusal::Silent | Refusal::Errno(Errno::IO)) => {
                self.file(&mut above, real, None)
            }
            Err(refusal) => above.unexamined(shown(real), "file", refusal),
        };
        let layer = above.children.pop().expect("every path adds a step");
        let queue = self.queue(&span, stat.as_ref().ok());
        Below { layer, drives: self.drives, queue, per_file: self.per_file }
    }

    pub(super) fn queue(&self, span: &Span, stat: Option<&Stat>) -> Queue {
        let members: Vec<DriveId> =
            span.drives.iter().map(|&index| self.drives[index].id.clone()).collect();
        let hardware = span.drives.iter().map(|&index| self.drives[index].hardware.clone());
        let hardware: BTreeSet<DriveId> = hardware.collect();
        let hardware = hardware.into_iter().collect();
        let (id, layout) = match (members.as_slice(), &span.volume) {
            ([], _) => {
                let number = stat.map_or(0, |stat| {
                    if stat.kind() == FileType::BlockDevice { stat.rdev } else { stat.device }
                });
                (format!("unknown:{}", device_text(number)), Layout::Unknown)
            }
            (_, Some((key, layout))) if span.own => (format!("volume:{key}"), *layout),
            ([one], _) => (one.0.clone(), Layout::Single),
            (_, Some((key, layout))) => (format!("volume:{key}"), *layout),
            (several, None) => {
                let names: Vec<&str> = several.iter().map(DriveId::as_str).collect();
                (format!("volume:{}", names.join("+")), Layout::Unknown)
            }
        };
        Queue { id: QueueId(id), members, hardware, layout }
    }

    /// The mount table, read once.
    pub(super) fn mounts(&mut self) -> Result<&[u8], Absent> {
        let system = self.system;
        match self.mounts.get_or_insert_with(|| system.own_table("mountinfo")) {
            Ok(table) => Ok(table),
            Err(absent) => Err(*absent),
        }
    }

    /// The mount that holds a file, and whether it was found by its mount id.
    fn mount(&mut self, real: &Path, stat: Option<&Stat>) -> Result<(Mount, bool), String> {
        let table = self.mounts().map_err(|absent| format!("`/proc/self/mountinfo`: {absent}"))?;
        if let Some(id) = stat.and_then(|stat| stat.mount) {
            let mount = mount::find(table, id);
            return mount
                .map(|mount| (mount, true))
                .ok_or_else(|| format!("`/proc/self/mountinfo` has no line for the mount {id}"));
        }
        let mount = mount::holding(table, real);
        let missing = || "`/proc/self/mountinfo` has no mount that holds this path".to_owned();
        mount.map(|mount| (mount, false)).ok_or_else(missing)
    }

    /// Adds the storage under the file at `real` below the step `above`.
    pub(super) fn file(&mut self, above: &mut Layer, real: &Path, stat: Option<&Stat>) -> Span {
        if let Some(stat) = stat
            && stat.kind() == FileType::BlockDevice
        {
            return self.block(above, stat.rdev);
        }
        if self.files == FILES_MAX {
            let reason = format!("more than {FILES_MAX} files are nested");
            return above.unexamined(shown(real), "file", reason);
        }
        self.files += 1;
        let (layer, span) = match self.mount(real, stat) {
            Ok((mount, by_id)) => self.mounted(real, stat, &mount, by_id),
            Err(reason) => self.without_mount(real, stat, &reason),
        };
        self.files -= 1;
        above.children.push(layer);
        span
    }

    fn mounted(
        &mut self,
        real: &Path,
        stat: Option<&Stat>,
        mount: &Mount,
        by_id: bool,
    ) -> (Layer, Span) {
        let mut layer = Layer::new(LayerKind::Mount, shown(&mount.point));
        layer.say("id", mount.id);
        if !by_id {
            layer.say("found_by", "the deepest mount point above the path");
        }
        layer.say("options", clean(&mount.options));
        let is_subvolume = mount.option("subvol").is_some();
        if mount.subtree != Path::new("/") && !is_subvolume {
            layer.say("bind_of", shown(&mount.subtree));
        }
        let hidden = self.mounts().map(|table| mount::hidden_by(table, mount)).unwrap_or_default();
        let hidden = hidden.iter().map(|m| format!("{} {}", m.file_system, shown(&m.source)));
        layer.say_all("hides", hidden.map(|text| clean(&text)).collect());
        let span = self.file_system(&mut layer, real, stat, mount);
        (layer, span)
    }

    /// Without the mount table, falls back to the device number of the file.
    fn without_mount(&mut self, real: &Path, stat: Option<&Stat>, reason: &str) -> (Layer, Span) {
        let mut layer = Layer::new(LayerKind::Mount, "");
        layer.unknown("mount", reason);
        let kind = self.system.file_system(real).ok().map(crate::FileSystem);
        let mut child = Layer::new(LayerKind::FileSystem, kind.map_or("unknown", |k| k.name()));
        let span = match (kind, stat) {
            (Some(kind), _) if kind.is_memory() => self.memory(&mut child),
            // An anonymous device number (major 0) means no block device.
            (_, Some(stat)) if rustix::fs::major(stat.device) != 0 => {
                self.block(&mut child, stat.device)
            }
            (_, Some(stat)) => self.unknown_drive(&mut child, stat.device, reason),
            (_, None) => Span::default(),
        };
        layer.children.push(child);
        (layer, span)
    }

    fn file_system(
        &mut self,
        above: &mut Layer,
        real: &Path,
        stat: Option<&Stat>,
        mount: &Mount,
    ) -> Span {
        let mut layer = Layer::new(LayerKind::FileSystem, clean(&mount.file_system));
        layer.say("source", shown(&mount.source));
        layer.say("options", clean(&file_systems::without_secrets(&mount.own_options)));
        let known = file_systems::look_up(&mount.file_system);
        if let Some((called, ..)) = known
            && called != mount.file_system
        {
            layer.say("called", called);
        }
        let span = match known.map(|(_, ground)| ground) {
            Some(Ground::Memory) => self.memory(&mut layer),
            Some(Ground::Overlay) => {
                self.per_file = true;
                self.overlay(&mut layer, real, stat, mount)
            }
            Some(Ground::Btrfs) => self.btrfs(&mut layer, mount),
            Some(Ground::Kernel) => {
                layer.unknown("drives", "its files are the kernel's own");
                Span::default()
            }
            Some(Ground::Folder) if mount.source.is_absolute() => {
                let stat = self.system.stat(&mount.source).ok();
                self.file(&mut layer, &mount.source, stat.as_ref())
            }
            Some(ground) => self.remote(&mut layer, mount, ground),
            None => self.on_block_device(&mut layer, mount),
        };
        above.children.push(layer);
        span
    }

    fn on_block_device(&mut self, layer: &mut Layer, mount: &Mount) -> Span {
        if let Some(device) = mount.option("rtdev") {
            layer.unknown("realtime_device", format!("files may lie on {} instead", clean(device)));
        }
        if rustix::fs::major(mount.device) == 0 {
            let reason = format!(
                "`{}` shows no block device and no reader for it exists here",
                clean(&mount.file_system)
            );
            return self.unknown_drive(layer, mount.device, &reason);
        }
        self.block(layer, mount.device)
    }

    pub(super) fn memory(&mut self, layer: &mut Layer) -> Span {
        let id = DriveId("memory".into());
        let mut drive = Drive::new(id, DriveKind::Memory, "memory");
        drive.paths.push(DrivePath::plain("memory", Transport::Memory));
        let mut child = Layer::new(LayerKind::Memory, "memory");
        let span = self.found(&mut child, drive);
        layer.children.push(child);
        span
    }

    /// Adds a drive of which only the device number is known.
    pub(super) fn unknown_drive(&mut self, layer: &mut Layer, number: u64, reason: &str) -> Span {
        let name = device_text(number);
        let id = DriveId(format!("device:{name}"));
        let mut drive = Drive::new(id, DriveKind::Unknown, name.as_str());
        drive.device = Some(number);
        self.unexamined(layer, drive, reason)
    }

    /// Adds a drive below `layer` that could not be examined.
    fn unexamined(&mut self, layer: &mut Layer, drive: Drive, reason: impl fmt::Display) -> Span {
        layer.unexamined(drive.name.as_str(), "device", reason);
        let child = layer.children.last_mut().expect("a step was added");
        self.found(child, drive)
    }

    /// Adds a drive, or a path to a known drive, and names it in its step.
    pub(super) fn found(&mut self, layer: &mut Layer, drive: Drive) -> Span {
        layer.say("drive", drive.id.as_str());
        if let Some(&index) = self.by_id.get(&drive.id) {
            let known = &mut self.drives[index];
            for path in drive.paths {
                if !known.paths.iter().any(|other| other.name == path.name) {
                    known.paths.push(path);
                }
            }
            return Span::one(index);
        }
        self.by_id.insert(drive.id.clone(), self.drives.len());
        self.drives.push(drive);
        Span::one(self.drives.len() - 1)
    }

    /// Adds the block device with this number, and everything below it.
    pub(super) fn block(&mut self, above: &mut Layer, device: u64) -> Span {
        let name = device_text(device);
        let folder = self.system.folder(format!("sys/dev/block/{name}"));
        // The kernel links every device into this folder; any other target is not the kernel's.
        let inside = |folder: &Folder| folder.path().starts_with("sys/devices");
        match folder.and_then(|f| if inside(&f) { Ok(f) } else { Err(Absent::NotAFile) }) {
            Ok(folder) => self.block_at(above, &folder),
            Err(absent) => {
                let reason = format!("`/sys/dev/block/{name}`: {absent}");
                self.unknown_drive(above, device, &reason)
            }
        }
    }

    /// Adds the block device in this folder of `/sys`, and everything below it.
    pub(super) fn block_at(&mut self, above: &mut Layer, folder: &Folder) -> Span {
        let mut layer = Layer::new(LayerKind::Unknown, folder.name());
        let span = self.block_in(&mut layer, folder);
        above.children.push(layer);
        span
    }

    fn block_in(&mut self, layer: &mut Layer, folder: &Folder) -> Span {
        match self.met.get(folder.path()) {
            Some(Some((kind, span))) => {
                layer.kind = *kind;
                layer.say("shown_above", true);
                layer.span = Some(span.clone());
                return span.clone();
            }
            Some(None) => {
                layer.unknown("device", "it stands on itself");
                return Span::default();
            }
            None => {}
        }
        if self.depth == DEPTH_MAX || self.layers >= LAYERS_MAX {
            layer.unknown("device", "too many nested devices");
            return Span::default();
        }
        self.met.insert(folder.path().to_owned(), None);
        self.depth += 1;
        self.layers += 1;
        let span = self.device(folder, layer);
        self.depth -= 1;
        layer.span = Some(span.clone());
        self.met.insert(folder.path().to_owned(), Some((layer.kind, span.clone())));
        span
    }

    /// Adds the members of a volume below its step.
    pub(super) fn members(
        &mut self,
        layer: &mut Layer,
        members: &[(String, Result<Folder, Absent>)],
    ) -> Vec<Span> {
        let member = |(name, folder): &(String, Result<Folder, Absent>)| match folder {
            Ok(folder) => self.block_at(layer, folder),
            Err(absent) => {
                let id = DriveId(format!("name:{name}"));
                let drive = Drive::new(id, DriveKind::Unknown, name.as_str());
                self.unexamined(layer, drive, absent)
            }
        };
        members.iter().map(member).collect()
    }
}

//! Where the files of a random test lie: every kind of file system, and bare drives.

use std::any::Any;
use std::path::PathBuf;

use crate::lab::fuse::{Faults, Fuse};
use crate::lab::{self, FileSystem, LoopDrive, LoopOptions, Offer, Overlay};

/// Bytes of a bare drive.
const DRIVE_LEN: u64 = 2 << 20;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Here,
    Memory,
    Drive(FileSystem, u32),
    Overlay(FileSystem),
    /// Whether reads pass the page cache by.
    Fuse(bool),
    Bare(u32),
}

pub(crate) const KINDS: [Kind; 13] = [
    Kind::Here,
    Kind::Drive(FileSystem::Ext4, 512),
    Kind::Drive(FileSystem::Xfs, 4096),
    Kind::Drive(FileSystem::Btrfs, 512),
    Kind::Overlay(FileSystem::Ext4),
    Kind::Fuse(false),
    Kind::Bare(512),
    Kind::Memory,
    Kind::Drive(FileSystem::Ext4, 4096),
    Kind::Drive(FileSystem::Xfs, 512),
    Kind::Overlay(FileSystem::Xfs),
    Kind::Fuse(true),
    Kind::Bare(4096),
];

/// A place, for as long as it is kept.
pub(crate) struct Place {
    /// The file, or the bare drive.
    pub(crate) path: PathBuf,
    /// Bytes of a bare drive; `None` of a file, which may grow.
    pub(crate) fixed: Option<u64>,
    /// What goes after the one before it.
    _kept: Vec<Box<dyn Any>>,
}

impl Place {
    pub(crate) fn new(kind: Kind) -> Offer<Self> {
        let file = |folder: PathBuf, kept| {
            Ok(Self { path: folder.join("data"), fixed: None, _kept: kept })
        };
        match kind {
            Kind::Here => {
                let folder = tempfile::tempdir_in(".").map_err(|e| format!("no folder: {e}"))?;
                file(folder.path().to_owned(), vec![Box::new(folder)])
            }
            Kind::Memory => {
                let folder = lab::memory_folder()?;
                file(folder.path().to_owned(), vec![Box::new(folder)])
            }
            Kind::Drive(file_system, sector_size) => {
                let (memory, drive) = drive(Some(file_system), sector_size)?;
                file(drive.path().to_owned(), vec![Box::new(drive), memory])
            }
            Kind::Overlay(file_system) => {
                let (memory, drive) = drive(Some(file_system), 512)?;
                let lower = drive.path().join("lower");
                std::fs::create_dir(&lower).map_err(|e| format!("no folder: {e}"))?;
                let overlay = Overlay::over(&lower, drive.path())?;
                let folder = overlay.path().to_owned();
                file(folder, vec![Box::new(overlay), Box::new(drive), memory])
            }
            Kind::Fuse(uncached) => {
                let fuse = Fuse::with(Vec::new(), Faults { uncached, ..Faults::default() })?;
                Ok(Self { path: fuse.path(), fixed: None, _kept: vec![Box::new(fuse)] })
            }
            Kind::Bare(sector_size) => {
                let (memory, drive) = drive(None, sector_size)?;
                let path = drive.device().to_owned();
                Ok(Self { path, fixed: Some(DRIVE_LEN), _kept: vec![Box::new(drive), memory] })
            }
        }
    }
}

/// A drive over an image in memory, where there is such a folder; and that folder, which the drive
/// must not outlive.
pub(crate) fn drive(
    file_system: Option<FileSystem>,
    sector_size: u32,
) -> Offer<(Box<dyn Any>, LoopDrive)> {
    let memory = lab::memory_folder().ok();
    let mut options = LoopOptions { file_system, sector_size, ..LoopOptions::default() };
    options.size = if file_system.is_some() { 320 << 20 } else { DRIVE_LEN };
    options.image_in = memory.as_ref().map_or(options.image_in, |memory| memory.path().to_owned());
    let drive = LoopDrive::new(&options)?;
    Ok((Box::new(memory), drive))
}

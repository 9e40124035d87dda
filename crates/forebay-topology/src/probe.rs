//! Answers that only a kernel can give and no folder can hold: `statx`, the targets of links,
//! `statfs`, FIEMAP, and the tables behind device nodes.
//!
//! A [`System`] queries the running kernel, queries it and records, or answers from a record
//! (`answers`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use forebay_base::lock::Lock;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answers::{
    Answer, Direct, Extent, Extents, Fiemap, FileSystemType, Granted, LoopFile, PATH, Refusal,
    Stat, Table, Trail, UNKNOWN, UNWRITTEN, refusal,
};
use super::calls;
use super::links;
use super::system::{Source, System};
use super::text::device_text;

impl System {
    /// Replays an answer, or queries the kernel for it and records it.
    fn ask<T: Serialize + DeserializeOwned>(
        &self,
        about: (&'static str, &Path),
        live: impl FnOnce() -> Answer<T>,
    ) -> Answer<T> {
        match self.source() {
            Source::Live => live(),
            Source::Recording(record) => {
                let answer = live();
                record.lock().answers.note(about, &answer);
                answer
            }
            Source::Replay(answers) => answers.get(about),
        }
    }

    fn look<T: Send + 'static>(
        &self,
        path: &Path,
        look: impl FnOnce(&Path) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let Some(patience) = self.patience() else { return look(path) };
        let own = path.to_owned();
        patience.look(path, move || look(&own))?
    }

    /// `statx`, following links.
    pub(super) fn stat(&self, path: &Path) -> Answer<Stat> {
        self.ask((PATH, path), || self.look(path, stat))
    }

    /// Follows an absolute path link by link, even if its end does not exist.
    pub(super) fn trail(&self, path: &Path) -> Answer<Trail> {
        match self.source() {
            Source::Replay(answers) => answers.trail(path),
            Source::Live => self.live_trail(path),
            Source::Recording(record) => {
                let trail = self.live_trail(path)?;
                record.lock().answers.note((PATH, path), &Ok(&trail));
                Ok(trail)
            }
        }
    }

    fn live_trail(&self, path: &Path) -> Answer<Trail> {
        let Some(patience) = self.patience() else {
            return links::trail("/".as_ref(), path, |_| ());
        };
        let so_far = Arc::new(Lock::new(None));
        let (own, noted) = (path.to_owned(), Arc::clone(&so_far));
        let note = move |trail: &Trail| {
            *noted.lock() = Some(trail.clone());
        };
        match patience.look(path, move || links::trail("/".as_ref(), &own, note)) {
            Ok(answer) => answer,
            // The links found so far still identify the mount that does not answer.
            Err(silent) => {
                if let Some(known) = so_far.lock().take() {
                    patience.note(path, known);
                }
                patience.known(path).ok_or(silent)
            }
        }
    }

    /// The file system type from `statfs`.
    pub(super) fn file_system(&self, path: &Path) -> Answer<u32> {
        let of = |statfs_type| FileSystemType { statfs_type };
        let found = self.ask((PATH, path), || self.look(path, file_system).map(of));
        found.map(|found| found.statfs_type)
    }

    /// Opens a file or folder and closes it again; anything else is not opened. Not recorded.
    pub(super) fn opens(&self, path: &Path) -> Answer<()> {
        match self.source() {
            Source::Replay(_) => Err(Refusal::NotRecorded),
            _ => self.look(path, opens),
        }
    }

    /// FIEMAP, or `SEEK_DATA` without it: the first `max` extents.
    pub(super) fn extents(&self, path: &Path, max: usize) -> Answer<Vec<Extent>> {
        let live = || {
            let found = self.look(path, move |path| extents(path, max));
            let fiemap = found.map_or_else(Fiemap::from, |extents| Fiemap::Extents { extents });
            Ok(Extents { fiemap })
        };
        match self.ask((PATH, path), live)?.fiemap {
            Fiemap::Extents { extents } => Ok(extents.into_iter().take(max).collect()),
            Fiemap::Failed { errno } => Err(refusal(errno)),
        }
    }

    /// The table of a device-mapper volume, a line per target, without its keys.
    pub(super) fn dm_table(&self, device: u64) -> Answer<String> {
        let (name, node) = (device_text(device), format!("/dev/block/{}", device_text(device)));
        let look = move |_: &Path| Ok(Table { table: calls::dm_table(device)? });
        Ok(self.ask(("dm", name.as_ref()), || self.look(node.as_ref(), look))?.table)
    }

    /// Device and inode of the file behind the loop device `name`. The kernel may query the image's
    /// file system for the inode number.
    pub(super) fn loop_file(&self, name: &str) -> Answer<LoopFile> {
        let own = name.to_owned();
        let look = move |_: &Path| Ok(calls::loop_file(&own)?);
        self.ask(("loop", name.as_ref()), || self.look(&Path::new("/dev").join(name), look))
    }

    /// Checks whether this process may open a device for reading and writing: file modes and the
    /// device control group. The device is not opened.
    pub(super) fn access(&self, device: &Path) -> Answer<()> {
        let live = || self.look(device, access).map(|()| Granted {});
        self.ask(("access", device), live).map(|Granted {}| ())
    }

    /// A `stat` of any file on this mount, for a record, which cannot answer for every file.
    pub(super) fn sample(&self, mount: u64) -> Option<Stat> {
        match self.source() {
            Source::Replay(answers) => answers.sample(mount),
            Source::Live | Source::Recording(_) => None,
        }
    }
}

fn access(device: &Path) -> Answer<()> {
    // The kernel also checks the device control group here (`inode_permission`).
    let wanted = Access::READ_OK.union(Access::WRITE_OK);
    Ok(rustix::fs::accessat(CWD, device, wanted, AtFlags::empty())?)
}

fn stat(path: &Path) -> Answer<Stat> {
    let mut stat = stat_at(CWD, path, AtFlags::empty())?;
    if stat.mount.is_none() {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok();
        stat.mount = file.and_then(|file| mount_of(file.as_fd()));
    }
    Ok(stat)
}

fn file_system(path: &Path) -> Answer<u32> {
    let answer = rustix::io::retry_on_intr(|| rustix::fs::statfs(path))?;
    Ok(crate::FileSystem::of(&answer).0)
}

fn opens(path: &Path) -> Answer<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Opening a device may have side effects.
    if matches!(stat(path)?.kind(), FileType::RegularFile | FileType::Directory) {
        rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    }
    Ok(())
}

fn extents(path: &Path, max: usize) -> Answer<Vec<Extent>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Opening a device may have side effects, and devices have no extents.
    if !matches!(stat(path)?.kind(), FileType::RegularFile) {
        return Err(Errno::OPNOTSUPP.into());
    }
    let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let found = match calls::extents(fd.as_fd(), max) {
        Err(Errno::OPNOTSUPP | Errno::NOTTY) => return Ok(data(fd.as_fd(), max)?),
        found => found?,
    };
    if found.iter().all(|extent| extent.flags & UNWRITTEN == 0) {
        return Ok(found);
    }
    // Their bytes may be in the page cache only. A file system without sync keeps its answer.
    let _ = rustix::fs::fdatasync(&fd);
    Ok(calls::extents(fd.as_fd(), max)?)
}

/// The runs of a file that are no holes, without addresses, for file systems without FIEMAP.
fn data(fd: BorrowedFd<'_>, max: usize) -> rustix::io::Result<Vec<Extent>> {
    let mut found: Vec<Extent> = Vec::new();
    while found.len() < max {
        let at = found.last().map_or(0, |last| last.logical + last.len);
        let logical = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break, // no data from here on
            found => found?,
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(logical))?;
        if end <= logical {
            break;
        }
        found.push(Extent { logical, physical: 0, len: end - logical, flags: UNKNOWN });
    }
    Ok(found)
}

/// The `statx` result for an open file.
pub(super) fn stat_of(fd: BorrowedFd<'_>) -> Answer<Stat> {
    // Mount and device do not change, so no server need be contacted.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let mut stat = stat_at(fd, "".as_ref(), flags)?;
    stat.mount = stat.mount.or_else(|| mount_of(fd));
    Ok(stat)
}

fn stat_at(at: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> Answer<Stat> {
    match rustix::fs::statx(at, path, flags, wanted()) {
        Ok(answer) => Ok(from_statx(&answer)),
        // Some container filters reject the newer call.
        Err(Errno::NOSYS | Errno::PERM) => {
            let flags = flags & AtFlags::EMPTY_PATH;
            let stat = rustix::io::retry_on_intr(|| rustix::fs::statat(at, path, flags))?;
            Ok(from_stat(&stat))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | StatxFlags::DIOALIGN
}

fn from_statx(answer: &rustix::fs::Statx) -> Stat {
    let is_given = |flag: StatxFlags| answer.stx_mask & flag.bits() != 0;
    Stat {
        device: rustix::fs::makedev(answer.stx_dev_major, answer.stx_dev_minor),
        rdev: rustix::fs::makedev(answer.stx_rdev_major, answer.stx_rdev_minor),
        mode: answer.stx_mode.into(),
        inode: answer.stx_ino,
        size: answer.stx_size,
        block_size: answer.stx_blksize.into(),
        mount: is_given(StatxFlags::MNT_ID).then_some(answer.stx_mnt_id),
        direct: is_given(StatxFlags::DIOALIGN).then_some(Direct {
            memory: answer.stx_dio_mem_align,
            offset: answer.stx_dio_offset_align,
        }),
        attributes: u32::try_from(answer.stx_attributes.bits()).unwrap_or(0),
    }
}

fn from_stat(answer: &rustix::fs::Stat) -> Stat {
    Stat {
        device: answer.st_dev,
        rdev: answer.st_rdev,
        mode: answer.st_mode,
        inode: answer.st_ino,
        size: u64::try_from(answer.st_size).unwrap_or(0),
        block_size: u64::try_from(answer.st_blksize).unwrap_or(0),
        mount: None,
        direct: None,
        attributes: 0,
    }
}

/// The mount id of an open file on kernels before 5.8 (`proc(5)`, `mnt_id`).
fn mount_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let path = format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

//! Answers that only a kernel can give and no folder can hold: `statx`, the targets of links,
//! `statfs`, FIEMAP, and the tables behind device nodes.
//!
//! A [`Kernel`] queries the running kernel, queries it and records, or answers from a record
//! (`answers`).

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use forebay_base::lock::Lock;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::answers::{self, Answers, Extents, FileSystemType, Granted, LoopFile, PATH, Table};
use super::calls;
use super::patience::{LOOK_MAX, Patience};
use super::resolve::device_text;
use super::stored;

/// Maximum number of links followed for a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// An answer of the kernel, or the reason why it is missing.
pub(super) type Answer<T> = Result<T, Refusal>;

/// Why an answer of the kernel is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The call failed.
    Errno(Errno),
    /// This was not recorded.
    NotRecorded,
    /// The call timed out: a server is down, or a program hangs.
    Silent,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => errno.fmt(f),
            Self::NotRecorded => f.write_str("not recorded"),
            Self::Silent => write!(f, "no answer within {} s", LOOK_MAX.as_secs()),
        }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Errno(errno) => errno.into(),
            Refusal::NotRecorded => Self::other(refusal.to_string()),
            Refusal::Silent => Self::new(io::ErrorKind::TimedOut, refusal.to_string()),
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// The `statx` result for a file, also in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stat {
    #[serde(rename = "dev", with = "answers::device")]
    pub(super) device: u64,
    #[serde(default, with = "answers::device")]
    pub(super) rdev: u64,
    #[serde(with = "answers::octal")]
    pub(super) mode: u32,
    #[serde(rename = "ino")]
    pub(super) inode: u64,
    #[serde(default)]
    pub(super) size: u64,
    #[serde(default, rename = "blksize")]
    pub(super) block_size: u64,
    /// The id of the mount it was reached through (Linux 5.8; before that from the descriptor).
    #[serde(rename = "mnt_id")]
    pub(super) mount: Option<u64>,
    #[serde(flatten)]
    pub(super) direct: Option<Direct>,
    /// Compressed, encrypted and the like, as bits (`STATX_ATTR_…`).
    #[serde(default, with = "answers::hex")]
    pub(super) attributes: u32,
}

/// Required alignment for direct I/O (Linux 6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Direct {
    #[serde(rename = "dio_mem_align")]
    pub(super) memory: u32,
    #[serde(rename = "dio_offset_align")]
    pub(super) offset: u32,
}

impl Stat {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// The target of a path, with its links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trail {
    /// The path without links; missing components stay as they were written.
    #[serde(rename = "realpath")]
    pub(super) real: PathBuf,
    /// The links in the path: their paths and texts.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// The deepest component of `real` that exists.
    pub(super) there: PathBuf,
}

/// A contiguous run of a file's bytes, as FIEMAP reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Extent {
    /// Its offset in the file, in bytes.
    pub logical: u64,
    /// Its address on the file system's device; on btrfs a logical address.
    pub physical: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The kernel's flags (`FIEMAP_EXTENT_…` in `linux/fiemap.h`).
    #[serde(with = "answers::hex")]
    pub flags: u32,
}

/// The kernel that a system belongs to.
#[derive(Debug)]
pub(super) struct Kernel {
    source: Source,
    /// The timeouts of file probes; `None` if the files are known to answer.
    patience: Option<Patience>,
}

/// The source of answers.
#[derive(Debug)]
enum Source {
    /// The kernel that this process runs on.
    Live,
    /// The same, with all answers recorded.
    Recording(Lock<Answers>),
    /// A record.
    Replay(Answers),
}

impl Kernel {
    /// A live kernel whose file probes time out.
    pub(super) fn live() -> Self {
        Self { source: Source::Live, patience: Some(Patience::default()) }
    }

    /// A live kernel, for files that are known to answer.
    pub(super) fn of_open_files() -> Self {
        Self { source: Source::Live, patience: None }
    }

    /// A live kernel whose answers are recorded. Paths that did not answer `known` are skipped.
    pub(super) fn recording(known: &Self) -> Self {
        let patience = Patience::default();
        if let Some(known) = &known.patience {
            patience.inherit(known);
        }
        Self { source: Source::Recording(Lock::default()), patience: Some(patience) }
    }

    pub(super) fn replay(answers: Answers) -> Self {
        Self { source: Source::Replay(answers), patience: None }
    }

    /// Whether this is a live kernel, and nothing is recorded.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.source, Source::Live)
    }

    pub(super) fn is_recording(&self) -> bool {
        matches!(self.source, Source::Recording(_))
    }

    /// The lines of a record about `paths`.
    pub(super) fn recorded(&self, paths: &[PathBuf]) -> String {
        let Source::Recording(answers) = &self.source else { return String::new() };
        answers.lock().lines(paths)
    }

    /// The paths that this kernel was recorded for.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        match &self.source {
            Source::Replay(answers) => answers.paths(),
            Source::Live | Source::Recording(_) => Vec::new(),
        }
    }

    pub(super) fn patience(&self) -> Option<&Patience> {
        self.patience.as_ref()
    }

    /// Replays an answer, or queries the kernel for it and records it.
    fn ask<T: Serialize + DeserializeOwned>(
        &self,
        about: (&'static str, &Path),
        live: impl FnOnce() -> Answer<T>,
    ) -> Answer<T> {
        match &self.source {
            Source::Live => live(),
            Source::Recording(answers) => {
                let answer = live();
                answers.lock().note(about, &answer);
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
        let Some(patience) = &self.patience else { return look(path) };
        let own = path.to_owned();
        patience.look(path, move || look(&own))?
    }

    /// `statx`, following links.
    pub(super) fn stat(&self, path: &Path) -> Answer<Stat> {
        self.ask((PATH, path), || self.look(path, stat))
    }

    /// Follows an absolute path link by link, even if its end does not exist.
    pub(super) fn trail(&self, path: &Path) -> Answer<Trail> {
        match &self.source {
            Source::Replay(answers) => answers.trail(path),
            Source::Live => self.live_trail(path),
            Source::Recording(answers) => {
                let trail = self.live_trail(path)?;
                answers.lock().note((PATH, path), &Ok(&trail));
                Ok(trail)
            }
        }
    }

    fn live_trail(&self, path: &Path) -> Answer<Trail> {
        let Some(patience) = &self.patience else { return trail("/".as_ref(), path, |_| ()) };
        let so_far = Arc::new(Lock::new(None));
        let (own, noted) = (path.to_owned(), Arc::clone(&so_far));
        let note = move |trail: &Trail| {
            *noted.lock() = Some(trail.clone());
        };
        match patience.look(path, move || trail("/".as_ref(), &own, note)) {
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
        match self.source {
            Source::Replay(_) => Err(Refusal::NotRecorded),
            _ => self.look(path, opens),
        }
    }

    /// FIEMAP, or `SEEK_DATA` without it: the first `max` extents.
    pub(super) fn extents(&self, path: &Path, max: usize) -> Answer<Vec<Extent>> {
        let live =
            || Ok(Extents { fiemap: self.look(path, move |path| extents(path, max)).into() });
        let mut extents: Vec<Extent> = Answer::from(self.ask((PATH, path), live)?.fiemap)?;
        extents.truncate(max);
        Ok(extents)
    }

    /// The table of a device-mapper volume, a line per target, without its keys.
    pub(super) fn dm_table(&self, device: u64) -> Answer<String> {
        let (name, node) = (device_text(device), format!("/dev/block/{}", device_text(device)));
        let look = move |_: &Path| Ok(Table { table: calls::dm_table(device)? });
        Ok(self.ask(("dm", name.as_ref()), || self.look(node.as_ref(), look))?.table)
    }

    /// Device and inode of the file behind the loop device `name`. The kernel may query the image's
    /// file system for the inode number.
    pub(super) fn loop_file(&self, name: &str) -> Answer<(u64, u64)> {
        let own = name.to_owned();
        let look = move |_: &Path| {
            let (dev, ino) = calls::loop_file(&own)?;
            Ok(LoopFile { dev, ino })
        };
        let live = || self.look(&Path::new("/dev").join(name), look);
        let LoopFile { dev, ino } = self.ask(("loop", name.as_ref()), live)?;
        Ok((dev, ino))
    }

    /// Checks whether this process may open a device for reading and writing: file modes and the
    /// device control group. The device is not opened.
    pub(super) fn access(&self, device: &Path) -> Answer<()> {
        let live = || self.look(device, access).map(|()| Granted {});
        self.ask(("access", device), live).map(|Granted {}| ())
    }

    /// A `stat` of any file on this mount, for a record, which cannot answer for every file.
    pub(super) fn sample(&self, mount: u64) -> Option<Stat> {
        match &self.source {
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
    if found.iter().all(|extent| extent.flags & stored::UNWRITTEN == 0) {
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
        found.push(Extent { logical, physical: 0, len: end - logical, flags: stored::UNKNOWN });
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

/// Follows `path` as the kernel would, with the folder `root` as `/`, and collects its links. `..`
/// stops at the root. Before a call, `note` receives the state so far, as if the rest held no
/// links.
pub(super) fn trail(root: &Path, path: &Path, mut note: impl FnMut(&Trail)) -> Answer<Trail> {
    let mut rest: Vec<OsString> = reversed(path).collect();
    let top = PathBuf::from("/");
    let mut trail = Trail { real: top.clone(), links: Vec::new(), there: top };
    let mut missing = false;
    while let Some(name) = rest.pop() {
        if name == ".." {
            trail.real.pop();
            if !missing {
                trail.there.clone_from(&trail.real);
            }
            continue;
        }
        trail.real.push(&name);
        if missing {
            continue;
        }
        note(&Trail { real: joined(&trail.real, &rest), ..trail.clone() });
        let at = root.join(trail.real.strip_prefix("/").unwrap_or(&trail.real));
        match link(&at) {
            Ok(target) => {
                if trail.links.len() == LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                trail.links.push((trail.real.clone(), target.clone()));
                if target.is_absolute() {
                    trail.real = PathBuf::from("/");
                } else {
                    trail.real.pop();
                }
                trail.there.clone_from(&trail.real);
                rest.extend(reversed(&target));
            }
            Err(Errno::INVAL) => trail.there.clone_from(&trail.real),
            Err(Errno::NOENT) => missing = true,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(trail)
}

/// The target of a link; [`Errno::INVAL`] if `path` is no link.
pub(super) fn link(path: &Path) -> Result<PathBuf, Errno> {
    let target = rustix::fs::readlinkat(CWD, path, Vec::new())?;
    Ok(path_of(target.into_bytes()))
}

pub(super) fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// `path` followed by the components of `rest`, which are in reverse order.
pub(super) fn joined(path: &Path, rest: &[OsString]) -> PathBuf {
    let mut joined = path.to_owned();
    for name in rest.iter().rev() {
        if name == ".." {
            joined.pop();
        } else {
            joined.push(name);
        }
    }
    joined
}

/// The components of a path, the last first.
pub(super) fn reversed(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

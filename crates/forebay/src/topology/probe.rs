//! What only the kernel can answer, and no folder can play: `statx`, where links lead, `statfs`,
//! FIEMAP, and the tables behind device nodes.
//!
//! [`Live`] asks; `replay` answers from a record; `record` asks and writes down.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::calls;
use super::patience::{LOOK_MAX, Patience, Silent};
use super::resolve::device_text;
use crate::lock::Lock;

/// The links that are followed for one path, as in the kernel.
const LINKS_MAX: usize = 40;

/// An answer of the kernel, or why there is none.
pub(super) type Answer<T> = Result<T, Refusal>;

/// Why the kernel gives no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The call failed.
    Errno(Errno),
    /// Nobody asked when this system was recorded.
    NotRecorded,
    /// Nobody answered in time: a server is gone, or a program hangs.
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

impl From<Silent> for Refusal {
    fn from(Silent: Silent) -> Self {
        Self::Silent
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// What `statx` says about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) device: u64,
    pub(super) rdev: u64,
    pub(super) mode: u32,
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) block_size: u64,
    /// Which mount it was reached through (Linux 5.8, or from the descriptor before).
    pub(super) mount: Option<u64>,
    /// Alignment of memory and offset that direct I/O wants (Linux 6.1).
    pub(super) direct: Option<(u32, u32)>,
    /// Compressed, encrypted and the like, as bits (`STATX_ATTR_…`).
    pub(super) attributes: u64,
}

impl Stat {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trail {
    /// Without links; what does not exist stays as it was written.
    pub(super) real: PathBuf,
    /// The links on the way: where each lies, and what it says.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// The deepest folder or file of `real` that exists.
    pub(super) there: PathBuf,
}

/// A run of a file's bytes at one place, as FIEMAP tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// Where it begins in the file, in bytes.
    pub logical: u64,
    /// Where it begins on what the file system calls its device; on btrfs a logical address.
    pub physical: u64,
    /// Bytes.
    pub len: u64,
    /// The kernel's flags (`FIEMAP_EXTENT_…` in `linux/fiemap.h`).
    pub flags: u32,
}

/// Answers that come from a kernel.
pub(super) trait Probe: fmt::Debug + Send + Sync {
    /// `statx`, through links.
    fn stat(&self, path: &Path) -> Answer<Stat>;
    /// Follows an absolute path link by link, also where its end does not exist.
    fn trail(&self, path: &Path) -> Answer<Trail>;
    /// What `statfs` calls the type of the file system.
    fn file_system(&self, path: &Path) -> Answer<u32>;
    /// Opens a file or folder for a moment; what else there is stays closed.
    fn opens(&self, _path: &Path) -> Answer<()> {
        Err(Refusal::NotRecorded)
    }
    /// FIEMAP: the first `max` extents.
    fn extents(&self, path: &Path, max: usize) -> Answer<Vec<Extent>>;
    /// The table of a device-mapper volume, one target a line, without its keys.
    fn dm_table(&self, device: u64) -> Answer<String>;
    /// Device and inode of the file behind the loop device `name`.
    fn loop_file(&self, name: &str) -> Answer<(u64, u64)>;
    /// Whether this process may open a device for reading and writing, which is not done: the
    /// modes, and what its control group lets through.
    fn access(&self, device: &Path) -> Answer<()>;
    /// What any file on this mount answers; for systems that cannot be asked about all.
    fn sample(&self, _mount: u64) -> Option<Stat> {
        None
    }
    /// What bounds the looks at files; none where no kernel is asked, or none has to be waited for.
    fn patience(&self) -> Option<&Patience> {
        None
    }
    /// The paths that were asked about when this was recorded.
    fn paths(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// The kernel that this process runs on.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// None where the files have answered already.
    patience: Option<Patience>,
}

impl Live {
    /// One that waits for no file for long.
    pub(super) fn patient() -> Self {
        Self { patience: Some(Patience::default()) }
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
}

impl Probe for Live {
    fn stat(&self, path: &Path) -> Answer<Stat> {
        self.look(path, stat)
    }

    fn trail(&self, path: &Path) -> Answer<Trail> {
        let Some(patience) = &self.patience else { return trail(path, |_| ()) };
        let so_far = Arc::new(Lock::new(None));
        let (own, noted) = (path.to_owned(), Arc::clone(&so_far));
        let note = move |trail: &Trail| {
            *noted.lock() = Some(trail.clone());
        };
        match patience.look(path, move || trail(&own, note)) {
            Ok(answer) => answer,
            // The mount that does not answer is told by what is known of the way.
            Err(silent) => {
                if let Some(known) = so_far.lock().take() {
                    patience.note(path, known);
                }
                patience.known(path).ok_or_else(|| silent.into())
            }
        }
    }

    fn file_system(&self, path: &Path) -> Answer<u32> {
        self.look(path, file_system)
    }

    fn opens(&self, path: &Path) -> Answer<()> {
        self.look(path, opens)
    }

    fn extents(&self, path: &Path, max: usize) -> Answer<Vec<Extent>> {
        self.look(path, move |path| extents(path, max))
    }

    fn dm_table(&self, device: u64) -> Answer<String> {
        let node = format!("/dev/block/{}", device_text(device));
        self.look(node.as_ref(), move |_| Ok(calls::dm_table(device)?))
    }

    fn loop_file(&self, name: &str) -> Answer<(u64, u64)> {
        // The kernel asks the file system of the image for its number.
        let own = name.to_owned();
        self.look(&Path::new("/dev").join(name), move |_| Ok(calls::loop_file(&own)?))
    }

    fn access(&self, device: &Path) -> Answer<()> {
        self.look(device, access)
    }

    fn patience(&self) -> Option<&Patience> {
        self.patience.as_ref()
    }
}

fn access(device: &Path) -> Answer<()> {
    // The kernel asks the control group of devices here as well (`inode_permission`).
    let wanted = Access::READ_OK.union(Access::WRITE_OK);
    Ok(rustix::fs::accessat(CWD, device, wanted, AtFlags::empty())?)
}

fn stat(path: &Path) -> Answer<Stat> {
    let mut stat = match rustix::fs::statx(CWD, path, AtFlags::empty(), wanted()) {
        Ok(answer) => from_statx(&answer),
        // Some filters of containers refuse the newer call.
        Err(Errno::NOSYS | Errno::PERM) => {
            from_stat(&rustix::io::retry_on_intr(|| rustix::fs::stat(path))?)
        }
        Err(errno) => return Err(errno.into()),
    };
    if stat.mount.is_none() {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        stat.mount = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .ok()
            .and_then(|fd| mount_of(fd.as_fd()));
    }
    Ok(stat)
}

fn file_system(path: &Path) -> Answer<u32> {
    let answer = rustix::io::retry_on_intr(|| rustix::fs::statfs(path))?;
    Ok(crate::file::FileSystem::of(&answer).0)
}

fn opens(path: &Path) -> Answer<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Opening a device could have effects of its own.
    if matches!(stat(path)?.kind(), FileType::RegularFile | FileType::Directory) {
        rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    }
    Ok(())
}

fn extents(path: &Path, max: usize) -> Answer<Vec<Extent>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Opening a device could have effects of its own, and none has extents.
    if !matches!(stat(path)?.kind(), FileType::RegularFile) {
        return Err(Errno::OPNOTSUPP.into());
    }
    let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    Ok(calls::extents(fd.as_fd(), max)?)
}

/// What `statx` says about an open file.
pub(super) fn stat_of(fd: BorrowedFd<'_>) -> Answer<Stat> {
    // What tells the mount and the device does not change, so no server need be asked.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let mut stat = match rustix::fs::statx(fd, "", flags, wanted()) {
        Ok(answer) => from_statx(&answer),
        Err(Errno::NOSYS | Errno::PERM) => from_stat(&rustix::fs::fstat(fd)?),
        Err(errno) => return Err(errno.into()),
    };
    stat.mount = stat.mount.or_else(|| mount_of(fd));
    Ok(stat)
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | StatxFlags::DIOALIGN
}

fn from_statx(answer: &rustix::fs::Statx) -> Stat {
    let told = |flag: StatxFlags| answer.stx_mask & flag.bits() != 0;
    Stat {
        device: rustix::fs::makedev(answer.stx_dev_major, answer.stx_dev_minor),
        rdev: rustix::fs::makedev(answer.stx_rdev_major, answer.stx_rdev_minor),
        mode: answer.stx_mode.into(),
        inode: answer.stx_ino,
        size: answer.stx_size,
        block_size: answer.stx_blksize.into(),
        mount: told(StatxFlags::MNT_ID).then_some(answer.stx_mnt_id),
        direct: told(StatxFlags::DIOALIGN)
            .then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align)),
        attributes: answer.stx_attributes.bits(),
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

/// The mount of an open file, as kernels before 5.8 tell it (`proc(5)`, `mnt_id`).
fn mount_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let path = format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// Follows `path` as the kernel would, so that each link on the way is known. Before each question
/// `note` is told what is known so far, as if the rest held no links.
fn trail(path: &Path, mut note: impl FnMut(&Trail)) -> Answer<Trail> {
    let mut rest: Vec<OsString> = reversed(path).collect();
    let root = PathBuf::from("/");
    let mut trail = Trail { real: root.clone(), links: Vec::new(), there: root };
    let mut missing = false;
    while let Some(name) = rest.pop() {
        if name == ".." {
            trail.real.pop();
            continue;
        }
        trail.real.push(&name);
        if missing {
            continue;
        }
        note(&Trail { real: joined(&trail.real, &rest), ..trail.clone() });
        match rustix::fs::readlinkat(CWD, &trail.real, Vec::new()) {
            Ok(target) => {
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
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

/// `path` with the components of `rest`, of which the last comes first.
fn joined(path: &Path, rest: &[OsString]) -> PathBuf {
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

fn reversed(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

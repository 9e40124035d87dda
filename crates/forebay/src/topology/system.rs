//! The system that is read: the real one, or a folder that plays its `/sys` and `/proc`.
//!
//! Nothing that is read is trusted. Paths are resolved below the root and never leave it: a link
//! is followed component by component, `..` stops at the root, and links are counted. A file that
//! is missing, endless, binary or no file at all is an [`Absent`] with the reason, never an error
//! that ends the resolving. Neighbours: `probe` answers what a folder cannot play.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::numa::Node;
use super::probe::{Live, Probe, Refusal};
use crate::lock::Lock;

/// The most that is read of one file of `/sys`: the kernel's are at most a page, of up to 64 KiB.
const FILE_LEN_MAX: usize = 64 << 10;
/// Bytes that are asked for first: more than nearly all files of `/sys` have.
const FIRST_READ: usize = 4 << 10;
/// The most that is read of a table of mounts: 10,000 overlays with their options stay below.
const TABLE_LEN_MAX: usize = 64 << 20;
/// The links that are followed for one path, as in the kernel.
const LINKS_MAX: usize = 40;
/// The entries that are taken from one folder.
const ENTRIES_MAX: usize = 32 << 10;
/// Nodes and serial numbers that are kept.
const KEPT_MAX: usize = 1024;
/// The longest text that is taken into a report.
const TEXT_LEN_MAX: usize = 4 << 10;

/// A system to read about.
#[derive(Debug, Clone)]
pub struct System {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    /// Whether the root is `/` and nothing is written down, so that the kernel may walk.
    plain: bool,
    probe: Arc<dyn Probe>,
    touched: Option<Lock<Touched>>,
    /// What is known about NUMA nodes, which no machine changes while it runs.
    nodes: Lock<BTreeMap<Option<u32>, Node>>,
    /// Serial numbers that only the drive itself tells, by its folder and sequence number.
    serials: Lock<BTreeMap<(PathBuf, String), Option<String>>>,
}

/// What was read of a system, by its path below the root.
#[derive(Debug, Default, Clone)]
pub(super) struct Touched {
    pub(super) files: BTreeMap<PathBuf, Vec<u8>>,
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    pub(super) folders: BTreeSet<PathBuf>,
    /// What was found to be there, and not read.
    pub(super) names: BTreeSet<PathBuf>,
}

/// Why a file of the system gives no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It is not there.
    Missing,
    /// The caller may not read it.
    Denied,
    /// It is a folder, a FIFO, a device or a circle of links.
    NotAFile,
    /// It is empty, or holds what is no text.
    NotText,
    /// Nobody answered in time.
    Silent,
    /// Something else failed.
    Failed(Errno),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no such file"),
            Self::Denied => f.write_str("permission denied"),
            Self::NotAFile => f.write_str("not a file"),
            Self::NotText => f.write_str("no readable text"),
            Self::Silent => Refusal::Silent.fmt(f),
            Self::Failed(errno) => errno.fmt(f),
        }
    }
}

impl From<Errno> for Absent {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Missing,
            Errno::ACCESS | Errno::PERM => Self::Denied,
            Errno::LOOP | Errno::ISDIR => Self::NotAFile,
            errno => Self::Failed(errno),
        }
    }
}

impl Default for System {
    fn default() -> Self {
        Self::live()
    }
}

impl System {
    /// The machine that this process runs on. A file that does not answer, since its server is
    /// gone, say, is waited for for a few seconds, and passed over from then on.
    #[must_use]
    pub fn live() -> Self {
        Self::made("/".into(), true, Arc::new(Live::patient()), false)
    }

    /// The system whose `/sys` and `/proc` are folders in `root`, and whose kernel is `probe`.
    pub(super) fn played(root: impl Into<PathBuf>, probe: Arc<dyn Probe>) -> Self {
        Self::made(root.into(), false, probe, false)
    }

    /// This machine, with all that is read written down.
    pub(super) fn recorded(probe: Arc<dyn Probe>) -> Self {
        Self::made("/".into(), false, probe, true)
    }

    pub(super) fn made(root: PathBuf, plain: bool, probe: Arc<dyn Probe>, record: bool) -> Self {
        let touched = record.then(Lock::default);
        let (nodes, serials) = (Lock::default(), Lock::default());
        Self { inner: Arc::new(Inner { root, plain, probe, touched, nodes, serials }) }
    }

    /// What is known about a NUMA node, or about the only one where a device names none.
    pub(super) fn node(&self, node: Option<u32>) -> Node {
        let mut nodes = self.inner.nodes.lock();
        // A system that names more nodes than any machine has is not kept in mind.
        if nodes.len() > KEPT_MAX {
            nodes.clear();
        }
        nodes.entry(node).or_insert_with(|| Node::read(self, node)).clone()
    }

    /// The system whose `/sys` is in `root`, without a kernel to ask.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self::played(root, Arc::new(super::replay::Replay::default()))
    }

    /// Whether this is the running machine itself.
    pub(crate) fn is_live(&self) -> bool {
        self.inner.plain
    }

    /// The folder that plays `/`.
    pub(super) fn root(&self) -> &Path {
        &self.inner.root
    }

    pub(super) fn probe(&self) -> &dyn Probe {
        &*self.inner.probe
    }

    /// What was read so far, where it is written down.
    pub(super) fn touched(&self) -> Touched {
        self.note(|touched| touched.clone()).unwrap_or_default()
    }

    pub(super) fn note<T>(&self, action: impl FnOnce(&mut Touched) -> T) -> Option<T> {
        let touched = self.inner.touched.as_ref()?;
        Some(action(&mut touched.lock()))
    }

    /// The serial number of the disk in `folder`, which its driver may ask the disk for at each
    /// reading (`virtio_blk` does); `sequence` is the kernel's count of disks (Linux 5.15), by
    /// which the same disk is told from another in its place.
    pub(super) fn serial(&self, folder: &Folder, sequence: Option<&str>) -> Option<String> {
        let read = || folder.serial();
        let Some(sequence) = sequence else { return read() };
        let key = (folder.path.clone(), sequence.to_owned());
        if let Some(serial) = self.inner.serials.lock().get(&key) {
            return serial.clone();
        }
        let serial = read();
        let mut known = self.inner.serials.lock();
        if known.len() > KEPT_MAX {
            known.clear();
        }
        known.insert(key, serial.clone());
        serial
    }

    /// The folder at `path`, which is below the root and may hold links.
    pub(crate) fn folder(&self, path: impl AsRef<Path>) -> Result<Folder, Absent> {
        let path = self.real(path.as_ref())?;
        Ok(Folder { system: self.clone(), path })
    }

    /// `path` without links, below the root; its last component need not be a folder.
    pub(super) fn real(&self, path: &Path) -> Result<PathBuf, Absent> {
        if self.inner.plain {
            return self.real_at_end(path);
        }
        let mut rest: Vec<OsString> = Vec::new();
        push_reversed(&mut rest, path);
        let mut real = PathBuf::new();
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == ".." {
                real.pop();
                continue;
            }
            real.push(&name);
            match rustix::fs::readlinkat(CWD, self.inner.root.join(&real), Vec::new()) {
                Ok(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Absent::NotAFile);
                    }
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    self.note(|touched| touched.links.insert(real.clone(), target.clone()));
                    if target.is_absolute() {
                        real = PathBuf::new();
                    } else {
                        real.pop();
                    }
                    push_reversed(&mut rest, &target);
                }
                Err(Errno::INVAL) => {} // it is there, and is no link
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(real)
    }

    /// The same where only the last component may be a link and leads to none, as on a live
    /// `/sys`: one call instead of one for each component.
    fn real_at_end(&self, path: &Path) -> Result<PathBuf, Absent> {
        let target = match rustix::fs::readlinkat(CWD, self.inner.root.join(path), Vec::new()) {
            Ok(target) => PathBuf::from(OsString::from_vec(target.into_bytes())),
            Err(Errno::INVAL) => return Ok(path.to_owned()),
            Err(errno) => return Err(errno.into()),
        };
        let mut real = match path.parent() {
            Some(parent) if target.is_relative() => parent.to_owned(),
            _ => PathBuf::new(),
        };
        let mut rest = Vec::new();
        push_reversed(&mut rest, &target);
        while let Some(name) = rest.pop() {
            if name == ".." {
                real.pop();
            } else {
                real.push(&name);
            }
        }
        Ok(real)
    }

    /// The last component of where the link at `path` leads.
    pub(super) fn link_name(&self, path: &Path) -> Option<String> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let plain = self.inner.plain;
        let path = if plain { path.to_owned() } else { self.real(parent).ok()?.join(name) };
        let target = rustix::fs::readlinkat(CWD, self.inner.root.join(&path), Vec::new()).ok()?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        let last = name_of(target.file_name()?);
        self.note(|touched| touched.links.insert(path, target));
        last
    }

    /// Whether something is at `path`.
    pub(crate) fn exists(&self, path: &Path) -> bool {
        if !self.inner.plain {
            let found = self.real(path);
            // A record needs the file itself, so that it is there for the replay too.
            if let Ok(real) = &found
                && self.inner.touched.is_some()
                && self.bytes(path, FILE_LEN_MAX).is_err()
            {
                self.note(|touched| touched.folders.insert(real.clone()));
            }
            return found.is_ok();
        }
        rustix::fs::statat(CWD, self.inner.root.join(path), AtFlags::empty()).is_ok()
    }

    /// The text of a small file without the white space around it, not empty.
    pub(crate) fn text(&self, path: &Path) -> Result<String, Absent> {
        let bytes = self.bytes(path, FILE_LEN_MAX)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Absent::NotText)?;
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        if text.is_empty() { Err(Absent::NotText) } else { Ok(clean(text)) }
    }

    /// The bytes of a file, as far as `max`.
    pub(crate) fn bytes(&self, path: &Path, max: usize) -> Result<Vec<u8>, Absent> {
        let real = if self.inner.plain { path.to_owned() } else { self.real(path)? };
        let bytes = read_file(&self.inner.root.join(&real), self.inner.plain, max)?;
        self.note(|touched| touched.files.insert(real, bytes.clone()));
        Ok(bytes)
    }

    /// A table of the process that reads, such as `mountinfo`.
    pub(crate) fn own_table(&self, name: &str) -> Result<Vec<u8>, Absent> {
        let own = Path::new("proc/self").join(name);
        if self.inner.root != Path::new("/") {
            return self.bytes(&own, TABLE_LEN_MAX);
        }
        // A thread may live in a mount namespace of its own; only `thread-self` shows that one.
        let bytes = read_file(&Path::new("/proc/thread-self").join(name), true, TABLE_LEN_MAX)
            .or_else(|_| read_file(&Path::new("/").join(&own), true, TABLE_LEN_MAX))?;
        self.note(|touched| touched.files.insert(own, bytes.clone()));
        Ok(bytes)
    }

    /// The names in a folder, sorted; those that are no text are left out.
    pub(crate) fn list(&self, path: &Path) -> Result<Vec<String>, Absent> {
        let real = if self.inner.plain { path.to_owned() } else { self.real(path)? };
        let entries = std::fs::read_dir(self.inner.root.join(&real)).map_err(|error| {
            Errno::from_io_error(&error).map_or(Absent::Failed(Errno::IO), Absent::from)
        })?;
        self.note(|touched| touched.folders.insert(real));
        let names = entries.take(ENTRIES_MAX).flatten();
        let mut names: Vec<String> =
            names.filter_map(|entry| name_of(&entry.file_name())).collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// A folder of a system, at a path without links.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    system: System,
    path: PathBuf,
}

impl Folder {
    pub(super) fn system(&self) -> &System {
        &self.system
    }

    /// Its path below the root.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its name, empty where that is no text.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().and_then(name_of).unwrap_or_default()
    }

    pub(super) fn folder(&self, name: impl AsRef<Path>) -> Result<Self, Absent> {
        self.system.folder(self.path.join(name))
    }

    pub(super) fn parent(&self) -> Option<Self> {
        self.above(self.path.parent()?)
    }

    /// The folder at `path`, one of those that this one lies in.
    pub(super) fn above(&self, path: &Path) -> Option<Self> {
        let is_above = self.path.starts_with(path);
        is_above.then(|| Self { system: self.system.clone(), path: path.to_owned() })
    }

    /// What the kernel tells user space about a device: lines of `NAME=value`.
    pub(super) fn event(&self) -> Event {
        Event(self.lines("uevent"))
    }

    pub(super) fn has(&self, name: impl AsRef<Path>) -> bool {
        self.system.exists(&self.path.join(name))
    }

    pub(crate) fn text(&self, name: impl AsRef<Path>) -> Result<String, Absent> {
        self.system.text(&self.path.join(name))
    }

    pub(super) fn bytes(&self, name: impl AsRef<Path>) -> Result<Vec<u8>, Absent> {
        self.system.bytes(&self.path.join(name), FILE_LEN_MAX)
    }

    /// The lines of a small file; none where it gives no answer.
    pub(super) fn lines(&self, name: impl AsRef<Path>) -> Vec<String> {
        let bytes = self.bytes(name).unwrap_or_default();
        String::from_utf8_lossy(&bytes).lines().map(clean).collect()
    }

    pub(super) fn number(&self, name: impl AsRef<Path>) -> Option<u64> {
        self.text(name).ok()?.parse().ok()
    }

    pub(super) fn flag(&self, name: impl AsRef<Path>) -> Option<bool> {
        match self.text(name).ok()?.as_str() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }

    pub(super) fn list(&self, name: impl AsRef<Path>) -> Result<Vec<String>, Absent> {
        self.system.list(&self.path.join(name))
    }

    pub(super) fn link_name(&self, name: impl AsRef<Path>) -> Option<String> {
        self.system.link_name(&self.path.join(name))
    }
}

/// The facts in a device's file `uevent`.
#[derive(Debug)]
pub(super) struct Event(Vec<String>);

impl Event {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Puts the components of `path` on `rest`, so that the first is taken first.
fn push_reversed(rest: &mut Vec<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => rest.push(name.to_owned()),
            Component::ParentDir => rest.push("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
}

/// Opens without waiting, so that a FIFO in the place of a file does not hold us up.
pub(super) fn read_file(path: &Path, trusted: bool, max: usize) -> Result<Vec<u8>, Absent> {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    flags.set(OFlags::NOFOLLOW, !trusted);
    read_with(path, flags, trusted, max)
}

/// Reads what may be anything and may be named by a link.
pub(super) fn read_through(path: &Path, max: usize) -> Result<Vec<u8>, Absent> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    read_with(path, flags, false, max)
}

fn read_with(path: &Path, flags: OFlags, trusted: bool, max: usize) -> Result<Vec<u8>, Absent> {
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    // A live `/sys` holds files and folders only, and a folder cannot be read.
    if !trusted {
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Absent::NotAFile);
        }
    }
    let mut bytes = vec![0; max.min(FIRST_READ)];
    let mut len = 0;
    loop {
        let room = bytes.len() - len;
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes[len..]))?;
        len += count;
        // Small files come whole; a table comes in pieces of whole lines.
        if count == 0 || len == max || (count < room && max <= FILE_LEN_MAX) {
            bytes.truncate(len);
            return Ok(bytes);
        }
        if len == bytes.len() {
            bytes.resize(max.min(bytes.len() * 4), 0);
        }
    }
}

/// `name` as text that can stand in a report and in a path; `None` where it cannot.
pub(super) fn name_of(name: &OsStr) -> Option<String> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    (!text.is_empty() && text.len() <= 255 && !text.contains(moves_cursor)).then(|| text.to_owned())
}

/// `text` as it may stand in a report: no control characters, and not endless.
pub(crate) fn clean(text: &str) -> String {
    let mut end = text.len().min(TEXT_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace(moves_cursor, "\u{fffd}")
}

/// Bytes of a path as they may stand in a report.
pub(crate) fn shown(path: &Path) -> String {
    clean(&String::from_utf8_lossy(path.as_os_str().as_bytes()))
}

/// Whether a letter acts on a terminal: controls, the separators of lines and paragraphs, and
/// Unicode's `Bidi_Control`.
pub(crate) fn moves_cursor(c: char) -> bool {
    c.is_control()
        || matches!(u32::from(c), 0x61c | 0x200e | 0x200f | 0x2028..=0x202e | 0x2066..=0x2069)
}

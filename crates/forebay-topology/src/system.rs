//! Read access to a system: the real machine, or a folder that stands for its `/sys` and `/proc`.
//!
//! Nothing that is read is trusted. Paths are resolved below the root and stay there: links are
//! followed component by component, `..` stops at the root, and the number of links is bounded. A
//! file that is missing, endless, binary or not a file is an [`Absent`] with the reason; it never
//! aborts a resolve. `probe` answers everything that a folder cannot hold.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::lock::Lock;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::answers::{Answers, Refusal};
use super::links::{self, joined, reversed};
use super::patience::Patience;
use super::text::{clean, name_of};

/// Maximum bytes read of a file of `/sys`: the kernel's are at most a page, which is up to 64
/// KiB.
const FILE_LEN_MAX: usize = 64 << 10;
/// Bytes requested first: more than the size of nearly all files of `/sys`.
const FIRST_READ: usize = 4 << 10;
/// Maximum bytes read of a table: those of nvidia-fs with 64 GPUs and 64 peers have half of it.
const TABLE_LEN_MAX: usize = 1 << 20;
/// Maximum bytes read of a mount table: enough for 10,000 overlays with their options.
const OWN_TABLE_LEN_MAX: usize = 64 << 20;
/// Maximum number of entries read from a folder.
const ENTRIES_MAX: usize = 32 << 10;

/// A system whose `/sys` and `/proc` are read.
#[derive(Debug, Clone)]
pub struct System {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    source: Source,
    /// The timeouts of file probes; `None` if the files are known to answer.
    patience: Option<Patience>,
}

/// The source of answers.
#[derive(Debug)]
pub(super) enum Source {
    /// The kernel that this process runs on.
    Live,
    /// The same, with everything that is read.
    Recording(Lock<Touched>),
    /// A record.
    Replay(Answers),
}

/// Everything read of a system, by its path below the root.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) files: BTreeMap<PathBuf, Vec<u8>>,
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    /// Files and folders that exist.
    pub(super) names: BTreeSet<PathBuf>,
    /// The kernel's answers.
    pub(super) answers: Answers,
}

/// Why a file of the system could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// It does not exist.
    Missing,
    /// The caller may not read it.
    Denied,
    /// It is a folder, a FIFO, a device or a loop of links.
    NotAFile,
    /// It is empty or not text.
    NotText,
    /// The read timed out.
    Silent,
    /// Any other error.
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

impl From<Refusal> for Absent {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Errno(errno) => errno.into(),
            Refusal::NotRecorded => Self::Missing,
            Refusal::Silent => Self::Silent,
        }
    }
}

impl From<Absent> for std::io::Error {
    fn from(absent: Absent) -> Self {
        match absent {
            Absent::Missing => Errno::NOENT.into(),
            Absent::Denied => Errno::ACCESS.into(),
            Absent::Failed(errno) => errno.into(),
            Absent::NotAFile | Absent::NotText | Absent::Silent => Self::other(absent.to_string()),
        }
    }
}

impl Default for System {
    fn default() -> Self {
        Self::live()
    }
}

impl System {
    /// The machine that this process runs on. A file that does not answer, such as one on a dead
    /// server, times out after a few seconds and is skipped from then on.
    pub fn live() -> Self {
        Self::made("/".into(), Source::Live, Some(Patience::default()))
    }

    /// This machine, without timeouts: for files that are open and thus have answered already.
    pub fn of_open_files() -> Self {
        Self::made("/".into(), Source::Live, None)
    }

    /// A system whose `/sys` is in `root`, with no kernel answers.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self::made(root.into(), Source::Replay(Answers::default()), None)
    }

    /// This machine, with everything that is read recorded. Paths that did not answer `known` are
    /// skipped.
    pub(super) fn recording(known: &Self) -> Self {
        let patience = known.patience().cloned().unwrap_or_default();
        Self::made("/".into(), Source::Recording(Lock::default()), Some(patience))
    }

    /// A system whose `/sys` and `/proc` are folders in `root`.
    pub(super) fn made(root: PathBuf, source: Source, patience: Option<Patience>) -> Self {
        Self { inner: Arc::new(Inner { root, source, patience }) }
    }

    /// Whether this is the running machine, so that the kernel may resolve paths, and nothing is
    /// recorded.
    pub fn is_live(&self) -> bool {
        matches!(self.inner.source, Source::Live)
    }

    /// The folder that stands for `/`.
    pub(super) fn root(&self) -> &Path {
        &self.inner.root
    }

    pub(super) fn source(&self) -> &Source {
        &self.inner.source
    }

    pub(super) fn patience(&self) -> Option<&Patience> {
        self.inner.patience.as_ref()
    }

    /// Adds to the record, if there is any.
    pub(super) fn note<T>(&self, action: impl FnOnce(&mut Touched) -> T) -> Option<T> {
        let Source::Recording(touched) = &self.inner.source else { return None };
        Some(action(&mut touched.lock()))
    }

    /// The folder at `path` below the root. The path may contain links.
    pub fn folder(&self, path: impl AsRef<Path>) -> Result<Folder, Absent> {
        let path = self.real(path.as_ref())?;
        Ok(Folder { system: self.clone(), path })
    }

    /// Resolves the links of `path`, below the root. The target need not be a folder.
    pub(super) fn real(&self, path: &Path) -> Result<PathBuf, Absent> {
        if self.is_live() {
            return self.real_at_end(path);
        }
        let trail = links::trail(&self.inner.root, path, |_| ())?;
        let below = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_owned();
        for (at, target) in trail.links {
            self.note(|touched| touched.links.insert(below(&at), target));
        }
        if trail.there == trail.real { Ok(below(&trail.real)) } else { Err(Absent::Missing) }
    }

    /// Resolves `path` by a single call if only its last component is a link, as on a live `/sys`.
    fn real_at_end(&self, path: &Path) -> Result<PathBuf, Absent> {
        let target = match links::link(&self.inner.root.join(path)) {
            Err(Errno::INVAL) => return Ok(path.to_owned()),
            target => target?,
        };
        let parent = path.parent().filter(|_| target.is_relative());
        let rest: Vec<OsString> = reversed(&target).collect();
        Ok(joined(parent.unwrap_or(Path::new("")), &rest))
    }

    /// The last component of the target of the link at `path`.
    pub(super) fn link_name(&self, path: &Path) -> Option<String> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let plain = self.is_live();
        let path = if plain { path.to_owned() } else { self.real(parent).ok()?.join(name) };
        let target = links::link(&self.inner.root.join(&path)).ok()?;
        let last = name_of(target.file_name()?);
        self.note(|touched| touched.links.insert(path, target));
        last
    }

    /// Whether `path` exists; it is not opened.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        if self.is_live() {
            let path = self.inner.root.join(path);
            return rustix::fs::statat(CWD, path, AtFlags::empty()).is_ok();
        }
        let found = self.real(path.as_ref());
        found.map(|real| self.note(|touched| touched.names.insert(real))).is_ok()
    }

    /// The text of a small file without surrounding white space; never empty.
    pub fn text(&self, path: impl AsRef<Path>) -> Result<String, Absent> {
        let bytes = self.bytes(path, FILE_LEN_MAX)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Absent::NotText)?;
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        if text.is_empty() { Err(Absent::NotText) } else { Ok(clean(text)) }
    }

    /// The text of a file with several lines, as far as it is text: at most 1 MiB.
    pub fn table(&self, path: impl AsRef<Path>) -> Result<String, Absent> {
        let bytes = self.bytes(path, TABLE_LEN_MAX)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads at most `max` bytes of a file.
    pub fn bytes(&self, path: impl AsRef<Path>, max: usize) -> Result<Vec<u8>, Absent> {
        let path = path.as_ref();
        let real = if self.is_live() { path.to_owned() } else { self.real(path)? };
        let bytes = read_file(&self.inner.root.join(&real), self.is_live(), max)?;
        self.note(|touched| touched.files.insert(real, bytes.clone()));
        Ok(bytes)
    }

    /// A table of the reading process, such as `mountinfo`.
    pub fn own_table(&self, name: &str) -> Result<Vec<u8>, Absent> {
        let own = Path::new("proc/self").join(name);
        if self.inner.root != Path::new("/") {
            return self.bytes(&own, OWN_TABLE_LEN_MAX);
        }
        // A thread may have a separate mount namespace, which only `thread-self` shows.
        let bytes = read_file(&Path::new("/proc/thread-self").join(name), true, OWN_TABLE_LEN_MAX)
            .or_else(|_| read_file(&Path::new("/").join(&own), true, OWN_TABLE_LEN_MAX))?;
        self.note(|touched| touched.files.insert(own, bytes.clone()));
        Ok(bytes)
    }

    /// The names in a folder, sorted; without names that are not text.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<String>, Absent> {
        let path = path.as_ref();
        let real = if self.is_live() { path.to_owned() } else { self.real(path)? };
        let entries = std::fs::read_dir(self.inner.root.join(&real)).map_err(|error| {
            Errno::from_io_error(&error).map_or(Absent::Failed(Errno::IO), Absent::from)
        })?;
        self.note(|touched| touched.names.insert(real));
        let names = entries.take(ENTRIES_MAX).flatten();
        let mut names: Vec<String> =
            names.filter_map(|entry| name_of(&entry.file_name())).collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// A folder of a system, at a path without links.
#[derive(Debug, Clone)]
pub struct Folder {
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

    /// Its name, empty if it is not text.
    pub fn name(&self) -> String {
        self.path.file_name().and_then(name_of).unwrap_or_default()
    }

    pub(super) fn folder(&self, name: impl AsRef<Path>) -> Result<Self, Absent> {
        self.system.folder(self.path.join(name))
    }

    pub(super) fn parent(&self) -> Option<Self> {
        self.above(self.path.parent()?)
    }

    /// The ancestor folder at `path`; `None` if this folder is not below it.
    pub(super) fn above(&self, path: &Path) -> Option<Self> {
        let is_above = self.path.starts_with(path);
        is_above.then(|| Self { system: self.system.clone(), path: path.to_owned() })
    }

    /// The text of a file of several lines; empty if it cannot be read.
    pub(super) fn table(&self, name: &str) -> String {
        self.system.table(self.path.join(name)).unwrap_or_default()
    }

    pub(super) fn has(&self, name: impl AsRef<Path>) -> bool {
        self.system.exists(self.path.join(name))
    }

    pub fn text(&self, name: impl AsRef<Path>) -> Result<String, Absent> {
        self.system.text(self.path.join(name))
    }

    pub(super) fn bytes(&self, name: impl AsRef<Path>) -> Result<Vec<u8>, Absent> {
        self.system.bytes(self.path.join(name), FILE_LEN_MAX)
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
        self.system.list(self.path.join(name))
    }

    /// The folders in the folder `name`, by their names.
    pub(super) fn folders(&self, name: &str) -> Vec<(String, Result<Self, Absent>)> {
        let names = self.list(name).unwrap_or_default().into_iter();
        names.map(|own| (own.clone(), self.folder(format!("{name}/{own}")))).collect()
    }

    pub(super) fn link_name(&self, name: impl AsRef<Path>) -> Option<String> {
        self.system.link_name(&self.path.join(name))
    }
}

/// Reads a file; follows no link to it, unless it is trusted.
pub(super) fn read_file(path: &Path, trusted: bool, max: usize) -> Result<Vec<u8>, Absent> {
    let links = if trusted { OFlags::empty() } else { OFlags::NOFOLLOW };
    read_with(path, links, trusted, max)
}

/// Reads a regular file, with these flags for links. Opens without blocking, so that a FIFO cannot
/// block the open.
pub(super) fn read_with(
    path: &Path,
    links: OFlags,
    trusted: bool,
    max: usize,
) -> Result<Vec<u8>, Absent> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | links;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    // A live `/sys` holds only files and folders, and reading a folder fails anyway.
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
        // A single read returns a small file; a table is returned in pieces of whole lines.
        if count == 0 || len == max || (count < room && max <= FILE_LEN_MAX) {
            bytes.truncate(len);
            return Ok(bytes);
        }
        if len == bytes.len() {
            bytes.resize(max.min(bytes.len() * 4), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_below_a_root_are_read_and_nothing_beyond() {
        let folder = tempfile::tempdir().unwrap();
        let (outside, root) = (folder.path().join("outside"), folder.path().join("root"));
        std::fs::create_dir_all(root.join("sys/class")).unwrap();
        std::fs::write(&outside, "secret").unwrap();
        std::fs::write(root.join("sys/class/name"), " package-0\n").unwrap();
        std::fs::write(root.join("sys/class/empty"), "\n").unwrap();
        std::os::unix::fs::symlink("../../../outside", root.join("sys/class/link")).unwrap();
        let system = System::at(&root);
        assert_eq!(system.text("sys/class/name").unwrap(), "package-0");
        assert_eq!(system.text("/sys/class/name").unwrap(), "package-0");
        assert_eq!(system.list("sys/class").unwrap(), ["empty", "link", "name"]);
        assert!(system.exists("sys/class") && !system.exists("proc"));
        assert_eq!(system.text("sys/class/none"), Err(Absent::Missing));
        assert_eq!(system.text("sys/class/link"), Err(Absent::Missing));
        assert_eq!(system.text("sys/class/empty"), Err(Absent::NotText));
        assert_eq!(system.text("sys/class"), Err(Absent::NotAFile));
        assert!(system.list("sys/class/name").is_err());
    }
}

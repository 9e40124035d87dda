//! Probes of a system for other parts of the engine, apart from the drives below a path.
//!
//! Private data is removed while reading, so that no check can depend on data that a record lacks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::answers::{Refusal, Trail};
use super::groups::Version;
use super::system::{Absent, System, read_with};
use super::text::clean;

/// Maximum number of environment variables, and maximum bytes read of an environment.
const VARIABLES_MAX: usize = 64;
const ENVIRONMENT_LEN_MAX: usize = 1 << 20;
const LIST_LEN_MAX: usize = 64 << 10;
/// Maximum number of names read from a folder.
const NAMES_MAX: usize = 512;
const ENVIRONMENT: &str = "proc/self/environ";

impl System {
    /// The names in a folder that `keeps` accepts, at most 512.
    pub fn names(&self, folder: &str, keeps: impl Fn(&str) -> bool) -> Result<Vec<String>, Absent> {
        let mut names = self.list(folder)?;
        names.retain(|name| keeps(name));
        names.truncate(NAMES_MAX);
        self.note(|touched| {
            touched.names.extend(names.iter().map(|name| Path::new(folder).join(name)));
        });
        Ok(names)
    }

    /// Reads at most `max` bytes of a file of any kind and returns them filtered by `mask`.
    pub fn masked(
        &self,
        path: &Path,
        max: usize,
        mask: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<Vec<u8>, Absent> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let is_kernels = path.starts_with("proc") || path.starts_with("sys");
        let (real, bytes) = match self.patience() {
            // The path may come from an environment variable and be on any server.
            Some(patience) if !is_kernels => {
                let (system, own) = (self.clone(), path.to_owned());
                let look = move || system.read_anything(&own, max);
                patience.look(&Path::new("/").join(path), look)??
            }
            _ => self.read_anything(path, max)?,
        };
        let bytes = mask(&bytes);
        self.note(|touched| touched.files.insert(real, bytes.clone()));
        Ok(bytes)
    }

    /// Reads a file of any kind; returns its real path and its bytes.
    fn read_anything(&self, path: &Path, max: usize) -> Result<(PathBuf, Vec<u8>), Absent> {
        let is_real = self.root() == Path::new("/");
        // A record must hold a process's own files under `self`, not under its process id.
        let real = if is_real && (self.is_live() || path.starts_with("proc/self")) {
            path.to_owned()
        } else {
            self.real(path)?
        };
        let bytes = read_with(&self.root().join(&real), OFlags::empty(), false, max)?;
        Ok((real, bytes))
    }

    /// Whether the file at `path` answers. For a file in the kernel's cache `stat` does not contact
    /// the server, but `statfs` does.
    ///
    /// # Errors
    /// The file's own error; [`io::ErrorKind::TimedOut`] if it did not answer in time.
    pub fn reach(&self, path: &Path) -> io::Result<()> {
        let path = std::path::absolute(path)?;
        let _ = self.trail(&path); // notes the links found so far
        let looked = self.stat(&path).and_then(|_| self.file_system(&path));
        looked.map_or_else(|refusal| Err(refusal.into()), |_| Ok(()))
    }

    /// Like [`reach`](Self::reach), and also opens the file: some servers answer `stat` but never
    /// `open`.
    ///
    /// # Errors
    /// As for [`reach`](Self::reach). A refused open is no error here; the caller's own open
    /// reports it.
    pub fn reach_open(&self, path: &Path) -> io::Result<()> {
        self.reach(path)?;
        match self.opens(&std::path::absolute(path)?) {
            Err(silent @ Refusal::Silent) => Err(silent.into()),
            _ => Ok(()),
        }
    }

    /// Marks `path`, whose target is `real` as far as known, as unresponsive: later probes fail at
    /// once.
    pub fn pass_over(&self, path: &Path, real: &Path) {
        if let (Some(patience), Ok(path)) = (self.patience(), std::path::absolute(path)) {
            patience.pass_over(&path);
            let (real, there) = (real.to_owned(), real.to_owned());
            patience.note(&path, Trail { real, links: Vec::new(), there });
        }
    }

    /// The target of `path` as far as it was found before the timeout, if at all.
    pub fn known_way(&self, path: &Path) -> Option<PathBuf> {
        let path = std::path::absolute(path).ok()?;
        Some(self.patience()?.known(&path)?.real)
    }

    /// Whether this process may open a device; it is not opened. `None` if this was not recorded.
    pub fn may_open(&self, device: &str) -> Option<Result<(), Absent>> {
        match self.access(Path::new(device)) {
            Ok(()) => Some(Ok(())),
            Err(Refusal::Errno(errno)) => Some(Err(match errno {
                Errno::PERM => Absent::Failed(errno), // from a control group
                errno => errno.into(),
            })),
            Err(Refusal::NotRecorded | Refusal::Silent) => None,
        }
    }

    /// The entries of the process's device control group, and their file. Only version 1 keeps such
    /// a list.
    pub fn listed_devices(&self) -> Option<(PathBuf, Vec<String>)> {
        let group = self.groups("devices").into_iter().find(|group| group.version == Version::One);
        let file = group?.path.join("devices.list");
        let lines = self.lines_of(file.to_str()?, LIST_LEN_MAX, |_| true).ok()?;
        Some((Path::new("/").join(file), lines))
    }

    /// The lines of a file that `keeps` accepts.
    pub fn lines_of(
        &self,
        path: &str,
        max: usize,
        keeps: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Absent> {
        let kept = self.masked(Path::new(path), max, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let kept = text.lines().filter(|line| keeps(line));
            let kept = kept.map(|line| clean(&line.replace('\t', " ")) + "\n");
            kept.collect::<String>().into_bytes()
        })?;
        Ok(String::from_utf8_lossy(&kept).lines().map(str::to_owned).collect())
    }

    /// What follows `prefix` in the first line of a file that begins with it. A record holds only
    /// that line.
    pub fn line_of(&self, path: &str, prefix: &str) -> Option<String> {
        let lines = self.lines_of(path, LIST_LEN_MAX, |line| line.starts_with(prefix)).ok()?;
        Some(lines.first()?.strip_prefix(prefix)?.trim().to_owned())
    }

    /// The environment variables of the process whose names `keeps` accepts.
    pub fn environment(&self, keeps: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
        let pair = |name: OsString, value: OsString| {
            let (name, value) = (name.into_string().ok()?, value.to_string_lossy().into_owned());
            keeps(&name).then(|| (name, clean(&value)))
        };
        if self.root() != Path::new("/") {
            let bytes = self.bytes(ENVIRONMENT, ENVIRONMENT_LEN_MAX).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let found = text.split('\0').filter_map(|line| line.split_once('='));
            return found
                .filter_map(|(name, value)| pair(name.into(), value.into()))
                .take(VARIABLES_MAX)
                .collect();
        }
        let found = std::env::vars_os().filter_map(|(name, value)| pair(name, value));
        let found: BTreeMap<_, _> = found.take(VARIABLES_MAX).collect();
        let text = found.iter().map(|(name, value)| format!("{name}={value}\0"));
        let text = text.collect::<String>();
        // An earlier call may have recorded other variables.
        self.note(|touched| {
            let known = touched.files.entry(PathBuf::from(ENVIRONMENT)).or_default();
            known.extend_from_slice(text.as_bytes());
        });
        found
    }

    /// The flags of the first extent of a file; 0 if the kernel reports none.
    pub fn extent_flags(&self, path: &Path) -> Result<u32, String> {
        match self.extents(path, 1) {
            Ok(extents) => Ok(extents.first().map_or(0, |extent| extent.flags)),
            Err(Refusal::Errno(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL)) => Ok(0),
            Err(refusal) => Err(refusal.to_string()),
        }
    }
}

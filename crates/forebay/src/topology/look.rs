//! What other parts of the engine want to know of a system, beside the drives below a path.
//!
//! What is nobody else's business is taken out as it is read, so that no check can rest on what a
//! record does not hold.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::groups::Version;
use super::probe::{Extent, Live, Refusal, Trail};
use super::system::{Absent, System, clean, read_through};

/// Variables that are taken from an environment, and the longest that is read of one.
const VARIABLES_MAX: usize = 64;
const ENVIRONMENT_LEN_MAX: usize = 1 << 20;
/// Extents that are asked for encoded bytes: btrfs has one for each 128 KiB of them.
const ENCODED_MAX: usize = 4096;
/// `FIEMAP_EXTENT_ENCODED` of `linux/fiemap.h`.
const ENCODED: u32 = 0x8;
const LIST_LEN_MAX: usize = 64 << 10;
/// Names that are taken from one folder.
const NAMES_MAX: usize = 512;
const ENVIRONMENT: &str = "proc/self/environ";

impl System {
    /// This machine, for the files that this process has open: they have answered.
    pub(crate) fn of_open_files() -> Self {
        Self::made("/".into(), true, Arc::new(Live::default()), false)
    }

    /// Whether something is at `path`, which is not opened.
    pub(crate) fn is_there(&self, path: &str) -> bool {
        let path = Path::new(path);
        if self.root() == Path::new("/") {
            let there = rustix::fs::statat(CWD, Path::new("/").join(path), AtFlags::empty());
            let there = there.is_ok();
            if there {
                self.note(|touched| touched.names.insert(path.to_owned()));
            }
            return there;
        }
        self.real(path).is_ok()
    }

    /// Those of the names in a folder that `keeps` takes, 512 at most.
    pub(crate) fn names(
        &self,
        folder: &str,
        keeps: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Absent> {
        let mut names = self.list(Path::new(folder))?;
        names.retain(|name| keeps(name));
        names.truncate(NAMES_MAX);
        self.note(|touched| {
            touched.names.extend(names.iter().map(|name| Path::new(folder).join(name)));
        });
        Ok(names)
    }

    /// What `mask` leaves of a file, of which `max` bytes are read at most. It may be any file.
    pub(crate) fn masked(
        &self,
        path: &Path,
        max: usize,
        mask: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<Vec<u8>, Absent> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let is_kernels = path.starts_with("proc") || path.starts_with("sys");
        let (real, bytes) = match self.probe().patience() {
            // A variable may name a file on any server.
            Some(patience) if !is_kernels => {
                let (system, own) = (self.clone(), path.to_owned());
                let look = move || system.read_anything(&own, max);
                patience.look(&Path::new("/").join(path), look).map_err(|_| Absent::Silent)??
            }
            _ => self.read_anything(path, max)?,
        };
        let bytes = mask(&bytes);
        self.note(|touched| touched.files.insert(real, bytes.clone()));
        Ok(bytes)
    }

    /// Where a file of any kind is, and its bytes.
    fn read_anything(&self, path: &Path, max: usize) -> Result<(PathBuf, Vec<u8>), Absent> {
        let is_real = self.root() == Path::new("/");
        // A record of a process's own files is of any process.
        let real = if is_real && (self.is_live() || path.starts_with("proc/self")) {
            path.to_owned()
        } else {
            self.real(path)?
        };
        let bytes = read_through(&self.root().join(&real), max)?;
        Ok((real, bytes))
    }

    /// Whether what is at `path` answers. Of a file that the kernel remembers it tells without
    /// asking the server; how full the file system is, it does not.
    ///
    /// # Errors
    /// The file's own; [`io::ErrorKind::TimedOut`] where nobody answered.
    pub fn reach(&self, path: &Path) -> io::Result<()> {
        let path = std::path::absolute(path)?;
        let _ = self.probe().trail(&path); // what is known of the way is kept
        let looked = self.probe().stat(&path).and_then(|_| self.probe().file_system(&path));
        match looked {
            Ok(_) => Ok(()),
            Err(Refusal::Errno(errno)) => Err(errno.into()),
            Err(refusal @ Refusal::Silent) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, refusal.to_string()))
            }
            Err(refusal @ Refusal::NotRecorded) => Err(io::Error::other(refusal.to_string())),
        }
    }

    /// The same, where it is to be opened: some that tell what a file is never open it.
    ///
    /// # Errors
    /// As [`reach`](Self::reach); that it cannot be opened is for whoever opens it.
    pub fn reach_open(&self, path: &Path) -> io::Result<()> {
        self.reach(path)?;
        match self.probe().opens(&std::path::absolute(path)?) {
            Err(refusal @ Refusal::Silent) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, refusal.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Takes for granted that nobody answers for `path`, which leads to `real` as far as is
    /// known: nobody waits for it any more.
    pub fn pass_over(&self, path: &Path, real: &Path) {
        if let (Some(patience), Ok(path)) = (self.probe().patience(), std::path::absolute(path)) {
            patience.pass_over(&path);
            let (real, there) = (real.to_owned(), real.to_owned());
            patience.note(&path, Trail { real, links: Vec::new(), there });
        }
    }

    /// Where `path` leads, as far as was found before nobody answered, if anything.
    #[must_use]
    pub fn known_way(&self, path: &Path) -> Option<PathBuf> {
        let path = std::path::absolute(path).ok()?;
        Some(self.probe().patience()?.known(&path)?.real)
    }

    /// Whether this process may open a device, which is not done; none where nobody recorded it.
    pub(crate) fn may_open(&self, device: &str) -> Option<Result<(), Absent>> {
        match self.probe().access(Path::new(device)) {
            Ok(()) => Some(Ok(())),
            Err(Refusal::Errno(errno)) => Some(Err(match errno {
                Errno::PERM => Absent::Failed(errno), // a control group, and no mode
                errno => errno.into(),
            })),
            Err(Refusal::NotRecorded | Refusal::Silent) => None,
        }
    }

    /// The control group of devices that the process is in lists what may be opened; only version
    /// 1 shows such a list.
    pub(crate) fn listed_devices(&self) -> Option<(PathBuf, Vec<String>)> {
        let group = self.groups("devices").into_iter().find(|group| group.version == Version::One);
        let file = group?.path.join("devices.list");
        let lines = self.lines_of(file.to_str()?, LIST_LEN_MAX, |_| true).ok()?;
        Some((Path::new("/").join(file), lines))
    }

    /// The lines of a file that `keeps` takes.
    pub(crate) fn lines_of(
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

    /// The variables of the process whose names `keeps` takes.
    pub(crate) fn environment(&self, keeps: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
        let pair = |name: OsString, value: OsString| {
            let (name, value) = (name.into_string().ok()?, value.to_string_lossy().into_owned());
            keeps(&name).then(|| (name, clean(&value)))
        };
        if self.root() == Path::new("/") {
            let found = std::env::vars_os().filter_map(|(name, value)| pair(name, value));
            let found: BTreeMap<_, _> = found.take(VARIABLES_MAX).collect();
            let text = found.iter().map(|(name, value)| format!("{name}={value}\0"));
            let text = text.collect::<String>();
            // Others may have asked for others before.
            self.note(|touched| {
                let known = touched.files.entry(PathBuf::from(ENVIRONMENT)).or_default();
                known.extend_from_slice(text.as_bytes());
            });
            return found;
        }
        let bytes = self.bytes(Path::new(ENVIRONMENT), ENVIRONMENT_LEN_MAX).unwrap_or_default();
        let found = bytes.split(|&byte| byte == 0).filter_map(|line| {
            let at = line.iter().position(|&byte| byte == b'=')?;
            let text = |part: &[u8]| OsString::from_vec(part.to_vec());
            pair(text(&line[..at]), text(&line[at + 1..]))
        });
        found.take(VARIABLES_MAX).collect()
    }

    /// Bytes of a range of a file that are stored in another form than the file has them
    /// (`FIEMAP_EXTENT_ENCODED`). Of a file with many extents the first are looked at, and the rest
    /// is taken to be like them.
    pub(crate) fn encoded_bytes(&self, path: &Path, offset: u64, len: u64) -> u64 {
        let Ok(path) = std::path::absolute(path) else { return 0 };
        let extents = self.probe().extents(&path, ENCODED_MAX).unwrap_or_default();
        encoded(&extents, offset, len)
    }

    /// The flags that the kernel gives the first extent of a file; none where it tells none.
    pub(crate) fn extent_flags(&self, path: &Path) -> Result<u32, String> {
        match self.probe().extents(path, 1) {
            Ok(extents) => Ok(extents.first().map_or(0, |extent| extent.flags)),
            Err(Refusal::Errno(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL)) => Ok(0),
            Err(refusal) => Err(refusal.to_string()),
        }
    }
}

/// See [`System::encoded_bytes`].
fn encoded(extents: &[Extent], offset: u64, len: u64) -> u64 {
    let end = offset.saturating_add(len);
    let inside = |extent: &Extent| {
        let last = extent.logical.saturating_add(extent.len).min(end);
        last.saturating_sub(extent.logical.max(offset))
    };
    let of = |flag: u32| {
        let found = extents.iter().filter(|extent| extent.flags & flag == flag);
        found.fold(0_u64, |sum, extent| sum.saturating_add(inside(extent)))
    };
    let (all, coded) = (of(0), of(ENCODED));
    let seen = extents.last().map_or(0, |last| last.logical.saturating_add(last.len));
    if extents.len() < ENCODED_MAX || seen >= end || all == 0 {
        return coded.min(len);
    }
    let whole = u128::from(coded) * u128::from(len) / u128::from(all);
    u64::try_from(whole).unwrap_or(len).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encoded_bytes_are_those_of_the_range() {
        let extent = |logical, len, flags| Extent { logical, physical: 0, len, flags };
        let extents = [extent(0, 100, ENCODED), extent(100, 100, 0), extent(200, 50, ENCODED | 1)];
        assert_eq!(encoded(&extents, 0, 250), 150);
        assert_eq!(encoded(&extents, 50, 100), 50);
        assert_eq!(encoded(&extents, 90, 1000), 60);
        assert_eq!(encoded(&[], 0, 10), 0);
        // Every second one of those that were looked at, so half of the rest too.
        let many = 0..ENCODED_MAX as u64 / 2;
        let many = many.flat_map(|i| [extent(i * 20, 10, ENCODED), extent(i * 20 + 10, 10, 0)]);
        let many: Vec<Extent> = many.collect();
        assert_eq!(encoded(&many, 0, 1 << 20), 1 << 19);
    }

    proptest! {
        #[test]
        fn no_extents_are_too_strange(
            extents in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u32>()), 0..9),
            offset in any::<u64>(), len in any::<u64>(),
        ) {
            let extents = extents.into_iter();
            let extents =
                extents.map(|(logical, len, flags)| Extent { logical, physical: 0, len, flags });
            prop_assert!(encoded(&extents.collect::<Vec<_>>(), offset, len) <= len);
        }
    }
}

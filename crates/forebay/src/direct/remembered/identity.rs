//! What an answer of cuFile depends on, as numbers that are the same as long as it holds.
//!
//! What is not there is a fact as well, but what cannot be read is none: then there is no number,
//! and nothing is remembered. Nothing that is looked at can be read back from the numbers.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::direct::child::Program;
use crate::direct::cufile::{
    CONFIGURATION_MAX, NAMES_CONFIGURATION, configuration, is_named, places,
};
use crate::direct::small::{read, there};

/// Which start of the kernel this is.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// The GPU's driver, one of them at least; with which settings; and nvidia-fs.
const DRIVER: [&str; 2] = ["/proc/driver/nvidia/version", "/sys/module/nvidia/version"];
const BESIDE_IT: [&str; 3] = [
    "/proc/driver/nvidia/params",
    "/proc/driver/nvidia-fs/version",
    "/sys/module/nvidia_fs/version",
];
/// Device nodes, which a container may have been given or not.
const NODES: &str = "/dev";
/// What cuFile asks about drives, and what newer versions hang without.
const UDEV: &str = "/run/udev/data";
const MODULES: &str = "/proc/modules";
/// How names of modules begin that bring a kind of storage, or a way to it.
const MODULES_THAT_COUNT: [&str; 11] = [
    "beegfs", "lustre", "mlx5", "mmfs", "nfs", "nvidia", "nvme", "panfs", "rpcrdma", "virtiofs",
    "wekafs",
];
/// Variables that the library or the loader look at.
const VARIABLES: [&str; 4] =
    ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD"];
const VARIABLES_OF_CUFILE: &str = "CUFILE_";
const LOADER_PATH: &str = "LD_LIBRARY_PATH";
/// Where the loader looks besides.
const LOADER_CACHE: &str = "/etc/ld.so.cache";
const LOADER_FOLDERS: [&str; 6] = [
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// The most that is read of a file of the kernel's, and entries of a folder.
const TEXT_MAX: u64 = 1 << 20;
const ENTRIES_MAX: usize = 1 << 16;
/// Places that are looked at in `LD_LIBRARY_PATH`.
const PLACES_MAX: usize = 256;

/// A number that stands for something: whoever has only this cannot tell what it was.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Digest(u128);

impl Digest {
    /// That of anything. Builds by another compiler may have another, and ask anew.
    pub(super) fn of(what: &impl Hash) -> Self {
        let half = |number: u8| {
            let mut hasher = DefaultHasher::new();
            number.hash(&mut hasher);
            what.hash(&mut hasher);
            u128::from(hasher.finish())
        };
        Self(half(0) << 64 | half(1))
    }

    /// What was written as text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| digits).map(Self)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which library a helper looks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Search {
    pub(super) named: Option<PathBuf>,
    pub(super) packages: Vec<PathBuf>,
}

impl Search {
    /// That of `forebay probe` with these arguments.
    pub(super) fn of(program: &Program) -> Self {
        let mut search = Self::default();
        for pair in program.arguments.windows(2) {
            match pair[0].to_str() {
                Some("--library") => search.named = Some(pair[1].clone().into()),
                Some("--packages") => search.packages.push(pair[1].clone().into()),
                _ => {}
            }
        }
        search
    }
}

/// What answers are about: a start of the kernel, and everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) boot: Digest,
    pub(super) key: Digest,
}

/// The machine as this process sees it, or a folder that plays it.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    root: PathBuf,
    /// Those that are played.
    variables: Option<Vec<(OsString, OsString)>>,
}

type Variables = Vec<(OsString, OsString)>;

impl Machine {
    pub(super) fn live() -> Self {
        Self { root: "/".into(), variables: None }
    }

    #[cfg(test)]
    pub(super) fn played(root: &Path, variables: &[(&str, &str)]) -> Self {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Self { root: root.into(), variables: Some(variables.collect()) }
    }

    /// What an answer to this search is about.
    ///
    /// # Errors
    /// Something that it depends on cannot be read.
    pub(super) fn subject(&self, search: &Search) -> Result<Subject, Errno> {
        let boot = self.boot()?;
        let driver = DRIVER.map(|path| self.text(path));
        let [Ok(first), Ok(second)] = &driver else { return Err(Errno::ACCESS) };
        if first.is_none() && second.is_none() {
            return Err(Errno::NOENT);
        }
        let beside = BESIDE_IT.map(|path| self.text(path));
        let [Ok(settings), Ok(one), Ok(other)] = &beside else { return Err(Errno::ACCESS) };
        let driver = (first, second, settings, one, other);
        let variables = self.variables();
        let container = (self.nodes()?, self.modules()?, self.is_there(UDEV)?);
        let settings = (self.configuration(&variables)?, &variables);
        let libraries = self.libraries(search, &variables)?;
        let version = env!("CARGO_PKG_VERSION");
        let key = Digest::of(&(version, boot, driver, container, settings, libraries));
        Ok(Subject { boot, key })
    }

    /// This start of the kernel.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(super) fn boot(&self) -> Result<Digest, Errno> {
        self.text(BOOT)?.map(|text| Digest::of(&text)).ok_or(Errno::NOENT)
    }

    /// Which file it is, and which state of it; `None`: there is none.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(super) fn file(&self, path: &Path) -> Result<Option<Digest>, Errno> {
        let stat = there(fs::metadata(self.below(path)).map_err(|error| errno(&error)))?;
        Ok(stat.map(|stat| {
            let changed = (stat.mtime(), stat.mtime_nsec());
            Digest::of(&(path, stat.dev(), stat.ino(), stat.size(), changed))
        }))
    }

    fn below(&self, path: &Path) -> PathBuf {
        // What is relative is so to this process's folder.
        path.strip_prefix("/").map_or_else(|_| path.to_owned(), |path| self.root.join(path))
    }

    fn text(&self, path: &str) -> Result<Option<Vec<u8>>, Errno> {
        read(&self.below(Path::new(path)), TEXT_MAX)
    }

    fn is_there(&self, path: &str) -> Result<bool, Errno> {
        let found = there(rustix::fs::stat(self.below(Path::new(path))))?;
        Ok(found.is_some())
    }

    fn variables(&self) -> Variables {
        let all = self.variables.clone().unwrap_or_else(|| std::env::vars_os().collect());
        let counts = |name: &OsString| {
            let name = name.to_string_lossy();
            name.starts_with(VARIABLES_OF_CUFILE) || VARIABLES.contains(&&*name)
        };
        let mut found: Variables = all.into_iter().filter(|(name, _)| counts(name)).collect();
        found.sort();
        found
    }

    fn configuration(&self, variables: &Variables) -> Result<(PathBuf, Option<Vec<u8>>), Errno> {
        let path = configuration(value(variables, NAMES_CONFIGURATION));
        let text = read(&self.below(&path), CONFIGURATION_MAX)?;
        Ok((path, text))
    }

    /// Nodes of GPUs and of nvidia-fs, and who may open them.
    fn nodes(&self) -> Result<Vec<impl Hash>, Errno> {
        let counts = |name: &str| {
            let rest = name.strip_prefix("nvidia");
            rest.is_some_and(|rest| rest.starts_with("-fs") || rest.parse::<u32>().is_ok())
        };
        let folder = there(fs::read_dir(self.below(Path::new(NODES))).map_err(|e| errno(&e)))?;
        let mut nodes = Vec::new();
        for entry in folder.into_iter().flatten().take(ENTRIES_MAX) {
            let entry = entry.map_err(|error| errno(&error))?;
            let Some(name) = entry.file_name().to_str().filter(|name| counts(name)).map(Into::into)
            else {
                continue;
            };
            let stat = entry.metadata().map_err(|error| errno(&error))?;
            let name: String = name;
            nodes.push((name, stat.rdev(), stat.mode(), stat.uid(), stat.gid()));
        }
        nodes.sort();
        Ok(nodes)
    }

    /// Names of modules that count; `None`: the kernel does not list any.
    fn modules(&self) -> Result<Option<Vec<String>>, Errno> {
        let Some(text) = self.text(MODULES)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&text);
        let names = text.lines().filter_map(|line| line.split(' ').next());
        let counts = |name: &&str| MODULES_THAT_COUNT.iter().any(|begin| name.starts_with(begin));
        let mut names: Vec<String> = names.filter(counts).map(str::to_owned).collect();
        names.sort();
        Ok(Some(names))
    }

    /// The files that a search may come to, none of which is loaded.
    fn libraries(
        &self,
        search: &Search,
        variables: &Variables,
    ) -> Result<Vec<(PathBuf, Option<Digest>)>, Errno> {
        let mut all = Vec::new();
        for place in places(search.named.as_deref(), &search.packages) {
            if is_named(&place) {
                all.push(place);
                continue;
            }
            let folders = value(variables, LOADER_PATH).unwrap_or_default();
            let folders = folders.as_bytes().split(|byte| matches!(byte, b':' | b';'));
            let folders = folders.take(PLACES_MAX).map(|name| {
                let name = if name.is_empty() { b"." } else { name };
                PathBuf::from(std::ffi::OsStr::from_bytes(name))
            });
            all.extend(folders.map(|folder| folder.join(&place)));
            all.push(LOADER_CACHE.into());
            all.extend(LOADER_FOLDERS.map(|folder| Path::new(folder).join(&place)));
        }
        all.into_iter().map(|path| self.file(&path).map(|found| (path, found))).collect()
    }
}

fn value(variables: &Variables, name: &str) -> Option<OsString> {
    variables.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

//! The facts about a machine, a path and a GPU, read once; the checks use nothing else.
//!
//! Private data is masked while it is read, so a record holds nothing that a check cannot use.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use forebay_cufile::Answer;
use forebay_topology::{
    Absent, Gpu, Layer, LayerKind, NvidiaFsModule, Resolver, StorageMap, System, Transport,
};
use serde_json::Value;

use super::jsonc;
use super::report::Gpu as Shown;

/// The path and the GPU to examine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// A file, a folder or a block device; it need not exist.
    pub path: PathBuf,
    /// The GPU.
    pub gpu: GpuWish,
}

/// The GPU that a diagnosis is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuWish {
    /// The first GPU on PCI.
    #[default]
    First,
    /// The GPU with this index, in the order of PCI addresses.
    Index(usize),
    /// The GPU at this PCI address, named by the user.
    At(String),
    /// No GPU, for this reason.
    None(String),
}

/// All facts for the checks.
#[derive(Debug)]
pub(super) struct Facts {
    /// The system, for facts that only one check uses: read even if the check then ignores them, so
    /// that a record has them.
    pub(super) system: System,
    pub(super) kernel: Kernel,
    pub(super) driver: Driver,
    /// The GPU, or why there is none.
    pub(super) gpu: Result<Gpu, String>,
    /// The GPU that the user named, or no GPU.
    pub(super) gpu_wish: GpuWish,
    pub(super) storage: Storage,
    pub(super) process: Process,
    pub(super) config: Config,
    pub(super) cufile: Option<Answer>,
}

impl Facts {
    pub(super) fn read(system: &System, wish: &Wish, cufile: Option<Answer>) -> Self {
        // If the path does not answer, this marks it as unresponsive, so that later reads skip it.
        let _ = system.reach(&wish.path);
        let map = Resolver::new(system.clone()).resolve(&wish.path);
        let found = gpu(system, &wish.gpu);
        let gpu = found.as_ref().ok();
        Self {
            system: system.clone(),
            kernel: Kernel::read(system),
            driver: Driver::read(system, gpu.map(|gpu| gpu.pci.address.as_str())),
            storage: Storage { map },
            process: Process::read(system),
            config: Config::read(system),
            gpu_wish: wish.gpu.clone(),
            gpu: found,
            cufile,
        }
    }

    /// The version of cuFile, if it is known.
    pub(super) fn library_version(&self) -> Option<(u32, u32)> {
        let version = self.cufile.as_ref()?.0.version.as_deref()?;
        let (major, minor) = version.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// Whether cuFile's driver opened.
    pub(super) fn cufile_opened(&self) -> bool {
        self.cufile.as_ref().is_some_and(|(seen, _)| seen.opened)
    }

    /// Whether a direct path is set up, so that its absence should be reported.
    pub(super) fn cufile_is_wanted(&self) -> bool {
        self.cufile_opened() && (self.config.wants_p2pdma() || self.driver.nvidia_fs.is_some())
    }

    /// The driver's name for the GPU.
    pub(super) fn model(&self) -> Option<&str> {
        self.gpu.as_ref().ok()?.name.as_deref()
    }

    pub(super) fn shown_gpu(&self) -> Option<Shown> {
        let gpu = self.gpu.as_ref().ok()?;
        Some(Shown { address: gpu.pci.address.clone(), name: gpu.name.clone() })
    }
}

fn gpu(system: &System, wish: &GpuWish) -> Result<Gpu, String> {
    match wish {
        GpuWish::First => {
            let first = forebay_topology::gpus(system).into_iter().next();
            first.ok_or_else(|| "/sys/bus/pci/devices shows no NVIDIA GPU".to_owned())
        }
        GpuWish::Index(index) => {
            let gpus = forebay_topology::gpus(system);
            let none = || format!("there is no GPU {index}: /sys shows {}", gpus.len());
            gpus.get(*index).cloned().ok_or_else(none)
        }
        GpuWish::At(address) => forebay_topology::gpu_at(system, address)
            .ok_or_else(|| format!("/sys/bus/pci/devices has no `{address}`")),
        GpuWish::None(reason) => Err(reason.clone()),
    }
}

/// Maximum lengths of a kernel's configuration, packed and unpacked; most have 70 and 300 KiB.
const PACKED_MAX: usize = 1 << 20;
const SETTINGS_MAX: usize = 4 << 20;

/// Maximum length of the symbol table of a kernel with many modules.
const SYMBOLS_MAX: usize = 64 << 20;

/// Maximum length of the kernel's command line; most machines allow 4 KiB.
const LINE_MAX: usize = 64 << 10;
const WORD_MAX: usize = 200;

const WORDS_MAX: usize = 16;

/// The facts about a kernel.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// Its release, such as `6.18.5-generic`.
    pub(super) release: Option<String>,
    /// Whether `CONFIG_PCI_P2PDMA` and `CONFIG_ZONE_DEVICE` are set.
    pub(super) p2pdma: Option<bool>,
    pub(super) zone_device: Option<bool>,
    /// The source of these settings, or the reason why they are unknown.
    pub(super) source: String,
    /// The boot parameters that concern PCI and IOMMUs.
    pub(super) booted: Vec<String>,
}

impl Kernel {
    pub(super) fn read(system: &System) -> Self {
        let release = system.text("proc/sys/kernel/osrelease").ok();
        // The rest of that line is private: it may hold passwords.
        let line = system.masked("proc/cmdline".as_ref(), LINE_MAX, booted).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let booted = line.split_whitespace().map(str::to_owned).collect();
        let mut kernel = Self { release, booted, ..Self::default() };
        let settings = system.masked("proc/config.gz".as_ref(), PACKED_MAX, settings);
        if let Ok(settings) = settings.as_ref().map(|bytes| String::from_utf8_lossy(bytes))
            && !settings.is_empty()
        {
            kernel.settings(&settings, "/proc/config.gz");
            return kernel;
        }
        let name = kernel.release.as_deref().filter(|name| !name.contains(['/', '\0']));
        let file = format!("boot/config-{}", name.unwrap_or_default());
        if let Ok(lines) = system.lines_of(&file, SETTINGS_MAX, wanted) {
            kernel.settings(&lines.join("\n"), &format!("/{file}"));
            return kernel;
        }
        // A readable symbol table always contains functions, but data only in some kernels.
        let functions =
            |line: &str| line.contains(" T pci_p2pdma_") || line.contains("p2pdma_pgmap");
        match system.masked("proc/kallsyms".as_ref(), SYMBOLS_MAX, |text| symbols(text, functions))
        {
            Ok(found) => {
                kernel.p2pdma = Some(!found.is_empty());
                kernel.source = "/proc/kallsyms".into();
            }
            Err(absent) => {
                kernel.source = format!(
                    "/proc/config.gz and /{file} cannot be read, nor can /proc/kallsyms ({absent})"
                );
            }
        }
        kernel
    }

    fn settings(&mut self, text: &str, source: &str) {
        let is_set = |name: &str| {
            text.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.trim() == "=y"))
        };
        self.p2pdma = Some(is_set("CONFIG_PCI_P2PDMA"));
        self.zone_device = Some(is_set("CONFIG_ZONE_DEVICE"));
        self.source = source.to_owned();
    }

    /// Whether the kernel is known to lack support for P2PDMA.
    pub(super) fn lacks_p2pdma(&self) -> bool {
        self.p2pdma == Some(false) || self.zone_device == Some(false)
    }

    /// ``, booted with `iommu=pt` `` if it was booted with such a parameter; else empty.
    pub(super) fn booted_with(&self, wanted: impl Fn(&str) -> bool) -> String {
        let words = self.booted.iter().filter(|word| wanted(word));
        let words = words.map(|word| format!("`{word}`")).collect::<Vec<_>>();
        if words.is_empty() { String::new() } else { format!(", booted with {}", words.join(", ")) }
    }

    /// The first two numbers of its version.
    pub(super) fn version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.release.as_deref()?.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// Whether the checks use this setting.
fn wanted(line: &str) -> bool {
    line.contains("PCI_P2PDMA") || line.contains("ZONE_DEVICE")
}

/// The settings in use of a packed configuration, or of the unpacked lines of a record.
fn settings(bytes: &[u8]) -> Vec<u8> {
    let unpacked = unpack(bytes, SETTINGS_MAX);
    let text = String::from_utf8_lossy(unpacked.as_deref().unwrap_or(bytes));
    let kept = text.lines().filter(|line| wanted(line)).map(|line| format!("{line}\n"));
    kept.collect::<String>().into_bytes()
}

/// The kernel parameters that concern IOMMUs and bridges
/// (`Documentation/admin-guide/kernel-parameters.txt`).
fn booted(line: &[u8]) -> Vec<u8> {
    let line = String::from_utf8_lossy(line);
    let names = ["iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "pci"];
    let words = line.split_whitespace().filter(|word| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| names.contains(&name)) && word.len() <= WORD_MAX
    });
    words.take(WORDS_MAX).collect::<Vec<_>>().join(" ").into_bytes()
}

/// The wanted lines of the symbol table, without addresses.
fn symbols(text: &[u8], wanted: impl Fn(&str) -> bool) -> Vec<u8> {
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| {
        let line = std::str::from_utf8(line).ok().filter(|line| wanted(line))?;
        Some(format!("0000000000000000 {}\n", line.split_once(' ')?.1))
    });
    lines.collect::<String>().into_bytes()
}

/// The unpacked bytes, or `None` if there are more than `most` or `packed` is not gzip.
fn unpack(packed: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(most).ok()?.saturating_add(1);
    GzDecoder::new(packed).take(bound).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= most).then_some(bytes)
}

/// The facts about a GPU's driver.
#[derive(Debug)]
pub(super) struct Driver {
    /// Its version line, or the reason why it is missing.
    pub(super) line: Result<String, String>,
    pub(super) version: Option<(u32, u32)>,
    /// The options given to it, as `NAME=VALUE`; `None` if they cannot be read.
    pub(super) keys: Option<Vec<String>>,
    /// Bytes of GPU memory published to the kernel; `None` if there are none.
    pub(super) pool: Option<u64>,
    /// The version of nvidia-fs, if it is loaded.
    pub(super) nvidia_fs: Option<String>,
    /// The storage drivers registered with nvidia-fs.
    pub(super) users: Result<Vec<String>, Absent>,
}

impl Driver {
    pub(super) fn read(system: &System, gpu: Option<&str>) -> Self {
        let text = |path: &str| system.text(path);
        let line = text("proc/driver/nvidia/version")
            .map(|text| text.lines().next().unwrap_or_default().to_owned())
            .map_err(|absent| format!("/proc/driver/nvidia/version: {absent}"));
        let version = line.as_deref().ok().and_then(version);
        let keys = system.lines_of("proc/driver/nvidia/params", LEN_MAX, |line| {
            line.starts_with("RegistryDwords")
        });
        let keys = keys.ok().map(|lines| lines.iter().flat_map(|line| options(line)).collect());
        let pool = gpu.and_then(|address| {
            let folder = format!("sys/bus/pci/devices/{address}/p2pmem");
            for file in ["available", "published"] {
                let _ = text(&format!("{folder}/{file}")); // for the record
            }
            text(&format!("{folder}/size")).ok()?.parse().ok()
        });
        let NvidiaFsModule { version: nvidia_fs, users, .. } = NvidiaFsModule::read(system);
        Self { line, version, keys, pool, nvidia_fs, users }
    }

    pub(super) fn version_text(&self) -> String {
        self.version.map_or_else(|| "?".into(), |(major, minor)| format!("{major}.{minor}"))
    }

    /// Whether the driver publishes GPU memory to the kernel.
    pub(super) fn has_pool(&self) -> bool {
        self.pool.is_some_and(|size| size > 0)
    }

    /// Whether this is an ARM machine, which needs neither the options nor a disabled IOMMU.
    pub(super) fn is_arm(&self) -> bool {
        self.line.as_deref().is_ok_and(|line| line.contains("aarch64"))
    }

    /// Whether `module` is registered with nvidia-fs; `None` if unknown.
    pub(super) fn serves(&self, module: &str) -> Option<bool> {
        Some(self.users.as_ref().ok()?.iter().any(|user| user == module))
    }

    /// Whether the driver is loaded.
    pub(super) fn is_there(&self) -> bool {
        self.line.is_ok()
    }

    pub(super) fn is_open(&self) -> bool {
        self.line.as_deref().is_ok_and(|line| line.contains("Open Kernel Module"))
    }
}

/// Finds `580.159` in a line with `580.159.04`.
fn version(line: &str) -> Option<(u32, u32)> {
    line.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.');
        let version = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        numbers.all(|number| number.parse::<u32>().is_ok()).then_some(version)
    })
}

/// Parses `0x0003` or `3`.
pub(super) fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// The options in `RegistryDwords: "A=1;B=2"`.
fn options(line: &str) -> Vec<String> {
    let value = line.split_once(':').map_or("", |(_, value)| value).trim().trim_matches('"');
    let options = value.split([';', ',']).map(str::trim).filter(|option| !option.is_empty());
    options.map(str::to_owned).collect()
}

/// The facts about the storage below a path.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) map: StorageMap,
}

impl Storage {
    pub(super) fn layers(&self, kind: LayerKind) -> impl Iterator<Item = &Layer> {
        self.map.root.walk().map(|(_, layer)| layer).filter(move |layer| layer.kind == kind)
    }

    /// The file system of the path.
    pub(super) fn file_system(&self) -> Option<&Layer> {
        self.layers(LayerKind::FileSystem).next()
    }

    pub(super) fn kind(&self) -> &str {
        self.file_system().map_or("", |layer| layer.name.as_str())
    }

    pub(super) fn is_nfs(&self) -> bool {
        matches!(self.kind(), "nfs" | "nfs4")
    }

    /// Whether the bytes cross a network.
    pub(super) fn is_remote(&self) -> bool {
        self.map.drives.iter().any(|drive| drive.transport().is_network())
    }

    /// The step of the file server.
    pub(super) fn server(&self) -> Option<&Layer> {
        self.layers(LayerKind::Network).next()
    }

    /// The section and the key for this kind of storage in cuFile's settings, if there are any.
    pub(super) fn key(&self) -> Option<(&'static str, &'static str)> {
        if self.kind() == "virtiofs" {
            return Some(("fs", "virtiofs"));
        }
        if let Some(md) = self.layers(LayerKind::Md).next() {
            return Some(match md.text("level") {
                Some("raid1") => ("block", "raid1"),
                Some("raid10") => ("block", "raid10"),
                _ => ("block", "raid"),
            });
        }
        match self.map.drives.first()?.transport() {
            Transport::Pcie | Transport::Emulated { .. } => Some(("block", "nvme")),
            Transport::Fabric { .. } => Some(("block", "nvmeof")),
            _ => None,
        }
    }

    /// The kernel module that must support nvidia-fs for this storage.
    pub(super) fn module(&self) -> Option<&'static str> {
        if self.is_nfs() {
            return Some("rpcrdma");
        }
        match self.map.drives.first()?.transport() {
            Transport::Pcie | Transport::Emulated { .. } => Some("nvme"),
            Transport::Fabric { kind, .. } if kind == "rdma" => Some("nvme_rdma"),
            _ => None,
        }
    }

    /// The names of all steps below the path, which may be devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = &str> {
        self.map.root.walk().map(|(_, layer)| layer.name.as_str())
    }

    pub(super) fn mount_point(&self) -> Option<&str> {
        self.layers(LayerKind::Mount).next().map(|layer| layer.name.as_str())
    }
}

/// Files that container runtimes create.
const MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];

/// The facts about the process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) rights: Option<u64>,
    /// The sign that it runs in a container.
    pub(super) container: Option<String>,
}

impl Process {
    pub(super) fn read(system: &System) -> Self {
        let rights = system.line_of("proc/self/status", "CapEff:");
        let mark = MARKS.into_iter().find(|mark| system.exists(mark));
        let variable = system.environment(|name| name == "container").remove("container");
        let container = mark.map(|mark| format!("/{mark} is there"));
        let container = container.or_else(|| variable.map(|name| format!("`container={name}`")));
        let rights = rights.and_then(|rights| u64::from_str_radix(&rights, 16).ok());
        Self { rights, container }
    }

    pub(super) fn is_container(&self) -> bool {
        self.container.is_some()
    }

    pub(super) fn may(&self, right: u64) -> bool {
        self.rights.is_some_and(|rights| rights & right != 0)
    }
}

const SYSTEM_FILE: &str = "/etc/cufile.json";
pub(super) const NAMED_BY: &str = "CUFILE_ENV_PATH_JSON";

/// Maximum length; NVIDIA's own file is about 10 KiB long.
pub(super) const LEN_MAX: usize = 64 << 10;

/// Names of the text settings that checks use; a record masks all other texts.
const KEPT: [&str; 4] = ["drivers", "devices", "mounts", "filesystems"];

/// A setting of the whole library: its name, and the environment variable that overrides it.
pub(super) type Setting = (&'static str, &'static str);

pub(super) const GLOBAL: Setting = ("properties.use_pci_p2pdma", "CUFILE_USE_PCIP2PDMA");
pub(super) const ALLOWED: Setting = ("properties.allow_compat_mode", "CUFILE_ALLOW_COMPAT_MODE");

pub(super) const FORCED: Setting = ("properties.force_compat_mode", "CUFILE_FORCE_COMPAT_MODE");

/// cuFile's settings, and the environment variables that override them.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) path: String,
    pub(super) is_named: bool,
    pub(super) settings: Result<Value, Unread>,
    pub(super) twice: Vec<String>,
    pub(super) variables: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(super) enum Unread {
    Missing,
    Unreadable(Absent),
    Damaged(jsonc::Damage),
    TooLong,
}

impl Config {
    pub(super) fn read(system: &System) -> Self {
        let variables = system.environment(|name| name.starts_with("CUFILE_"));
        let named = variables.get(NAMED_BY).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = named.clone().unwrap_or_else(|| SYSTEM_FILE.into());
        let mut twice = Vec::new();
        let settings = read_settings(system, &path).map(|(value, names)| {
            twice = names;
            value
        });
        let path = path.display().to_string();
        Self { path, is_named: named.is_some(), settings, twice, variables }
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        at(self.settings.as_ref().ok()?, name)?.as_bool()
    }

    /// The value of a variable; `None` if it is neither `true` nor `false`.
    pub(super) fn variable(&self, (_, variable): Setting) -> Option<bool> {
        self.variables.get(variable)?.to_ascii_lowercase().parse().ok()
    }

    /// The effective value, and its source.
    pub(super) fn ruling(&self, setting: Setting) -> (Option<bool>, String) {
        match self.variable(setting) {
            Some(value) => (Some(value), format!("`{}`", setting.1)),
            None => (self.flag(setting.0), format!("`{}`", setting.0)),
        }
    }

    /// Whether P2PDMA is enabled.
    pub(super) fn wants_p2pdma(&self) -> bool {
        self.ruling(GLOBAL).0 == Some(true)
    }
}

/// The value of this name; dots divide it into names of objects.
pub(super) fn at<'a>(settings: &'a Value, name: &str) -> Option<&'a Value> {
    name.split('.').try_fold(settings, |value, name| value.get(name))
}

fn read_settings(system: &System, path: &Path) -> Result<(Value, Vec<String>), Unread> {
    // A relative name refers to the process's working folder.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mask = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let kept = jsonc::masked(&text, |name| KEPT.contains(&name));
        // Keeps an oversized file oversized, so that a record gives the same result.
        if bytes.len() > LEN_MAX { vec![b' '; LEN_MAX + 1] } else { kept.into_bytes() }
    };
    let bytes = system.masked(&absolute, LEN_MAX + 1, mask).map_err(|absent| match absent {
        Absent::Missing => Unread::Missing,
        other => Unread::Unreadable(other),
    })?;
    if bytes.len() > LEN_MAX {
        return Err(Unread::TooLong);
    }
    jsonc::parse(&String::from_utf8_lossy(&bytes)).map_err(Unread::Damaged)
}

#[cfg(test)]
mod tests;

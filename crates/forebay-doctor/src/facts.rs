//! The facts about a machine, a path and a GPU, read once; the checks use nothing else.
//!
//! Private data is masked while it is read, so a record holds nothing that a check cannot use.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use forebay_cufile::Answer;
use forebay_topology::{
    Absent, Drive, Gpu, Layer, LayerKind, NvidiaFsModule, PciDevice, RdmaPort, Resolver,
    StorageMap, System, Transport, is_address, is_number,
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
    pub(super) kernel: Kernel,
    pub(super) driver: Driver,
    /// The GPU, or why there is none.
    pub(super) gpu: Result<Gpu, String>,
    /// The GPU that the user named, or no GPU.
    pub(super) gpu_wish: GpuWish,
    pub(super) pcie: Pcie,
    pub(super) storage: Storage,
    pub(super) network: Network,
    pub(super) process: Process,
    pub(super) devices: Devices,
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
            kernel: Kernel::read(system),
            driver: Driver::read(system, gpu.map(|gpu| gpu.pci.address.as_str())),
            pcie: Pcie::read(system, gpu, &map),
            storage: Storage::read(system, map),
            network: Network::read(system),
            process: Process::read(system),
            devices: Devices::read(system),
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

    pub(super) fn shown_gpu(&self) -> Option<Shown> {
        let gpu = self.gpu.as_ref().ok()?;
        Some(Shown { address: gpu.pci.address.clone(), name: self.driver.model.clone() })
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
    /// Its name for the GPU.
    pub(super) model: Option<String>,
    /// Bytes of GPU memory published to the kernel; `None` if there are none.
    pub(super) pool: Option<u64>,
    /// The version of nvidia-fs, if it is loaded.
    pub(super) nvidia_fs: Option<String>,
    /// The storage drivers registered with nvidia-fs.
    pub(super) users: Result<Vec<String>, Absent>,
    /// The kernel's lockdown mode, if it is on: it restricts even root (`kernel_lockdown(7)`).
    pub(super) lockdown: Option<String>,
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
        let model = gpu.and_then(|address| gpu_model(system, address));
        let pool = gpu.and_then(|address| {
            let folder = format!("sys/bus/pci/devices/{address}/p2pmem");
            for file in ["available", "published"] {
                let _ = text(&format!("{folder}/{file}")); // for the record
            }
            text(&format!("{folder}/size")).ok()?.parse().ok()
        });
        let NvidiaFsModule { version: nvidia_fs, users, .. } = NvidiaFsModule::read(system);
        let lockdown = text("sys/kernel/security/lockdown").ok().and_then(|text| {
            let chosen = text.split_once('[')?.1.split_once(']')?.0.to_owned();
            (chosen != "none").then_some(chosen)
        });
        Self { line, version, keys, model, pool, nvidia_fs, users, lockdown }
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

/// The driver's name of the GPU at this PCI address.
pub fn gpu_model(system: &System, address: &str) -> Option<String> {
    let file = format!("proc/driver/nvidia/gpus/{address}/information");
    system.line_of(&file, "Model:").filter(|name| !name.is_empty())
}

/// Finds `580.159` in a line with `580.159.04`.
fn version(line: &str) -> Option<(u32, u32)> {
    line.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.');
        let version = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        numbers.all(|number| number.parse::<u32>().is_ok()).then_some(version)
    })
}

/// The options in `RegistryDwords: "A=1;B=2"`.
fn options(line: &str) -> Vec<String> {
    let value = line.split_once(':').map_or("", |(_, value)| value).trim().trim_matches('"');
    let options = value.split([';', ',']).map(str::trim).filter(|option| !option.is_empty());
    options.map(str::to_owned).collect()
}

/// The device that every CUDA process opens first.
pub(super) const FIRST: &str = "nvidiactl";
pub(super) const MEMORY: &str = "nvidia-uvm";

/// Maximum number of devices checked: 64 GPUs, and nvidia-fs for all of them.
const DEVICES_MAX: usize = 160;

/// The facts about the devices.
#[derive(Debug)]
pub(super) struct Devices {
    /// Their names, and whether they may be opened; empty if unknown.
    pub(super) answers: Vec<(String, Result<(), Absent>)>,
    /// The device list of a version 1 control group, and its file.
    pub(super) listed: Option<(PathBuf, Vec<String>)>,
}

impl Devices {
    pub(super) fn read(system: &System) -> Self {
        let mut names = system.names("dev", is_device).unwrap_or_default();
        names.truncate(DEVICES_MAX);
        if !names.iter().any(|name| name == FIRST) {
            names.push(FIRST.to_owned());
        }
        let answers = names.into_iter().filter_map(|name| {
            let answer = system.may_open(&format!("/dev/{name}"))?;
            Some((name, answer))
        });
        Self { answers: answers.collect(), listed: system.listed_devices() }
    }

    pub(super) fn answer(&self, name: &str) -> Option<Result<(), Absent>> {
        self.answers.iter().find(|(known, _)| known == name).map(|(_, answer)| *answer)
    }
}

pub(super) fn is_gpu(name: &str) -> bool {
    name.strip_prefix("nvidia").is_some_and(is_number)
}

fn is_device(name: &str) -> bool {
    let lends = name.strip_prefix("nvidia-fs").is_some_and(is_number);
    name == FIRST || name == MEMORY || lends || is_gpu(name)
}

const CONFIG_LEN: usize = 4096;
const ACS_CAPABILITY: u16 = 0x0d;

/// Maximum number of drives checked for a path.
pub(super) const DRIVES_MAX: usize = 64;

/// The facts about the PCI path.
#[derive(Debug)]
pub(super) struct Pcie {
    /// The IOMMUs of the machine; `None` if unknown.
    pub(super) units: Option<Vec<String>>,
    /// The IOMMU translation types of the devices' groups, as the kernel reports it.
    pub(super) groups: BTreeMap<String, Option<String>>,
    /// The ACS control registers of the bridges; `Ok(None)` without such a register.
    pub(super) bridges: BTreeMap<String, Result<Option<u16>, &'static str>>,
    pub(super) peers: Peers,
}

impl Pcie {
    pub(super) fn read(system: &System, gpu: Option<&Gpu>, map: &StorageMap) -> Self {
        let drives = map.drives.iter().take(DRIVES_MAX).filter_map(Drive::pci);
        let devices: Vec<&PciDevice> = gpu.map(|gpu| &gpu.pci).into_iter().chain(drives).collect();
        let groups = devices.iter().filter_map(|pci| {
            let group = pci.iommu_group.as_ref()?;
            let file = format!("sys/kernel/iommu_groups/{group}/type");
            Some((pci.address.clone(), system.text(file).ok()))
        });
        let bridges = devices.iter().flat_map(|pci| &pci.bridges).map(|bridge| {
            let file = format!("sys/bus/pci/devices/{}/config", bridge.address);
            let register = match system.bytes(file, CONFIG_LEN) {
                Ok(bytes) => control(&bytes),
                Err(_) => Err("its registers cannot be read"),
            };
            (bridge.address.clone(), register)
        });
        Self {
            groups: groups.collect(),
            bridges: bridges.collect(),
            peers: Peers::read(system),
            units: system.names("sys/class/iommu", |_| true).ok(),
        }
    }
}

/// The ACS control register in a function's configuration space.
fn control(bytes: &[u8]) -> Result<Option<u16>, &'static str> {
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    match bytes.len() {
        0..=64 => return Err("only root can read all of its registers"),
        65..=256 => return Ok(None), // conventional PCI has none
        _ => {}
    }
    let mut at = 0x100;
    // An entry is at least four bytes long, so a longer chain is circular.
    for _ in 0..CONFIG_LEN / 8 {
        let (Some(id), Some(next)) = (half(at), half(at + 2)) else { return Ok(None) };
        if id == ACS_CAPABILITY {
            return Ok(half(at + 6));
        }
        at = usize::from(next >> 4) & !3;
        if at < 0x100 {
            return Ok(None);
        }
    }
    Ok(None)
}

const ROWS_MAX: usize = 4096;

/// A row of nvidia-fs's `peer_distance`. The formats of its tables are those of its source
/// (`nvfs-proc.c`, `nvfs-pci.c`). Malformed lines are skipped, because the tables grow with its
/// versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerRow {
    pub(super) gpu: String,
    pub(super) peer: String,
    pub(super) distance: u64,
    /// Number of requests between the two.
    pub(super) moved: u64,
    /// The kind of peer: `nvme` or `network`.
    pub(super) kind: String,
}

/// nvidia-fs's tables; empty if it is not loaded.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Bridges with any ACS feature on; `None` if unknown.
    pub(super) bridges: Option<Vec<String>>,
    pub(super) distances: Vec<PeerRow>,
    /// By GPU: requests below a common root port, and across root ports.
    pub(super) affinity: Vec<(String, u64, u64)>,
}

impl Peers {
    pub(super) fn read(system: &System) -> Self {
        let text = |name: &str| system.table(format!("proc/driver/nvidia-fs/{name}")).ok();
        Self {
            bridges: text("bridges").map(|text| bridges(&text)),
            distances: text("peer_distance").map(|text| distances(&text)).unwrap_or_default(),
            affinity: text("peer_affinity").map(|text| affinity(&text)).unwrap_or_default(),
        }
    }

    /// Whether ACS is on at a bridge; `None` if unknown.
    pub(super) fn controls(&self, address: &str) -> Option<bool> {
        Some(self.bridges.as_ref()?.iter().any(|bridge| bridge == address))
    }
}

/// Parses a PCI address as the kernel writes it: `0000:40:01.0`.
fn address(word: &str) -> Option<String> {
    let word = word.trim_end_matches(':');
    is_address(word).then(|| word.to_ascii_lowercase())
}

/// Parses an address per line.
fn bridges(text: &str) -> Vec<String> {
    let lines = text.lines().take(ROWS_MAX);
    lines.filter_map(|line| address(line.trim())).collect()
}

/// Parses `0x0003` or `3`.
pub(super) fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Parses rows of: GPU, peer, rank, distance, width, generation, node, requests, kind.
fn distances(text: &str) -> Vec<PeerRow> {
    let rows = text.lines().take(ROWS_MAX).filter_map(|line| {
        let mut words = line.split_whitespace();
        let (gpu, peer) = (address(words.next()?)?, address(words.next()?)?);
        let rest: Vec<&str> = words.collect();
        let [_, distance, .., moved, kind] = rest.as_slice() else { return None };
        let (distance, moved) = (number(distance)?, number(moved)?);
        let kind = kind.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        Some(PeerRow { gpu, peer, distance, moved, kind })
    });
    rows.collect()
}

/// Parses rows of `GPU :0000:17:00.0 :0 0 … 0`: requests by distance; the last counts those
/// across root ports.
fn affinity(text: &str) -> Vec<(String, u64, u64)> {
    let rows = text.lines().take(ROWS_MAX).filter_map(|line| {
        let rest = line.strip_prefix("GPU")?.trim_start().strip_prefix(':')?;
        let at = rest.find('.')? + 2;
        let gpu = address(rest.get(..at)?.trim())?;
        let counts = rest.get(at..)?.trim_start().strip_prefix(':')?;
        let counts: Option<Vec<u64>> = counts.split_whitespace().map(number).collect();
        let counts = counts?;
        let (past, below) = counts.split_last()?;
        let below = below.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
        Some((gpu, below.min(u64::MAX / 2), (*past).min(u64::MAX / 2)))
    });
    rows.collect()
}

/// The facts about the storage below a path.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) map: StorageMap,
    /// The flags of the file's first extent.
    pub(super) flags: Result<u32, String>,
    /// Namespaces with several paths, or with multipath enabled.
    pub(super) heads: Vec<String>,
    /// Block devices with protection information, and its format.
    pub(super) protected: Vec<String>,
    /// The device below the file system, and udev's facts about it; `None` if udev recorded
    /// nothing.
    pub(super) device: Option<(String, Option<Vec<String>>)>,
    pub(super) has_udev: bool,
}

impl Storage {
    pub(super) fn read(system: &System, map: StorageMap) -> Self {
        let is_file = map.exists && map.root.number("size_bytes").is_some();
        let flags = if is_file { system.extent_flags(&map.path) } else { Ok(0) };
        let heads = system.names("sys/block", |name| head(name).is_some());
        let heads = heads.unwrap_or_default().iter().filter_map(|name| head(name)).collect();
        let protected = map.drives.iter().take(64).filter_map(|drive| {
            let text = |file: &str| system.text(format!("sys/block/{}/{file}", drive.name));
            let capable = text("integrity/device_is_integrity_capable").ok()?;
            let format = text("integrity/format").unwrap_or_default();
            (capable == "1").then(|| format!("{} ({format})", drive.name))
        });
        let device = device(&map.root).map(|number| {
            let file = format!("run/udev/data/b{number}");
            let wanted =
                |line: &str| line.starts_with("E:ID_FS_") || line.starts_with("E:MD_LEVEL");
            let keeps =
                |line: &str| wanted(line) && !line.contains("UUID") && !line.contains("LABEL");
            (number, system.lines_of(&file, LEN_MAX, keeps).ok())
        });
        Self {
            flags,
            heads,
            protected: protected.collect(),
            device,
            has_udev: system.exists("run/udev/data"),
            map,
        }
    }

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

/// The head `nvmeXnZ` of the path `nvmeXcYnZ`.
fn head(name: &str) -> Option<String> {
    let (before, rest) = name.strip_prefix("nvme")?.split_once('c')?;
    let (number, after) = rest.split_once('n')?;
    [before, number, after].into_iter().all(is_number).then(|| format!("nvme{before}n{after}"))
}

/// The device number of the block device that the file system is on.
fn device(root: &Layer) -> Option<String> {
    let mut layers = root.walk().map(|(_, layer)| layer);
    layers.find(|layer| layer.kind == LayerKind::FileSystem)?;
    let block = layers.next()?;
    let is_block = block.kind.is_block() || block.kind == LayerKind::Unknown;
    block.text("device").filter(|_| is_block).map(str::to_owned)
}

/// The facts about the network.
#[derive(Debug)]
pub(super) struct Network {
    /// `None` if unknown.
    pub(super) ports: Option<Vec<RdmaPort>>,
    pub(super) has_peermem: bool,
    pub(super) has_rpcrdma: bool,
    /// The version of VAST's client, if it is in use.
    pub(super) vast: Option<String>,
}

impl Network {
    pub(super) fn read(system: &System) -> Self {
        // Without the module there is no such folder, and so no such card.
        let none = || system.exists("sys/class").then(Vec::new);
        let ports = system.rdma_ports().ok().or_else(none);
        Self {
            ports,
            has_peermem: system.exists("sys/module/nvidia_peermem"),
            has_rpcrdma: system.exists("sys/module/rpcrdma"),
            vast: system.text("sys/module/sunrpc/parameters/nfs_bundle_version").ok(),
        }
    }
}

/// Files that container runtimes create.
const MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];

/// Bits of `CapEff` (`linux/capability.h`).
pub(super) const CAP_IPC_LOCK: u64 = 1 << 14;
pub(super) const CAP_SYS_ADMIN: u64 = 1 << 21;

/// The facts about the process.
#[derive(Debug)]
pub(super) struct Process {
    /// Bytes that may be locked; `u64::MAX` if unlimited, `None` if unknown.
    pub(super) locked: Option<u64>,
    pub(super) rights: Option<u64>,
    /// Memory available in the control group, and the file of its limit.
    pub(super) memory: Option<(u64, String)>,
    /// The sign that it runs in a container.
    pub(super) container: Option<String>,
    pub(super) has_nvidia_fs: bool,
    pub(super) has_infiniband: bool,
    pub(super) has_modules: bool,
}

impl Process {
    pub(super) fn read(system: &System) -> Self {
        let locked = system.line_of("proc/self/limits", "Max locked memory");
        let rights = system.line_of("proc/self/status", "CapEff:");
        let mark = MARKS.into_iter().find(|mark| system.exists(mark));
        let variable = system.environment(|name| name == "container").remove("container");
        let container = mark.map(|mark| format!("/{mark} is there"));
        let container = container.or_else(|| variable.map(|name| format!("`container={name}`")));
        let devices = |prefix: &str| {
            system
                .names("dev", |name| name.starts_with(prefix))
                .is_ok_and(|names| !names.is_empty())
        };
        Self {
            locked: locked.and_then(|limits| locked_bytes(&limits)),
            rights: rights.and_then(|rights| u64::from_str_radix(&rights, 16).ok()),
            memory: system
                .memory_limit()
                .map(|limit| (limit.available, limit.file.display().to_string())),
            container,
            has_nvidia_fs: devices("nvidia-fs"),
            has_infiniband: system.exists("dev/infiniband"),
            has_modules: system.exists("proc/modules"),
        }
    }

    pub(super) fn is_container(&self) -> bool {
        self.container.is_some()
    }

    pub(super) fn may(&self, right: u64) -> bool {
        self.rights.is_some_and(|rights| rights & right != 0)
    }
}

/// The first number of `8388608  8388608  bytes`.
fn locked_bytes(limits: &str) -> Option<u64> {
    match limits.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
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

//! The environment of a measurement: kernel, processor, memory, GPU, file system, drive, versions.
//!
//! Everything is read from files of the kernel. Missing facts stay empty and fail no measurement.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay::gpu::DeviceInfo;
use forebay::units::KIB;
use forebay_topology::Resolver;
use rustix::fs::{major, minor};

use super::control_group;
use super::limits::fio;
use super::parallel::cores;
use crate::report::drives::DriveFacts;
use crate::report::json::{Cpu, Drive, Environment, FileSystem, Gpu, HostMemoryFacts, Versions};
use crate::steps::Step;
use crate::variables;

/// Collects the facts of this machine and of the storage of `path`.
#[must_use]
pub fn collect(path: &Path, device: Option<&DeviceInfo>, command: &str) -> Environment {
    let looking = Step::begin("inspect", path);
    let map = Resolver::default().resolve(path);
    let drives = map.drives.iter().map(|drive| DriveFacts::of(drive, &map.queue.id)).collect();
    // The file system of a device's node is not that of the device.
    let is_device = fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device());
    let file_system = file_system(path).filter(|_| !is_device);
    drop(looking);
    let source = file_system.as_ref().map(|facts| facts.source.clone());
    Environment {
        gpu: device.map(gpu),
        driver: device.map(|info| info.driver.clone()).and_then(known),
        drive: drive(Path::new("/sys"), path, source.as_deref()),
        file_system,
        versions: Versions { fio: fio::version(), ..versions() },
        ..of_machine(command, drives)
    }
}

/// The facts of this machine, with the given drives.
#[must_use]
pub fn of_machine(command: &str, drives: Vec<DriveFacts>) -> Environment {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Environment {
        kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
        cpu: Cpu { model: cpu_model(), cores: cores() },
        memory: memory(),
        gpu: None,
        driver: None,
        file_system: None,
        drive: None,
        drives,
        versions: versions(),
        variables: variables::set(),
        command: command.into(),
        unix_time: since.as_secs(),
    }
}

/// The environment of a result that another tool measured: only the time is known.
#[must_use]
pub fn unknown(command: &str, unix_time: u64) -> Environment {
    Environment {
        kernel: String::new(),
        cpu: Cpu { model: String::new(), cores: 0 },
        memory: HostMemoryFacts { total: 0, available: 0 },
        gpu: None,
        driver: None,
        file_system: None,
        drive: None,
        drives: Vec::new(),
        versions: versions(),
        variables: BTreeMap::new(),
        command: command.into(),
        unix_time,
    }
}

fn versions() -> Versions {
    Versions { forebay: env!("CARGO_PKG_VERSION").into(), fio: None, kvikio: None, cufile: None }
}

/// The facts of a GPU.
#[must_use]
pub fn gpu(info: &DeviceInfo) -> Gpu {
    Gpu {
        id: info.id.to_string(),
        name: info.name.clone(),
        uuid: known(info.uuid.clone()),
        pci_address: known(info.pci_address.clone()),
        memory: info.memory,
        simulated: info.simulated,
    }
}

fn known(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// The text after `name` and a colon in a file of the kernel.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // x86 reports a model name; some ARM kernels report only numbers.
    let model = field(&text, "model name").or_else(|| field(&text, "Processor"));
    model.unwrap_or_else(|| std::env::consts::ARCH.into())
}

/// Host memory that this process may use, as the kernel and the control groups report it now.
#[must_use]
pub fn memory() -> HostMemoryFacts {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        let value = field(&text, name)?;
        value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(KIB)
    };
    // Some sandboxes lack that file; the system call reports less, but always works.
    let facts = rustix::system::sysinfo();
    let units = |count| u64::from(facts.mem_unit).saturating_mul(count);
    let total = bytes("MemTotal").unwrap_or(units(facts.totalram));
    let available = bytes("MemAvailable").or_else(|| bytes("MemFree"));
    let available = available.unwrap_or(units(facts.freeram));
    match control_group::grant() {
        Some(grant) => HostMemoryFacts {
            total: total.min(grant.limit),
            available: available.min(grant.available),
        },
        None => HostMemoryFacts { total, available },
    }
}

/// The file system that `path` is on.
#[must_use]
pub fn file_system(path: &Path) -> Option<FileSystem> {
    // Opening a FIFO would block, but none reaches this point. A device that does not answer also
    // blocks, but then nothing can be measured.
    let file = File::open(path).ok()?;
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let id = field(&facts, "mnt_id")?;
    mounted(&fs::read_to_string("/proc/self/mountinfo").ok()?, &id)
}

/// The mount with number `id` in the text of `mountinfo` (proc(5)).
fn mounted(mounts: &str, id: &str) -> Option<FileSystem> {
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    let (place, what) = line.split_once(" - ")?;
    let mount_point = unescaped(place.split(' ').nth(4)?);
    let mut what = what.split(' ');
    let kind = what.next()?.to_owned();
    Some(FileSystem { kind, mount_point, source: unescaped(what.next()?) })
}

/// Decodes the kernel's octal escapes, such as `\040` for a space.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            _ => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

/// The drive below `path`, or below the mounted device if the file system has its own device
/// number, as btrfs does.
fn drive(sys: &Path, path: &Path, mounted: Option<&str>) -> Option<Drive> {
    let number = |path: &Path| {
        let facts = fs::metadata(path).ok()?;
        let device = facts.file_type().is_block_device();
        Some(if device { facts.rdev() } else { facts.dev() })
    };
    let found = number(path).and_then(|number| drive_of(sys, number));
    found.or_else(|| drive_of(sys, number(Path::new(mounted?))?))
}

fn drive_of(sys: &Path, number: u64) -> Option<Drive> {
    let link = sys.join(format!("dev/block/{}:{}", major(number), minor(number)));
    let mut folder = fs::canonicalize(link).ok()?;
    if folder.join("partition").exists() {
        folder = folder.parent()?.to_owned();
    }
    let name = folder.file_name()?.to_str()?.to_owned();
    Some(Drive {
        name,
        model: read(folder.join("device/model")),
        size: read(folder.join("size"))
            .and_then(|sectors| sectors.parse::<u64>().ok()?.checked_mul(512)),
        rotational: read(folder.join("queue/rotational")).map(|text| text == "1"),
    })
}

fn read(path: PathBuf) -> Option<String> {
    known(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_with_and_without_optional_fields() {
        let text = "22 1 0:21 / /proc rw - proc proc rw\n\
                    31 1 254:1 / /mnt/my\\040disk rw shared:1 master:2 - xfs /dev/vda1 rw\n";
        let found = mounted(text, "31").unwrap();
        assert_eq!((found.kind.as_str(), found.source.as_str()), ("xfs", "/dev/vda1"));
        assert_eq!(found.mount_point, "/mnt/my disk");
        assert_eq!(mounted(text, "2"), None);
        assert_eq!(mounted("31", "31"), None);
        assert_eq!(unescaped(r"a\b\0409\"), r"a\b 9\");
    }

    #[test]
    fn this_machine_has_memory_and_a_file_system() {
        let place = tempfile::tempdir().unwrap();
        let facts = collect(place.path(), None, "forebay bench");
        assert!(facts.memory.total > 0 && facts.cpu.cores > 0);
        assert!(facts.kernel.starts_with("Linux "), "{}", facts.kernel);
        assert!(!facts.file_system.unwrap().kind.is_empty());
    }

    #[test]
    fn a_partition_leads_to_its_drive() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/disk");
        fs::create_dir_all(disk.join("part")).unwrap();
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        fs::write(disk.join("part/partition"), "1\n").unwrap();
        fs::write(disk.join("queue/rotational"), "1\n").unwrap();
        fs::write(disk.join("size"), "nonsense\n").unwrap();
        let link = sys.path().join("dev/block/8:1");
        std::os::unix::fs::symlink(disk.join("part"), link).unwrap();
        let number = rustix::fs::makedev(8, 1);
        let found = drive_of(sys.path(), number).unwrap();
        let expected =
            Drive { name: "disk".into(), model: None, size: None, rotational: Some(true) };
        assert_eq!(found, expected);
        assert_eq!(drive_of(sys.path(), rustix::fs::makedev(8, 2)), None);
    }
}

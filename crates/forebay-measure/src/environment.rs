//! The environment of a measurement: kernel, processor, memory, GPU, file system, drive, versions.
//!
//! Missing facts stay empty and fail no measurement.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay::gpu::DeviceInfo;
use forebay::units::KIB;
use forebay_topology::{Drive, LayerKind, Resolver, StorageMap};

use crate::control_group;
use crate::fio;
use crate::parallel::cores;
use crate::results::machine::{Cpu, Environment, FileSystem, Gpu, HostMemoryFacts, Versions};
use crate::steps::Step;
use crate::variables;

/// Collects the facts of this machine and of the storage of `path`.
#[must_use]
pub fn collect(path: &Path, device: Option<&DeviceInfo>, command: &str) -> Environment {
    let looking = Step::begin("inspect", path);
    let map = Resolver::default().resolve(path);
    drop(looking);
    Environment {
        gpu: device.map(gpu),
        driver: device.map(|info| info.driver.clone()).and_then(known),
        file_system: file_system(&map),
        versions: Versions { fio: fio::version(), ..versions() },
        ..of_machine(command, map.drives)
    }
}

/// The facts of this machine, with the given drives.
#[must_use]
pub fn of_machine(command: &str, drives: Vec<Drive>) -> Environment {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Environment {
        kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
        cpu: Cpu { model: cpu_model(), cores: cores() },
        memory: memory(),
        drives,
        versions: versions(),
        variables: variables::set(),
        command: command.into(),
        unix_time: since.as_secs(),
        ..Environment::default()
    }
}

/// The environment of a result that another tool measured: only the time is known.
#[must_use]
pub fn unknown(command: &str, unix_time: u64) -> Environment {
    Environment {
        versions: versions(),
        command: command.into(),
        unix_time,
        ..Environment::default()
    }
}

fn versions() -> Versions {
    Versions { forebay: env!("CARGO_PKG_VERSION").into(), fio: None }
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

/// The file system of a path; `None` for a device.
#[must_use]
pub fn file_system(map: &StorageMap) -> Option<FileSystem> {
    let mut layers = map.root.walk().map(|(_, layer)| layer);
    let mount = layers.find(|layer| layer.kind == LayerKind::Mount)?;
    let layer = layers.find(|layer| layer.kind == LayerKind::FileSystem)?;
    Some(FileSystem {
        kind: layer.name.clone(),
        mount_point: mount.name.clone(),
        source: layer.text("source").unwrap_or_default().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_a_file_system() {
        let place = tempfile::tempdir().unwrap();
        let facts = collect(place.path(), None, "forebay bench");
        assert!(facts.memory.total > 0 && facts.cpu.cores > 0);
        assert!(facts.kernel.starts_with("Linux "), "{}", facts.kernel);
        let file_system = facts.file_system.unwrap();
        assert!(!file_system.kind.is_empty());
        assert!(place.path().canonicalize().unwrap().starts_with(file_system.mount_point));
    }
}

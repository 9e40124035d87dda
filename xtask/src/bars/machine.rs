//! The machine of a run, as far as its numbers depend on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay::gpu::{DeviceInfo, GpuSelector};
use serde::Serialize;

use crate::fio;

/// Everything that is archived about the machine and the run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Environment {
    /// The day, UTC, as `2026-01-31`.
    pub(crate) date: String,
    /// Seconds since 1970.
    unix_time_s: u64,
    kernel: String,
    cpu: String,
    cores: usize,
    memory_kib: u64,
    gpus: Vec<Gpu>,
    /// Why there is no GPU, if there is none.
    no_gpu: Option<String>,
    /// Whether the GPU of this run was a simulated one.
    simulated: bool,
    /// The scratch folder's file system, and the block device below it.
    file_system: String,
    drive: String,
    fio: Option<String>,
    version: String,
    commit: String,
    command: Vec<String>,
    /// The `FOREBAY_` variables that were set.
    variables: BTreeMap<String, String>,
}

/// One GPU.
#[derive(Debug, Serialize)]
struct Gpu {
    name: String,
    uuid: String,
    pci_address: String,
    driver: String,
    memory: u64,
}

impl From<DeviceInfo> for Gpu {
    fn from(info: DeviceInfo) -> Self {
        Self {
            name: info.name,
            uuid: info.uuid,
            pci_address: info.pci_address,
            driver: info.driver,
            memory: info.memory,
        }
    }
}

impl Environment {
    /// Reads the facts of this machine; unknown ones stay empty.
    pub(crate) fn read(scratch: &Path, selector: &GpuSelector) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (gpus, no_gpu) = match forebay::gpu::visible() {
            Ok(gpus) => (gpus.into_iter().map(Gpu::from).collect(), None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let (file_system, drive) = mount(scratch);
        Self {
            date: date(now / 86_400),
            unix_time_s: now,
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_kib: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse().ok())
                .unwrap_or_default(),
            gpus,
            no_gpu,
            simulated: matches!(selector, GpuSelector::Sim(_)),
            file_system,
            drive,
            fio: fio::version(),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: std::env::var("FOREBAY_COMMIT").unwrap_or_else(|_| "unknown".into()),
            command: std::env::args().collect(),
            variables: std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")).collect(),
        }
    }

    /// The machine in one sentence.
    pub(crate) fn sentence(&self) -> String {
        let gpu = match (self.simulated, self.gpus.first()) {
            (true, _) => "simulated GPU".into(),
            (false, Some(gpu)) => format!("{} × {}", self.gpus.len(), gpu.name),
            (false, None) => "no GPU".into(),
        };
        format!(
            "{gpu}, {} × {}, Linux {}, {} on {}, commit {}",
            self.cores, self.cpu, self.kernel, self.file_system, self.drive, self.commit
        )
    }

    /// `DATE-MACHINE`, as a folder's name.
    pub(crate) fn label(&self) -> String {
        let machine = match (self.simulated, self.gpus.first()) {
            (true, _) => "simulated".into(),
            (false, Some(gpu)) => slug(&gpu.name),
            (false, None) => format!("{}-core-{}", self.cores, slug(&self.cpu)),
        };
        format!("{}-{machine}", self.date)
    }
}

/// The first line of a file of the kernel's.
fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().into()
}

/// The first value of `name` in a file of lines `name : value`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}

/// The file system that holds `folder` and its source, from the longest mount point above it.
fn mount(folder: &Path) -> (String, String) {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?, words.next()?))
        })
        .filter(|(_, point, _)| folder.starts_with(point))
        .max_by_key(|(_, point, _)| point.len())
        .map(|(source, _, kind)| (kind.into(), source.into()))
        .unwrap_or_default()
}

/// Letters and digits in lower case, all else as single hyphens.
fn slug(name: &str) -> String {
    let words: Vec<String> = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

/// The day that is `days` after 1970-01-01, in the Gregorian calendar.
fn date(mut days: u64) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_through_leap_years() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(19_723), "2024-01-01");
        assert_eq!(date(20_088), "2024-12-31");
    }

    #[test]
    fn names_become_parts_of_paths() {
        assert_eq!(slug("NVIDIA H200"), "nvidia-h200");
        assert_eq!(slug("AMD EPYC (TM) 9.0 "), "amd-epyc-tm-9-0");
    }
}

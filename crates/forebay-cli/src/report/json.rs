//! Results as JSON, version 1; docs/json-schema.md describes every key.
//!
//! The types can be read back too, so that programs in Rust need no parser of their own. What does
//! not apply to a row is null.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::drives::DriveFacts;
pub use super::names::{Cache, Direction, MethodName};
use crate::bench::stats::Spread;

/// The version of the schema: it grows when a key changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// One run of `forebay bench`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine and the command.
    pub environment: Environment,
    /// A row for each ceiling and each way, in the order of the table.
    pub results: Vec<Row>,
    /// What a reader of the numbers should know, as sentences.
    pub warnings: Vec<String>,
}

/// The machine and the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The kernel's name and release.
    pub kernel: String,
    /// The processor.
    pub cpu: Cpu,
    /// Host memory.
    pub memory: HostMemoryFacts,
    /// The GPU; null where the target is host memory.
    pub gpu: Option<Gpu>,
    /// The GPU driver's version.
    pub driver: Option<String>,
    /// The file system that the file is on.
    pub file_system: Option<FileSystem>,
    /// The drive below it.
    pub drive: Option<Drive>,
    /// All physical drives below it, as the storage map finds them.
    #[serde(default)]
    pub drives: Vec<DriveFacts>,
    /// Versions of the programs that measured.
    pub versions: Versions,
    /// The command, as it may be typed again.
    pub command: String,
    /// When the run began, in seconds since 1970.
    pub unix_time: u64,
}

/// The processor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its name; empty where the system does not tell.
    pub model: String,
    /// Threads that can run at once.
    pub cores: usize,
}

/// Host memory, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostMemoryFacts {
    /// All of it.
    pub total: u64,
    /// What could be had when the run began.
    pub available: u64,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its name here, as `cuda:0`.
    pub id: String,
    /// The vendor's name.
    pub name: String,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its PCI address.
    pub pci_address: Option<String>,
    /// Bytes of its memory.
    pub memory: u64,
    /// Whether host memory plays it.
    pub simulated: bool,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Its type, as `ext4`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// What is mounted there.
    pub source: String,
}

/// A drive, or whatever block device is seen first below the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drive {
    /// Its name, as `nvme0n1`.
    pub name: String,
    /// Its model.
    pub model: Option<String>,
    /// Bytes on it.
    pub size: Option<u64>,
    /// Whether the kernel takes it for a spinning disk.
    pub rotational: Option<bool>,
}

/// Versions of the programs that measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Versions {
    /// This command's.
    pub forebay: String,
    /// `fio`'s, where it is installed.
    pub fio: Option<String>,
    /// KvikIO's, where several paths are compared and the Python that is found has it.
    #[serde(default)]
    pub kvikio: Option<String>,
    /// cuFile's, where its compat mode is compared.
    #[serde(default)]
    pub cufile: Option<String>,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The ceiling or the way.
    pub method: MethodName,
    /// The route that the engine took; several are joined by `+`.
    pub route: Option<String>,
    /// The route that was demanded of the engine.
    pub demanded: Option<String>,
    /// Why, or which way the bytes went.
    pub reason: Option<String>,
    /// From or to the file.
    pub direction: Direction,
    /// Where the file's pages were.
    pub cache: Option<Cache>,
    /// The memory: `host`, `cuda:0`, `sim:0`.
    pub target: String,
    /// The files.
    pub paths: Option<Vec<String>>,
    /// The ids of the drives that these lie on.
    #[serde(default)]
    pub drives: Option<Vec<String>>,
    /// What a way was told, where it can be told something.
    #[serde(default)]
    pub settings: Option<Settings>,
    /// Bytes of one sample.
    pub bytes: u64,
    /// Every sample.
    pub seconds: Vec<f64>,
    /// What the samples say.
    pub bytes_per_second: Spread,
    /// The ceiling that binds.
    pub limit: Option<Limit>,
    /// The median as a share of that ceiling.
    pub share_of_limit: Option<f64>,
    /// The median over that of `standard` in the same direction and cache.
    #[serde(default)]
    pub speed_up: Option<f64>,
    /// Processor seconds for each 1e9 bytes, the median.
    pub cpu_s_per_gb: Option<f64>,
    /// Whether every byte of every sample was right; null for ceilings.
    pub verified: Option<bool>,
    /// Whether the run's target was a simulated GPU.
    pub simulated: bool,
    /// The `--size` that the row belongs to, for the table.
    #[serde(skip)]
    pub size: u64,
}

/// What a way of others was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// `defaults`, `best` of those that were tried, or `fixed`.
    pub name: String,
    /// Each setting by its own name: of KvikIO, its variables.
    pub values: BTreeMap<String, String>,
}

/// A ceiling's value: its best sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Which ceiling.
    pub name: MethodName,
    /// Its best sample.
    pub bytes_per_second: f64,
}

impl Report {
    /// The report as text, with a line feed at its end.
    ///
    /// # Errors
    /// None that a report of numbers and text can cause.
    pub fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::drives::tests::drive;

    fn row(method: MethodName, cache: Option<Cache>, seconds: [f64; 3]) -> Row {
        let bytes = 1 << 30;
        let limit = cache.map(|cache| match cache {
            Cache::Cold => Limit { name: MethodName::Storage, bytes_per_second: 3.3e9 },
            Cache::Resident => Limit { name: MethodName::Link, bytes_per_second: 55.5e9 },
        });
        let bytes_per_second = Spread::of_rates(bytes, &seconds).unwrap();
        let ours = method == MethodName::Forebay;
        Row {
            method,
            route: ours.then(|| "cached".into()),
            demanded: None,
            reason: ours.then(|| "resident in the page cache".into()),
            direction: Direction::Read,
            cache,
            target: "cuda:0".into(),
            paths: (method != MethodName::Link).then(|| vec!["model.safetensors".into()]),
            drives: (method != MethodName::Link).then(|| vec!["nvme:nqn/1".into()]),
            settings: None,
            bytes,
            seconds: seconds.into(),
            bytes_per_second,
            limit,
            share_of_limit: limit.map(|limit| bytes_per_second.median / limit.bytes_per_second),
            speed_up: cache.map(|_| 12.25),
            cpu_s_per_gb: Some(0.125),
            verified: cache.map(|_| true),
            simulated: false,
            size: bytes,
        }
    }

    /// A report of fixed data.
    pub(crate) fn report() -> Report {
        Report {
            schema: SCHEMA,
            environment: Environment {
                kernel: "Linux 6.18.0".into(),
                cpu: Cpu { model: "Some CPU".into(), cores: 16 },
                memory: HostMemoryFacts { total: 128 << 30, available: 100 << 30 },
                gpu: Some(Gpu {
                    id: "cuda:0".into(),
                    name: "NVIDIA H200".into(),
                    uuid: Some("GPU-1234".into()),
                    pci_address: Some("0000:1b:00.0".into()),
                    memory: 140 << 30,
                    simulated: false,
                }),
                driver: Some("580.159".into()),
                file_system: Some(FileSystem {
                    kind: "ext4".into(),
                    mount_point: "/data".into(),
                    source: "/dev/nvme0n1p1".into(),
                }),
                drive: Some(Drive {
                    name: "nvme0n1".into(),
                    model: Some("Fast One".into()),
                    size: Some(1 << 40),
                    rotational: Some(false),
                }),
                drives: vec![drive()],
                versions: Versions {
                    forebay: "0.1.0".into(),
                    fio: Some("fio-3.33".into()),
                    kvikio: None,
                    cufile: None,
                },
                command: "forebay bench model.safetensors".into(),
                unix_time: 1_700_000_000,
            },
            results: vec![
                row(MethodName::Link, None, [0.0195, 0.0194, 0.0193]),
                row(MethodName::Standard, Some(Cache::Cold), [0.5, 0.51, 0.49]),
                row(MethodName::Forebay, Some(Cache::Resident), [0.0197, 0.0196, 0.0198]),
            ],
            warnings: Vec::new(),
        }
    }

    /// As it stands in a report.
    fn text(part: impl Serialize) -> String {
        serde_json::to_string_pretty(&part).unwrap()
    }

    #[test]
    fn keys_of_the_environment_are_those_of_the_schema() {
        let mut environment = report().environment;
        assert_eq!(environment.drives, [drive()]);
        // The keys of a drive stand beside its type.
        environment.drives.clear();
        insta::assert_snapshot!(text(environment), @r#"
        {
          "kernel": "Linux 6.18.0",
          "cpu": {
            "model": "Some CPU",
            "cores": 16
          },
          "memory": {
            "total": 137438953472,
            "available": 107374182400
          },
          "gpu": {
            "id": "cuda:0",
            "name": "NVIDIA H200",
            "uuid": "GPU-1234",
            "pci_address": "0000:1b:00.0",
            "memory": 150323855360,
            "simulated": false
          },
          "driver": "580.159",
          "file_system": {
            "type": "ext4",
            "mount_point": "/data",
            "source": "/dev/nvme0n1p1"
          },
          "drive": {
            "name": "nvme0n1",
            "model": "Fast One",
            "size": 1099511627776,
            "rotational": false
          },
          "drives": [],
          "versions": {
            "forebay": "0.1.0",
            "fio": "fio-3.33",
            "kvikio": null,
            "cufile": null
          },
          "command": "forebay bench model.safetensors",
          "unix_time": 1700000000
        }
        "#);
    }

    #[test]
    fn keys_of_a_row_are_those_of_the_schema() {
        insta::assert_snapshot!(text(&report().results[2]), @r#"
        {
          "method": "forebay",
          "route": "cached",
          "demanded": null,
          "reason": "resident in the page cache",
          "direction": "read",
          "cache": "resident",
          "target": "cuda:0",
          "paths": [
            "model.safetensors"
          ],
          "drives": [
            "nvme:nqn/1"
          ],
          "settings": null,
          "bytes": 1073741824,
          "seconds": [
            0.0197,
            0.0196,
            0.0198
          ],
          "bytes_per_second": {
            "median": 54504661116.751274,
            "min": 54229385050.50504,
            "max": 54782746122.44898
          },
          "limit": {
            "name": "link",
            "bytes_per_second": 55500000000.0
          },
          "share_of_limit": 0.9820659660675906,
          "speed_up": 12.25,
          "cpu_s_per_gb": 0.125,
          "verified": true,
          "simulated": false
        }
        "#);
        let ceiling = text(&report().results[0]);
        for key in
            ["route", "reason", "cache", "paths", "drives", "limit", "share_of_limit", "verified"]
        {
            assert!(ceiling.contains(&format!("\"{key}\": null")), "{key}: {ceiling}");
        }
    }

    #[test]
    fn keys_of_a_report_are_those_of_the_schema() {
        let value: serde_json::Value = serde_json::from_str(&report().to_text().unwrap()).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["environment", "results", "schema", "warnings"]);
    }

    #[test]
    fn a_report_is_read_back() {
        let mut report = report();
        let text = report.to_text().unwrap();
        // The table's own grouping is no part of the schema.
        report.results.iter_mut().for_each(|row| row.size = 0);
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}

//! Results as JSON, version 1; docs/json-schema.md describes every key.
//!
//! The types can be read back too, so that Rust programs need no parser. Values that do not apply
//! to a row are null.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::drives::DriveFacts;
pub use super::names::{Cache, Direction, MethodName};
use super::proof::VerdictFacts;
use crate::bench::stats::Spread;
use crate::results::told;

/// The version of the schema: it grows when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// One run of `forebay bench`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine and the command.
    pub environment: Environment,
    /// A row for each limit and each method, in the order of the table.
    pub results: Vec<Row>,
    /// Notes for the reader of the numbers, as sentences.
    pub warnings: Vec<String>,
}

/// The machine and the command. For imported results the machine is unknown: its texts are empty
/// and its numbers 0 here, and null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The kernel's name and release.
    #[serde(with = "told")]
    pub kernel: String,
    /// The processor.
    pub cpu: Cpu,
    /// Host memory.
    pub memory: HostMemoryFacts,
    /// The GPU; null if the target is host memory.
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
    /// Limits of the engine that were set: the variables by name. Absent if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// The command, ready to be typed again.
    pub command: String,
    /// When the run began, in seconds since 1970.
    #[serde(with = "told")]
    pub unix_time: u64,
}

/// The processor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its name; empty if the system does not report one.
    #[serde(with = "told")]
    pub model: String,
    /// Threads that can run at once.
    #[serde(with = "told")]
    pub cores: usize,
}

/// Host memory, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostMemoryFacts {
    /// The total.
    #[serde(with = "told")]
    pub total: u64,
    /// The memory available when the run began.
    #[serde(with = "told")]
    pub available: u64,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its name here, such as `cuda:0`.
    pub id: String,
    /// The vendor's name.
    pub name: String,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its PCI address.
    pub pci_address: Option<String>,
    /// Bytes of its memory.
    pub memory: u64,
    /// Whether it is simulated in host memory.
    pub simulated: bool,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Its type, as `ext4`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The mount point.
    pub mount_point: String,
    /// The mounted device.
    pub source: String,
}

/// A drive, or the topmost block device below the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drive {
    /// Its name, as `nvme0n1`.
    pub name: String,
    /// Its model.
    pub model: Option<String>,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Whether the kernel reports a spinning disk.
    pub rotational: Option<bool>,
}

/// Versions of the programs that measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Versions {
    /// The version of this command.
    pub forebay: String,
    /// The version of `fio`, if installed.
    pub fio: Option<String>,
    /// KvikIO's version, if several paths are compared and the detected Python has it.
    #[serde(default)]
    pub kvikio: Option<String>,
    /// cuFile's version, if its compat mode is compared.
    #[serde(default)]
    pub cufile: Option<String>,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The limit or the method.
    pub method: MethodName,
    /// The route that the engine took; several are joined by `+`.
    pub route: Option<String>,
    /// The route that was required of the engine.
    pub demanded: Option<String>,
    /// Why the engine took it; for other methods, how the bytes moved.
    pub reason: Option<String>,
    /// From or to the file.
    pub direction: Direction,
    /// The page cache state of the file.
    pub cache: Option<Cache>,
    /// The memory: `host`, `cuda:0`, `sim:0`.
    pub target: String,
    /// The files.
    pub paths: Option<Vec<String>>,
    /// The ids of the drives that hold these.
    #[serde(default)]
    pub drives: Option<Vec<String>>,
    /// The settings of a method, if it has some.
    #[serde(default)]
    pub settings: Option<Settings>,
    /// Bytes of one sample.
    pub bytes: u64,
    /// Every sample.
    pub seconds: Vec<f64>,
    /// The statistics of the samples.
    pub bytes_per_second: Spread,
    /// The limit that binds.
    pub limit: Option<Limit>,
    /// The median as a share of that limit.
    pub share_of_limit: Option<f64>,
    /// The median over that of `standard` in the same direction and cache.
    #[serde(default)]
    pub speed_up: Option<f64>,
    /// Processor seconds for each 1e9 bytes, the median.
    pub cpu_s_per_gb: Option<f64>,
    /// Whether every byte of every sample was correct; null for limits.
    pub verified: Option<bool>,
    /// The route, proven by independent counters; null for limits.
    #[serde(default)]
    pub verdict: Option<VerdictFacts>,
    /// The counters of each sample; null for limits.
    #[serde(default)]
    pub evidence: Option<Vec<Value>>,
    /// Whether the run's target was a simulated GPU.
    pub simulated: bool,
    /// The `--size` of the row, for the table.
    #[serde(skip)]
    pub size: u64,
}

/// The settings of an external method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// `defaults`, `best` among those tried, or `fixed`.
    pub name: String,
    /// Each setting by its own name: of KvikIO, its variables.
    pub values: BTreeMap<String, String>,
}

/// A limit's value: its best sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Which limit.
    pub name: MethodName,
    /// Its best sample.
    pub bytes_per_second: f64,
}

impl Report {
    /// The report as text, with a line feed at its end.
    ///
    /// # Errors
    /// Errors of the serializer, which numbers and text do not cause.
    pub fn to_text(&self) -> serde_json::Result<String> {
        crate::report::plain::json_lines(self)
    }
}

#[cfg(test)]
pub(crate) mod tests;

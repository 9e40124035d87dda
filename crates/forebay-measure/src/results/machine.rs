//! The machine of a run, as JSON; docs/results.schema.json describes every key.

use std::collections::BTreeMap;

use forebay_topology::Drive;
use serde::{Deserialize, Serialize};

/// The machine and the command. For imported results the machine is unknown: its texts are empty
/// and its numbers 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Environment {
    /// The kernel's name and release.
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
    /// The physical drives below it, as the storage map finds them.
    #[serde(default)]
    pub drives: Vec<Drive>,
    /// Versions of the programs that measured.
    pub versions: Versions,
    /// Limits of the engine that were set: the variables by name. Absent if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// The command, ready to be typed again.
    pub command: String,
    /// When the run began, in seconds since 1970.
    pub unix_time: u64,
}

/// The processor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cpu {
    /// Its name; empty if the system does not report one.
    pub model: String,
    /// Threads that can run at once.
    pub cores: usize,
}

/// Host memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostMemoryFacts {
    /// The total.
    pub total: u64,
    /// The memory available when the run began.
    pub available: u64,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileSystem {
    /// Its type, as `ext4`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The mount point.
    pub mount_point: String,
    /// The mounted device.
    pub source: String,
}

/// Versions of the programs that measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Versions {
    /// The version of this command.
    pub forebay: String,
    /// The version of `fio`, if installed.
    pub fio: Option<String>,
}

/// Drives that a report names.
const DRIVES_MAX: usize = 4;

/// The file system and drives in words: `ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)`; with `several`
/// paths only the drives.
pub fn place(facts: &Environment, several: bool) -> Option<String> {
    // The file system is only the first path's.
    let file_system = facts.file_system.as_ref().filter(|_| !several);
    let kind = file_system.map(|file_system| file_system.kind.clone());
    let is_other = |drive: &Drive| kind != Some(drive.transport().to_string());
    let names = facts.drives.first().is_some_and(is_other).then(|| drives(facts));
    match (kind, names) {
        (Some(kind), Some(names)) => Some(format!("{kind} on {names}")),
        (kind, names) => names.or(kind),
    }
}

/// The drives in words, joined by `+`; empty if none is known.
#[must_use]
pub fn drives(facts: &Environment) -> String {
    let mut names: Vec<String> = facts.drives.iter().take(DRIVES_MAX).map(with_link).collect();
    if facts.drives.len() > DRIVES_MAX {
        names.push(format!("{} more", facts.drives.len() - DRIVES_MAX));
    }
    names.join(" + ")
}

/// A drive with its link speed: `nvme0n1 (Fast One, x4 at 16 GT/s)`.
fn with_link(drive: &Drive) -> String {
    let link = drive.pci().and_then(|pci| Some(pci.link?.text(pci.link_max.as_ref())));
    let parts: Vec<String> = drive.model.clone().into_iter().chain(link).collect();
    match parts.as_slice() {
        [] => drive.name.clone(),
        parts => format!("{} ({})", drive.name, parts.join(", ")),
    }
}

#[cfg(test)]
mod tests;

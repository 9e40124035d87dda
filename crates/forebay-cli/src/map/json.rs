//! The map as JSON, version 1; docs/json-schema.md describes every key.
//!
//! Plain data that holds everything drawn and warned about, so both are pure functions of it.

use std::collections::BTreeMap;

use forebay_measure::results::machine::Environment;
pub use forebay_topology::Gpu;
use forebay_topology::{Ceiling, Distance, Drive, DriveId, Layer, Part, Piece, Queue, Way};
use serde::Serialize;

/// The version of the schema: it grows when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The maps of some paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MapReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The folder of the replayed record; null if this machine was examined.
    pub replay: Option<String>,
    /// The machine and the command; null for a replay of a record.
    pub environment: Option<Environment>,
    /// The GPUs on PCI.
    pub gpus: Vec<Gpu>,
    /// All drives under the paths, without duplicates.
    pub drives: Vec<Drive>,
    /// All pairs of GPUs and drives.
    pub distances: Vec<Pair>,
    /// Network cards with RDMA; null if unknown.
    pub rdma_devices: Option<Vec<String>>,
    /// By path.
    pub maps: Vec<PathMap>,
    /// The most that drives, network and GPUs can carry.
    pub ceilings: Vec<CeilingRow>,
    /// The shares of theory that these use, if a measurement was given.
    pub measured: Vec<MeasuredShare>,
    /// Paths that could not be mapped.
    pub failures: Vec<Failed>,
    /// Settings that cost speed.
    pub warnings: Vec<Warning>,
}

impl MapReport {
    /// The drive with this id.
    #[must_use]
    pub fn drive(&self, id: &str) -> Option<&Drive> {
        self.drives.iter().find(|drive| drive.id.as_str() == id)
    }
}

/// What a kind of part reached of its theory in a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredShare {
    /// The kind.
    pub part: Part,
    /// To GPUs or from them.
    pub way: Way,
    /// From 0 to 1.
    pub share: f64,
}

/// How far a drive is from a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// The GPU's index.
    pub gpu: usize,
    /// The drive's id.
    pub drive: DriveId,
    /// The distance, and why it is unknown.
    #[serde(flatten)]
    pub distance: Distance,
}

/// The map of a path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathMap {
    /// The path as given.
    pub path: String,
    /// The path without symbolic links.
    pub real_path: String,
    /// Whether there is something at the path.
    pub exists: bool,
    /// Which queue serves the file.
    pub queue: Queue,
    /// The ids of its drives.
    pub drives: Vec<DriveId>,
    /// The steps, from the path down.
    pub steps: Layer,
    /// Where its bytes are stored; null unless requested.
    pub extents: Option<Extents>,
}

/// The location of a file's bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Extents {
    /// Runs of bytes as the file system reports them.
    pub count: usize,
    /// Whether these are all.
    pub complete: bool,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes by drive.
    pub drives: Vec<OnDrive>,
    /// Bytes with unknown location, by reason.
    pub unplaced: BTreeMap<String, u64>,
    /// The first runs on drives, with adjacent runs merged.
    pub first: Vec<Piece>,
    /// Number of runs on drives, of which `first` lists some.
    pub runs: u64,
    /// Why the file system reports nothing.
    pub refused: Option<String>,
}

/// A file's bytes on a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OnDrive {
    /// The drive's id.
    pub drive: DriveId,
    /// Bytes.
    pub bytes: u64,
    /// Runs.
    pub runs: u64,
}

/// Some devices, and the most that they carry.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CeilingRow {
    /// The devices: `nvme0n1`, `4 drives`, `network`, `2 GPUs`, `4 drives to 2 GPUs`.
    pub of: String,
    /// From drives to GPUs; null if it is unknown.
    pub read: Option<Ceiling>,
    /// From GPUs to drives.
    pub write: Option<Ceiling>,
}

/// A path that could not be mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// The path.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// Something that will cost speed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Which rule found it.
    pub rule: String,
    /// The path that it concerns; null if it concerns the machine.
    pub path: Option<String>,
    /// The names of the steps or drives that it is about.
    pub about: Vec<String>,
    /// The problem and the next thing to try, in words.
    pub text: String,
}

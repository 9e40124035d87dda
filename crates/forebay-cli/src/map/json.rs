//! The map as JSON, version 1; docs/json-schema.md describes every key.
//!
//! Plain data that holds everything drawn and warned about. So both are pure functions of it, and a
//! program that reads it back can do the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::report::drives::{DriveFacts, PciFacts};
use crate::report::json::Environment;

/// The version of the schema: it grows when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The maps of some paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MapReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The folder of the replayed record; null if this machine was examined.
    pub replay: Option<String>,
    /// The machine and the command; null for a replay, which describes another machine.
    pub environment: Option<Environment>,
    /// The GPUs on PCI.
    pub gpus: Vec<Gpu>,
    /// All drives under the paths, each once.
    pub drives: Vec<DriveFacts>,
    /// Each GPU with each drive.
    pub distances: Vec<Pair>,
    /// Network cards with RDMA; null if unknown.
    pub rdma_devices: Option<Vec<String>>,
    /// One for each path.
    pub maps: Vec<PathMap>,
    /// Paths that could not be mapped.
    pub failures: Vec<Failed>,
    /// Settings that cost speed.
    pub warnings: Vec<Warning>,
}

impl MapReport {
    /// The drive with this id.
    #[must_use]
    pub fn drive(&self, id: &str) -> Option<&DriveFacts> {
        self.drives.iter().find(|drive| drive.id == id)
    }
}

/// A GPU on PCI.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its place in the order of addresses, from 0.
    pub index: usize,
    /// Its name, if its driver reports it.
    pub name: Option<String>,
    /// Bytes of its memory that other devices can reach over PCI at once.
    pub bar1_size: Option<u64>,
    /// Its PCI location. `link` is its current state: most likely idle.
    pub pci: PciFacts,
}

/// How far a drive is from a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// The GPU's index.
    pub gpu: usize,
    /// The drive's id.
    pub drive: String,
    /// `same_switch`, `same_root_port`, `same_socket`, `across_sockets`, `network`, `unknown`.
    pub distance: String,
    /// Why it is unknown.
    pub reason: Option<String>,
}

/// The map of one path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    pub drives: Vec<String>,
    /// The steps, from the path down.
    pub steps: Step,
    /// Where its bytes are stored; null unless requested.
    pub extents: Option<Extents>,
}

impl PathMap {
    /// All steps, from the top, each with its depth.
    pub fn walk(&self) -> impl Iterator<Item = (usize, &Step)> {
        self.steps.walk()
    }
}

/// Which queue serves a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// A unique id.
    pub id: String,
    /// How bytes are spread over the members.
    pub layout: String,
    /// The ids of the drives that it feeds.
    pub members: Vec<String>,
    /// The ids of the underlying hardware.
    pub hardware: Vec<String>,
}

/// One step on the path to its drives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The kind of step, such as `mount` or `nvme_namespace`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its known facts.
    pub facts: BTreeMap<String, Value>,
    /// The steps below it.
    pub children: Vec<Step>,
}

impl Step {
    /// This step and all below it, each with its depth, from the top.
    pub fn walk(&self) -> impl Iterator<Item = (usize, &Self)> {
        // Iterative, since a map may be arbitrarily deep.
        let mut rest = vec![(0, self)];
        std::iter::from_fn(move || {
            let (depth, step) = rest.pop()?;
            rest.extend(step.children.iter().rev().map(|child| (depth + 1, child)));
            Some((depth, step))
        })
    }

    /// The fact `name` if it is text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.facts.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The fact `name` if it is a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.facts.get(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The fact `name` if it is a list; otherwise empty.
    #[must_use]
    pub fn list(&self, name: &str) -> &[String] {
        match self.facts.get(name) {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }

    /// The fact `name` if it is a boolean.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.facts.get(name)? {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        }
    }
}

/// The answer to a question about a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A count, or a size in the unit that ends the fact's name.
    Number(u64),
    /// Text.
    Text(String),
    /// Several texts.
    List(Vec<String>),
    /// It could not be determined.
    Unknown {
        /// Why not.
        unknown: String,
    },
}

/// The location of a file's bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extents {
    /// Runs of bytes as the file system reports them.
    pub count: usize,
    /// Whether these are all.
    pub complete: bool,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes on each drive.
    pub drives: Vec<OnDrive>,
    /// Bytes with unknown location.
    pub unplaced: Vec<Unplaced>,
    /// The first runs on drives, with adjacent runs merged.
    pub first: Vec<Run>,
    /// Number of runs on drives, of which `first` has the first ones.
    pub runs: u64,
    /// Why the file system reports nothing.
    pub refused: Option<String>,
}

/// A file's bytes on one drive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnDrive {
    /// The drive's id.
    pub drive: String,
    /// Bytes.
    pub bytes: u64,
    /// Runs.
    pub runs: u64,
}

/// Bytes with unknown location.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// Why it is unknown.
    pub reason: String,
    /// Bytes.
    pub bytes: u64,
}

/// A run of a file's bytes on a drive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The offset in the file.
    pub logical: u64,
    /// The drive's id.
    pub drive: String,
    /// The offset on the drive.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A path that could not be mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The path.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// Something that will cost speed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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

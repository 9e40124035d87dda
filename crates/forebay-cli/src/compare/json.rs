//! A comparison as JSON, version 1; docs/json-schema.md describes every key. Keys that `forebay
//! bench` also has mean the same there.

use serde::{Deserialize, Serialize};

pub use crate::report::compared::facts::{ComputeFacts, Sockets};
pub use crate::report::compared::runs::Runs;
use crate::report::json::{Environment, Row};

/// One run of `forebay compare`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareReport {
    /// The version of the schema, that of `forebay bench`.
    pub schema: u32,
    /// The machine and the command.
    pub environment: Environment,
    /// The subject of the comparison.
    pub compare: Compared,
    /// A row for each method and direction, in the order of the table.
    pub results: Vec<CompareRow>,
    /// Notes for the reader of the numbers, as sentences.
    pub warnings: Vec<String>,
}

impl CompareReport {
    /// The report as text, with a line feed at its end.
    ///
    /// # Errors
    /// None that a report of numbers and text can cause.
    pub fn to_text(&self) -> serde_json::Result<String> {
        crate::report::plain::json_lines(self)
    }
}

/// The subject of the comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// `compare`, `dma` or `all`.
    pub mode: String,
    /// Runs of each method.
    pub runs: u32,
    /// The sockets of GPU and drives; null if the GPU is not on PCI.
    pub topology: Option<Sockets>,
    /// The GPU's own work; null if it was not measured.
    pub compute: Option<ComputeFacts>,
    /// Whether the GPU's own work, or a concurrent read, found wrong data, even if the measurement
    /// did not finish.
    #[serde(default)]
    pub compute_wrong: bool,
}

/// One method in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareRow {
    /// As a row of `forebay bench`; values over several samples leave the first out.
    #[serde(flatten)]
    pub row: Row,
    /// The runs.
    pub runs: Runs,
}

//! A comparison as JSON, version 1; docs/json-schema.md describes every key. What `forebay bench`
//! has as well is the same there.

use serde::{Deserialize, Serialize};

use super::runs::Runs;
use super::sockets::Sockets;
use crate::report::json::{Environment, Row};

/// One run of `forebay compare`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareReport {
    /// The version of the schema, that of `forebay bench`.
    pub schema: u32,
    /// The machine and the command.
    pub environment: Environment,
    /// What was compared.
    pub compare: Compared,
    /// A row for each way and direction, in the order of the table.
    pub results: Vec<CompareRow>,
    /// What a reader of the numbers should know, as sentences.
    pub warnings: Vec<String>,
}

impl CompareReport {
    /// The report as text, with a line feed at its end.
    ///
    /// # Errors
    /// None that a report of numbers and text can cause.
    pub fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

/// What was compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// `compare`, `dma` or `all`.
    pub mode: String,
    /// How often each way was run.
    pub runs: u32,
    /// Where GPU and drives hang; null where the GPU is none on PCI.
    pub topology: Option<Sockets>,
    /// The GPU's own work; null where none was measured.
    pub compute: Option<ComputeFacts>,
    /// Whether the GPU's own work, or a read beside it, found wrong data, measured to its end or
    /// not.
    #[serde(default)]
    pub compute_wrong: bool,
}

/// A kernel on the GPU's memory, alone and beside a read of ours. Rates are bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComputeFacts {
    /// `xor`: each word of its memory is read, changed and written.
    pub kernel: String,
    /// Bytes of that memory.
    pub bytes: u64,
    /// What that memory can do, reads and writes together.
    pub limit: f64,
    /// Where that is from: `clock_and_width`, as the driver tells them, or `filling`, the best of
    /// some fills, for want of better.
    pub limit_by: String,
    /// What the kernel reads and writes by itself.
    pub alone: Runs,
    /// The median of that as a share of the limit.
    pub share_of_limit: f64,
    /// The same while a file is read.
    pub beside: Runs,
    /// That read.
    pub read: Runs,
    /// Its median as a share of that of our reads without a kernel; null where data of either
    /// were wrong.
    pub share_of_read: Option<f64>,
    /// Whether every byte that the kernel changed, and every byte of the reads, was right.
    pub verified: bool,
    /// Whether host memory played the GPU.
    pub simulated: bool,
}

/// One way in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareRow {
    /// As a row of `forebay bench`; what is said of several samples leaves the first out.
    #[serde(flatten)]
    pub row: Row,
    /// The runs.
    pub runs: Runs,
}

//! What `forebay tune` found as JSON, version 1; docs/json-schema.md describes every key.
//!
//! Plain data that hold everything which is drawn, so that the drawing is a pure function of them.

use serde::{Deserialize, Serialize};

use super::curve::{Cell, Curve, Point};
use crate::report::json::{Direction, Environment};

/// The version of the schema: it grows when a key changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// One run of `forebay tune`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuneReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine and the command.
    pub environment: Environment,
    /// The path as it was asked for.
    pub path: String,
    /// Whether a scratch file was measured instead of a file of the user's.
    pub scratch: bool,
    /// Bytes of the file that were moved, again and again.
    pub bytes: u64,
    /// One for each direction.
    pub searches: Vec<Searched>,
    /// The same for other programs.
    pub settings: Vec<Setting>,
    /// What a reader of the numbers should know, as sentences.
    pub warnings: Vec<String>,
}

impl TuneReport {
    /// The report as text, with a line feed at its end.
    ///
    /// # Errors
    /// None that numbers and text can cause.
    pub fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

/// What was found in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Searched {
    /// Which.
    pub direction: Direction,
    /// Where it is remembered: the id of the file's queue.
    pub queue: String,
    /// What the engine is to use.
    pub found: Choice,
    /// The fastest point of all.
    pub best: Choice,
    /// For each size of request, the lowest depth that is enough.
    pub knees: Vec<Choice>,
    /// Everything that was measured.
    pub points: Curve,
    /// Whether there was time for everything.
    pub complete: bool,
    /// What was remembered before.
    pub before: Option<Remembered>,
    /// Whether engines to come begin with what was found.
    pub stored: bool,
    /// Why not.
    pub not_stored: Option<String>,
}

/// One point without its samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Depth and size of request.
    #[serde(flatten)]
    pub cell: Cell,
    /// The median rate.
    pub bytes_per_second: f64,
    /// Mean time of one request.
    pub latency_s: f64,
}

impl From<&Point> for Choice {
    fn from(point: &Point) -> Self {
        let latency_s = point.latency_s;
        Self { cell: point.cell, bytes_per_second: point.rate(), latency_s }
    }
}

/// What the engine remembered of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Depth and size of request.
    #[serde(flatten)]
    pub cell: Cell,
    /// What these had reached.
    pub bytes_per_second: u64,
}

/// What was found, as a program takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The program: `forebay`, `fio`, `kvikio`.
    pub tool: String,
    /// Which direction it is about.
    pub direction: Direction,
    /// Variables or a command line, for a shell.
    pub text: String,
    /// Whether it was worked out from this curve, and not measured with that program.
    pub estimate: bool,
    /// What to know about it.
    pub note: Option<String>,
}

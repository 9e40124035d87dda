//! The result of a comparison, as printed with `--json`; all other formats are written from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ratio::Ratio;
use crate::report::digest::Axis;

/// The version of the schema: it grows when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The output of `forebay diff`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The property that separates the sides: `file`, or the name of an axis.
    pub by: String,
    /// The quantity that is judged first.
    pub quantity: String,
    /// The confidence level of the intervals.
    pub confidence: f64,
    /// The sides, the base first.
    pub sides: Vec<Side>,
    /// Differences between the machines and the runs.
    pub environment: Vec<Difference>,
    /// Each other side compared with the base.
    pub comparisons: Vec<Comparison>,
    /// Notes for the reader of the numbers, as sentences.
    pub warnings: Vec<String>,
    /// The result of the gate; null if none was requested.
    pub gate: Option<Gate>,
}

/// A side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Its name.
    pub name: String,
    /// The commands that measured it.
    pub commands: Vec<String>,
    /// How many points it has.
    pub points: usize,
}

/// A fact in which the sides differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The fact.
    pub what: String,
    /// Its value on each side, in order; null if unknown.
    pub values: Vec<Option<String>>,
}

/// One side compared with the base.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The base.
    pub base: String,
    /// The other side.
    pub other: String,
    /// Axes on which each side has one value, and the values differ: the subject of the comparison.
    pub compared: Vec<Axes>,
    /// Each quantity over all points that both have.
    pub overall: Vec<Overall>,
    /// The points that both have.
    pub points: Vec<Pair>,
    /// The points that only one of them has, or that have no measurement.
    pub alone: Vec<Alone>,
}

/// An axis on which all points of the sides differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axes {
    /// The axis.
    pub axis: String,
    /// Its value in the base; null if absent.
    pub base: Option<String>,
    /// Its value in the other side.
    pub other: Option<String>,
}

impl Axes {
    /// The name of the axis, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        match Axis::ALL.into_iter().find(|axis| axis.key() == self.axis) {
            Some(axis) => axis.name(),
            None => &self.axis,
        }
    }
}

/// A quantity over all points.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overall {
    /// The key of the quantity.
    pub quantity: String,
    /// Points at which both sides have it.
    pub points: usize,
    /// The geometric mean of the points' ratios.
    pub ratio: f64,
    /// Its confidence interval; null if a point has one sample on a side.
    pub interval: Option<(f64, f64)>,
    /// The smallest and the largest of the points' ratios.
    pub range: (f64, f64),
    /// Points at which the other side is better.
    pub better: usize,
    /// Points at which the other side is worse.
    pub worse: usize,
    /// Points without a significant difference.
    pub not_shown: usize,
}

/// A point that both sides have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Its value on each axis that is not compared; a number if the value is one.
    pub point: BTreeMap<String, Value>,
    /// Its name, unique among the points.
    pub name: String,
    /// Whether a simulated GPU took part, in the base and in the other.
    pub simulated: (bool, bool),
    /// Failed samples, in the base and in the other side.
    #[serde(default)]
    pub failed: (usize, usize),
    /// The compared quantities.
    pub quantities: Vec<Compared>,
}

/// One quantity of one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The key of the quantity.
    pub quantity: String,
    /// The median of the base.
    pub base: f64,
    /// The median of the other side.
    pub other: f64,
    /// Samples of the base and of the other side.
    pub samples: (usize, usize),
    /// The other side's median over the base's.
    pub ratio: f64,
    /// Its confidence interval; null if a side has one sample.
    pub interval: Option<(f64, f64)>,
    /// The p-value, corrected for the number of points; null if a side has one sample.
    pub chance: Option<f64>,
    /// The conclusion.
    pub verdict: Verdict,
    /// The ratio with its error.
    #[serde(skip)]
    pub(super) exact: Option<Ratio>,
}

/// The conclusion for a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The other side is better.
    Better,
    /// The other side is worse.
    Worse,
    /// No significant difference.
    NotShown,
}

/// A point that could not be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alone {
    /// Its name.
    pub name: String,
    /// The side that has it, or that failed.
    pub side: String,
    /// Why there is no pair.
    pub why: Why,
}

/// Why a point could not be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The other side lacks this point.
    NoPartner,
    /// This side failed at it.
    Failed,
    /// This side moved wrong data.
    WrongData,
    /// This side's numbers have no ratio.
    NoNumber,
    /// This side lacks the requested quantity.
    NoQuantity,
}

/// Whether the other sides are worse than the base by more than allowed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// The share by which they may be worse.
    pub worse_by: f64,
    /// Points of the base that were judged.
    #[serde(default)]
    pub judged: usize,
    /// Points of the base that have the quantity.
    #[serde(default)]
    pub points: usize,
    /// The points and means that failed the gate, each with its side.
    pub failed: Vec<GateFailure>,
}

/// A point or a mean that failed the gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateFailure {
    /// The side.
    pub side: String,
    /// The point; null for the mean over all of them.
    pub point: Option<String>,
    /// The ratio; null if the side failed or moved wrong data.
    pub ratio: Option<f64>,
    /// Its confidence interval.
    pub interval: Option<(f64, f64)>,
}

//! The contents of results for every output format: their runs, a line for each point, the limits,
//! and notes for the reader.
//!
//! Pure; [`gather`]'s caller reads the files. [`answer`] sums a digest up, [`notes`] warns.

mod added;
mod alike;
pub mod answer;
pub mod gather;
mod heat;
mod limits;
mod marks;
mod metric;
mod names;
pub mod notes;
mod rows;
mod unfinished;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

pub use self::heat::{Heat, Warmed};
pub use self::metric::Metric;
pub use self::unfinished::Unfinished;
use super::json::{Direction, Environment, Gpu};
use super::layers::Layers;
use crate::power::result::{Absent, Throttled};
use crate::results::summary::Estimate;
use crate::results::{DriveBytes, Imported};
use crate::workload::issuer::Plain;

/// All that was measured, of one file or several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Digest {
    /// The runs, in the order of the files.
    pub runs: Vec<RunFacts>,
    /// A line for each point of each run, in the order in which they were measured.
    pub lines: Vec<Line>,
    /// The limits of the machines' parts.
    pub ceilings: Vec<Bound>,
    /// The limits as each attempt found them, if a run was stopped and continued: its samples refer
    /// to their own attempt's limits.
    pub attempts: Vec<Vec<Bound>>,
    /// Notes for the reader of the numbers, as sentences.
    pub warnings: Vec<String>,
    /// Each single measurement.
    pub raw: Vec<Raw>,
    /// The measurements of layers behind compute, in the order of the files.
    pub layers: Vec<Layers>,
    /// Temperatures that rose over whole runs.
    pub warmed: Vec<Warmed>,
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFacts {
    /// Its unique name.
    pub name: String,
    /// Its name before it was made unique: its label, else its file's name.
    pub given: String,
    /// Whether the user gave it a label.
    pub labelled: bool,
    /// The number of its file.
    pub source: usize,
    /// The verb or the tool.
    pub verb: String,
    /// The machine and the command.
    pub environment: Environment,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// Sources of power and heat that reported nothing, and why.
    pub unmetered: Vec<Absent>,
    /// The requested settings.
    pub asked: Arc<Value>,
    /// Missing points and samples, if the sweep is incomplete.
    pub unfinished: Option<Unfinished>,
    /// Its origin, if another tool measured.
    pub imported: Option<Imported>,
}

impl RunFacts {
    /// The key that runs of one label share; imports without a label share nothing.
    #[must_use]
    pub fn label(&self) -> &str {
        if self.imported.is_some() && !self.labelled { &self.name } else { &self.given }
    }

    /// The system it ran on, as far as known: the kernel, or the tool that reported it.
    #[must_use]
    pub fn origin(&self) -> String {
        let Some(from) = &self.imported else { return self.environment.kernel.clone() };
        let version = from.version.as_ref().map_or_else(String::new, |text| format!(" {text}"));
        format!("measured by {}{version}, on an unknown machine", from.tool)
    }
}

/// A property by which points differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// The run.
    Run,
    /// The file or the folder.
    Path,
    /// The queues for I/O, or connections, that a sweep has set.
    Queues,
    /// The method.
    Way,
    /// The settings it used.
    Settings,
    /// The route that was required.
    Demanded,
    /// From or to the file.
    Direction,
    /// The pattern of requests.
    Pattern,
    /// The page cache state.
    Cache,
    /// The memory.
    Target,
    /// Bytes of one measurement, if that was set.
    Size,
    /// Bytes of one request.
    RequestSize,
    /// Concurrent calls of each thread.
    Depth,
    /// Requests in one call.
    Batch,
    /// Threads for each target.
    Threads,
    /// Files that the threads share.
    Files,
}

impl Axis {
    /// All, in the order of columns.
    pub const ALL: [Self; 16] = [
        Self::Run,
        Self::Path,
        Self::Queues,
        Self::Way,
        Self::Settings,
        Self::Demanded,
        Self::Direction,
        Self::Pattern,
        Self::Cache,
        Self::Target,
        Self::Size,
        Self::RequestSize,
        Self::Depth,
        Self::Batch,
        Self::Threads,
        Self::Files,
    ];

    /// Axes with numeric values, the likeliest horizontal axis of a chart first.
    pub const NUMBERS: [Self; 8] = [
        Self::RequestSize,
        Self::Depth,
        Self::Queues,
        Self::Threads,
        Self::Batch,
        Self::Files,
        Self::Size,
        Self::Run,
    ];

    /// Its name in a heading.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Path => "path",
            Self::Queues => "queues",
            Self::Way => "method",
            Self::Settings => "settings",
            Self::Demanded => "required route",
            Self::Direction => "direction",
            Self::Pattern => "pattern",
            Self::Cache => "cache",
            Self::Target => "target",
            Self::Size => "size",
            Self::RequestSize => "block size",
            Self::Depth => "depth",
            Self::Batch => "batch",
            Self::Threads => "threads",
            Self::Files => "files",
        }
    }

    /// Its name for programs.
    #[must_use]
    pub fn key(self) -> String {
        let name = match self {
            Self::Way => "way",
            Self::Demanded => "demanded_route",
            Self::RequestSize => "request_size",
            other => other.name(),
        };
        name.to_owned()
    }
}

/// A value of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The text for display.
    pub text: String,
    /// As a number, if it is one.
    pub number: Option<f64>,
}

impl Mark {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }
}

/// The summary of all samples of one point in one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Line {
    /// The index of its run.
    pub run: usize,
    /// Its position.
    pub marks: BTreeMap<Axis, Mark>,
    /// The measured values.
    pub metrics: BTreeMap<Metric, Estimate>,
    /// Bytes that all samples moved.
    pub bytes: u64,
    /// Bytes that drives moved during the samples, if counted.
    pub drive: Option<DriveBytes>,
    /// The routes taken.
    pub route: Option<String>,
    /// The words of the verdicts.
    pub verdict: Option<String>,
    /// Bytes by proven route; [`UNPROVEN`] for the rest.
    pub ways: BTreeMap<String, f64>,
    /// Whether the compared bytes were correct.
    pub verified: Option<bool>,
    /// Samples that report whether their rate was steady.
    pub judged: usize,
    /// Samples whose rate was not steady.
    pub unsteady: usize,
    /// Whether latencies are measured from when requests were due, not from when they were sent.
    pub since_due: bool,
    /// Samples that failed.
    pub failed: usize,
    /// The first failure.
    pub error: Option<String>,
    /// Whether the target was a simulated GPU.
    pub simulated: bool,
    /// Whether the found queue count differs from the request.
    pub other_queues: bool,
    /// The lowest limit on its path.
    pub limit: Option<Limit>,
    /// The bound as the measuring program reported it.
    pub bound: Option<String>,
    /// With several targets, the share of each.
    pub targets: Vec<TargetShare>,
    /// The external tool that measured it.
    pub imported: Option<String>,
    /// Temperatures of GPUs and drives.
    pub heat: Vec<Heat>,
    /// The throttling, and its reasons.
    pub throttled: Vec<Throttled>,
    /// The median over that of the standard method.
    pub speed_up: Option<f64>,
}

/// The name for bytes whose route is not proven.
pub const UNPROVEN: &str = "unproven";

impl Line {
    /// One of the quantities.
    #[must_use]
    pub fn metric(&self, metric: Metric) -> Option<Estimate> {
        self.metrics.get(&metric).copied()
    }

    /// The median rate.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.metric(Metric::Rate).map(|rate| rate.median)
    }

    /// The rate as a share of the limit that binds.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let limit = self.limit.as_ref()?.rate;
        self.rate().filter(|_| limit > 0.0).and_then(|rate| ratio(rate, limit))
    }

    /// The bound: as the measuring program reported it, else the lowest limit, but only if it was
    /// nearly reached.
    #[must_use]
    pub fn bound_by(&self) -> Option<&str> {
        let near = self.share().is_some_and(|share| share >= crate::results::Bound::NEAR);
        let limit = self.limit.as_ref().filter(|_| near).map(|limit| limit.name.as_str());
        self.bound.as_deref().or(limit)
    }

    /// Whether no byte gets to a GPU, judged by its method, its target, or its proven routes.
    #[must_use]
    pub fn stays_in_host(&self) -> bool {
        let mut proven = self.ways.keys().filter(|way| *way != UNPROVEN).peekable();
        self.mark(Axis::Target) == Some("host")
            || Plain::ALL
                .iter()
                .any(|way| way.stays_in_host() && self.mark(Axis::Way) == Some(way.name()))
            || (proven.peek().is_some() && proven.all(|way| way.starts_with("host (")))
    }

    /// The result of the data check, in a word; empty if there was none.
    #[must_use]
    pub const fn data(&self) -> &'static str {
        match self.verified {
            None => "",
            Some(true) => "right",
            Some(false) => "WRONG",
        }
    }

    /// The value on an axis, as displayed.
    #[must_use]
    pub fn mark(&self, axis: Axis) -> Option<&str> {
        self.marks.get(&axis).map(|mark| mark.text.as_str())
    }
}

/// A limit that binds.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Its name.
    pub name: String,
    /// Its bytes per second.
    pub rate: f64,
}

/// The share of one of several targets.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetShare {
    /// The target.
    pub target: String,
    /// Its rate.
    pub rate: Estimate,
    /// Seconds from the common start until the first of its threads was done.
    pub first_done: Estimate,
    /// Seconds until the last was done.
    pub last_done: Estimate,
}

/// The limit of a part of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The number of the run.
    pub run: usize,
    /// Its name.
    pub name: String,
    /// The part that has the limit.
    pub of: String,
    /// The direction, if that matters.
    pub direction: Option<Direction>,
    /// Whether it is theoretical, not measured.
    pub theory: bool,
    /// Bytes per second.
    pub rate: f64,
    /// The theoretical rate of the measured part.
    pub in_theory: Option<f64>,
    /// Why it is below its maximum.
    pub limits: Option<String>,
    /// The GPUs and drives that share it.
    pub shared_by: Vec<String>,
    /// How it was found.
    pub how: String,
}

/// One measurement, as embedded in the page.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Raw {
    /// The index of its line.
    pub line: usize,
    /// The number of its repeat.
    pub repeat: usize,
    /// When it began, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix_time: Option<f64>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Bytes that it moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Each quantity by its name for programs.
    #[serde(flatten)]
    pub values: BTreeMap<&'static str, f64>,
    /// Why there is no measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Digest {
    /// The axes on which lines differ, in the order of columns.
    #[must_use]
    pub fn varying(&self) -> Vec<Axis> {
        Axis::ALL.into_iter().filter(|axis| self.values(*axis) > 1).collect()
    }

    /// The number of values of an axis; a missing value counts as one.
    #[must_use]
    pub fn values(&self, axis: Axis) -> usize {
        let marks: std::collections::HashSet<_> =
            self.lines.iter().map(|line| line.mark(axis)).collect();
        marks.len()
    }

    /// Whether a simulated GPU took part.
    #[must_use]
    pub fn simulated(&self) -> bool {
        self.lines.iter().any(|line| line.simulated)
            || self.layers.iter().any(|layers| layers.simulated)
    }
}

/// A ratio of two numbers of a file; `None` if it is too large to show in percent.
pub(crate) fn ratio(part: f64, whole: f64) -> Option<f64> {
    Some(part / whole).filter(|ratio| (ratio * 100.0).is_finite())
}

/// A number with three significant digits or more.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || !size.is_finite() => format!("{value}"),
        1e6.. => format!("{value:.2e}"),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// A whole number with a comma before each three of its digits.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Bytes per second with their unit.
#[must_use]
pub fn rate_text(bytes_per_second: f64) -> String {
    format!("{} GB/s", digits(bytes_per_second * 1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_whatever_they_are() {
        let texts = [0.0, 0.1234, 1.0, 12.34, 123.4, 99_999.0, 1e300, 1e-9, f64::NAN].map(digits);
        let expected = ["0", "0.123", "1.00", "12.3", "123", "99999", "1.00e300", "1.0e-9", "NaN"];
        assert_eq!(texts, expected);
        assert_eq!(rate_text(5.4e9), "5.40 GB/s");
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_ratio_without_a_number_is_none() {
        assert_eq!(ratio(3.0, 4.0), Some(0.75));
        for (part, whole) in [(1e9, 1e-320), (1e308, 1.0), (0.0, 0.0), (1.0, 0.0)] {
            assert_eq!(ratio(part, whole), None, "{part} {whole}");
        }
    }

    #[test]
    fn every_axis_and_metric_has_a_name_of_its_own() {
        let mut keys: Vec<String> = Axis::ALL.map(Axis::key).into();
        keys.extend(Metric::ALL.map(|metric| metric.key().to_owned()));
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
        assert!(Axis::NUMBERS.iter().all(|axis| Axis::ALL.contains(axis)));
    }
}

//! The contents of results for every form: runs, and a line per point of a run.
//!
//! Pure: the caller reads the files. [`gather`] makes a model of records, `notes` its warnings,
//! [`facts`] lists the machine and the settings.

mod axis;
pub mod facts;
pub mod gather;
mod metric;
mod notes;

use std::collections::HashMap;
use std::hash::Hash;

use forebay_measure::plain::plain;
use forebay_measure::results::{Bound, Direction, Limit, Point, Run};

pub use self::axis::{Axis, NUMBERS};
pub use self::metric::Metric;
pub use self::notes::NO_TIME;
use super::ratio::Estimate;

/// The results of a file, or of several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    /// The runs, in the order of the files.
    pub runs: Vec<RunFacts>,
    /// The points of the runs, in the order of measurement.
    pub lines: Vec<Line>,
    /// The limits of the machines, with their runs.
    pub limits: Vec<(usize, Limit)>,
    /// Notes on the numbers, in sentences.
    pub warnings: Vec<String>,
    /// How many of these, the first ones, every form shows.
    pub grave: usize,
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFacts {
    /// Its unique name.
    pub name: String,
    /// Its label, else its file's name.
    pub given: String,
    /// The number of its file.
    pub source: usize,
    /// Its record.
    pub record: Box<Run>,
}

/// All samples of a point in a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The number of its run.
    pub run: usize,
    /// The point.
    pub point: Point,
    /// The method, with the tool unless that is Forebay.
    pub method: String,
    /// The samples by quantity.
    pub samples: Vec<(Metric, Vec<f64>)>,
    /// Bytes that all samples moved; `None` if unknown.
    pub bytes: Option<u64>,
    /// The actual routes.
    pub route: String,
    /// The verified paths.
    pub verdict: String,
    /// Whether the compared bytes were correct.
    pub verified: Option<bool>,
    /// Whether the rates of all samples were steady; `None` if unknown.
    pub steady: Option<bool>,
    /// Whether latencies begin when an I/O was due.
    pub since_due: bool,
    /// Samples that failed.
    pub failed: usize,
    /// The first failure, or why the method is not available.
    pub error: Option<String>,
    /// Whether a GPU was simulated.
    pub simulated: bool,
    /// The lowest limit on its path: its name and its bytes per second.
    pub limit: Option<(String, f64)>,
    /// What bound it, as the measuring program reports; may be empty.
    pub bound: String,
    /// Whether a foreign tool measured it.
    pub imported: bool,
    /// Of several ranks the slowest and the fastest, with their median rates.
    pub ranks: Option<[(String, f64); 2]>,
}

impl Line {
    /// The samples of a quantity.
    #[must_use]
    pub fn samples(&self, metric: Metric) -> &[f64] {
        let found = self.samples.iter().find(|(other, _)| *other == metric);
        found.map_or(&[], |(_, samples)| samples)
    }

    /// The median of a quantity, and how well it is known.
    #[must_use]
    pub fn estimate(&self, metric: Metric) -> Option<Estimate> {
        Estimate::of(self.samples(metric))
    }

    /// The median rate.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.estimate(Metric::Rate).map(|estimate| estimate.median)
    }

    /// The number of samples, including those too short for a rate.
    #[must_use]
    pub fn count(&self) -> usize {
        self.samples.iter().map(|(_, samples)| samples.len()).max().unwrap_or(0)
    }

    /// The approximate number of requests per sample; of foreign tools, enough.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let samples = self.count().max(1) as u64;
        let of_all = self.bytes.and_then(|bytes| bytes.checked_div(self.point.request_size));
        of_all.filter(|_| !self.imported).map_or(u64::MAX, |of_all| of_all / samples)
    }

    /// Whether the machine does not have this method, which no argument named.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.failed == 0 && self.error.is_some()
    }

    /// Why its rate is missing, if it is.
    #[must_use]
    pub fn why_no_rate(&self) -> Option<&'static str> {
        let why = match self.failed {
            0 if self.is_unavailable() => "not available",
            0 => "too short",
            _ => "failed",
        };
        self.rate().is_none().then_some(why)
    }

    /// The rate as a share of its limit; more than 1 if the limit was measured too low.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let (_, limit) = self.limit.as_ref().filter(|(_, limit)| *limit > 0.0)?;
        self.rate().map(|rate| rate / limit).filter(|share| share.is_finite() && *share >= 0.0)
    }

    /// What bound it: a limit only if it was nearly reached.
    #[must_use]
    pub fn bound_by(&self) -> Option<&str> {
        let near = self.share().is_some_and(|share| share >= Bound::NEAR);
        let limit = self.limit.as_ref().filter(|_| near).map(|(name, _)| name.as_str());
        Some(self.bound.as_str()).filter(|bound| !bound.is_empty()).or(limit)
    }

    /// Whether counters were found that prove no path, or contradict it.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        ["unproven", "contradictory"].iter().any(|word| self.verdict.contains(word))
    }
}

impl Model {
    /// The axes on which lines differ, in the order of columns.
    #[must_use]
    pub fn varying(&self) -> Vec<Axis> {
        let texts = |axis: Axis| self.lines.iter().map(move |line| self.text(axis, line));
        Axis::ALL.into_iter().filter(|axis| differ(texts(*axis))).collect()
    }

    /// The fastest of these lines whose data are correct.
    #[must_use]
    pub fn best(&self, fits: impl Fn(&Line) -> bool) -> Option<(usize, &Line)> {
        let good = |line: &Line| line.verified != Some(false) && fits(line);
        let good = self.lines.iter().enumerate().filter(|(_, line)| good(line));
        let rate = |line: &Line| line.rate().unwrap_or(f64::NEG_INFINITY);
        let best = good.max_by(|(_, a), (_, b)| rate(a).total_cmp(&rate(b)));
        best.filter(|(_, line)| line.rate().is_some_and(|rate| rate > 0.0))
    }

    /// The limits in the direction of a point of `of`: a target, several, or a path.
    pub(crate) fn limits_of<'a>(
        &'a self,
        point: &Point,
        of: &'a str,
    ) -> impl Iterator<Item = &'a Limit> {
        let direction = if point.read_percent > 0 { Direction::Read } else { Direction::Write };
        let all = self.limits.iter().map(|(_, limit)| limit);
        all.filter(move |limit| limit.of == of && limit.holds(direction))
    }

    /// Whether the last run moved whole files, so that its methods are shown as bars.
    #[must_use]
    pub fn has_whole_files(&self) -> bool {
        self.runs.last().is_some_and(|run| run.record.request["whole_files"] == true)
    }

    /// The name of a line's method.
    #[must_use]
    pub fn method(&self, line: &Line) -> String {
        if self.has_whole_files() { method(&line.point) } else { line.method.clone() }
    }

    /// The name of a line: its values on these axes.
    #[must_use]
    pub fn name(&self, line: &Line, axes: &[Axis]) -> String {
        // A count needs the axis's name; a size or a word does not.
        let counts = [Axis::Depth, Axis::Batch, Axis::Threads, Axis::Files];
        let named = |axis: &Axis| {
            let text = match axis {
                Axis::Method => self.method(line),
                _ => self.text(*axis, line)?,
            };
            Some(if counts.contains(axis) { format!("{} {text}", axis.name()) } else { text })
        };
        let names: Vec<String> = axes.iter().filter_map(named).collect();
        if names.is_empty() { self.method(line) } else { names.join(", ") }
    }
}

/// Whether a point's memory is that of the host.
pub(crate) fn is_host(point: &Point) -> bool {
    point.targets.iter().all(|target| target == "host")
}

/// The name of a method that moves whole files.
pub(crate) fn method(point: &Point) -> String {
    let copy = if is_host(point) { "" } else { " + copy" };
    match point.method.as_str() {
        "forebay" => match &point.route {
            Some(route) => format!("forebay --route {route}"),
            None => "forebay".into(),
        },
        "standard" if point.read_percent == 0 => format!("write(){copy}"),
        "standard" => format!("read(){copy}"),
        "mmap" => format!("mmap{copy}"),
        "cufile-compat" => "cuFile compat".into(),
        "cufile-compat-tuned" => "cuFile compat, tuned".into(),
        other => plain(other),
    }
}

/// Whether two of these values differ.
pub(crate) fn differ<T: PartialEq>(mut all: impl Iterator<Item = T>) -> bool {
    let first = all.next();
    all.any(|one| Some(one) != first)
}

/// Values by their keys, in the order of the first ones.
pub(crate) fn grouped<K: Clone + Eq + Hash, V>(
    all: impl IntoIterator<Item = (K, V)>,
) -> Vec<(K, Vec<V>)> {
    let (mut groups, mut places) = (Vec::<(K, Vec<V>)>::new(), HashMap::<K, usize>::new());
    for (key, value) in all {
        match places.get(&key) {
            Some(place) => groups[*place].1.push(value),
            None => {
                places.insert(key.clone(), groups.len());
                groups.push((key, vec![value]));
            }
        }
    }
    groups
}

/// The different values, in the order of first occurrence.
pub(crate) fn unique<T: Clone + Eq + Hash>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let groups = grouped(all.into_iter().map(|one| (one, ())));
    groups.into_iter().map(|(one, _)| one).collect()
}

//! The contents of another tool's file before they become records: points with their measurements,
//! and notes for the reader. Also the bounds that apply to every tool.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use crate::failure::lower;
use crate::report::plain::plain;
use crate::results::{Latency, Measured, Point};

/// Most measurements of one file.
pub(super) const FOUND_MAX: usize = 100_000;
/// Most warnings of one file that are kept.
const WARNINGS_MAX: usize = 50;
/// Most kinds of warnings that are counted.
const KINDS_MAX: usize = 1000;
/// Most kinds of warnings listed in an error.
const REASONS_MAX: usize = 3;
/// Most properties without an axis that separate measurements.
const PARTED_MAX: usize = 4;
/// Most characters of an external text that are kept.
const TEXT_MAX: usize = 200;
/// Rates above this many bytes per second are implausible.
const RATE_MAX: f64 = 1e15;
/// Latencies above this many nanoseconds are implausible: a month.
const LATENCY_MAX: f64 = 2.7e15;
/// Larger counts are implausible: a `f64` is exact only below.
const COUNT_MAX: f64 = 9e15;

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    /// Its line in the file, from 1 on.
    pub(super) line: u64,
    pub(super) point: Point,
    /// When it was made, in seconds since 1970; 0 if unknown.
    pub(super) unix_time: f64,
    /// Its measurement, or why it failed.
    pub(super) measured: Result<Measured, String>,
    /// Its settings that have no axis.
    pub(super) beside: Beside,
}

/// Settings without an axis here, by name: results that differ in them are not repeats.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Beside {
    pub(super) own: BTreeMap<String, String>,
    /// Shared settings of many points, where they have none of their own.
    pub(super) shared: Option<Rc<BTreeMap<String, String>>>,
}

impl Beside {
    fn get(&self, name: &str) -> Option<&str> {
        let shared = || self.shared.as_ref()?.get(name);
        self.own.get(name).or_else(shared).map(String::as_str)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.own.keys().chain(self.shared.iter().flat_map(|shared| shared.keys()))
    }
}

/// The contents of a file.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Contents {
    pub(super) version: Option<String>,
    /// When the tool ran, in seconds since 1970.
    pub(super) unix_time: Option<u64>,
    pub(super) found: Vec<Found>,
    pub(super) warnings: Vec<String>,
    /// Warnings above the limit.
    left_out: usize,
    /// The count of each kind of warning, and its first line, by its words without values.
    reasons: HashMap<String, (usize, u64, String)>,
}

impl Contents {
    /// Adds a measurement.
    ///
    /// # Errors
    /// The file has too many.
    pub(super) fn add(&mut self, found: Found) -> Result<(), String> {
        if self.found.len() >= FOUND_MAX {
            return Err(format!("it holds more than {FOUND_MAX} measurements"));
        }
        self.found.push(found);
        Ok(())
    }

    /// Adds a note on a line.
    pub(super) fn warn(&mut self, line: u64, text: &str) {
        let kind = without_values(text);
        if self.reasons.len() < KINDS_MAX || self.reasons.contains_key(&kind) {
            self.reasons.entry(kind).or_insert_with(|| (0, line, text.to_owned())).0 += 1;
        }
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(format!("line {line}: {text}"));
        } else {
            self.left_out += 1;
        }
    }

    /// Adds a note on the whole file.
    pub(super) fn note(&mut self, text: &str) {
        if !self.warnings.iter().any(|known| known == text) {
            self.warnings.push(text.to_owned());
        }
    }

    /// The most frequent warnings, each with its first line.
    pub(super) fn most_reasons(&self) -> Vec<String> {
        let mut reasons: Vec<_> = self.reasons.values().collect();
        reasons.sort_by_key(|(count, line, _)| (std::cmp::Reverse(*count), *line));
        let text = |(count, line, text): &(usize, u64, String)| match count {
            1 => format!("line {line}: {text}"),
            count => format!("line {line}: {text} (and {} more lines like it)", count - 1),
        };
        reasons.into_iter().take(REASONS_MAX).map(text).collect()
    }

    /// Extends the method names of measurements that agree on all axes, but differ in settings
    /// without an axis.
    pub(super) fn part(&mut self) {
        let mut same: HashMap<&Point, Vec<usize>> = HashMap::new();
        for (index, found) in self.found.iter().enumerate() {
            same.entry(&found.point).or_default().push(index);
        }
        let mut parted: Vec<(usize, String)> = Vec::new();
        for indices in same.into_values().filter(|indices| indices.len() > 1) {
            let of = |index: usize| &self.found[index].beside;
            let names: BTreeSet<&String> =
                indices.iter().flat_map(|index| of(*index).names()).collect();
            let first = of(indices[0]);
            let differs = |name: &&String| {
                indices.iter().any(|index| of(*index).get(name) != first.get(name))
            };
            let names: Vec<&String> = names.into_iter().filter(differs).take(PARTED_MAX).collect();
            for index in indices.into_iter().filter(|_| !names.is_empty()) {
                let told = |name: &&String| {
                    of(index).get(name).map_or(format!("no {name}"), |own| format!("{name}={own}"))
                };
                let told: Vec<String> = names.iter().map(told).collect();
                parted.push((index, format!(" ({})", told.join(", "))));
            }
        }
        for (index, text) in parted {
            let way = &mut self.found[index].point.way;
            *way = short(&(std::mem::take(way) + &text));
        }
    }

    /// Adds a note on how much was left out.
    pub(super) fn end(&mut self) {
        if self.left_out > 0 {
            let text = format!("{} more lines have warnings", self.left_out);
            self.warnings.push(text);
        }
    }
}

/// Numbers samples of the same point, from 0 on.
#[derive(Debug, Default)]
pub(super) struct Repeats(HashMap<Point, u32>);

impl Repeats {
    pub(super) fn next(&mut self, point: &Point) -> u32 {
        let count = self.0.entry(point.clone()).or_insert(0);
        *count += 1;
        *count - 1
    }
}

/// A point of which only the method and the direction are known.
pub(super) fn point(way: impl Into<String>, read_percent: u8) -> Point {
    Point {
        path: String::new(),
        targets: Vec::new(),
        way: way.into(),
        route: None,
        read_percent,
        pattern: String::new(),
        request_size: 0,
        depth: 0,
        batch: 0,
        threads: 0,
        files: 0,
        cache: None,
        queues: None,
    }
}

/// A latency for tools that report only the mean.
pub(super) fn mean_latency(ns: Option<f64>) -> Option<Latency> {
    ns.map(|ns| Latency { mean_ns: Some(ns), ..Latency::default() })
}

/// An external text, shortened and with control characters removed.
pub(crate) fn short(text: &str) -> String {
    let text = plain(text.trim());
    if text.chars().count() <= TEXT_MAX {
        return text;
    }
    text.chars().take(TEXT_MAX - 1).chain(['…']).collect()
}

/// The text as the cause of an error.
pub(super) fn cause(text: &str) -> String {
    lower(&short(text))
}

/// A warning without its numbers and its parts in backticks, which differ between lines.
fn without_values(text: &str) -> String {
    let words = text.split('`').step_by(2);
    words.map(|words| words.replace(|c: char| c.is_ascii_digit(), "")).collect()
}

/// A number written by a tool; `None` if it is not a number, or negative.
pub(super) fn number(text: &str) -> Option<f64> {
    let begins = |c: char| c.is_ascii_digit() || c == '.' || c == '+';
    let text = text.trim();
    let number = text.starts_with(begins).then(|| text.parse::<f64>().ok())??;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// A rate in bytes per second, if it is plausible.
pub(super) fn rate(value: f64) -> Option<f64> {
    (value > 0.0 && value <= RATE_MAX).then_some(value)
}

/// A latency in nanoseconds, if it is plausible.
pub(super) fn nanoseconds(value: f64) -> Option<f64> {
    (0.0..=LATENCY_MAX).contains(&value).then_some(value)
}

/// A count or a number of bytes, if it is plausible.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within its bounds")]
pub(super) fn count(value: f64) -> Option<u64> {
    (0.0..=COUNT_MAX).contains(&value).then_some(value.round() as u64)
}

/// A small count of an axis; 0, which means unknown, if it is not plausible.
pub(super) fn axis(value: Option<f64>) -> u32 {
    value.and_then(count).and_then(|count| u32::try_from(count).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_is_taken() {
        assert_eq!(number(" 1.5 "), Some(1.5));
        for text in ["", "nan", "inf", "-1", "1e999", "1x", "0x10", "-nan", "+inf"] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!((rate(0.0), rate(1e16), rate(5.0)), (None, None, Some(5.0)));
        assert_eq!((count(1e300), count(-1.0), count(2.4)), (None, None, Some(2)));
        assert_eq!((nanoseconds(1e16), nanoseconds(f64::NAN)), (None, None));
        assert_eq!([Some(3.0), Some(1e12), None].map(axis), [3, 0, 0]);
    }

    #[test]
    fn warnings_are_bounded_and_what_is_left_out_is_counted() {
        let mut contents = Contents::default();
        (0..60).for_each(|line| contents.warn(line, "x"));
        contents.note("all");
        contents.note("all");
        contents.end();
        assert_eq!(contents.warnings.len(), WARNINGS_MAX + 2);
        assert_eq!(contents.warnings[0], "line 0: x");
        assert_eq!(contents.warnings[WARNINGS_MAX + 1], "10 more lines have warnings");
        assert_eq!(contents.most_reasons(), ["line 0: x (and 59 more lines like it)"]);
        assert_eq!(short(&"\u{1b}".repeat(999)).chars().count(), TEXT_MAX);
    }
}

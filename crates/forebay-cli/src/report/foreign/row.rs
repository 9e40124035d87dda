//! A measurement of a foreign tool, by the names of `--columns`, and the bounds that apply to every
//! tool. [`Contents`] makes samples of the rows of a file, and collects notes for the reader.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use forebay_measure::environment;
use forebay_measure::plain::{cut, plain};
use forebay_measure::results::{
    CpuCost, Field, Imported, Latency, Measured, Point, Record, Run, SCHEMA, Sample,
};
use serde_json::json;

use super::map::Axes;
use crate::report::model::{differ, grouped};

/// Most measurements of a file.
pub(super) const FOUND_MAX: usize = 100_000;
/// Most kinds of warnings of a file, and most of them that an error lists.
const WARNINGS_MAX: usize = 50;
const REASONS_MAX: usize = 3;
/// Most settings without an axis that separate measurements.
const PARTED_MAX: usize = 4;
/// Most characters of an external text that are kept.
const TEXT_MAX: usize = 200;
/// Rates above this many bytes per second are implausible.
const RATE_MAX: f64 = 1e15;
/// Latencies above this many nanoseconds are implausible: a month.
const LATENCY_MAX: f64 = 2.7e15;
/// Larger counts are implausible: a `f64` is exact only below.
const COUNT_MAX: f64 = 9e15;

/// Settings without an axis, by name: measurements that differ in them are not repeats.
pub(super) type Settings = BTreeMap<String, String>;

/// A measurement, as a tool reports it.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// When it was made, in seconds since 1970; 0 if unknown.
    pub(super) unix_time: f64,
    pub(super) axes: Axes,
    /// Quantities in bytes, bytes per second, nanoseconds, or as counts.
    pub(super) numbers: BTreeMap<&'static str, f64>,
    pub(super) cpu: Option<CpuCost>,
    /// Why the measurement failed.
    pub(super) error: Option<String>,
    pub(super) settings: Settings,
}

impl Row {
    /// Sets an axis, if the value is possible.
    pub(super) fn set(&mut self, axis: &str, value: &str) {
        let _ = self.axes.set(axis, &short(value));
    }

    /// Sets the size or the count of an axis, if it is plausible.
    pub(super) fn count(&mut self, axis: &str, value: Option<f64>) {
        if let Some(count) = value.and_then(count) {
            self.set(axis, &count.to_string());
        }
    }

    /// Sets a quantity, if it is known.
    pub(super) fn number(&mut self, quantity: &'static str, value: Option<f64>) {
        self.numbers.extend(value.map(|value| (quantity, value)));
    }

    fn point(&self, tool: &str) -> Result<Point, String> {
        if !self.axes.has_direction {
            return Err(
                "the direction is unknown: add `--columns direction:=read`, or name a column"
                    .into(),
            );
        }
        let method = self.axes.get(Field::Method).unwrap_or_else(|| tool.to_owned());
        Ok(Point { method, ..self.axes.point.clone() })
    }

    /// The measurement; a missing throughput is derived from the rest.
    #[expect(clippy::cast_precision_loss, reason = "a size")]
    fn measured(&self, size: u64) -> Result<Measured, String> {
        let of = |name: &str| self.numbers.get(name).copied();
        let rate = |value: f64| (value > 0.0 && value <= RATE_MAX).then_some(value);
        let seconds = of("seconds").map(|ns| ns / 1e9).filter(|seconds| *seconds > 0.0);
        let per_second = |amount: Option<f64>| Some(amount? / seconds?);
        let requests_per_second = of("iops").or_else(|| per_second(of("requests"))).and_then(rate);
        let sized = requests_per_second.filter(|_| size > 0).map(|rate| rate * size as f64);
        let found = of("throughput").or_else(|| per_second(of("bytes"))).or(sized);
        let bytes_per_second =
            found.and_then(rate).ok_or("it has no throughput, and no numbers that give one")?;
        let time = |name: &str| of(name).filter(|ns| *ns > 0.0 && *ns <= LATENCY_MAX);
        let whole = |name: &str| time(name).and_then(count);
        let latency = Latency {
            mean_ns: time("mean"),
            p50_ns: whole("p50"),
            p90_ns: whole("p90"),
            p99_ns: whole("p99"),
            p99_9_ns: whole("p99.9"),
            max_ns: whole("max"),
            ..Latency::default()
        };
        Ok(Measured {
            bytes: of("bytes").and_then(count),
            requests: of("requests").and_then(count),
            seconds,
            bytes_per_second,
            requests_per_second,
            latency: Some(latency).filter(|latency| *latency != Latency::default()),
            cpu: self.cpu,
            ..Measured::default()
        })
    }
}

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The tool, and the method of rows that name none.
    tool: String,
    /// Values that the user adds.
    values: Axes,
    pub(super) version: Option<String>,
    /// When the tool ran, in seconds since 1970.
    pub(super) unix_time: Option<u64>,
    pub(super) found: Vec<(Sample, Settings)>,
    /// Notes on the whole file.
    notes: BTreeSet<String>,
    /// The count and the first line of every warning, by its words without values.
    warnings: HashMap<String, (usize, u64, String)>,
}

impl Contents {
    pub(super) fn new(tool: &str, values: &Axes) -> Self {
        Self { tool: tool.into(), values: values.clone(), ..Self::default() }
    }

    /// Adds a measurement of a line with the user's values, or a warning why there is none.
    ///
    /// # Errors
    /// The file reports a different value, or too many measurements.
    pub(super) fn add(&mut self, line: u64, row: Result<Row, String>) -> Result<(), String> {
        let row = match row {
            Ok(row) => Ok(self.completed(line, row)?),
            Err(why) => Err(why),
        };
        let sample = |row: Row| {
            let (point, unix_time) = (row.point(&self.tool)?, row.unix_time);
            let measured = match row.error {
                None => Some(row.measured(point.request_size)?),
                Some(_) => None,
            };
            let (error, repeat) = (row.error, 0);
            let sample = Sample { point, repeat, unix_time, measured, error };
            Ok((sample, row.settings))
        };
        match row.and_then(sample) {
            Err(why) => self.warn(line, &format!("left out: {why}")),
            Ok(_) if self.found.len() >= FOUND_MAX => {
                return Err(format!("it holds more than {FOUND_MAX} measurements"));
            }
            Ok(found) => self.found.push(found),
        }
        Ok(())
    }

    fn completed(&self, line: u64, mut row: Row) -> Result<Row, String> {
        for axis in Field::ALL {
            let Some(value) = self.values.get(axis) else { continue };
            // A file seldom names its GPU, and a method is only a name.
            let may_differ = |own: &str| match axis {
                Field::Method => true,
                Field::Target => own == "gpu",
                _ => false,
            };
            let own = row.axes.get(axis);
            if own.is_some_and(|own| own != value && !may_differ(&own)) {
                let axis = axis.key();
                return Err(format!(
                    "line {line}: the file has its own {axis}: omit it from `--columns`"
                ));
            }
            row.axes.set(axis.key(), &value)?;
        }
        Ok(row)
    }

    /// Adds a warning on a line.
    pub(super) fn warn(&mut self, line: u64, text: &str) {
        let words = text.split('`').step_by(2);
        let kind: String =
            words.map(|words| words.replace(|c: char| c.is_ascii_digit(), "")).collect();
        if self.warnings.len() < WARNINGS_MAX || self.warnings.contains_key(&kind) {
            self.warnings.entry(kind).or_insert_with(|| (0, line, text.to_owned())).0 += 1;
        }
    }

    /// Adds a note on the whole file.
    pub(super) fn note(&mut self, text: &str) {
        self.notes.insert(text.to_owned());
    }

    /// The warnings with the first line of their kind, the most frequent first.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut all: Vec<_> = self.warnings.values().collect();
        all.sort_by_key(|(count, line, _)| (std::cmp::Reverse(*count), *line));
        let text = |(count, line, text): &(usize, u64, String)| match count {
            1 => format!("line {line}: {text}"),
            count => format!("line {line}: {text} (and {} more like it)", count - 1),
        };
        all.into_iter().map(text).chain(self.notes.iter().cloned()).collect()
    }

    /// Why there is no measurement.
    pub(super) fn reasons(&self) -> String {
        let reasons = self.warnings().into_iter().take(REASONS_MAX);
        let all = [format!("it holds no result of {}", self.tool)].into_iter().chain(reasons);
        all.collect::<Vec<_>>().join("; ")
    }

    /// The records of the file. Nothing that it claims about the data path counts as proven.
    pub(super) fn records(mut self, path: &Path) -> Vec<Record> {
        self.part();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let warnings = self
            .warnings()
            .into_iter()
            .map(|text| Record::Warning { text: format!("{}: {text}", short(&name)) });
        let (tool, version) = (self.tool, self.version);
        let mut records = vec![Record::Run(Box::new(Run {
            schema: SCHEMA,
            verb: tool.clone(),
            label: None,
            environment: environment::unknown("", self.unix_time.unwrap_or_default()),
            gpus: Vec::new(),
            unmetered: Vec::new(),
            ranks: Vec::new(),
            request: json!({}).into(),
            imported: Some(Imported { tool, version }),
        }))];
        records.extend(warnings);
        let mut counts: HashMap<Point, u32> = HashMap::new();
        records.extend(self.found.into_iter().map(|(sample, _)| {
            let next = counts.entry(sample.point.clone()).or_default();
            *next += 1;
            Record::Sample(Box::new(Sample { repeat: *next - 1, ..sample }))
        }));
        records
    }

    /// Extends the method names of measurements that agree on all axes, but differ in settings.
    fn part(&mut self) {
        let points = self.found.iter().map(|(sample, _)| sample.point.clone());
        for (_, indices) in grouped(points.zip(0..)) {
            let settings = || indices.iter().map(|index| &self.found[*index].1);
            let names: BTreeSet<&String> = settings().flat_map(Settings::keys).collect();
            let differs = |name: &&String| differ(settings().map(|own| own.get(*name)));
            let names = names.into_iter().filter(differs).take(PARTED_MAX).cloned();
            let names: Vec<String> = names.collect();
            for index in indices.iter().filter(|_| !names.is_empty()) {
                let (Sample { point, .. }, settings) = &mut self.found[*index];
                let text = |name: &String| match settings.get(name) {
                    Some(own) => format!("{name}={own}"),
                    None => format!("no {name}"),
                };
                let texts: Vec<String> = names.iter().map(text).collect();
                point.method = short(&format!("{} ({})", point.method, texts.join(", ")));
            }
        }
    }
}

/// An external text, shortened and with control characters escaped.
pub(super) fn short(text: &str) -> String {
    cut(&plain(text.trim()), TEXT_MAX)
}

/// A count or a number of bytes, if it is plausible.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within its bounds")]
pub(super) fn count(value: f64) -> Option<u64> {
    (0.0..=COUNT_MAX).contains(&value).then_some(value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[(&'static str, f64)]) -> Result<Measured, String> {
        Row { numbers: numbers.iter().copied().collect(), ..Row::default() }.measured(4096)
    }

    #[test]
    fn implausible_numbers_are_left_out() {
        for rate in [0.0, 1e16] {
            assert!(of(&[("throughput", rate)]).unwrap_err().contains("no throughput"));
        }
        let odd = [("throughput", 5.0), ("mean", 1e16), ("p50", 0.0), ("bytes", 1e300)];
        let measured = of(&odd).unwrap();
        assert_eq!((measured.latency, measured.bytes), (None, None));
        let mut row = Row::default();
        for value in [Some(1e12), Some(0.0), Some(-1.0), None] {
            row.count("threads", value);
        }
        row.count("depth", Some(3.0));
        assert_eq!(row.axes.point, Point { depth: 3, ..Point::default() });
    }

    #[test]
    fn a_throughput_may_follow_from_others() {
        let rate = |numbers: &[(&'static str, f64)]| {
            let measured = of(numbers).unwrap();
            (measured.bytes_per_second, measured.requests_per_second)
        };
        assert_eq!(rate(&[("iops", 1000.0)]), (4_096_000.0, Some(1000.0)));
        assert_eq!(rate(&[("bytes", 1e6), ("seconds", 5e8)]), (2e6, None));
    }

    #[test]
    fn warnings_of_one_kind_are_one_with_their_number() {
        let mut contents = Contents::new("gdsio", &Axes::default());
        (0..60).for_each(|line| contents.warn(line, &format!("`{line}` is wrong")));
        contents.note("all");
        contents.note("all");
        assert_eq!(contents.warnings(), ["line 0: `0` is wrong (and 59 more like it)", "all"]);
        assert!(contents.reasons().starts_with("it holds no result of gdsio; line 0: "));
        assert_eq!(short(&"\u{1b}".repeat(999)).chars().count(), TEXT_MAX);
    }
}

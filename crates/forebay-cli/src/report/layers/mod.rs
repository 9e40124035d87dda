//! Layers behind compute, as measured by `forebay.stream_bench`: the times of each method's passes
//! at each number of tokens. [`read`] parses them from a file, [`said`] puts them into words.
//!
//! Whatever a file holds, every number in here is finite, no divisor is 0, and no point has a
//! method twice.

pub mod read;
pub mod said;

use std::collections::HashSet;

use serde::Deserialize;

use super::digest::grouped;

/// The writer's `layers_schema`; docs/json-schema.md describes every key.
pub const SCHEMA: u64 = 6;

/// The results of one run of `python -m forebay.stream_bench`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layers {
    /// Its unique name.
    pub name: String,
    /// The command, ready to be typed again.
    pub command: String,
    /// Layers of the model.
    pub count: u64,
    /// Bytes of each.
    pub layer_bytes: u64,
    /// The order of layers: `forward`, `backward`, `train`.
    pub order: String,
    /// Their source: `page-cache`, `pinned` and others.
    pub from: String,
    /// Layers that the GPU holds at once, for Forebay.
    pub buffers: Option<u64>,
    /// Measured turns of each method.
    pub rounds: Option<u64>,
    /// Passes of a turn, in sequence.
    pub passes: Option<u64>,
    /// The file that held them.
    pub file: Option<String>,
    /// The machine that computed.
    pub machine: Machine,
    /// Whether the GPU was simulated.
    pub simulated: bool,
    /// Methods that were left out, and why.
    pub absent: Vec<(String, String)>,
    /// Why it ended early.
    pub failed: Option<String>,
    /// The measurements at each number of tokens, in the order in which they were taken.
    pub points: Vec<Point>,
}

/// The machine, as far as reported.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// The GPU's name.
    pub gpu: Option<String>,
    /// Threads that can run at once.
    pub cores: Option<u64>,
    /// All known facts, by name.
    pub facts: Vec<(&'static str, String)>,
}

/// A number of tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Point {
    /// How many.
    pub tokens: u64,
    /// Layers of a pass, in sequence.
    pub turns: u64,
    /// Seconds of a pass's compute alone.
    pub compute_s: f64,
    /// Seconds of a layer's transfer alone, for methods without their own value.
    pub transfer_layer_s: f64,
    /// Seconds of a layer's compute in the forward pass.
    pub forward_layer_s: Option<f64>,
    /// Seconds of a layer's compute in the backward pass.
    pub backward_layer_s: Option<f64>,
    /// Operations of a pass's compute.
    pub operations: Option<f64>,
    /// The times of each method.
    pub ways: Vec<(String, Way)>,
}

/// The times of a method's passes at a number of tokens.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Way {
    /// Seconds of the median pass.
    pub pass_s: f64,
    /// Seconds of the shortest.
    pub pass_low_s: Option<f64>,
    /// Seconds of the longest.
    pub pass_high_s: Option<f64>,
    /// Theoretical seconds, from this compute (or, from version 6 on, compute measured during
    /// transfers if that took less), this transfer and this method's buffers.
    pub line_s: f64,
    /// Seconds of a layer's transfer alone by this method.
    pub transfer_layer_s: Option<f64>,
    /// A pass relative to its theoretical time, if each pass was compared with its own.
    #[serde(rename = "over_line")]
    pub over_own_line: Option<f64>,
    /// Seconds of these that the compute waits.
    pub line_stall_s: Option<f64>,
    /// Layers that arrive in a pass, in theory.
    pub line_reads: Option<f64>,
    /// Layers that arrived.
    pub reads: Option<f64>,
    /// Seconds of the median pass that begins from rest.
    pub rested_s: Option<f64>,
    /// Seconds that the compute waited.
    pub stall_s: Option<f64>,
    /// Compute time during transfers over compute time alone.
    pub compute_beside: Option<f64>,
    /// Processor seconds for 1e9 bytes.
    pub cpu_s_per_gb: f64,
    /// The source of the bytes.
    #[serde(default)]
    pub bytes: Bytes,
}

/// Bytes of a pass, if the method counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Bytes {
    /// From pinned memory.
    pub pinned_bytes: Option<u64>,
    /// From pages of the page cache that were pinned.
    pub mapped_bytes: Option<u64>,
    /// Through slots.
    pub file_bytes: Option<u64>,
    /// Of these, the bytes that were not in the page cache.
    pub drive_bytes: Option<u64>,
}

impl Bytes {
    /// Bytes that came from the page cache instead of the drive, or the reverse.
    fn strays(&self, from_drive: bool) -> u64 {
        let Some(drive) = self.drive_bytes else { return 0 };
        if from_drive { self.file_bytes.unwrap_or(0).saturating_sub(drive) } else { drive }
    }

    /// Bytes from all sources.
    fn all(&self) -> u64 {
        let kinds = [self.pinned_bytes, self.mapped_bytes, self.file_bytes];
        kinds.into_iter().flatten().fold(0, u64::saturating_add)
    }
}

impl Layers {
    /// All methods that were measured anywhere, in order.
    #[must_use]
    pub fn ways(&self) -> Vec<&str> {
        let mut known = HashSet::new();
        let all = self.points.iter().flat_map(|point| &point.ways).map(|(name, _)| name.as_str());
        all.filter(|name| known.insert(*name)).collect()
    }

    /// Whether staged bytes should come from the drive: all of them, or the half that is not
    /// pinned.
    #[must_use]
    pub fn is_from_drive(&self) -> bool {
        ["drive", "half"].contains(&self.from.as_str())
    }

    /// The greatest share of a pass's bytes that came from the page cache instead of from the
    /// drive, or the reverse; `None` if there were none.
    #[must_use]
    pub fn strays(&self) -> Option<f64> {
        let from_drive = self.is_from_drive();
        let ways = self.points.iter().flat_map(|point| &point.ways);
        let shares = ways.filter_map(|(_, way)| {
            let strays = way.bytes.strays(from_drive);
            #[expect(clippy::cast_precision_loss, reason = "a share of bytes")]
            (strays > 0).then(|| strays as f64 / way.bytes.all().max(strays) as f64)
        });
        shares.max_by(f64::total_cmp)
    }

    /// The model and the machine, in a line.
    #[must_use]
    pub fn about(&self) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "megabytes")]
        #[expect(clippy::cast_precision_loss, reason = "megabytes")]
        let size = grouped((self.layer_bytes as f64 / 1e6).round() as u64);
        let mut parts = vec![
            format!("{} layers of {size} MB", grouped(self.count)),
            self.order.clone(),
            format!("from {}", self.from),
        ];
        parts.extend(self.machine.gpu.clone());
        parts.extend(self.machine.cores.map(|cores| format!("{cores} cores")));
        if self.simulated {
            parts.push("simulated".into());
        }
        parts.join(", ")
    }
}

impl Point {
    /// The times of a method, if it was measured here.
    #[must_use]
    pub fn way(&self, name: &str) -> Option<&Way> {
        self.ways.iter().find(|(other, _)| other == name).map(|(_, way)| way)
    }

    /// Seconds of the compute of one turn, over all of them.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a count of turns")]
    pub fn compute_turn_s(&self) -> f64 {
        self.compute_s / self.turns as f64
    }
}

impl Way {
    /// A pass relative to its theoretical time.
    #[must_use]
    pub fn over_line(&self) -> f64 {
        self.over_own_line.unwrap_or(self.pass_s / self.line_s)
    }

    /// Seconds of a layer's transfer alone.
    #[must_use]
    pub fn transfer(&self, point: &Point) -> f64 {
        self.transfer_layer_s.unwrap_or(point.transfer_layer_s)
    }

    /// Like `over_line`, for the shortest pass and the longest; none if each has its own
    /// theoretical time.
    #[must_use]
    pub fn range_over_line(&self) -> Option<(f64, f64)> {
        let whole = self.pass_s / self.line_s;
        if (self.over_line() / whole - 1.0).abs() > 1e-9 {
            return None;
        }
        Some((self.pass_low_s? / self.line_s, self.pass_high_s? / self.line_s))
    }

    /// A pass that begins from rest, relative to its theoretical time.
    #[must_use]
    pub fn rested_over_line(&self) -> Option<f64> {
        Some(self.rested_s? / self.line_s)
    }

    /// A pass relative to compute alone.
    #[must_use]
    pub fn over_compute(&self, point: &Point) -> f64 {
        self.pass_s / point.compute_s
    }
}

/// A number that programs read.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    /// Its name, which includes its unit.
    pub key: &'static str,
    /// Its description.
    pub is: &'static str,
    /// The function that returns it.
    pub of: Of,
}

/// The subject of a quantity.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    /// A number of tokens, for all methods.
    Point(fn(&Point) -> Option<f64>),
    /// A method at a number of tokens.
    Way(fn(&Point, &Way) -> Option<f64>),
}

const fn point(key: &'static str, is: &'static str, of: fn(&Point) -> Option<f64>) -> Quantity {
    Quantity { key, is, of: Of::Point(of) }
}

const fn way(key: &'static str, is: &'static str, of: fn(&Point, &Way) -> Option<f64>) -> Quantity {
    Quantity { key, is, of: Of::Way(of) }
}

/// All, in the order of columns. Counts are exact to 52 bits.
#[expect(clippy::cast_precision_loss, reason = "counts of bytes and turns")]
pub const QUANTITIES: [Quantity; 23] = [
    point("turns", "layers that a pass takes", |point| Some(point.turns as f64)),
    point("compute_s", "compute of a pass alone", |point| Some(point.compute_s)),
    point("forward_layer_s", "compute of a layer forward", |point| point.forward_layer_s),
    point("backward_layer_s", "compute of a layer backward", |point| point.backward_layer_s),
    way("transfer_layer_s", "transfer of a layer alone", |point, way| Some(way.transfer(point))),
    point("operations", "operations of a pass", |point| point.operations),
    way("pass_s", "the median pass", |_, way| Some(way.pass_s)),
    way("pass_low_s", "the shortest pass", |_, way| way.pass_low_s),
    way("pass_high_s", "the longest pass", |_, way| way.pass_high_s),
    way("rested_s", "the median pass that begins from rest", |_, way| way.rested_s),
    way("line_s", "a pass in theory", |_, way| Some(way.line_s)),
    way("line_stall_s", "time that compute waits in theory", |_, way| way.line_stall_s),
    way("line_reads", "layers that arrive in a pass in theory", |_, way| way.line_reads),
    way("over_line", "the median pass over its line", |_, way| Some(way.over_line())),
    way("over_compute", "the median pass over compute alone", |point, way| {
        Some(way.over_compute(point))
    }),
    way("reads", "layers that arrived in a pass", |_, way| way.reads),
    way("stall_s", "time that compute waited in a pass", |_, way| way.stall_s),
    way("compute_beside", "compute during transfers over compute alone", |_, way| {
        way.compute_beside
    }),
    way("cpu_s_per_gb", "processor time for 1e9 bytes", |_, way| Some(way.cpu_s_per_gb)),
    way("pinned_bytes", "bytes of a pass from pinned memory", |_, way| {
        way.bytes.pinned_bytes.map(|bytes| bytes as f64)
    }),
    way("mapped_bytes", "bytes of a pass from pinned pages", |_, way| {
        way.bytes.mapped_bytes.map(|bytes| bytes as f64)
    }),
    way("file_bytes", "bytes of a pass through slots", |_, way| {
        way.bytes.file_bytes.map(|bytes| bytes as f64)
    }),
    way("drive_bytes", "bytes through slots that were not in the page cache", |_, way| {
        way.bytes.drive_bytes.map(|bytes| bytes as f64)
    }),
];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An archived run: three numbers of tokens, two methods.
    pub(crate) const MAPPED: &str =
        include_str!("../../../../../benches/runs/2026-11-22-h200-layers-b/large-mapped.json");

    pub(crate) use crate::report::made::HARM;

    /// A malicious file: the maximum of methods and points, with absurd numbers.
    pub(crate) fn hostile() -> String {
        let numbers = [1e-12, 1e9, 0.5, 1.0];
        let way = |number: usize| {
            let pass = numbers[number % 4];
            serde_json::json!({
                "pass_s": pass, "pass_low_s": 1e9, "pass_high_s": 1e-12,
                "line_s": numbers[(number / 4) % 4], "stall_s": -1e9, "reads": 1e18,
                "compute_beside": 1e18, "cpu_s_per_gb": 0, "bytes": {"file_bytes": u64::MAX}
            })
        };
        let point = |tokens: u64| {
            let ways = (0..64).map(|number| (format!("{number}{HARM}"), way(number)));
            let ways: serde_json::Map<String, serde_json::Value> = ways.collect();
            serde_json::json!({
                "tokens": tokens, "turns": u64::MAX, "compute_s": 1e-12, "operations": 1e308,
                "transfer_layer_s": 1e9, "ways": ways
            })
        };
        serde_json::json!({
            "command": [HARM], "layer_bytes": u64::MAX, "layers": u64::MAX, "order": HARM,
            "from": HARM, "simulated": true, "failed": HARM, "absent": {HARM: HARM},
            "environment": {"gpu": HARM, "cpu": HARM, "cpus": u64::MAX, "kernel": HARM},
            "points": [point(1), point(2), point(u64::MAX), point(7), point(9), point(11),
                point(12), point(13), point(14), point(15), point(16), point(17), point(18),
                point(19), point(20), point(21), point(22), point(23), point(24), point(25)]
        })
        .to_string()
    }

    #[test]
    fn what_was_streamed_is_told_in_a_line() {
        let layers = read::layers(MAPPED.as_bytes()).unwrap();
        let line = "6 layers of 1,237 MB, forward, from mapped, NVIDIA H200, 16 cores";
        assert_eq!(layers.about(), line);
        assert_eq!(layers.ways(), ["forebay", "two-buffers"]);
        let simulated = Layers { simulated: true, ..Layers::default() };
        assert_eq!(simulated.about(), "0 layers of 0 MB, , from , simulated");
    }

    #[test]
    fn every_quantity_has_a_name_of_its_own() {
        let keys: HashSet<&str> = QUANTITIES.iter().map(|quantity| quantity.key).collect();
        assert_eq!(keys.len(), QUANTITIES.len());
    }

    #[test]
    fn ratios_are_those_of_the_file() {
        let layers = read::layers(MAPPED.as_bytes()).unwrap();
        let point = &layers.points[0];
        let way = point.way("forebay").unwrap();
        assert_eq!(way.over_line(), 0.134_912_288_999_998_96 / 0.135_252_798_999_997_5);
        assert_eq!(way.range_over_line().unwrap().0, way.pass_low_s.unwrap() / way.line_s);
        assert_eq!(way.over_compute(point), way.pass_s / 0.006_532_583_999_998_565);
        assert_eq!((point.compute_turn_s() * 6.0, point.way("none")), (point.compute_s, None));
    }
}

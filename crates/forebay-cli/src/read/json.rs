//! A read as JSON, version 1; docs/json-schema.md describes every key.

use std::time::Duration;

use forebay::{Histogram, RouteShare, Statistics};
use forebay_measure::results::verdict::VerdictFacts;
use serde::{Deserialize, Serialize};

/// The version of the schema: it grows when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The output of `forebay read`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The file as given.
    pub path: String,
    /// The offset of the first byte in it.
    pub offset: u64,
    /// How many were moved.
    pub bytes: u64,
    /// The memory: `host`, `cuda:0`, `sim:0`.
    pub target: String,
    /// Whether the target is a simulated GPU.
    pub simulated: bool,
    /// Bytes by route and reason, most bytes first.
    pub routes: Vec<Share>,
    /// Why bytes did not take the direct route, if it might exist.
    pub not_direct: Option<String>,
    /// From the call to the end.
    pub seconds: f64,
    /// The XXH3-64 of the bytes in the target.
    pub xxh3_64: String,
    /// The verified path, from independent counters; null if nothing was moved.
    pub verdict: Option<VerdictFacts>,
    /// How long the stages took.
    pub stages: Stages,
    /// Features that the engine had to do without.
    pub notes: Vec<String>,
}

/// Bytes that took one route for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The route.
    pub route: String,
    /// The reason for the route.
    pub reason: String,
    /// How many bytes took it.
    pub bytes: u64,
}

impl Share {
    /// The engine's account.
    #[must_use]
    pub fn of(share: &RouteShare) -> Self {
        Self {
            route: share.route.to_string(),
            reason: share.reason.to_string(),
            bytes: share.bytes,
        }
    }
}

/// The stages of a transfer, in order.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// Waits for a slot, when none was free.
    pub slot_wait: Stage,
    /// Requests to the file.
    pub file: Stage,
    /// Waits of filled memory for its copy.
    pub link_wait: Stage,
    /// Copies.
    pub copy: Stage,
}

impl Stages {
    /// The stages that an engine has counted.
    #[must_use]
    pub fn of(statistics: &Statistics) -> Self {
        Self {
            slot_wait: Stage::of(&statistics.slot_wait),
            file: Stage::of(&statistics.file),
            link_wait: Stage::of(&statistics.link_wait),
            copy: Stage::of(&statistics.copy),
        }
    }
}

/// How often a stage ran, and how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// How often.
    pub count: u64,
    /// The median; null if there are none.
    pub p50_s: Option<f64>,
    /// The 99th percentile.
    pub p99_s: Option<f64>,
    /// The longest.
    pub max_s: Option<f64>,
    /// The sum.
    pub sum_s: f64,
}

impl Stage {
    fn of(histogram: &Histogram) -> Self {
        let count = histogram.count();
        let share = |share| histogram.quantile(share).as_ref().map(Duration::as_secs_f64);
        Self {
            count,
            p50_s: share(0.5),
            p99_s: share(0.99),
            max_s: (count > 0).then(|| histogram.max().as_secs_f64()),
            sum_s: histogram.sum().as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_schema_and_are_read_back() {
        let none = Stage::of(&Histogram::default());
        let (p99_s, max_s) = (Some(0.5), Some(0.5));
        let stage = Stage { count: 3, p50_s: Some(0.25), p99_s, max_s, sum_s: 1.0 };
        let share = Share { route: "cached".into(), reason: "demanded".into(), bytes: 7 };
        let report = ReadReport {
            schema: SCHEMA,
            path: "file".into(),
            offset: 4096,
            bytes: 7,
            target: "sim:0".into(),
            simulated: true,
            routes: vec![share],
            not_direct: None,
            seconds: 0.75,
            xxh3_64: "0123456789abcdef".into(),
            verdict: None,
            stages: Stages { slot_wait: none, file: stage, link_wait: none, copy: none },
            notes: Vec::new(),
        };
        let text = forebay_measure::plain::json_lines(&report).unwrap();
        assert_eq!(serde_json::from_str::<ReadReport>(&text).unwrap(), report);
        // After them come two stages like the first, and the notes.
        let text = text.split("    \"link_wait\"").next().unwrap();
        insta::assert_snapshot!(text, @r#"
        {
          "schema": 1,
          "path": "file",
          "offset": 4096,
          "bytes": 7,
          "target": "sim:0",
          "simulated": true,
          "routes": [
            {
              "route": "cached",
              "reason": "demanded",
              "bytes": 7
            }
          ],
          "not_direct": null,
          "seconds": 0.75,
          "xxh3_64": "0123456789abcdef",
          "verdict": null,
          "stages": {
            "slot_wait": {
              "count": 0,
              "p50_s": null,
              "p99_s": null,
              "max_s": null,
              "sum_s": 0.0
            },
            "file": {
              "count": 3,
              "p50_s": 0.25,
              "p99_s": 0.5,
              "max_s": 0.5,
              "sum_s": 1.0
            },
        "#);
    }
}

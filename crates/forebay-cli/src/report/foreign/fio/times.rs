//! Latencies of fio: its percentiles, else those computed from its buckets (`json+`).
//!
//! They run from submission to completion (`clat`) or, with `lat_percentiles=1`, include the
//! submission. Percentiles of several jobs cannot be merged; buckets can.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::row::Row;

/// Buckets of one job at most; fio has fewer than 2,000.
const BINS_MAX: usize = 10_000;
/// The percentiles of a row, with fio's names.
const PERCENTILES: [(&str, &str, f64); 4] = [
    ("p50", "50.000000", 0.5),
    ("p90", "90.000000", 0.9),
    ("p99", "99.000000", 0.99),
    ("p99.9", "99.900000", 0.999),
];

/// Latencies of one direction of one job, in nanoseconds.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Times {
    count: f64,
    mean: Option<f64>,
    max: Option<f64>,
    percentiles: [Option<f64>; 4],
    /// The count of each latency.
    bins: BTreeMap<u64, u64>,
}

impl Times {
    /// Parses the latencies of a job's direction, which made so many requests.
    pub(super) fn of(direction: &Value, requests: f64) -> Self {
        let kinds = [&direction["lat_ns"], &direction["clat_ns"]];
        let has_more = |times: &&&Value| {
            let filled = |part: &str| times[part].as_object().is_some_and(|part| !part.is_empty());
            filled("percentile") || filled("bins")
        };
        // Unmeasured values are present as zeros.
        let is_measured = |times: &&&Value| times["mean"].as_f64().is_some_and(|mean| mean > 0.0);
        let found = kinds.iter().find(has_more).or_else(|| kinds.iter().find(is_measured));
        let Some(times) = found else { return Self::default() };
        let bins = times["bins"].as_object().into_iter().flatten().take(BINS_MAX);
        Self {
            // Up to version 3.16 fio does not report it.
            count: times["N"].as_f64().unwrap_or(requests),
            mean: times["mean"].as_f64(),
            max: times["max"].as_f64(),
            percentiles: PERCENTILES.map(|(_, name, _)| times["percentile"][name].as_f64()),
            bins: bins.filter_map(|(ns, of)| Some((ns.parse().ok()?, of.as_u64()?))).collect(),
        }
    }

    /// Merges both; values that cannot be merged are dropped.
    pub(super) fn with(mut self, other: Self) -> Self {
        if self.count <= 0.0 || other.count <= 0.0 {
            return if self.count <= 0.0 { other } else { self };
        }
        let count = self.count + other.count;
        let mean = |(a, b): (f64, f64)| a * (self.count / count) + b * (other.count / count);
        self.mean = self.mean.zip(other.mean).map(mean);
        self.max = self.max.zip(other.max).map(|(a, b)| a.max(b));
        self.percentiles = [None; 4];
        if self.bins.is_empty() || other.bins.is_empty() {
            self.bins.clear();
        } else {
            for (ns, more) in other.bins {
                let sum = self.bins.entry(ns).or_default();
                *sum = sum.saturating_add(more);
            }
        }
        Self { count, ..self }
    }

    /// Adds the latencies to a row.
    pub(super) fn add_to(&self, row: &mut Row) {
        row.number("mean", self.mean);
        row.number("max", self.max);
        for ((name, _, share), known) in PERCENTILES.into_iter().zip(self.percentiles) {
            row.number(name, known.or_else(|| self.quantile(share)));
        }
    }

    /// The bucket in which this share of all latencies ends.
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = self.bins.values().map(|count| *count as f64).sum::<f64>() * share;
        let mut sum = 0.0;
        let found = self.bins.iter().find(|(_, count)| {
            sum += **count as f64;
            sum >= wanted && sum > 0.0
        });
        found.map(|(ns, _)| *ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn numbers(times: &Times) -> BTreeMap<&'static str, f64> {
        let mut row = Row::default();
        times.add_to(&mut row);
        row.numbers
    }

    #[test]
    fn percentiles_of_fio_count_before_its_buckets() {
        let of = |clat: Value| {
            Times::of(&json!({"clat_ns": clat, "lat_ns": {"mean": 9.0, "N": 4}}), 9.0)
        };
        let both = of(json!({"mean": 2.5, "max": 4, "N": 4,
            "percentile": {"50.000000": 2, "99.900000": 4}, "bins": {"1": 2, "4": 2}}));
        let expected = [("max", 4.0), ("mean", 2.5), ("p50", 2.0), ("p90", 4.0), ("p99", 4.0)];
        assert_eq!(numbers(&both), expected.into_iter().chain([("p99.9", 4.0)]).collect());
        // Without either, the total latency counts, which has no percentiles.
        let whole = of(json!({"mean": 2.5, "max": 4, "N": 4}));
        assert_eq!(numbers(&whole), [("mean", 9.0)].into());
        assert_eq!(Times::of(&json!({"lat_ns": {"N": 0, "mean": 0.0}}), 9.0), Times::default());
    }

    #[test]
    fn buckets_can_be_merged_and_percentiles_cannot() {
        let of = |bins: Value, n: u64| {
            let times = json!({"mean": 2.0, "max": 10 * n, "N": n, "bins": bins,
                "percentile": {"50.000000": 7}});
            Times::of(&json!({ "clat_ns": times }), 9.0)
        };
        let both = numbers(&of(json!({"1": 3}), 3).with(of(json!({"5": 1}), 1)));
        assert_eq!((both["p50"], both["p99"], both["max"]), (1.0, 5.0, 30.0));
        let without = numbers(&of(json!({}), 3).with(of(json!({"5": 1}), 1)));
        assert_eq!((without.get("p50"), without["mean"]), (None, 2.0));
        let one = Times::default().with(of(json!({}), 3));
        assert_eq!(numbers(&one)["p50"], 7.0);
    }
}

//! Latencies of fio: its percentiles, else those computed from its buckets (`json+`).
//!
//! They run from submission to completion (`clat`) or, with `lat_percentiles=1`, include the
//! submission. Percentiles of several jobs cannot be merged; buckets can.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::report::foreign::found::{count, nanoseconds};
use crate::results::Latency;

/// Buckets of one job at most; fio has fewer than 2,000.
const BINS_MAX: usize = 10_000;

/// Latencies of one direction of one job.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Times {
    count: u64,
    mean_ns: Option<f64>,
    max_ns: Option<f64>,
    /// fio's percentiles, by its own names.
    percentiles: BTreeMap<String, f64>,
    /// The count of each latency in nanoseconds.
    bins: BTreeMap<u64, u64>,
    /// Whether the submission is left out.
    pub(super) completion_only: bool,
}

impl Times {
    /// Parses the latencies of a job's direction.
    ///
    /// Up to version 3.16 fio does not report their count; then it is `requests`.
    pub(super) fn of(direction: &Value, requests: u64) -> Self {
        // Versions before 3 report microseconds.
        let kinds = [("lat_ns", 1.0), ("clat_ns", 1.0), ("lat", 1e3), ("clat", 1e3)];
        let has = |key: &str, parts: &[&str]| {
            let times = direction.get(key);
            parts.iter().any(|part| {
                let part = times.and_then(|times| times.get(part)).and_then(Value::as_object);
                part.is_some_and(|part| !part.is_empty())
            })
        };
        let best = kinds.iter().find(|(key, _)| has(key, &["percentile", "bins"]));
        // Unmeasured values are present as zeros.
        let shown = |times: &Value| {
            let over_0 =
                |key: &str| times.get(key).and_then(Value::as_f64).is_some_and(|n| n > 0.0);
            times.get("N").is_some() || over_0("max") || over_0("mean")
        };
        let any = kinds.iter().find(|(key, _)| direction.get(key).is_some_and(shown));
        let Some((key, scale)) = best.or(any).copied() else { return Self::default() };
        let times = &direction[key];
        let number = |of: &Value| of.as_f64().map(|value| value * scale).and_then(nanoseconds);
        let all = |part: &str| times.get(part).and_then(Value::as_object).into_iter().flatten();
        let percentiles = all("percentile").filter_map(|(name, ns)| {
            let rank: f64 = name.parse().ok()?;
            Some((format!("{rank}"), number(ns)?))
        });
        let bins = all("bins").take(BINS_MAX).filter_map(|(ns, of)| {
            let ns = ns.parse::<f64>().ok().map(|ns| ns * scale).and_then(nanoseconds);
            Some((count(ns?)?, of.as_f64().and_then(count)?))
        });
        Self {
            count: times
                .get("N")
                .map_or(Some(requests), |told| told.as_f64().and_then(count))
                .unwrap_or_default(),
            mean_ns: number(&times["mean"]),
            max_ns: number(&times["max"]),
            percentiles: percentiles.collect(),
            bins: bins.collect(),
            completion_only: key.starts_with("clat"),
        }
    }

    /// Merges both; values that cannot be merged are dropped.
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub(super) fn with(self, other: Self) -> Self {
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { other } else { self };
        }
        let count = self.count.saturating_add(other.count);
        let share = self.count as f64 / count as f64;
        let means = self.mean_ns.zip(other.mean_ns);
        let mut bins = BTreeMap::new();
        if !self.bins.is_empty() && !other.bins.is_empty() {
            bins = self.bins;
            for (ns, more) in other.bins {
                let sum = bins.entry(ns).or_insert(0_u64);
                *sum = sum.saturating_add(more);
            }
        }
        Self {
            count,
            mean_ns: means.map(|(a, b)| a * share + b * (1.0 - share)),
            max_ns: self.max_ns.zip(other.max_ns).map(|(a, b)| a.max(b)),
            percentiles: BTreeMap::new(),
            bins,
            completion_only: self.completion_only || other.completion_only,
        }
    }

    /// The summary; `None` if there are none.
    pub(super) fn summary(&self) -> Option<Latency> {
        if self.count == 0 {
            return None;
        }
        let at = |rank: f64| {
            let told = self.percentiles.get(&format!("{rank}")).copied().and_then(count);
            told.or_else(|| self.quantile(rank))
        };
        Some(Latency {
            count: Some(self.count),
            mean_ns: self.mean_ns,
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            p99_9_ns: at(99.9),
            max_ns: self.max_ns.and_then(count),
            since_due: false,
        })
    }

    /// The bucket in which this percentile falls.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among counts"
    )]
    fn quantile(&self, rank: f64) -> Option<u64> {
        let all = self.bins.values().fold(0_u64, |sum, more| sum.saturating_add(*more));
        let wanted = ((all as f64 * rank / 100.0).ceil() as u64).max(1);
        let mut sum = 0_u64;
        let found = self.bins.iter().find(|(_, more)| {
            sum = sum.saturating_add(**more);
            sum >= wanted
        });
        found.map(|(ns, _)| *ns)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_fio_tells_counts_before_its_buckets() {
        let of =
            |clat: Value| Times::of(&json!({"clat_ns": clat, "lat_ns": {"mean": 9.0, "N": 4}}), 9);
        let told = of(json!({"mean": 2.5, "max": 4, "N": 4,
            "percentile": {"50.000000": 2, "99.900000": 4}, "bins": {"1": 2, "4": 2}}));
        let summary = told.summary().unwrap();
        assert_eq!((summary.p50_ns, summary.p90_ns, summary.p99_9_ns), (Some(2), Some(4), Some(4)));
        assert_eq!((summary.mean_ns, summary.max_ns, summary.count), (Some(2.5), Some(4), Some(4)));
        assert!(told.completion_only);
        // Without either, the total latency counts, which has no percentiles.
        let whole = of(json!({"mean": 2.5, "max": 4, "N": 4}));
        let summary = whole.summary().unwrap();
        assert_eq!((summary.mean_ns, summary.p50_ns), (Some(9.0), None));
        assert_eq!(Times::of(&json!({"lat_ns": {"N": 0}}), 9).summary(), None);
        // Old versions report microseconds.
        let old = Times::of(
            &json!({"clat": {"mean": 2.0, "max": 3, "N": 1,
            "percentile": {"50.000000": 2}}}),
            9,
        );
        assert_eq!(old.summary().unwrap().p50_ns, Some(2000));
    }

    #[test]
    fn buckets_can_be_put_together_and_percentiles_cannot() {
        let of = |bins: Value, n: u64| {
            Times::of(
                &json!({"clat_ns": {"mean": 2.0, "max": 10 * n, "N": n, "bins": bins,
                "percentile": {"50.000000": 7}}}),
                9,
            )
        };
        let both = of(json!({"1": 3}), 3).with(of(json!({"5": 1}), 1));
        let summary = both.summary().unwrap();
        assert_eq!((summary.p50_ns, summary.p99_ns, summary.max_ns), (Some(1), Some(5), Some(30)));
        let without = of(json!({}), 3).with(of(json!({"5": 1}), 1)).summary().unwrap();
        assert_eq!((without.p50_ns, without.mean_ns), (None, Some(2.0)));
        let one = Times::default().with(of(json!({}), 3));
        assert_eq!(one.summary().unwrap().p50_ns, Some(7));
    }
}

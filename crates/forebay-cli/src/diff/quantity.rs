//! The compared quantities: whether more is better, and the words of their verdicts.

use std::str::FromStr;

use super::json::Verdict;
use crate::report::digest::Metric;

/// The compared quantities, in the order of the output, with their names on the command line.
pub const QUANTITIES: [(Metric, &str); 12] = [
    (Metric::Rate, "throughput"),
    (Metric::Requests, "requests"),
    (Metric::Mean, "mean"),
    (Metric::P50, "p50"),
    (Metric::P90, "p90"),
    (Metric::P99, "p99"),
    (Metric::P999, "p99.9"),
    (Metric::Slowest, "max"),
    (Metric::CpuPerGb, "cpu"),
    (Metric::GpuJoules, "gpu-energy"),
    (Metric::PackageJoules, "package-energy"),
    (Metric::ServerJoules, "server-energy"),
];

/// A quantity that is named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity(pub Metric);

impl FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = QUANTITIES.into_iter().find(|(_, name)| *name == text);
        known.map(|(metric, _)| Self(metric)).ok_or_else(|| {
            let names = QUANTITIES.map(|(_, name)| format!("`{name}`"));
            format!("it takes {}", names.join(", "))
        })
    }
}

/// Whether more of it is better.
#[must_use]
pub fn more_is_better(metric: Metric) -> bool {
    matches!(metric, Metric::Rate | Metric::Requests)
}

/// The words of a verdict.
#[must_use]
pub fn words(metric: Metric, verdict: Verdict) -> &'static str {
    let of_time = matches!(
        metric,
        Metric::Rate
            | Metric::Requests
            | Metric::Mean
            | Metric::P50
            | Metric::P90
            | Metric::P99
            | Metric::P999
            | Metric::Slowest
    );
    match (verdict, of_time) {
        (Verdict::Better, true) => "faster",
        (Verdict::Worse, true) => "slower",
        (Verdict::Better, false) => "less",
        (Verdict::Worse, false) => "more",
        (Verdict::NotShown, _) => "–",
    }
}

/// The quantity of a key.
#[must_use]
pub fn of_key(key: &str) -> Option<Metric> {
    QUANTITIES.into_iter().map(|(metric, _)| metric).find(|metric| metric.key() == key)
}

//! Request latencies: a histogram whose buckets grow with their value (HDR), so that everything
//! from nanoseconds to minutes is resolved to one part in a thousand.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::results::Latency;

/// Longer times count as this one.
const MAX: Duration = Duration::from_secs(3600);

/// The latencies of requests.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let max = nanoseconds(MAX);
        Self(Histogram::new_with_max(max, 3).expect("an hour, to three digits"))
    }
}

impl Latencies {
    /// Counts `count` requests of the same latency.
    pub fn add(&mut self, latency: Duration, count: u64) {
        let longest = nanoseconds(MAX);
        self.0.record_n(nanoseconds(latency).min(longest), count).expect("it is in the range");
    }

    /// Adds the counts of another histogram.
    pub fn add_all(&mut self, others: &Self) {
        self.0.add(&others.0).expect("all histograms have the same range");
    }

    /// The summary of all latencies; `None` if there are none.
    #[must_use]
    pub fn summary(&self, since_due: bool) -> Option<Latency> {
        let at = |share| Some(self.0.value_at_quantile(share));
        (!self.0.is_empty()).then(|| Latency {
            count: Some(self.0.len()),
            mean_ns: Some(self.0.mean()),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p99_9_ns: at(0.999),
            max_ns: Some(self.0.max()),
            since_due,
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_one_part_in_a_thousand() {
        let mut all = Latencies::default();
        assert_eq!(all.summary(false), None);
        let mut odd = Latencies::default();
        for micros in 1..=10_000 {
            let half = if micros % 2 == 0 { &mut all } else { &mut odd };
            half.add(Duration::from_micros(micros), 1);
        }
        all.add_all(&odd);
        let told = all.summary(true).unwrap();
        let near =
            |told: Option<u64>, micros: u64| told.unwrap().abs_diff(micros * 1000) <= micros * 2;
        assert!(near(told.p50_ns, 5000) && near(told.p90_ns, 9000), "{told:?}");
        assert!(near(told.p99_ns, 9900) && near(told.p99_9_ns, 9990), "{told:?}");
        assert!(near(told.max_ns, 10_000) && told.count == Some(10_000) && told.since_due);
        assert!((told.mean_ns.unwrap() / 5_000_500.0 - 1.0).abs() < 2e-3, "{told:?}");
    }

    #[test]
    fn what_takes_for_ever_counts_as_an_hour() {
        let mut all = Latencies::default();
        all.add(Duration::from_secs(1 << 40), 1);
        all.add(Duration::ZERO, 3);
        let told = all.summary(false).unwrap();
        assert!(
            told.max_ns.unwrap().abs_diff(nanoseconds(MAX)) <= nanoseconds(MAX) / 500,
            "{told:?}"
        );
        assert_eq!((told.count, told.p50_ns), (Some(4), Some(0)));
        assert_eq!(Latencies::default().summary(false), None);
    }
}

//! Request latencies: a histogram whose buckets grow with their value (HDR), so that everything
//! from nanoseconds to minutes is resolved to one part in a thousand.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::results::Latency;

/// Longer times count as this one.
const MAX: Duration = Duration::from_secs(3600);

/// The latencies of requests; without memory of its own until there is one.
#[derive(Debug, Clone, Default)]
pub struct Latencies(Option<Histogram<u64>>);

impl Latencies {
    fn histogram(&mut self) -> &mut Histogram<u64> {
        let new = || Histogram::new_with_max(nanoseconds(MAX), 3);
        self.0.get_or_insert_with(|| new().expect("an hour, to three digits"))
    }

    /// Counts `count` requests of the same latency.
    pub fn add(&mut self, latency: Duration, count: u64) {
        let latency = nanoseconds(latency).min(nanoseconds(MAX));
        self.histogram().record_n(latency, count).expect("it is in the range");
    }

    /// Adds the counts of another histogram.
    pub fn add_all(&mut self, others: &Self) {
        let Some(others) = &others.0 else { return };
        self.histogram().add(others).expect("all histograms have the same range");
    }

    /// Each latency in nanoseconds that occurred, and how often: to add them up elsewhere.
    #[must_use]
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let all = self.0.iter().flat_map(Histogram::iter_recorded);
        all.map(|one| (one.value_iterated_to(), one.count_at_value())).collect()
    }

    /// Adds what [`counts`](Self::counts) returned.
    pub fn add_counts(&mut self, counts: &[(u64, u64)]) {
        for (latency, count) in counts {
            self.add(Duration::from_nanos(*latency), *count);
        }
    }

    /// The summary of all latencies; `None` if there are none.
    #[must_use]
    pub fn summary(&self, since_due: bool) -> Option<Latency> {
        let all = self.0.as_ref()?;
        let at = |share| Some(all.value_at_quantile(share));
        (!all.is_empty()).then(|| Latency {
            count: Some(all.len()),
            mean_ns: Some(all.mean()),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p99_9_ns: at(0.999),
            max_ns: Some(all.max()),
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
        let mut again = Latencies::default();
        again.add_counts(&all.counts());
        assert_eq!(again.summary(true), all.summary(true));
        let reported = all.summary(true).unwrap();
        let near = |reported: Option<u64>, micros: u64| {
            reported.unwrap().abs_diff(micros * 1000) <= micros * 2
        };
        assert!(near(reported.p50_ns, 5000) && near(reported.p90_ns, 9000), "{reported:?}");
        assert!(near(reported.p99_ns, 9900) && near(reported.p99_9_ns, 9990), "{reported:?}");
        assert!(
            near(reported.max_ns, 10_000) && reported.count == Some(10_000) && reported.since_due
        );
        assert!((reported.mean_ns.unwrap() / 5_000_500.0 - 1.0).abs() < 2e-3, "{reported:?}");
    }

    #[test]
    fn the_longest_latency_is_an_hour() {
        let mut all = Latencies::default();
        all.add(Duration::from_secs(1 << 40), 1);
        all.add(Duration::ZERO, 3);
        let reported = all.summary(false).unwrap();
        assert!(
            reported.max_ns.unwrap().abs_diff(nanoseconds(MAX)) <= nanoseconds(MAX) / 500,
            "{reported:?}"
        );
        assert_eq!((reported.count, reported.p50_ns), (Some(4), Some(0)));
        assert_eq!(Latencies::default().summary(false), None);
    }
}

//! Samples, their medians, and interleaved sampling.

use std::time::Instant;

use forebay_measure::stats::Spread;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::bar::Stop;

/// One measurement of one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Wall time.
    pub(crate) seconds: f64,
    /// The bytes moved in that time.
    pub(crate) bytes: u64,
    /// CPU time, user and system, of all threads that took part.
    pub(crate) cpu_s: f64,
}

impl Sample {
    fn rate(&self) -> f64 {
        float(self.bytes) / self.seconds
    }
}

/// All samples of one side of a comparison, in the order of measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    /// The side.
    pub(crate) name: String,
    /// Its samples.
    pub(crate) samples: Vec<Sample>,
}

impl Series {
    pub(crate) fn new(name: impl Into<String>, samples: Vec<Sample>) -> Self {
        Self { name: name.into(), samples }
    }

    /// Bytes per second, the median.
    pub(crate) fn rate(&self) -> f64 {
        median(self.samples.iter().map(Sample::rate))
    }

    /// The best rate in bytes per second: for limits, which nothing can exceed.
    pub(crate) fn best_rate(&self) -> f64 {
        self.samples.iter().map(Sample::rate).fold(0.0, f64::max)
    }

    /// The sample at a share of all, by time.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let mut sorted: Vec<f64> = self.samples.iter().map(|sample| sample.seconds).collect();
        sorted.sort_by(f64::total_cmp);
        let behind = |index: usize| float(index as u64 + 1) >= share * float(sorted.len() as u64);
        (0..sorted.len()).find(|index| behind(*index)).map_or(f64::NAN, |index| sorted[index])
    }

    /// CPU seconds per 10^9 bytes, the median.
    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        median(self.samples.iter().map(|s| s.cpu_s / (float(s.bytes) / 1e9)))
    }
}

/// A count as a float; counts here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "bytes and counts stay below 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// The middle value, or the mean of the two middle ones; NaN if empty.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

/// Times one move of `bytes` by this process.
pub(crate) fn timed(bytes: u64, run: impl FnOnce() -> Result<(), Stop>) -> Result<Sample, Stop> {
    let cpu = process_cpu_s();
    let start = Instant::now();
    run()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Sample { seconds, bytes, cpu_s: process_cpu_s() - cpu })
}

/// CPU seconds of all threads of this process so far.
fn process_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanoseconds = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    float(u64::try_from(nanoseconds).unwrap_or_default()) / 1e9
}

/// Takes `rounds` samples of each side in turn: A B A B …, after one discarded round. `run` gets
/// the side's number.
pub(crate) fn interleave<N: AsRef<str>>(
    rounds: usize,
    sides: &[N],
    mut run: impl FnMut(usize) -> Result<Sample, Stop>,
) -> Result<Vec<Series>, Stop> {
    let mut series: Vec<Series> =
        sides.iter().map(|name| Series::new(name.as_ref(), Vec::new())).collect();
    for round in 0..=rounds {
        for (side, series) in series.iter_mut().enumerate() {
            let sample = run(side)?;
            if round > 0 {
                series.samples.push(sample);
            }
        }
    }
    Ok(series)
}

/// The fastest of several sides, by median.
pub(crate) fn fastest(series: &[Series]) -> Result<&Series, Stop> {
    let fastest = series.iter().max_by(|a, b| a.rate().total_cmp(&b.rate()));
    fastest.ok_or_else(|| Stop::Fail("no side was measured".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()).to_bits(), 2.0_f64.to_bits());
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()).to_bits(), 2.5_f64.to_bits());
        assert!(median(std::iter::empty()).is_nan());
        let sample = |n| Sample { seconds: f64::from(n), ..Sample::default() };
        let series = Series::new("a", (1..=200).rev().map(sample).collect());
        assert!((series.percentile(0.99) - 198.0).abs() < 1e-9);
        assert!((series.percentile(0.5) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn sides_take_turns_and_the_first_round_is_not_kept() {
        let mut order = Vec::new();
        let series = interleave(2, &["a", "b"], |side| {
            order.push(side);
            Ok(Sample { seconds: 1.0, bytes: order.len() as u64, cpu_s: 0.0 })
        })
        .unwrap();
        assert_eq!(order, [0, 1, 0, 1, 0, 1]);
        let bytes: Vec<u64> = series[1].samples.iter().map(|s| s.bytes).collect();
        assert_eq!(bytes, [4, 6]);
        assert_eq!(fastest(&series).unwrap().name, "b");
    }
}

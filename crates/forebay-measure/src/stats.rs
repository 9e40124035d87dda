//! Statistics of samples. Pure.

use serde::{Deserialize, Serialize};

/// Median and range of some samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `samples`; `None` if there are no samples.
    #[must_use]
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let half = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[half]
        } else {
            f64::midpoint(sorted[half - 1], sorted[half])
        };
        Some(Self { median, min, max })
    }

    /// The range as a share of the median.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / self.median } else { 0.0 }
    }
}

/// A count or a size, to compute a rate or a ratio.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
pub const fn float(count: u64) -> f64 {
    count as f64
}

/// Bytes per second. A span too short for the clock counts as a nanosecond.
#[must_use]
pub fn rate(bytes: u64, seconds: f64) -> f64 {
    float(bytes) / seconds.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(odd, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert!((Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median - 2.5).abs() < 1e-12);
        assert_eq!(Spread::of([]), None);
        assert!((odd.relative() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn no_time_has_a_rate() {
        assert!(rate(1, 0.0).is_finite());
    }
}

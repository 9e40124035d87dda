//! The summary of several runs: the first, which is a warm-up, and the mean and the variation of
//! the others. Pure.

use serde::{Deserialize, Serialize};

use crate::bench::stats::{Spread, rate};

/// Runs closer together than this share of their mean are good.
const GOOD: f64 = 0.1;
/// Runs further apart are unstable.
const UNSTABLE: f64 = 0.5;
/// Ratios closer to one than this show no difference in whole per cent.
const EQUAL: f64 = 0.005;

/// The variation of runs, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Judgement {
    /// Less than a tenth of their mean.
    Good,
    /// More, up to half of it.
    Fair,
    /// More than that.
    Unstable,
}

impl Judgement {
    /// The judgement of a range of this share of the mean.
    #[must_use]
    pub fn of(variation: f64) -> Self {
        match variation {
            _ if variation < GOOD => Self::Good,
            _ if variation <= UNSTABLE => Self::Fair,
            _ => Self::Unstable,
        }
    }

    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Unstable => "unstable",
        }
    }
}

/// The runs of one method in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Runs {
    /// The rate of the first run.
    pub first: f64,
    /// The mean of the other runs' rates, or the first run's if it is the only one.
    pub mean: f64,
    /// Their median, from which ratios are computed.
    pub median: f64,
    /// The coefficient of variation of the other runs; null if there are fewer than two.
    pub variation: Option<f64>,
    /// The judgement in a word.
    pub judgement: Option<Judgement>,
}

impl Runs {
    /// The summary of runs of `bytes` each that took these seconds, with the spread of all but the
    /// first; `None` if there are none.
    #[must_use]
    pub fn of(bytes: u64, seconds: &[f64]) -> Option<(Self, Spread)> {
        let rates: Vec<f64> = seconds.iter().map(|seconds| rate(bytes, *seconds)).collect();
        Self::of_rates(&rates)
    }

    /// The same summary from rates.
    #[must_use]
    pub fn of_rates(rates: &[f64]) -> Option<(Self, Spread)> {
        let first = *rates.first()?;
        let rates = counted(rates);
        let spread = Spread::of(rates.iter().copied())?;
        let mean = mean(rates)?;
        let several = rates.len() > 1 && mean > 0.0;
        let variation = several.then(|| (spread.max - spread.min) / mean);
        let (median, judgement) = (spread.median, variation.map(Judgement::of));
        Some((Self { first, mean, median, variation, judgement }, spread))
    }
}

/// The samples that count: all but the first, unless it is the only one.
pub(crate) fn counted<T>(samples: &[T]) -> &[T] {
    if samples.len() > 1 { &samples[1..] } else { samples }
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 runs")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// A ratio of rates in words: `[+84 % faster]`, `[12 % slower]`, `[as fast]`.
pub(crate) fn faster(ratio: f64) -> String {
    match ratio {
        _ if (ratio - 1.0).abs() < EQUAL => "[as fast]".into(),
        _ if ratio > 1.0 => format!("[+{:.0} % faster]", (ratio - 1.0) * 100.0),
        _ => format!("[{:.0} % slower]", (1.0 - ratio) * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_run_does_not_count() {
        let (runs, spread) = Runs::of(1000, &[10.0, 1.0, 0.5]).unwrap();
        assert_eq!((runs.first, runs.mean, runs.median), (100.0, 1500.0, 1500.0));
        let (apart, _) = Runs::of_rates(&[9.0, 1.0, 2.0, 6.0]).unwrap();
        assert_eq!((apart.mean, apart.median), (3.0, 2.0));
        assert_eq!((spread.min, spread.median, spread.max), (1000.0, 1500.0, 2000.0));
        assert!((runs.variation.unwrap() - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(runs.judgement, Some(Judgement::Unstable));
        let (alone, _) = Runs::of(1000, &[2.0]).unwrap();
        assert_eq!((alone.first, alone.mean, alone.variation), (500.0, 500.0, None));
        let (two, _) = Runs::of(1000, &[2.0, 1.0]).unwrap();
        assert_eq!((two.mean, two.variation, two.judgement), (1000.0, None, None));
        assert_eq!(Runs::of(1000, &[]), None);
    }

    #[test]
    fn runs_are_judged_by_how_far_they_are_apart() {
        let judged = [0.0, 0.0999, 0.1, 0.5, 0.5001, 3.0].map(Judgement::of);
        let words = judged.map(Judgement::name);
        assert_eq!(words, ["good", "good", "fair", "fair", "unstable", "unstable"]);
    }

    #[test]
    fn ratios_have_a_sign_in_words() {
        let said = [1.84, 0.88, 1.0, 1.004, 0.996, 3.0, 0.0, 1.006].map(faster);
        assert_eq!(
            said,
            [
                "[+84 % faster]",
                "[12 % slower]",
                "[as fast]",
                "[as fast]",
                "[as fast]",
                "[+200 % faster]",
                "[100 % slower]",
                "[+1 % faster]"
            ]
        );
    }

    proptest! {
        #[test]
        fn what_is_said_lies_between_the_runs(
            seconds in prop::collection::vec(1e-6_f64..1e3, 1..20),
            bytes in 1_u64..1 << 40,
        ) {
            let (runs, spread) = Runs::of(bytes, &seconds).unwrap();
            let (low, high) = (spread.min * (1.0 - 1e-12), spread.max * (1.0 + 1e-12));
            prop_assert!(low <= runs.mean && runs.mean <= high);
            prop_assert_eq!(runs.variation.is_some(), seconds.len() > 2);
            prop_assert_eq!(runs.judgement.is_some(), seconds.len() > 2);
            prop_assert!(runs.variation.is_none_or(|share| share >= 0.0));
        }
    }
}

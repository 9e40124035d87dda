//! The summary of several runs: the first, which is a warm-up, and the mean and the variation of
//! the others. Pure.

use crate::bench::stats::Spread;

/// Runs closer together than this share of their mean are good.
const GOOD: f64 = 0.1;
/// Runs further apart are unstable.
const UNSTABLE: f64 = 0.5;
/// Ratios closer to one than this show no difference in whole per cent.
const EQUAL: f64 = 0.005;

/// The variation of runs, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Less than a tenth of their mean.
    Good,
    /// More, up to half of it.
    Fair,
    /// More than that.
    Unstable,
}

impl Judgement {
    /// The judgement of a range of this share of the mean.
    pub(super) fn of(variation: f64) -> Self {
        match variation {
            _ if variation < GOOD => Self::Good,
            _ if variation <= UNSTABLE => Self::Fair,
            _ => Self::Unstable,
        }
    }

    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Unstable => "unstable",
        }
    }
}

/// The runs of one method in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Runs {
    /// The rate of the first run.
    pub(super) first: f64,
    /// The mean of the other runs' rates, or the first run's if it is the only one.
    pub(super) mean: f64,
    /// Their median, from which ratios are computed.
    pub(super) median: f64,
    /// The range of the other runs as a share of their mean; `None` if there are fewer than two.
    pub(super) variation: Option<f64>,
    /// The judgement in a word.
    pub(super) judgement: Option<Judgement>,
}

impl Runs {
    /// The summary of the rates of runs; `None` if there are none.
    pub(super) fn of(rates: &[f64]) -> Option<Self> {
        let first = *rates.first()?;
        let rates = counted(rates);
        let spread = Spread::of(rates.iter().copied())?;
        let mean = mean(rates)?;
        let several = rates.len() > 1 && mean > 0.0;
        let variation = several.then(|| (spread.max - spread.min) / mean);
        let (median, judgement) = (spread.median, variation.map(Judgement::of));
        Some(Self { first, mean, median, variation, judgement })
    }
}

/// The samples that count: all but the first, unless it is the only one.
pub(super) fn counted<T>(samples: &[T]) -> &[T] {
    if samples.len() > 1 { &samples[1..] } else { samples }
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 runs")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// A ratio of rates in words: `+84 % faster`, `12 % slower`, `as fast`.
pub(super) fn faster(ratio: f64) -> String {
    match ratio {
        _ if (ratio - 1.0).abs() < EQUAL => "as fast".into(),
        _ if ratio > 1.0 => format!("+{:.0} % faster", (ratio - 1.0) * 100.0),
        _ => format!("{:.0} % slower", (1.0 - ratio) * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_does_not_count() {
        let runs = Runs::of(&[100.0, 1000.0, 2000.0]).unwrap();
        assert_eq!((runs.first, runs.mean, runs.median), (100.0, 1500.0, 1500.0));
        assert!((runs.variation.unwrap() - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(runs.judgement, Some(Judgement::Unstable));
        let apart = Runs::of(&[9.0, 1.0, 2.0, 6.0]).unwrap();
        assert_eq!((apart.mean, apart.median), (3.0, 2.0));
        let alone = Runs::of(&[500.0]).unwrap();
        assert_eq!((alone.first, alone.mean, alone.variation), (500.0, 500.0, None));
        let two = Runs::of(&[500.0, 1000.0]).unwrap();
        assert_eq!((two.mean, two.variation, two.judgement), (1000.0, None, None));
        assert_eq!(Runs::of(&[]), None);
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
                "+84 % faster",
                "12 % slower",
                "as fast",
                "as fast",
                "as fast",
                "+200 % faster",
                "100 % slower",
                "+1 % faster"
            ]
        );
    }
}

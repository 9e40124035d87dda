//! A ratio of two medians, and its error. Pure.
//!
//! Everything is computed with logarithms, so that a ratio and its reciprocal have the same error.
//! A side's standard error of the median is that of a bootstrap of its samples, computed exactly
//! instead of drawn, so there is no seed (J. S. Maritz, R. G. Jarrett, 1978). Both errors together
//! make an interval by Student's distribution, with the degrees of freedom of so few samples (B. L.
//! Welch, 1947). Fewer than three samples have none: it would span orders of magnitude.

use forebay_measure::stats::Spread;

use super::numbers::percent;
use super::student::{beta_share, quantile, tail};

/// Samples that an interval needs.
pub const SAMPLES_MIN: usize = 3;
/// The confidence level of intervals.
pub const CONFIDENCE: f64 = 0.95;
/// Medians with a larger deviation are marked with `~`.
pub const SPREAD_MAX: f64 = 0.25;
/// The least standard error of a median, relative to it. Latencies are resolved to one part in a
/// thousand, and an error that is uniform over that step has a deviation of 0.001 / √12.
pub const ERROR_MIN: f64 = 3e-4;
/// The least standard error of values from other tools: buckets of fio's percentiles are a
/// sixty-fourth wide, and tables have two or three digits.
pub const ERROR_MIN_IMPORTED: f64 = 1e-2;

/// The squared standard error of the median of sorted samples, and its degrees of freedom: the
/// variance of the medians of all bootstrap draws with replacement.
#[expect(clippy::cast_precision_loss, reason = "a number of samples")]
fn error(sorted: &[f64], error_min: f64) -> Option<(f64, f64)> {
    let count = sorted.len() as f64;
    if sorted.len() < SAMPLES_MIN {
        return None;
    }
    let half = f64::midpoint(count, 1.0);
    let below = |samples: usize| beta_share(samples as f64 / count, half, half);
    // The probabilities that the samples are the median of a draw.
    let weights: Vec<f64> = (0..sorted.len()).map(|at| below(at + 1) - below(at)).collect();
    let mean: f64 = sorted.iter().zip(&weights).map(|(log, weight)| log * weight).sum();
    let off = |log: &f64| (log - mean) * (log - mean);
    let square: f64 = sorted.iter().zip(&weights).map(|(log, weight)| off(log) * weight).sum();
    Some((square + error_min * error_min, count - 1.0))
}

/// The median of some samples of a quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// How many samples there were.
    pub count: usize,
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The confidence interval; `None` for few samples, or samples that are not positive numbers.
    pub interval: Option<(f64, f64)>,
}

impl Estimate {
    /// The estimate; `None` if no sample is a number.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let finite: Vec<f64> = samples.iter().copied().filter(|one| one.is_finite()).collect();
        let Spread { median, min, max } = Spread::of(finite.iter().copied())?;
        let interval = Ratio::median(&finite, ERROR_MIN).and_then(|median| median.interval());
        Some(Self { count: finite.len(), median, min, max, interval })
    }

    /// Half of the interval as a share of the median: the `±` of every table.
    #[must_use]
    pub fn deviation(&self) -> Option<f64> {
        let (low, high) = self.interval?;
        Some((high - low) / 2.0 / self.median)
    }

    /// Whether the deviation is known and below 100 %. Without it, no ratio is shown.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.deviation().is_some_and(|half| half < 1.0)
    }

    /// The deviation for people. It is never empty: a number with an unknown error must not look
    /// better than others.
    #[must_use]
    pub fn spread(&self) -> String {
        let text = match self.deviation() {
            Some(_) if !self.is_known() => return "too noisy".into(),
            Some(half) => percent(half),
            None if self.count < SAMPLES_MIN => format!("n = {}", self.count),
            None => "unknown".into(),
        };
        if self.is_unsteady() { format!("~{text}") } else { text }
    }

    /// Whether the median is hardly known.
    #[must_use]
    pub fn is_unsteady(&self) -> bool {
        self.deviation().is_some_and(|half| half > SPREAD_MAX)
    }
}

/// The ratio of a median to a second median, or to 1, as a logarithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    log: f64,
    /// The square of its standard error, and its degrees of freedom; none for few samples.
    error: Option<(f64, f64)>,
}

impl Ratio {
    /// The median of some samples; `None` if there is none, or one that is not a positive number.
    fn median(samples: &[f64], error_min: f64) -> Option<Self> {
        let logs = samples.iter().map(|sample| Some(sample.ln()).filter(|log| log.is_finite()));
        let mut logs = logs.collect::<Option<Vec<f64>>>()?;
        logs.sort_by(f64::total_cmp);
        let (lower, upper) = (logs.get(logs.len().checked_sub(1)? / 2)?, logs[logs.len() / 2]);
        // The logarithm of their mean, as in `Estimate`: a table's ratio fits its medians.
        let log = upper + f64::midpoint((lower - upper).exp(), 1.0).ln();
        Some(Self { log, error: error(&logs, error_min) })
    }

    /// The median of `other` over that of `base`, neither with a standard error below `error_min`;
    /// `None` if either has no sample, or one that is not a positive number.
    #[must_use]
    pub fn of(base: &[f64], other: &[f64], error_min: f64) -> Option<Self> {
        let (base, other) = (Self::median(base, error_min)?, Self::median(other, error_min)?);
        let error = base.error.zip(other.error).map(|(a, b)| together(&[a, b]));
        Some(Self { log: other.log - base.log, error })
    }

    /// The geometric mean of the ratios. Its error follows from their errors; their spread is
    /// not part of it.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number of points")]
    pub fn mean(ratios: &[Self]) -> Option<Self> {
        if ratios.is_empty() {
            return None;
        }
        let count = ratios.len() as f64;
        let log = ratios.iter().map(|ratio| ratio.log / count).sum();
        let errors: Option<Vec<(f64, f64)>> = ratios.iter().map(|ratio| ratio.error).collect();
        let error = errors.map(|errors| {
            let (square, freedom) = together(&errors);
            (square / (count * count), freedom)
        });
        Some(Self { log, error })
    }

    /// The ratio.
    #[must_use]
    pub fn value(&self) -> f64 {
        exp(self.log)
    }

    /// The confidence interval; `None` for too few samples of a side.
    #[must_use]
    pub fn interval(&self) -> Option<(f64, f64)> {
        let (square, freedom) = self.error?;
        let off = quantile(1.0 - CONFIDENCE, freedom) * square.sqrt();
        Some((exp(self.log - off), exp(self.log + off)))
    }

    /// The probability that equal medians would differ at least this much.
    #[must_use]
    pub fn chance(&self) -> Option<f64> {
        let (square, freedom) = self.error?;
        Some(tail(self.log / square.sqrt(), freedom))
    }

    /// The probability of a ratio at least this far beyond `limit`, above or below it, if the true
    /// ratio is `limit`.
    #[must_use]
    pub fn chance_beyond(&self, limit: f64, above: bool) -> Option<f64> {
        let (square, freedom) = self.error?;
        let off = self.log - limit.ln();
        let t = if above { off } else { -off } / square.sqrt();
        let one_side = tail(t, freedom) / 2.0;
        Some(if t > 0.0 { one_side } else { 1.0 - one_side })
    }
}

/// The exponential, limited to the positive finite numbers that JSON can represent.
fn exp(log: f64) -> f64 {
    log.exp().clamp(f64::MIN_POSITIVE, f64::MAX)
}

/// The sum of squared standard errors, and its degrees of freedom.
fn together(errors: &[(f64, f64)]) -> (f64, f64) {
    let square: f64 = errors.iter().map(|(square, _)| square).sum();
    let parts: f64 = errors.iter().map(|(own, freedom)| own * own / freedom).sum();
    (square, square * square / parts)
}

/// Corrects several p-values for multiple testing (S. Holm, 1979): with a limit of `1 -
/// CONFIDENCE`, 19 of 20 such tables report no false difference.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a number of points")]
pub fn holm(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|a, b| chances[*a].total_cmp(&chances[*b]));
    let mut adjusted = vec![1.0; chances.len()];
    let mut most = 0.0_f64;
    for (passed, index) in order.into_iter().enumerate() {
        most = most.max(chances[index] * (chances.len() - passed) as f64).min(1.0);
        adjusted[index] = most;
    }
    adjusted
}

#[cfg(test)]
mod tests;

//! The summary of a point's samples: the median and its confidence interval.
//!
//! Pure: the same samples give the same numbers everywhere, since the bootstrap's draws have a
//! fixed seed. Values that are not numbers are ignored.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Sample;
use crate::bench::stats::Spread;

/// Resamples of one bootstrap: with as many, the ends of the interval vary less than the samples.
const RESAMPLES: usize = 1000;
/// Most samples of a bootstrap. For more, ranks give the same interval, and drawing would take
/// long.
const DRAWN_MAX: usize = 32;
/// The seed of the draws.
const SEED: u64 = 0x666f_7265_6261_7931;

/// The estimate of one quantity from some samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// How many samples there were.
    pub count: usize,
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The confidence interval of the median; null for one sample.
    pub interval: Option<(f64, f64)>,
    /// A lower bound of the probability that the interval holds the sampled median, from 0 to 1:
    /// with three samples no interval exceeds 3 in 4.
    pub confidence: Option<f64>,
}

impl Estimate {
    /// The estimate from `samples`; `None` if none of them is a number.
    #[must_use]
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> =
            samples.into_iter().filter(|sample| sample.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let Spread { median, min, max } = Spread::of(sorted.iter().copied())?;
        // The mean of two large numbers may overflow.
        let median = if median.is_finite() { median } else { sorted[sorted.len() / 2] };
        let interval = interval(&sorted);
        let confidence = interval.map(|interval| confidence(&sorted, interval));
        Some(Self { count: sorted.len(), median, min, max, interval, confidence })
    }

    /// The interval; without one, from the smallest to the largest.
    #[must_use]
    pub fn range(&self) -> (f64, f64) {
        self.interval.unwrap_or((self.min, self.max))
    }
}

/// The bootstrap interval of the median of sorted samples.
fn interval(sorted: &[f64]) -> Option<(f64, f64)> {
    match sorted.len() {
        0 | 1 => None,
        len if len > DRAWN_MAX => Some(by_ranks(sorted)),
        _ => Some(by_draws(sorted)),
    }
}

/// A lower bound of the probability that the sampled median is in an interval of sorted samples:
/// between the samples at its ends, whose ranks are binomial. From the smallest to the largest of
/// `n` it is 1 − 2^(1−n).
#[expect(clippy::cast_precision_loss, reason = "some samples")]
fn confidence(sorted: &[f64], (low, high): (f64, f64)) -> f64 {
    let count = sorted.len();
    if count > DRAWN_MAX {
        // `by_ranks` chooses the ranks for 95 %.
        return 0.95;
    }
    let first = sorted.partition_point(|sample| *sample < low);
    let last = sorted.partition_point(|sample| *sample <= high);
    // The probability that this many samples of all are below the median.
    let mut likely = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut sum = 0.0;
    for below in 0..last {
        if below > first {
            sum += likely;
        }
        likely *= (count - below) as f64 / (below + 1) as f64;
    }
    sum
}

/// The samples around the median, by the spread of ranks: the count of samples below it is
/// binomial.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "half of the root of a count"
)]
fn by_ranks(sorted: &[f64]) -> (f64, f64) {
    let count = sorted.len();
    let off = (1.96 * (count as f64).sqrt() / 2.0).ceil() as usize;
    let middle = count / 2;
    (sorted[middle.saturating_sub(off)], sorted[(middle + off).min(count - 1)])
}

/// The interval by repeated draws with replacement.
fn by_draws(sorted: &[f64]) -> (f64, f64) {
    let count = sorted.len();
    let mut state = SEED;
    let mut times = vec![0_usize; count];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            times.fill(0);
            (0..count).for_each(|_| times[below(&mut state, count)] += 1);
            f64::midpoint(sorted[nth(&times, (count - 1) / 2)], sorted[nth(&times, count / 2)])
        })
        .filter(|median| median.is_finite())
        .collect();
    medians.sort_by(f64::total_cmp);
    let cut = medians.len() / 40;
    match (medians.get(cut), medians.get(medians.len().saturating_sub(cut + 1))) {
        (Some(low), Some(high)) => (*low, *high),
        _ => (sorted[0], sorted[count - 1]),
    }
}

/// The sample at `place` in the sorted draw, from how often each was drawn.
fn nth(times: &[usize], place: usize) -> usize {
    let mut passed = 0;
    let found = times.iter().position(|count| {
        passed += count;
        passed > place
    });
    found.unwrap_or(times.len() - 1)
}

/// The next draw, from 0 to one below `count` (`SplitMix64`).
#[expect(clippy::cast_possible_truncation, reason = "it is below a count of samples")]
fn below(state: &mut u64, count: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    ((u128::from(mixed) * count as u128) >> 64) as usize
}

/// The samples of one point in one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Group<'a> {
    /// Which run, by the number that the caller gave it.
    pub run: usize,
    /// Its samples of one point, in the order of the file.
    pub samples: Vec<&'a Sample>,
}

/// Groups samples by run and point, in the order of their first samples. Runs with the same number
/// are one: a continued file has several records of its run.
#[must_use]
pub fn groups<'a>(samples: impl IntoIterator<Item = (usize, &'a Sample)>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places: HashMap<(usize, String), usize> = HashMap::new();
    for (run, sample) in samples {
        // A point is text, numbers and names: equal points have equal JSON.
        let key = serde_json::to_string(&sample.point).unwrap_or_default();
        let place = *places.entry((run, key)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.samples.push(sample),
            None => groups.push(Group { run, samples: vec![sample] }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_sample_has_no_interval() {
        let one = Estimate::of([3.0]).unwrap();
        assert_eq!((one.count, one.median, one.interval), (1, 3.0, None));
        assert_eq!(one.range(), (3.0, 3.0));
        assert_eq!(Estimate::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Estimate::of([f64::NAN, 2.0]).unwrap().count, 1);
        assert!(Estimate::of([f64::MAX, f64::MAX]).unwrap().median.is_finite());
    }

    #[test]
    fn more_samples_make_the_interval_narrower() {
        let width = |count: usize| {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let samples = (0..count).map(|n| ((n * 7919) % 1000) as f64);
            let (low, high) = Estimate::of(samples).unwrap().range();
            high - low
        };
        // Draws up to 32 samples, ranks above.
        let widths = [8, 32, 33, 1000].map(width);
        assert!(widths[0] > widths[1] && widths[2] > widths[3], "{widths:?}");
        assert!((widths[1] - widths[2]).abs() < 0.3 * widths[1], "{widths:?}");
    }

    #[test]
    fn the_interval_of_known_samples_is_that_of_its_draws() {
        // Of three samples the smallest is the median of a draw in 7 of 27 cases.
        assert_eq!(Estimate::of([1.0, 2.0, 9.0]).unwrap().interval, Some((1.0, 9.0)));
        // The two smallest of nine occur in 1.5 % at most, so they are cut off.
        let nine = Estimate::of((1..=9).map(f64::from)).unwrap();
        let (low, high) = nine.interval.unwrap();
        assert!((2.0..=4.0).contains(&low) && (6.0..=8.0).contains(&high), "{nine:?}");
    }

    #[test]
    fn few_samples_hold_the_median_less_likely() {
        let of = |count: i32| Estimate::of((0..count).map(f64::from)).unwrap().confidence;
        assert_eq!(
            [1, 2, 3, 4, 5].map(of),
            [None, Some(0.5), Some(0.75), Some(0.875), Some(0.9375)]
        );
        // Of nine samples: 210 of 256 from the third to the seventh, 255 of 256 from end to end.
        let nine = of(9).unwrap();
        assert!(nine > 0.6 && nine < 0.97, "{nine}");
        for count in [33, 100] {
            assert_eq!(of(count), Some(0.95));
        }
    }

    /// The stated confidence is true: checked with many small runs from a distribution with known
    /// median.
    #[test]
    fn the_confidence_is_how_often_the_interval_holds_the_median() {
        let mut state = 7;
        for count in [2, 3, 5, 8, 20] {
            let runs = 400;
            let (mut held, mut said) = (0.0, 0.0);
            for _ in 0..runs {
                let samples = (0..count).map(|_| below(&mut state, 1_000_001) as f64);
                let found = Estimate::of(samples).unwrap();
                let (low, high) = found.range();
                held += f64::from(u8::from(low <= 500_000.0 && 500_000.0 <= high));
                said += found.confidence.unwrap();
            }
            let (held, said) = (held / f64::from(runs), said / f64::from(runs));
            // Three times the deviation of so many runs; the seed is fixed.
            assert!(held > said - 0.075, "{count}: {held} {said}");
            assert!(count > 5 || held < said + 0.075, "{count}: {held} {said}");
        }
    }

    proptest! {
        // Each case draws a thousand times.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn an_estimate_is_ordered_and_knows_no_order(
            mut samples in prop::collection::vec(any::<f64>(), 0..100)
        ) {
            let found = Estimate::of(samples.iter().copied());
            prop_assert_eq!(found.is_some(), samples.iter().any(|sample| sample.is_finite()));
            if let Some(found) = found {
                let (low, high) = found.range();
                prop_assert!(found.min <= low && low <= high && high <= found.max, "{:?}", found);
                prop_assert!(low <= found.median && found.median <= high, "{:?}", found);
            }
            samples.reverse();
            prop_assert_eq!(Estimate::of(samples), found);
        }

        #[test]
        fn an_estimate_grows_with_its_samples(
            samples in prop::collection::vec(0.0..1e12, 2..30), factor in 1.0..1000.0
        ) {
            let one = Estimate::of(samples.iter().copied()).unwrap();
            let more = Estimate::of(samples.iter().map(|sample| sample * factor)).unwrap();
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
            prop_assert!(near(one.median * factor, more.median));
            prop_assert!(near(one.range().0 * factor, more.range().0));
            prop_assert!(near(one.range().1 * factor, more.range().1));
        }
    }
}

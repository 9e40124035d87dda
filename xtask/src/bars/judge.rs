//! Samples, their medians, and bounds.

use forebay_measure::stats::Spread;
use serde::Serialize;

use super::run::Stop;

/// The head of the table.
pub(super) const HEAD: &str =
    "bar                 what                                          measured    bound  verdict";

/// A measurement of a side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Sample {
    /// Bytes per second.
    pub(super) rate: f64,
    /// The 50th, 90th and 99th percentile of the latency, in nanoseconds.
    pub(super) quantiles: [f64; 3],
    /// How many cores were busy.
    pub(super) cores: f64,
}

/// The samples of a row, in the order of measurement.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    /// The number of its side.
    pub(super) side: usize,
    /// The number of its load.
    pub(super) load: usize,
    /// Whether several drives worked concurrently.
    pub(super) of_several: bool,
    pub(super) samples: Vec<Sample>,
}

impl Series {
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let spread = Spread::of(self.samples.iter().map(of));
        spread.map_or(f64::NAN, |spread| spread.median)
    }

    fn rate(&self) -> f64 {
        self.median(|sample| sample.rate)
    }

    fn quantile(&self, place: usize) -> f64 {
        self.median(|sample| sample.quantiles[place])
    }
}

/// A bound for medians. The first side is judged.
#[derive(Debug, Clone, Copy)]
pub(super) enum Check {
    /// Its best rate is at least this share of the best rate of all other sides.
    Rate(f64),
    /// The same for every load.
    RateOfEach(f64),
    /// With every load its p99 is at most this multiple of the second side's.
    P99OfEach(f64),
    /// With every load the rates of both sides differ by at most this share.
    RatesAgree(f64),
    /// With every load p50 and p90 of both sides differ by at most this share.
    MediansAgree(f64),
    /// All drives together reach at least this share of the sum of their rates.
    Sum(f64),
    /// At least this many bytes per second.
    AtLeast(f64),
    /// At most this many cores are busy.
    Cores(f64),
}

/// A value and its bound.
#[derive(Debug, PartialEq)]
struct Row {
    what: String,
    value: f64,
    bound: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Row {
    /// Whether the bound is met; a value that is not a number meets none.
    fn holds(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.value >= bound,
            Bound::AtMost(bound) => self.value <= bound,
        }
    }
}

impl Check {
    fn rows(self, series: &[Series]) -> Vec<Row> {
        let best = |is_own: bool| {
            let wanted = series.iter().filter(|one| (one.side == 0) == is_own);
            wanted.map(Series::rate).fold(f64::NAN, f64::max)
        };
        let row = |what: &str, value, bound| vec![Row { what: what.into(), value, bound }];
        // The ratio of both sides by load, or its distance from 1.
        let pairs = |what: &str, of: &dyn Fn(&Series) -> f64, is_apart: bool, bound: Bound| {
            let own = series.iter().filter(|one| one.side == 0);
            let rows = own.filter_map(|own| {
                let other =
                    series.iter().find(|other| other.side == 1 && other.load == own.load)?;
                let ratio = of(own) / of(other);
                let value = if is_apart { (ratio - 1.0).abs() } else { ratio };
                Some(Row { what: format!("{what}, {}", own.name), value, bound })
            });
            rows.collect::<Vec<_>>()
        };
        match self {
            Self::Rate(bound) => {
                row("rate of the best other", best(true) / best(false), Bound::AtLeast(bound))
            }
            Self::RateOfEach(bound) => pairs("rate", &Series::rate, false, Bound::AtLeast(bound)),
            Self::P99OfEach(bound) => {
                pairs("p99", &|one| one.quantile(2), false, Bound::AtMost(bound))
            }
            Self::RatesAgree(share) => {
                pairs("rates apart", &Series::rate, true, Bound::AtMost(share))
            }
            Self::MediansAgree(share) => [("p50 apart", 0), ("p90 apart", 1)]
                .into_iter()
                .flat_map(|(what, place)| {
                    pairs(what, &|one| one.quantile(place), true, Bound::AtMost(share))
                })
                .collect(),
            Self::Sum(bound) => {
                let (all, alone): (Vec<&Series>, Vec<_>) =
                    series.iter().partition(|one| one.of_several);
                let sum = |some: &[&Series]| some.iter().map(|one| one.rate()).sum::<f64>();
                row("sum of the drives", sum(&all) / sum(&alone), Bound::AtLeast(bound))
            }
            Self::AtLeast(bound) => row("GB/s", best(true) / 1e9, Bound::AtLeast(bound / 1e9)),
            Self::Cores(bound) => {
                let most = series.iter().map(|one| one.median(|sample| sample.cores));
                row("cores", most.fold(f64::NAN, f64::max), Bound::AtMost(bound))
            }
        }
    }
}

/// A bar's results.
#[derive(Debug)]
pub(super) struct Judged {
    rows: Vec<Row>,
    pub(super) series: Vec<Series>,
    pub(super) stopped: Option<Stop>,
}

impl Judged {
    pub(super) fn new(checks: &[Check], series: Vec<Series>) -> Self {
        let rows = checks.iter().flat_map(|check| check.rows(&series)).collect();
        Self { rows, series, stopped: None }
    }

    pub(super) fn stopped(stop: Stop) -> Self {
        Self { rows: Vec::new(), series: Vec::new(), stopped: Some(stop) }
    }

    pub(super) fn is_missed(&self) -> bool {
        self.rows.iter().any(|row| !row.holds())
    }

    /// Its lines in the table: a line per bound, then the medians per series.
    pub(super) fn lines(&self, bar: &str, is_judged: bool) -> Vec<String> {
        if let Some(stop) = &self.stopped {
            let (word, reason) = stop.words();
            return vec![format!("{bar:<19} {word}: {reason}")];
        }
        let rows = self.rows.iter().map(|row| {
            let verdict = match (is_judged, row.holds()) {
                (false, _) => "not judged",
                (true, true) => "pass",
                (true, false) => "fail",
            };
            let bound = match row.bound {
                Bound::AtLeast(bound) => format!(">= {bound:.3}"),
                Bound::AtMost(bound) => format!("<= {bound:.3}"),
            };
            format!("{bar:<19} {:<44} {:>9.3} {bound:>9}  {verdict}", row.what, row.value)
        });
        let series = self.series.iter().map(|series| {
            let [p50, p90, p99] = [0, 1, 2].map(|place| series.quantile(place) / 1e3);
            format!(
                "    {}: {:.3} GB/s, µs p50 {p50:.0}, p90 {p90:.0}, p99 {p99:.0}, {:.3} cores",
                series.name,
                series.rate() / 1e9,
                series.median(|sample| sample.cores)
            )
        });
        rows.chain(series).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(side: usize, load: usize, rates: &[f64], quantiles: [f64; 3]) -> Series {
        let sample = |rate: &f64| Sample { rate: *rate, quantiles, cores: 0.5 };
        let samples = rates.iter().map(sample).collect();
        Series { name: "row".into(), side, load, of_several: load > 8, samples }
    }

    fn held(check: Check, series: &[Series]) -> Vec<bool> {
        check.rows(series).iter().map(Row::holds).collect()
    }

    #[test]
    fn bounds_are_inclusive_and_nan_meets_none() {
        let rows = |value, bound| Row { what: String::new(), value, bound }.holds();
        assert!(rows(0.97, Bound::AtLeast(0.97)) && !rows(0.96, Bound::AtLeast(0.97)));
        assert!(rows(1.1, Bound::AtMost(1.1)) && !rows(1.2, Bound::AtMost(1.1)));
        assert!(!rows(f64::NAN, Bound::AtMost(1.1)) && !rows(f64::NAN, Bound::AtLeast(0.1)));
        assert_eq!(held(Check::Rate(0.5), &[]), [false], "nothing was measured");
    }

    #[test]
    fn the_best_row_of_each_side_counts() {
        let all = [
            series(0, 0, &[90.0, 10.0, 96.0], [1.0; 3]),
            series(0, 1, &[98.0], [1.0; 3]),
            series(1, 0, &[100.0], [1.0; 3]),
            series(2, 0, &[50.0], [1.0; 3]),
        ];
        assert_eq!(held(Check::Rate(0.97), &all), [true]);
        assert_eq!(held(Check::Rate(0.99), &all), [false]);
        assert_eq!(held(Check::RateOfEach(0.9), &all), [true], "the median of the first is 90");
        assert_eq!(held(Check::RateOfEach(0.91), &all), [false]);
        assert_eq!(held(Check::AtLeast(98.0), &all), [true]);
        assert_eq!(held(Check::Cores(0.4), &all), [false]);
    }

    #[test]
    fn rates_and_latencies_agree_within_their_bounds() {
        let pair = |rate, quantiles| {
            [series(0, 0, &[rate], quantiles), series(1, 0, &[100.0], [10.0, 20.0, 30.0])]
        };
        let near = pair(104.0, [10.9, 19.0, 36.0]);
        assert_eq!(held(Check::RatesAgree(0.05), &near), [true]);
        assert_eq!(held(Check::MediansAgree(0.1), &near), [true; 2]);
        assert_eq!(held(Check::P99OfEach(1.2), &near), [true]);
        let far = pair(90.0, [12.0, 16.0, 37.0]);
        assert_eq!(held(Check::RatesAgree(0.05), &far), [false]);
        assert_eq!(held(Check::MediansAgree(0.1), &far), [false; 2]);
        assert_eq!(held(Check::P99OfEach(1.2), &far), [false]);
    }

    #[test]
    fn drives_at_once_are_compared_with_their_sum() {
        let all = [series(0, 0, &[50.0], [1.0; 3]), series(0, 1, &[50.0], [1.0; 3])];
        let with = |rate: f64| [&all[..], &[series(0, 9, &[rate], [1.0; 3])]].concat();
        assert_eq!(held(Check::Sum(0.97), &with(97.0)), [true]);
        assert_eq!(held(Check::Sum(0.97), &with(96.0)), [false]);
        let judged = Judged::new(&[Check::Sum(0.97)], with(96.0));
        assert!(judged.is_missed());
        assert!(judged.lines("a", true)[0].ends_with("0.960  >= 0.970  fail"));
        assert!(judged.lines("a", false)[0].ends_with("not judged"));
    }
}

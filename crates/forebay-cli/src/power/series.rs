//! Samples of one source over time, and their summary over a part of it. Pure.
//!
//! An energy counter is interpolated linearly at the start and end of the part; readings missed in
//! between do no harm. Power is an instantaneous value: it is interpolated linearly between
//! readings, and unknown where no reading is near.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Most readings of one source: at ten a second nearly two hours.
const KEPT_MAX: usize = 1 << 16;

/// Readings, in the order of time.
#[derive(Debug, Clone)]
pub(super) struct Series<T> {
    samples: VecDeque<(Instant, T)>,
}

/// The average of a source over a span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Average {
    /// Over the covered part.
    pub(super) watts: f64,
    /// The covered part of the span, from 0 to 1.
    pub(super) covered: f64,
    /// Readings within the span.
    pub(super) samples: u64,
    /// How often a reading within the span differed from the one before.
    pub(super) moves: u64,
}

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self { samples: VecDeque::new() }
    }
}

impl<T: Copy + PartialEq> Series<T> {
    /// Adds a reading. One older than the last is dropped.
    pub(super) fn push(&mut self, at: Instant, value: T) {
        if self.samples.back().is_some_and(|(last, _)| *last >= at) {
            return;
        }
        if self.samples.len() == KEPT_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back((at, value));
    }

    /// When the last reading was taken.
    pub(super) fn last(&self) -> Option<Instant> {
        self.samples.back().map(|(at, _)| *at)
    }

    /// The value that held as the span began, read no more than `reach` before, and the readings
    /// within it.
    pub(super) fn within(
        &self,
        start: Instant,
        end: Instant,
        reach: Duration,
    ) -> impl Iterator<Item = T> {
        let first = self.samples.partition_point(|(at, _)| *at <= start).saturating_sub(1);
        let known = move |at: &Instant| *at + reach >= start;
        let since = self.samples.range(first..).skip_while(move |(at, _)| !known(at));
        since.take_while(move |(at, _)| *at <= end).map(|(_, value)| *value)
    }

    /// Readings within a span, and how often one differed from the one before.
    fn counts(&self, start: Instant, end: Instant) -> (u64, u64) {
        let (mut samples, mut moves, mut before) = (0, 0, None);
        for (at, value) in self.samples.iter().take_while(|(at, _)| *at <= end) {
            if *at >= start {
                samples += 1;
                moves += u64::from(before.is_some_and(|before| before != *value));
            }
            before = Some(*value);
        }
        (samples, moves)
    }
}

impl Series<f64> {
    /// The average power of a counter of joules.
    pub(super) fn of_energy(&self, start: Instant, end: Instant) -> Option<Average> {
        let (first, last) = (self.samples.front()?.0, self.samples.back()?.0);
        let (from, to) = (start.max(first), end.min(last));
        let seconds = to.saturating_duration_since(from).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let watts = (self.at(to)? - self.at(from)?) / seconds;
        let (samples, moves) = self.counts(start, end);
        Some(Average { watts, covered: share(seconds, start, end), samples, moves })
    }

    /// The average of power readings in watts; none is valid at times more than `reach` away.
    pub(super) fn of_power(
        &self,
        start: Instant,
        end: Instant,
        reach: Duration,
    ) -> Option<Average> {
        let (mut joules, mut seconds) = (0.0, 0.0);
        let mut add = |from: (Instant, f64), to: (Instant, f64)| {
            let line = |at: Instant| {
                let whole = to.0.saturating_duration_since(from.0).as_secs_f64();
                let part = at.saturating_duration_since(from.0).as_secs_f64();
                if whole > 0.0 { from.1 + (to.1 - from.1) * (part / whole) } else { from.1 }
            };
            let (first, last) = (from.0.max(start), to.0.min(end));
            let part = last.saturating_duration_since(first).as_secs_f64();
            joules += part * f64::midpoint(line(first), line(last));
            seconds += part;
        };
        let mut before: Option<(Instant, f64)> = None;
        for &now in &self.samples {
            match before {
                Some(before) if now.0.saturating_duration_since(before.0) <= 2 * reach => {
                    add(before, now);
                }
                _ => {
                    if let Some(before) = before {
                        add(before, (before.0 + reach, before.1));
                    }
                    add((now.0.checked_sub(reach).unwrap_or(now.0), now.1), now);
                }
            }
            before = Some(now);
        }
        let last = before?;
        add(last, (last.0 + reach, last.1));
        let (samples, moves) = self.counts(start, end);
        let covered = share(seconds, start, end);
        (seconds > 0.0).then(|| Average { watts: joules / seconds, covered, samples, moves })
    }

    /// The value at a time between the first reading and the last.
    fn at(&self, time: Instant) -> Option<f64> {
        let next = self.samples.partition_point(|(at, _)| *at < time);
        let (to, after) = *self.samples.get(next)?;
        let Some(&(from, before)) = next.checked_sub(1).and_then(|index| self.samples.get(index))
        else {
            return Some(after);
        };
        let whole = to.saturating_duration_since(from).as_secs_f64();
        let part = time.saturating_duration_since(from).as_secs_f64();
        Some(if whole > 0.0 { before + (after - before) * (part / whole) } else { after })
    }
}

/// The share of `seconds` in a span; limited to 1 in spite of rounding.
fn share(seconds: f64, start: Instant, end: Instant) -> f64 {
    let whole = end.saturating_duration_since(start).as_secs_f64();
    if whole > 0.0 { (seconds / whole).min(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn series(begun: Instant, samples: &[(u64, f64)]) -> Series<f64> {
        let mut series = Series::default();
        samples.iter().for_each(|(at, value)| series.push(begun + ms(*at), *value));
        series
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0)
    }

    #[test]
    fn a_counter_is_read_at_the_edges_and_a_hole_within_costs_nothing() {
        let t = Instant::now();
        // 100 W for a second, then 300 W, with nothing in between.
        let series = series(t, &[(0, 0.0), (1000, 100.0), (3000, 700.0)]);
        let over = |from: u64, to: u64| series.of_energy(t + ms(from), t + ms(to)).unwrap();
        assert!(close(over(0, 1000).watts, 100.0) && close(over(0, 3000).watts, 700.0 / 3.0));
        let part = over(500, 2000);
        assert!(close(part.watts, (50.0 + 300.0) / 1.5), "{part:?}");
        assert_eq!((part.samples, part.moves), (1, 1));
        assert!(close(part.covered, 1.0));
        let half = over(2000, 4000);
        assert!(close(half.covered, 0.5) && close(half.watts, 300.0), "{half:?}");
        assert!(series.of_energy(t + ms(3000), t + ms(4000)).is_none());
        assert!(Series::default().of_energy(t, t + ms(1)).is_none());
    }

    #[test]
    fn power_holds_from_reading_to_reading_and_no_further_than_it_reaches() {
        let t = Instant::now();
        let series = series(t, &[(1000, 100.0), (2000, 200.0), (9000, 50.0)]);
        let over = |from: u64, to: u64| series.of_power(t + ms(from), t + ms(to), ms(1500));
        assert!(close(over(1000, 2000).unwrap().watts, 150.0));
        assert!(close(over(1200, 1400).unwrap().watts, 130.0), "between two readings");
        let before = over(0, 1000).unwrap();
        assert!(close(before.watts, 100.0) && close(before.covered, 1.0));
        assert_eq!(before.samples, 1);
        // 2,000 to 3,500 by one, 7,500 to 9,000 by the other, and the rest is unknown.
        let hole = over(2000, 9000).unwrap();
        assert!(close(hole.covered, 3.0 / 7.0) && close(hole.watts, 125.0), "{hole:?}");
        assert!(over(4000, 7000).is_none());
        assert!(over(20_000, 30_000).is_none());
    }

    #[test]
    fn what_held_as_a_span_began_belongs_to_it() {
        let t = Instant::now();
        let series = series(t, &[(0, 1.0), (100, 2.0), (200, 3.0), (300, 4.0)]);
        let within = |from: u64, to: u64| -> Vec<f64> {
            series.within(t + ms(from), t + ms(to), ms(600)).collect()
        };
        assert_eq!(within(150, 200), [2.0, 3.0]);
        assert_eq!(within(100, 100), [2.0]);
        assert_eq!(within(900, 999), [4.0]);
        assert_eq!(within(901, 999), [0.0; 0], "long gone");
        assert_eq!(series.last(), Some(t + ms(300)));
    }

    #[test]
    fn only_so_much_is_kept() {
        let t = Instant::now();
        let mut series = Series::default();
        for at in 0..KEPT_MAX as u64 + 10 {
            series.push(t + ms(at), 1.0);
        }
        series.push(t, 7.0); // from before
        assert_eq!(series.samples.len(), KEPT_MAX);
        assert_eq!(series.samples[0].0, t + ms(10));
    }

    proptest! {
        /// A constant load gives its exact value, however it was sampled, by either kind.
        #[test]
        fn a_constant_load_is_found_by_both(
            watts in 0.1_f64..1e5,
            pauses in proptest::collection::vec(1_u64..2000, 1..50),
            from in 0_u64..20_000,
            len in 1_u64..50_000,
        ) {
            let t = Instant::now();
            let (mut energy, mut power) = (Series::default(), Series::default());
            let mut at = 0;
            for pause in pauses {
                at += pause;
                energy.push(t + ms(at), watts * ms(at).as_secs_f64());
                power.push(t + ms(at), watts);
            }
            let (start, end) = (t + ms(from), t + ms(from + len));
            for average in [energy.of_energy(start, end), power.of_power(start, end, ms(300))]
                .into_iter()
                .flatten()
            {
                prop_assert!(close(average.watts, watts), "{:?}", average);
                prop_assert!(average.covered > 0.0 && average.covered <= 1.0);
            }
        }

        /// The parts of a span add up to the whole.
        #[test]
        fn energy_of_parts_adds_up(
            steps in proptest::collection::vec((1_u64..500, 0.0_f64..1e4), 2..40),
            cut in 0.01_f64..0.99,
        ) {
            let t = Instant::now();
            let (mut series, mut at, mut joules) = (Series::default(), 0, 0.0);
            for (pause, more) in steps {
                at += pause;
                joules += more;
                series.push(t + ms(at), joules);
            }
            let (start, end) = (series.samples[0].0, t + ms(at));
            let middle = start + (end - start).mul_f64(cut);
            let joules = |from: Instant, to: Instant| {
                series.of_energy(from, to).map_or(0.0, |found| {
                    found.watts * (to - from).as_secs_f64()
                })
            };
            let sum = joules(start, middle) + joules(middle, end);
            prop_assert!((sum - joules(start, end)).abs() < 1e-3, "{sum}");
        }
    }
}

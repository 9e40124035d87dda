//! The readings of one source over time, and their summary over a span. Pure.
//!
//! A counter's difference, or the mean of two powers, holds for the time between two readings.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use forebay_evidence::THROTTLES;

use super::result::{Part, Power, Source, Throttled};

/// Most readings of one source: at ten a second nearly two hours.
const KEPT_MAX: usize = 1 << 16;
/// A smaller covered share of a span causes a warning.
const COVERED_MIN: f64 = 0.9;

/// The source of readings.
#[derive(Debug, Clone)]
pub(super) struct About {
    /// The part it measures: `gpu cuda:0`, `package-0`.
    pub(super) name: String,
    pub(super) part: Part,
    pub(super) how: String,
    /// Whether its values are joules that add up, not watts.
    pub(super) is_counter: bool,
    /// The watts of a shorter span are rough.
    pub(super) rough: Duration,
    /// How long a power stays valid without another reading.
    pub(super) reach: Duration,
}

/// What a sensor reports at one time.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// Watts; of a counter the joules since its first reading.
    pub(super) value: Result<f64, String>,
    /// Bits of [`THROTTLES`].
    pub(super) throttle: u64,
}

/// All readings of a source.
#[derive(Debug)]
pub(super) struct Track {
    about: About,
    readings: VecDeque<(Instant, Reading)>,
}

impl Track {
    pub(super) fn new(about: About) -> Self {
        Self { about, readings: VecDeque::new() }
    }

    pub(super) fn add(&mut self, at: Instant, reading: Reading) {
        if self.readings.len() == KEPT_MAX {
            self.readings.pop_front();
        }
        self.readings.push_back((at, reading));
    }

    /// The joules that were consumed from `start` to `end`, and in how many seconds of it: those
    /// between readings of a counter, and those in which a power is valid.
    fn consumed(&self, start: Instant, end: Instant) -> (f64, f64) {
        let (mut joules, mut known) = (0.0, 0.0);
        let mut add = |from: Instant, to: Instant, watts: f64| {
            let seconds = to.min(end).saturating_duration_since(from.max(start)).as_secs_f64();
            joules += watts * seconds;
            known += seconds;
        };
        let (is_counter, reach) = (self.about.is_counter, self.about.reach);
        let mut last: Option<(Instant, f64)> = None;
        for (at, reading) in &self.readings {
            let Ok(value) = reading.value else {
                // A counter continues to count.
                last = last.filter(|_| is_counter);
                continue;
            };
            if let Some((from, before)) = last {
                let passed = at.saturating_duration_since(from);
                if is_counter && !passed.is_zero() {
                    add(from, *at, (value - before) / passed.as_secs_f64());
                } else if !is_counter && passed <= 2 * reach {
                    add(from, *at, f64::midpoint(before, value));
                }
            }
            last = Some((*at, value));
        }
        if let Some((at, watts)) = last.filter(|_| !is_counter) {
            add(at, at + reach, watts);
        }
        (joules, known)
    }

    /// The readings within a span.
    fn within(&self, start: Instant, end: Instant) -> impl Iterator<Item = &Reading> {
        let is_within = move |(at, _): &&(Instant, Reading)| *at >= start && *at <= end;
        self.readings.iter().filter(is_within).map(|(_, reading)| reading)
    }

    /// Adds the summary from `start` to `end`, of `power.seconds`.
    pub(super) fn summarize(&self, start: Instant, end: Instant, power: &mut Power) {
        self.energy(start, end, power);
        self.throttling(start, end, power);
    }

    fn energy(&self, start: Instant, end: Instant, power: &mut Power) {
        let About { name, part, how, rough, .. } = &self.about;
        let last = self.readings.back().and_then(|(_, reading)| reading.value.as_ref().err());
        let failed = last.map(|why| format!(": {why}")).unwrap_or_default();
        let (joules, known) = self.consumed(start, end);
        if joules <= 0.0 || known <= 0.0 {
            power.warnings.push(format!(
                "`{name}` reported no power within the span{failed}; check it, or measure longer"
            ));
            return;
        }
        let (watts, covered) = (joules / known, (known / power.seconds).min(1.0));
        if covered < COVERED_MIN {
            power.warnings.push(format!(
                "`{name}` has readings for {:.0} % of the span{failed}; its joules are \
                 extrapolated, so measure again",
                covered * 100.0
            ));
        }
        if power.seconds < rough.as_secs_f64() {
            power.warnings.push(format!(
                "the span of {:.3} s is short for the readings of `{name}`, so its watts are \
                 rough: measure for longer",
                power.seconds
            ));
        }
        power.sources.push(Source {
            name: name.clone(),
            part: *part,
            watts,
            joules: watts * power.seconds,
            samples: self.within(start, end).filter(|reading| reading.value.is_ok()).count() as u64,
            covered,
            how: how.clone(),
        });
    }

    fn throttling(&self, start: Instant, end: Instant, power: &mut Power) {
        let name = &self.about.name;
        let known: Vec<_> = self.within(start, end).map(|reading| reading.throttle).collect();
        for (bit, reason) in THROTTLES {
            let count = known.iter().filter(|bits| *bits & bit != 0).count();
            if count == 0 {
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "some thousands")]
            let share = count as f64 / known.len() as f64;
            power.warnings.push(format!(
                "`{name}` reported in {:.0} % of its readings: {reason}; \
                 `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` shows what limits it",
                share * 100.0
            ));
            let (name, reason) = (name.clone(), reason.into());
            power.throttled.push(Throttled { name, reason, share });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REACH: Duration = Duration::from_millis(1500);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn track(is_counter: bool) -> Track {
        let name = "gpu cuda:0".to_owned();
        let (how, rough) = ("counter".into(), ms(500));
        Track::new(About { name, part: Part::Gpu, how, is_counter, rough, reach: REACH })
    }

    fn read(value: f64) -> Reading {
        Reading { value: Ok(value), throttle: 0 }
    }

    fn tracked(begun: Instant, is_counter: bool, values: &[(u64, f64)]) -> Track {
        let mut track = track(is_counter);
        values.iter().for_each(|(at, value)| track.add(begun + ms(*at), read(*value)));
        track
    }

    fn summary(track: &Track, start: Instant, end: Instant) -> Power {
        let mut power = Power { seconds: (end - start).as_secs_f64(), ..Power::default() };
        track.summarize(start, end, &mut power);
        power
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0)
    }

    #[test]
    fn a_counter_is_interpolated_and_a_gap_within_costs_nothing() {
        let t = Instant::now();
        // 100 W for a second, then 300 W, with nothing in between.
        let values = [(0, 0.0), (1000, 100.0), (3000, 700.0)];
        let track = tracked(t, true, &values);
        let over = |from, to| summary(&track, t + ms(from), t + ms(to)).sources.pop();
        assert!(close(over(0, 1000).unwrap().watts, 100.0));
        let part = over(500, 2000).unwrap();
        assert!(close(part.watts, 350.0 / 1.5) && close(part.joules, 350.0), "{part:?}");
        assert!(part.samples == 1 && close(part.covered, 1.0), "{part:?}");
        let half = over(2000, 4000).unwrap();
        assert!(close(half.covered, 0.5) && close(half.watts, 300.0), "{half:?}");
        assert!(over(3000, 4000).is_none());
    }

    #[test]
    fn power_is_valid_between_readings_and_for_its_reach() {
        let t = Instant::now();
        let values = [(1000, 100.0), (2000, 200.0), (9000, 50.0)];
        let track = tracked(t, false, &values);
        let over = |from, to| summary(&track, t + ms(from), t + ms(to)).sources.pop();
        assert!(close(over(1000, 2000).unwrap().watts, 150.0));
        assert!(close(over(9000, 10_000).unwrap().watts, 50.0), "it holds for a while");
        assert!(over(3000, 8000).is_none());
        assert!(over(20_000, 30_000).is_none());
    }

    #[test]
    fn a_failure_and_a_rough_or_partial_span_cause_warnings() {
        let t = Instant::now();
        let mut track = tracked(t, false, &[(0, 7.0), (1000, 7.0)]);
        track.add(t + ms(2000), Reading { value: Err("it is lost".to_owned()), throttle: 0 });
        let power = summary(&track, t, t + ms(4000));
        let [partial] = &power.warnings[..] else { panic!("{power:?}") };
        assert!(partial.contains("25 % of the span: it is lost; its joules"), "{partial}");
        let [rough] = &summary(&track, t, t + ms(100)).warnings[..] else { panic!() };
        assert!(rough.contains("the span of 0.100 s is short"), "{rough}");
        let none = summary(&track, t + ms(3000), t + ms(4000));
        assert!(none.sources.is_empty());
        assert!(none.warnings[0].contains("no power within the span: it is lost"), "{none:?}");
        track.add(t + ms(5000), read(7.0));
        let after = summary(&track, t + ms(1000), t + ms(6000)).sources.remove(0);
        assert!(close(after.covered, 0.2), "no line is drawn through the failure: {after:?}");
    }

    #[test]
    fn throttling_is_summarized() {
        let t = Instant::now();
        let mut track = track(false);
        let power_cap = 0x4;
        for at in [0, 100, 200, 300] {
            // The lowest bit says that the GPU is idle.
            let throttle = if at == 100 { power_cap | 1 } else { 1 };
            track.add(t + ms(at), Reading { throttle, ..read(1.0) });
        }
        let power = summary(&track, t + ms(50), t + ms(250));
        assert_eq!(power.throttled.len(), 1);
        assert_eq!(power.throttled[0].reason, "software power cap");
        assert!(close(power.throttled[0].share, 0.5), "{power:?}");
        assert!(power.warnings.iter().any(|text| text.contains("software power cap")));
    }

    #[test]
    fn only_the_newest_readings_are_kept() {
        let (t, mut track) = (Instant::now(), track(false));
        for at in 0..KEPT_MAX as u64 + 10 {
            track.add(t + ms(at), read(1.0));
        }
        assert_eq!(track.readings.len(), KEPT_MAX);
        assert_eq!(track.readings[0].0, t + ms(10));
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
            let (mut energy, mut power) = (track(true), track(false));
            let mut at = 0;
            for pause in pauses {
                at += pause;
                energy.add(t + ms(at), read(watts * ms(at).as_secs_f64()));
                power.add(t + ms(at), read(watts));
            }
            let (start, end) = (t + ms(from), t + ms(from + len));
            for source in [energy, power].iter().flat_map(|of| summary(of, start, end).sources) {
                prop_assert!(close(source.watts, watts), "{:?}", source);
                prop_assert!(source.covered > 0.0 && source.covered <= 1.0);
            }
        }
    }
}

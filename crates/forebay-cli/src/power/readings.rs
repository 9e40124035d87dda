//! All readings, and their summary over a span. Pure, except for the timestamps in its input.

use std::time::{Duration, Instant};

use super::result::{Power, RISE_MAX, Source, Temperature, Throttled};
use super::sensor::{Channel, Kind, Value};
use super::series::{Average, Series};

/// From this many steps in a span on, a counter is better than readings of power: its error is one
/// step at most. On an H200, whose power updates as often, both agreed within 1 % by then.
const STEPS_GOOD: u32 = 50;
/// Minimum steps of a counter in a span; below that a warning is given, if there is no better
/// source.
const STEPS_MIN: u32 = 10;
/// Minimum readings of power in a span; below that a warning is given as well.
const READINGS_MIN: u64 = 5;
/// Readings after which a working counter must have advanced at least once.
const STUCK: u64 = 3;
/// A smaller covered share of a span causes a warning.
const COVERED_MIN: f64 = 0.9;

/// The readings of all channels.
#[derive(Debug, Default)]
pub(super) struct Readings {
    channels: Vec<Read>,
    /// Processor time of each thread that reads, in seconds.
    threads: Vec<Series<f64>>,
}

/// One channel's readings.
#[derive(Debug)]
struct Read {
    channel: Channel,
    /// How long before and after its time a reading is valid.
    reach: Duration,
    numbers: Series<f64>,
    bits: Series<u64>,
    /// When its readings began to fail, and why.
    failed: Option<(Instant, String)>,
}

impl Readings {
    /// Adds the channels of a sensor that is read about twice in `reach`; returns the number of the
    /// first one.
    pub(super) fn add(&mut self, channels: Vec<Channel>, reach: Duration) -> usize {
        let first = self.channels.len();
        self.channels.extend(channels.into_iter().map(|channel| Read {
            channel,
            reach,
            numbers: Series::default(),
            bits: Series::default(),
            failed: None,
        }));
        first
    }

    /// Adds a thread that reads; returns its number.
    pub(super) fn add_thread(&mut self) -> usize {
        self.threads.push(Series::default());
        self.threads.len() - 1
    }

    /// Adds a sensor's answers; its first channel is `first`.
    pub(super) fn take(&mut self, first: usize, at: Instant, told: Vec<Result<Value, String>>) {
        for (read, told) in self.channels.iter_mut().skip(first).zip(told) {
            match told {
                Ok(Value::Number(value)) if value.is_finite() => read.numbers.push(at, value),
                Ok(Value::Number(_) | Value::Unread) => {}
                Ok(Value::Bits(bits)) => read.bits.push(at, bits),
                Err(why) if !read.is_lost() => read.failed = Some((at, why)),
                Err(_) => {}
            }
        }
    }

    /// Adds the processor time of a thread.
    pub(super) fn take_time(&mut self, thread: usize, at: Instant, used: Duration) {
        if let Some(series) = self.threads.get_mut(thread) {
            series.push(at, used.as_secs_f64());
        }
    }

    /// The summary from `start` to `end`.
    pub(super) fn power(&self, start: Instant, end: Instant) -> Power {
        let seconds = end.saturating_duration_since(start).as_secs_f64();
        let mut power = Power { seconds, ..Power::default() };
        for (index, read) in self.channels.iter().enumerate() {
            match &read.channel.kind {
                Kind::Energy { .. } => self.source(index, (start, end), &mut power),
                // If there is a counter as well, it was already used.
                Kind::Power { .. } if self.rival(index).is_some() => {}
                Kind::Power { .. } => self.source(index, (start, end), &mut power),
                Kind::Heat => read.heat((start, end), &mut power),
                Kind::Reasons { about } => read.reasons((start, end), *about, &mut power),
            }
        }
        let took = |series: &Series<f64>| {
            let found = series.of_energy(start, end);
            found.map_or(0.0, |found| found.watts * found.covered * seconds)
        };
        power.cpu_seconds = self.threads.iter().map(took).sum();
        power
    }

    /// The channel that measures the same quantity by another method.
    fn rival(&self, index: usize) -> Option<&Read> {
        let this = &self.channels[index].channel;
        let is_other = |kind: &Kind| match this.kind {
            Kind::Energy { .. } => matches!(kind, Kind::Power { .. }),
            _ => matches!(kind, Kind::Energy { .. }),
        };
        self.channels
            .iter()
            .find(|read| read.channel.name == this.name && is_other(&read.channel.kind))
    }

    /// Adds the energy of a source, by the better of its two channels if it has two.
    fn source(&self, index: usize, span: (Instant, Instant), power: &mut Power) {
        let (mut read, mut found) = (&self.channels[index], self.channels[index].average(span));
        let length = span.1.saturating_duration_since(span.0);
        let is_short = |read: &Read, steps: u32| match read.channel.kind {
            Kind::Energy { step, .. } => length < step * steps,
            _ => false,
        };
        let known = |found: Option<Average>| found.map_or(0.0, |found| found.covered);
        if (is_short(read, STEPS_GOOD) || known(found) < COVERED_MIN)
            && let Some((rival, other)) =
                self.rival(index).map(|rival| (rival, rival.average(span)))
            && known(other) > known(found).min(COVERED_MIN)
        {
            (read, found) = (rival, other);
        }
        let name = &read.channel.name;
        let failed = read.failure(span).map(|why| format!(": {why}")).unwrap_or_default();
        let Some(found) = found else {
            power.warnings.push(format!(
                "`{name}` reported no power within the span{failed}; check it, or measure longer"
            ));
            return;
        };
        let (Kind::Energy { part, how, .. } | Kind::Power { part, how }) = &read.channel.kind
        else {
            return;
        };
        if found.covered < COVERED_MIN {
            power.warnings.push(format!(
                "`{name}` has readings for {:.0} % of the span{failed}; its joules are \
                 extrapolated, so measure again",
                found.covered * 100.0
            ));
        }
        if is_short(read, STEPS_MIN) {
            power.warnings.push(format!(
                "the span of {:.3} s is short for the counter of `{name}`, which advances in \
                 steps, so its watts are rough: measure for longer",
                power.seconds
            ));
        }
        if matches!(read.channel.kind, Kind::Power { .. }) && found.samples < READINGS_MIN {
            power.warnings.push(format!(
                "`{name}` was read {} times within the span of {:.3} s, so its watts are rough: \
                 measure for longer",
                found.samples, power.seconds
            ));
        }
        power.sources.push(Source {
            name: name.clone(),
            part: *part,
            watts: found.watts,
            joules: found.watts * power.seconds,
            samples: found.samples,
            covered: found.covered,
            how: how.clone(),
        });
    }
}

impl Read {
    fn average(&self, (start, end): (Instant, Instant)) -> Option<Average> {
        match self.channel.kind {
            Kind::Energy { .. } => {
                let found = self.numbers.of_energy(start, end);
                found.filter(|found| found.moves > 0 || found.samples < STUCK)
            }
            _ => self.numbers.of_power(start, end, self.reach),
        }
    }

    /// Whether its last reading failed.
    fn is_lost(&self) -> bool {
        let last = self.numbers.last().max(self.bits.last());
        self.failed.as_ref().is_some_and(|(at, _)| last.is_none_or(|last| last < *at))
    }

    /// Why its readings have failed since some time before the span's end.
    fn failure(&self, (_, end): (Instant, Instant)) -> Option<&str> {
        let (_, why) = self.failed.as_ref().filter(|(at, _)| *at <= end && self.is_lost())?;
        Some(why)
    }

    fn heat(&self, span: (Instant, Instant), power: &mut Power) {
        let name = &self.channel.name;
        let mut known = self.numbers.within(span.0, span.1, self.reach);
        let Some(first) = known.next() else {
            if let Some(why) = self.failure(span) {
                power.warnings.push(format!("the temperature of `{name}` is unknown: {why}"));
            }
            return;
        };
        let (last, max) = known.fold((first, first), |(_, max), now| (now, now.max(max)));
        if max - first > RISE_MAX {
            power.warnings.push(format!(
                "`{name}` warmed from {first:.0} to {max:.0} °C within the span, so rates may \
                 differ between its start and its end: warm up for longer"
            ));
        }
        power.temperatures.push(Temperature { name: name.clone(), first, last, max });
    }

    fn reasons(
        &self,
        span: (Instant, Instant),
        about: fn(u64) -> Option<(String, &'static str)>,
        power: &mut Power,
    ) {
        let known: Vec<u64> = self.bits.within(span.0, span.1, self.reach).collect();
        for bit in (0..u64::BITS).map(|bit| 1 << bit) {
            let count = known.iter().filter(|bits| *bits & bit != 0).count();
            let Some((reason, advice)) = about(bit).filter(|_| count > 0) else { continue };
            #[expect(clippy::cast_precision_loss, reason = "some thousands")]
            let share = count as f64 / known.len() as f64;
            let name = self.channel.name.clone();
            power.warnings.push(format!(
                "`{name}` reported in {:.0} % of its readings: {reason}; {advice}",
                share * 100.0
            ));
            power.throttled.push(Throttled { name, reason, share });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::Part;
    use super::*;

    const REACH: Duration = Duration::from_millis(200);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn energy(name: &str) -> Channel {
        let kind = Kind::Energy { part: Part::Gpu, how: "counter".into(), step: ms(10) };
        Channel { name: name.into(), kind }
    }

    fn power(name: &str) -> Channel {
        Channel { name: name.into(), kind: Kind::Power { part: Part::Gpu, how: "power".into() } }
    }

    /// A GPU's counter at 100 W, and its power, reported as 90.
    fn gpu(t: Instant) -> Readings {
        let mut readings = Readings::default();
        let first = readings.add(vec![energy("gpu"), power("gpu")], REACH);
        for (at, joules) in (0..=2000).step_by(100).zip(0..) {
            let joules =
                if at % 200 == 0 { Value::Number(f64::from(joules) * 10.0) } else { Value::Unread };
            readings.take(first, t + ms(at), vec![Ok(joules), Ok(Value::Number(90.0))]);
        }
        readings
    }

    #[test]
    fn a_gpu_has_one_source_by_its_counter_unless_the_span_is_short() {
        let t = Instant::now();
        let told = gpu(t).power(t + ms(200), t + ms(1800));
        let [source] = &told.sources[..] else { panic!("{told:?}") };
        assert_eq!((source.how.as_str(), source.samples), ("counter", 9));
        assert!((source.watts - 100.0).abs() < 1e-6 && (source.joules - 160.0).abs() < 1e-6);
        assert!(told.warnings.is_empty(), "{:?}", told.warnings);
        let short = gpu(t).power(t + ms(200), t + ms(699));
        let [source] = &short.sources[..] else { panic!("{short:?}") };
        assert_eq!((source.how.as_str(), source.samples), ("power", 5));
        assert!((source.watts - 90.0).abs() < 1e-6);
        assert!(short.warnings.is_empty(), "{:?}", short.warnings);
    }

    #[test]
    fn of_a_gpus_two_sources_the_one_that_is_known_counts() {
        let t = Instant::now();
        let mut readings = gpu(t);
        for at in (2100..=4000).step_by(100) {
            let told = vec![Err("no counter any more".into()), Ok(Value::Number(90.0))];
            readings.take(0, t + ms(at), told);
        }
        let told = readings.power(t + ms(1000), t + ms(4000));
        assert_eq!((told.sources.len(), told.sources[0].how.as_str()), (1, "power"));
        assert!(told.warnings.is_empty(), "{:?}", told.warnings);
        // A short span for which only the counter is known.
        let mut readings = Readings::default();
        let first = readings.add(vec![energy("gpu"), power("gpu")], REACH);
        for (at, joules) in [(0, 0.0), (200, 20.0)] {
            let told = vec![Ok(Value::Number(joules)), Err("no power".into())];
            readings.take(first, t + ms(at), told);
        }
        let told = readings.power(t, t + ms(200));
        assert_eq!((told.sources.len(), told.sources[0].how.as_str()), (1, "counter"));
        assert!((told.sources[0].watts - 100.0).abs() < 1e-6);
    }

    #[test]
    fn a_short_span_of_a_counter_is_rough_and_one_that_never_moves_tells_nothing() {
        let t = Instant::now();
        let mut readings = Readings::default();
        let first = readings.add(vec![energy("package-0")], REACH);
        for (at, joules) in [(0, 0.0), (1000, 50.0), (2000, 50.0), (3000, 50.0), (4000, 50.0)] {
            readings.take(first, t + ms(at), vec![Ok(Value::Number(joules))]);
        }
        let short = readings.power(t, t + ms(99));
        assert!((short.sources[0].watts - 50.0).abs() < 1e-6);
        let rough = "the span of 0.099 s is short for the counter of `package-0`";
        assert!(short.warnings[0].starts_with(rough), "{:?}", short.warnings);
        assert!(readings.power(t, t + ms(100)).warnings.is_empty());
        let stuck = readings.power(t + ms(2000), t + ms(4000));
        assert!(stuck.sources.is_empty(), "{stuck:?}");
        let none = "`package-0` reported no power within the span";
        assert!(stuck.warnings[0].starts_with(none), "{:?}", stuck.warnings);
    }

    #[test]
    fn a_few_readings_of_power_are_rough() {
        let t = Instant::now();
        let mut readings = Readings::default();
        let first = readings.add(vec![power("server")], ms(2000));
        for at in (1000..=9000).step_by(1000) {
            readings.take(first, t + ms(at), vec![Ok(Value::Number(500.0))]);
        }
        let few = readings.power(t + ms(900), t + ms(4100));
        let rough = "`server` was read 4 times within the span of 3.200 s, so its watts are rough";
        assert_eq!((few.sources.len(), few.sources[0].samples), (1, 4));
        assert!(few.warnings.len() == 1 && few.warnings[0].starts_with(rough), "{few:?}");
        assert!(readings.power(t + ms(900), t + ms(5100)).warnings.is_empty());
    }

    #[test]
    fn a_source_that_vanishes_is_known_as_far_as_it_was() {
        let t = Instant::now();
        let mut readings = Readings::default();
        let first = readings.add(vec![power("command")], REACH);
        for at in (0..=1000).step_by(100) {
            readings.take(first, t + ms(at), vec![Ok(Value::Number(50.0))]);
        }
        // The answers differ each time, and the first counts.
        readings.take(first, t + ms(1100), vec![Err("it is gone".into())]);
        readings.take(first, t + ms(6000), vec![Err("it is still gone".into())]);
        let told = readings.power(t, t + ms(4800));
        assert!((told.sources[0].watts - 50.0).abs() < 1e-6);
        assert!((told.sources[0].joules - 240.0).abs() < 1e-6);
        assert!((told.sources[0].covered - 0.25).abs() < 1e-6);
        let warning = "`command` has readings for 25 % of the span: it is gone; its joules";
        assert!(told.warnings[0].starts_with(warning), "{:?}", told.warnings);
        let after = readings.power(t + ms(3000), t + ms(4000));
        assert!(after.sources.is_empty());
        let warning = "`command` reported no power within the span: it is gone; ";
        assert!(after.warnings[0].starts_with(warning), "{:?}", after.warnings);
        // Before it was gone, nothing is reported about that.
        assert!(readings.power(t, t + ms(900)).warnings.is_empty());
    }

    #[test]
    fn heat_that_rises_and_what_is_held_back_are_told_with_the_next_step() {
        fn about(bit: u64) -> Option<(String, &'static str)> {
            (bit == 4).then(|| ("too hot".into(), "open a window"))
        }
        let t = Instant::now();
        let mut readings = Readings::default();
        let channel = |kind| Channel { name: "gpu".into(), kind };
        let kinds = [Kind::Heat, Kind::Reasons { about }].map(channel);
        let first = readings.add(kinds.into(), REACH);
        for (at, degrees, bits) in [(0, 40.0, 1), (100, 52.0, 5), (200, 50.0, 4), (300, 50.0, 0)] {
            let told = vec![Ok(Value::Number(degrees)), Ok(Value::Bits(bits))];
            readings.take(first, t + ms(at), told);
        }
        let told = readings.power(t + ms(10), t + ms(350));
        let heat = Temperature { name: "gpu".into(), first: 40.0, last: 50.0, max: 52.0 };
        assert_eq!(told.temperatures, [heat]);
        let throttled = Throttled { name: "gpu".into(), reason: "too hot".into(), share: 0.5 };
        assert_eq!(told.throttled, [throttled]);
        assert!(told.warnings[0].starts_with("`gpu` warmed from 40 to 52 °C"));
        let throttled = "`gpu` reported in 50 % of its readings: too hot; open a window";
        assert_eq!(told.warnings[1], throttled);
        let calm = readings.power(t + ms(100), t + ms(180));
        assert_eq!((calm.warnings.len(), calm.temperatures[0].last), (1, 52.0));
        readings.take(first, t + ms(2000), vec![Err("gone".into()), Err("gone".into())]);
        let gone = readings.power(t + ms(1500), t + ms(2100));
        assert_eq!(gone.warnings, ["the temperature of `gpu` is unknown: gone"]);
        assert!(gone.temperatures.is_empty() && gone.throttled.is_empty());
    }

    #[test]
    fn the_meters_own_time_is_told() {
        let t = Instant::now();
        let mut readings = Readings::default();
        let threads = [readings.add_thread(), readings.add_thread()];
        for (thread, share) in threads.into_iter().zip([100, 50]) {
            readings.take_time(thread, t, ms(5));
            readings.take_time(thread, t + ms(1000), ms(5 + share));
        }
        let told = readings.power(t + ms(500), t + ms(1000));
        assert!((told.cpu_seconds - 0.075).abs() < 1e-9, "{told:?}");
    }

    #[test]
    fn numbers_that_are_none_are_left_out() {
        let t = Instant::now();
        let mut readings = Readings::default();
        let first = readings.add(vec![power("x")], REACH);
        for value in [f64::NAN, f64::INFINITY] {
            readings.take(first, t + ms(10), vec![Ok(Value::Number(value))]);
        }
        // More answers than channels, and none where one is expected.
        readings.take(first + 1, t, vec![Ok(Value::Bits(1)); 3]);
        readings.take(first, t, vec![]);
        let told = readings.power(t, t + ms(100));
        assert!(told.sources.is_empty() && told.warnings.len() == 1);
        let backwards = readings.power(t + ms(100), t);
        assert_eq!(backwards.seconds, 0.0);
    }
}

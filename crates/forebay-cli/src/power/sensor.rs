//! The sources of a meter: sensors, each with one or several channels.

use std::time::Duration;

use super::result::{Absent, Part};

/// More than any chip consumes: higher values are errors.
pub(super) const CHIP_WATTS_MAX: f64 = 100e3;
/// More than any server or rack consumes.
pub(super) const SERVER_WATTS_MAX: f64 = 1e6;
/// The valid range of a temperature in degrees Celsius.
pub(super) const CELSIUS: std::ops::RangeInclusive<f64> = -60.0..=250.0;

/// A source that can be read repeatedly.
pub(super) trait Sensor: Send {
    /// The channels that it reports, in the order of its readings.
    fn channels(&self) -> Vec<Channel>;

    /// Reads now: one answer for each channel, `Err` with the reason if it has none this time. If
    /// `asked`, a span begins or ends here; otherwise the reading is one in between.
    fn read(&mut self, asked: bool) -> Vec<Result<Value, String>>;
}

/// One quantity that a sensor reports.
#[derive(Debug, Clone)]
pub(super) struct Channel {
    /// The part it measures: `gpu cuda:0`, `package-0`.
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// The kind of a number.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// Joules, which only grow, once in each `step`.
    Energy { part: Part, how: String, step: Duration },
    /// Watts.
    Power { part: Part, how: String },
    /// Degrees Celsius.
    Heat,
    /// Bits with the reasons of throttling.
    Reasons {
        /// The name of one bit, and what to do about it; `None`: it is no throttling.
        about: fn(u64) -> Option<(String, &'static str)>,
    },
}

/// One reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    Number(f64),
    Bits(u64),
    /// Not read this time.
    Unread,
}

/// Sensors found, and those missing.
#[derive(Default)]
pub(super) struct Found {
    /// Read ten times a second, by one thread.
    pub(super) quick: Vec<Box<dyn Sensor>>,
    /// Read once a second at most, each on its own thread, since it may take long or hang.
    pub(super) slow: Vec<Box<dyn Sensor>>,
    pub(super) absent: Vec<Absent>,
}

/// Watts from a printed number, if plausible: above zero, and below `max`.
pub(super) fn watts(value: f64, max: f64) -> Result<f64, String> {
    match value {
        value if value > 0.0 && value <= max => Ok(value),
        value => Err(format!("{value} W is not plausible")),
    }
}

/// Turns the readings of a counter into joules since the first of them.
#[derive(Debug, Default)]
pub(super) struct Joules {
    last: Option<u64>,
    sum: f64,
}

impl Joules {
    /// Adds a reading in units of `unit` joules. The counter wraps after `end`, if it has one;
    /// `elapsed` is the time since the previous reading.
    pub(super) fn add(
        &mut self,
        now: u64,
        end: Option<u64>,
        unit: f64,
        elapsed: Duration,
    ) -> Result<f64, String> {
        // Even on an error, the next step begins here.
        let Some(last) = self.last.replace(now) else { return Ok(self.sum) };
        let step = match (now.checked_sub(last), end) {
            (Some(step), _) => step,
            (None, Some(end)) if last <= end => (end - last) + now,
            (None, _) => return Err(format!("its counter went back from {last} to {now}")),
        };
        #[expect(clippy::cast_precision_loss, reason = "a larger step is refused below")]
        let joules = step as f64 * unit;
        // Below a reading's own delay, the shortest step would give an absurd power.
        let seconds = elapsed.as_secs_f64().max(0.1);
        if joules > CHIP_WATTS_MAX * seconds {
            return Err(format!("its counter jumped from {last} to {now}"));
        }
        self.sum += joules;
        Ok(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TENTH: Duration = Duration::from_millis(100);

    #[test]
    fn a_counter_that_begins_anew_goes_on() {
        let mut joules = Joules::default();
        let mut add = |now, end| joules.add(now, end, 1e-6, TENTH);
        assert_eq!(add(9_000_000, Some(10_000_000)), Ok(0.0));
        assert_eq!(add(9_500_000, Some(10_000_000)), Ok(0.5));
        assert_eq!(add(250_000, Some(10_000_000)), Ok(1.25));
        let back = add(100_000, None).unwrap_err();
        assert_eq!(back, "its counter went back from 250000 to 100000");
        assert_eq!(add(350_000, None), Ok(1.5), "from where it went to");
        assert!(add(1, Some(7)).is_err(), "beyond the reported end");
    }

    #[test]
    fn a_jump_that_no_chip_takes_is_left_out() {
        let mut joules = Joules::default();
        assert_eq!(joules.add(0, None, 1.0, TENTH), Ok(0.0));
        assert!(joules.add(10_001, None, 1.0, TENTH).unwrap_err().contains("jumped"));
        assert_eq!(joules.add(20_001, None, 1.0, TENTH), Ok(10_000.0));
        assert!(joules.add(u64::MAX, None, 1.0, TENTH).is_err());
        assert!(joules.add(3, Some(u64::MAX), 1e-6, TENTH).is_ok());
    }

    #[test]
    fn watts_are_above_zero_and_below_what_can_be() {
        assert_eq!(watts(123.5, 1e6), Ok(123.5));
        for none in [0.0, -1.0, 1e308, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(watts(none, 1e6).is_err(), "{none}");
        }
    }

    proptest! {
        #[test]
        fn joules_never_shrink(
            readings in proptest::collection::vec((any::<u64>(), any::<Option<u64>>()), 0..50),
        ) {
            let (mut joules, mut last) = (Joules::default(), 0.0);
            for (now, end) in readings {
                if let Ok(sum) = joules.add(now, end, 1e-6, TENTH) {
                    prop_assert!(sum >= last && sum.is_finite());
                    last = sum;
                }
            }
        }
    }
}

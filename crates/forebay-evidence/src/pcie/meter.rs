//! Sums up readings of counters that may wrap. Pure.

use crate::nvml::Count;

/// Growth of a counter since an earlier reading, assuming that it wrapped at most once.
fn since(now: Count, earlier: Count) -> u64 {
    match (earlier, now) {
        (Count::Narrow(earlier), Count::Narrow(now)) => now.wrapping_sub(earlier).into(),
        (Count::Wide(earlier), Count::Wide(now)) => now.saturating_sub(earlier),
        // If the driver changes the counter's width within a span, this step counts as 0.
        _ => 0,
    }
}

/// A reading of both counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) received: Count,
    pub(super) sent: Count,
}

impl Reading {
    pub(super) fn is_narrow(self) -> bool {
        matches!(self.received, Count::Narrow(_)) || matches!(self.sent, Count::Narrow(_))
    }
}

/// The totals so far.
#[derive(Debug)]
pub(super) struct Meter {
    last: Reading,
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Number of readings, including the first.
    pub(super) samples: u64,
    /// Whether a counter may have wrapped unnoticed.
    pub(super) wrapped: bool,
    /// Why a reading failed.
    pub(super) failed: Option<String>,
}

impl Meter {
    pub(super) fn new(first: Reading) -> Self {
        let (received, sent, wrapped, failed) = (0, 0, false, None);
        Self { last: first, received, sent, samples: 1, wrapped, failed }
    }

    pub(super) fn add(&mut self, reading: Result<Reading, String>) {
        match reading {
            Ok(reading) => {
                let last = std::mem::replace(&mut self.last, reading);
                self.received =
                    self.received.saturating_add(since(reading.received, last.received));
                self.sent = self.sent.saturating_add(since(reading.sent, last.sent));
                self.samples += 1;
            }
            Err(why) => self.failed = Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_counter_that_changes_its_width_counts_nothing_there() {
        let at = |received| Reading { received, sent: Count::Wide(7) };
        let mut meter = Meter::new(at(Count::Narrow(5)));
        meter.add(Ok(at(Count::Wide(1 << 40))));
        meter.add(Ok(at(Count::Wide((1 << 40) + 9))));
        assert_eq!((meter.received, meter.sent, meter.samples), (9, 0, 3));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_while_each_step_is_below_4_gib(
            start in any::<u32>(),
            steps in proptest::collection::vec((any::<u32>(), any::<u32>()), 0..50),
        ) {
            let reading = |received: u64, sent: u64| Reading {
                received: Count::Narrow(u32::try_from(received & 0xffff_ffff).unwrap()),
                sent: Count::Wide(sent),
            };
            let (mut received, mut sent) = (u64::from(start), 0_u64);
            let mut meter = Meter::new(reading(received, sent));
            for (more, other) in &steps {
                received += u64::from(*more);
                sent += u64::from(*other);
                meter.add(Ok(reading(received, sent)));
            }
            prop_assert_eq!(meter.received, received - u64::from(start));
            prop_assert_eq!(meter.sent, sent);
        }
    }
}

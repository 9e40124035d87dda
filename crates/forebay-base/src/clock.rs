//! Injected time: the machine's clock in production, a manual one in tests.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A source of time that never runs backwards.
pub trait Clock: Send + Sync + Debug {
    /// Time since this clock's origin.
    fn now(&self) -> Duration;

    /// Returns once `duration` passed on this clock.
    fn sleep(&self, duration: Duration);
}

/// The machine's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock that starts at zero now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        thread::sleep(duration);
    }
}

/// A clock that only moves when it is advanced or slept on.
///
/// It holds nanoseconds in 64 bits, which is 584 years, and stops there.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ns: AtomicU64,
}

impl ManualClock {
    /// A clock at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the time forward.
    pub fn advance(&self, duration: Duration) {
        let step = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let advanced = |now: u64| Some(now.saturating_add(step));
        // The closure always returns a value, so this cannot fail.
        let _ = self.now_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, advanced);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::Acquire))
    }

    /// Advances the clock, so that a single waiting thread can continue.
    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_advanced() {
        let clock = ManualClock::new();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_micros(3));
        clock.sleep(Duration::from_micros(4));
        assert_eq!(clock.now(), Duration::from_micros(7));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn the_system_clock_sleeps_at_least_as_long_as_requested() {
        let clock = SystemClock::new();
        let before = clock.now();
        clock.sleep(Duration::from_millis(2));
        assert!(clock.now() - before >= Duration::from_millis(2));
    }
}

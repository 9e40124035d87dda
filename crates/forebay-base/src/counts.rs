//! Counters that only grow.

use crate::units::grown;

/// Counters that only grow.
pub trait Counts: Sized {
    /// All counts, in a fixed order.
    fn counts(&mut self) -> Vec<&mut u64>;

    /// Their name in messages.
    fn name(&self) -> String {
        "a counter".into()
    }

    /// The growth since an earlier reading.
    ///
    /// # Errors
    /// A counter went back, which only a reset can cause, or the two readings have different
    /// counters.
    fn since(mut self, mut earlier: Self) -> Result<Self, String> {
        let name = self.name();
        let (before, now) = (earlier.counts(), self.counts());
        if before.len() != now.len() {
            return Err(format!("{name} came or went"));
        }
        for (before, now) in before.into_iter().zip(now) {
            *now = grown(&name, *before, *now)?;
        }
        Ok(self)
    }

    /// The sum of two.
    #[must_use]
    fn plus(mut self, mut other: Self) -> Self {
        for (sum, more) in self.counts().into_iter().zip(other.counts()) {
            *sum = sum.saturating_add(*more);
        }
        self
    }
}

/// Their growth since an earlier reading of the same counters.
///
/// # Errors
/// As for [`Counts::since`].
pub fn all_since<T: Counts>(later: Vec<T>, earlier: Vec<T>) -> Result<Vec<T>, String> {
    if later.len() != earlier.len() {
        return Err("a counter came or went".into());
    }
    later.into_iter().zip(earlier).map(|(later, earlier)| later.since(earlier)).collect()
}

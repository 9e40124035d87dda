//! Counters that only grow, and their growth between two readings.

use forebay_base::units::grown;

use super::seen::Seen;

/// Counters that only grow.
pub(super) trait Counts {
    /// All counts, in a fixed order.
    fn counts(&mut self) -> Vec<&mut u64>;

    /// The counters' name in messages.
    fn name(&self) -> String;
}

/// The growth since an earlier reading.
pub(super) fn since<T: Counts>(later: Seen<T>, earlier: Seen<T>) -> Seen<T> {
    later.since(earlier, growth)
}

/// The growth of each counter since an earlier reading.
pub(super) fn all_since<T: Counts>(later: Seen<Vec<T>>, earlier: Seen<Vec<T>>) -> Seen<Vec<T>> {
    later.since(earlier, |earlier, later| {
        if earlier.len() != later.len() {
            return Err("a counter came or went".into());
        }
        earlier.into_iter().zip(later).map(|(earlier, later)| growth(earlier, later)).collect()
    })
}

/// The growth between two readings of the same counters.
pub(super) fn growth<T: Counts>(mut earlier: T, mut later: T) -> Result<T, String> {
    let name = later.name();
    let (before, now) = (earlier.counts(), later.counts());
    if before.len() != now.len() {
        return Err(format!("{name} came or went"));
    }
    for (before, now) in before.into_iter().zip(now) {
        *now = grown(&name, *before, *now)?;
    }
    Ok(later)
}

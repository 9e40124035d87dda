//! Histograms of the durations of an engine's stages. Bucket widths grow with the durations, so 8
//! KB cover nanoseconds to hours. Counting a duration costs an addition.

use std::time::Duration;

/// Buckets per power of two; the relative error is at most 1/16.
const STEPS: u64 = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = ((u64::BITS - STEP_BITS + 1) as usize) << STEP_BITS;

/// A histogram of durations.
#[derive(Debug, Clone)]
pub struct Histogram {
    pub(crate) counts: Box<[u64; BUCKETS]>,
    pub(crate) sum_ns: u128,
    pub(crate) max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), sum_ns: 0, max_ns: 0 }
    }
}

/// The bucket of a duration.
pub(crate) fn bucket(ns: u64) -> usize {
    let power = (u64::BITS - ns.leading_zeros()).saturating_sub(STEP_BITS + 1);
    let step = (ns >> power) + u64::from(power) * STEPS;
    usize::try_from(step).expect("there are a thousand")
}

/// The longest duration of a bucket.
fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let power = (bucket / STEPS).saturating_sub(1);
    let step = bucket - power * STEPS;
    u64::try_from((u128::from(step + 1) << power) - 1).unwrap_or(u64::MAX)
}

impl Histogram {
    /// Number of durations counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The duration that this fraction (0 to 1) did not exceed, rounded up by at most 1/16; `None`
    /// if the histogram is empty.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        #[expect(clippy::cast_precision_loss, reason = "a share of a count")]
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as above")]
        let wanted = (share.clamp(0.0, 1.0) * count as f64).ceil() as u64;
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            seen >= wanted.max(1)
        };
        let bucket = self.counts.iter().position(reaches)?;
        Some(Duration::from_nanos(end_of(bucket).min(self.max_ns)))
    }

    /// Sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        let ns = u64::try_from(self.sum_ns % 1_000_000_000).unwrap_or(0);
        let seconds = u64::try_from(self.sum_ns / 1_000_000_000).unwrap_or(u64::MAX);
        Duration::from_secs(seconds) + Duration::from_nanos(ns)
    }

    /// The longest duration.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }
}

/// Durations of the stages of an engine's transfers so far. Transfers made on the caller's own
/// thread are not included.
///
/// ```
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = forebay::Engine::new(forebay::Options::default())?;
/// engine.open(&path)?.read(engine.allocate_pinned(100_000)?).start()?.wait().0?;
/// let file = engine.statistics().file;
/// if let Some(p99) = file.quantile(0.99) {
///     println!("{} requests, 99 % within {p99:?}, {:?} at most", file.count(), file.max());
///     println!("{:?} on average", file.sum() / u32::try_from(file.count()).unwrap());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// File requests, from submission to completion.
    pub file: Histogram,
    /// Waits of transfers for a slot, if none was free.
    pub slot_wait: Histogram,
    /// Waits of filled slots for their copy to be queued, from the last request that filled them.
    pub link_wait: Histogram,
    /// Copies between slots and GPUs, from when they were queued until completion was seen.
    pub copy: Histogram,
    /// Bytes of pinned memory that the engine uses now, of at most
    /// [`arena_size`](crate::Options::arena_size).
    pub pinned: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_what_is_in_it(ns: u64, shift in 0_u32..64) {
            let ns = ns >> shift;
            let end = end_of(bucket(ns));
            prop_assert!(ns <= end && end - ns <= ns / STEPS);
            prop_assert_eq!(bucket(end), bucket(ns));
            prop_assert!(end == u64::MAX || bucket(end + 1) == bucket(ns) + 1);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_list(
            mut all in proptest::collection::vec(0_u64..1 << 40, 1..200),
            share in 0.0_f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            all.iter().for_each(|&ns| histogram.add(ns));
            all.sort_unstable();
            let rank = (1..=all.len()).find(|&n| n as f64 >= share * all.len() as f64);
            let exact = all[rank.unwrap_or(all.len()) - 1];
            let reported = u64::try_from(histogram.quantile(share).unwrap().as_nanos()).unwrap();
            let is_near = exact <= reported && reported - exact <= exact / STEPS;
            prop_assert!(is_near, "{exact}, reported {reported}");
            prop_assert_eq!(histogram.count(), all.len() as u64);
            prop_assert_eq!(histogram.max(), Duration::from_nanos(all[all.len() - 1]));
            prop_assert_eq!(histogram.sum(), Duration::from_nanos(all.iter().sum()));
        }
    }

    #[test]
    fn an_empty_histogram_has_no_quantile() {
        let histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.count()), (None, 0));
        assert_eq!((histogram.sum(), histogram.max()), (Duration::ZERO, Duration::ZERO));
        assert!(bucket(u64::MAX) < BUCKETS && end_of(bucket(u64::MAX)) == u64::MAX);
    }
}

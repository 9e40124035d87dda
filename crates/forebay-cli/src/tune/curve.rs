//! The analysis of measured points: where throughput stops growing, and the best queue depth.
//!
//! Pure. A point is a queue depth and a block size with the rates of its samples. The curve of one
//! direction holds its points in order of block size and depth.

use forebay::units::{KIB, MIB};
use serde::{Deserialize, Serialize};

use crate::bench::stats::Spread;

/// A depth is sufficient at this share of the best rate: a greater depth mostly adds latency.
pub const ENOUGH: f64 = 0.98;
/// Cells within this many standard errors of the fastest rate are averaged, since the fastest of
/// many cells is partly so by chance.
const LIKELY: f64 = 2.0;
/// A sufficient depth may miss [`ENOUGH`] by this many standard errors.
const CHANCE: f64 = 1.0;
/// Ratio of the standard error of a median to that of a mean.
const MEDIAN: f64 = 1.25;
/// Time in seconds that one request may occupy the drive, so that other users are served soon. The
/// engine follows the same rule.
const HOLDS_S: f64 = 0.001;
/// That rule does not apply to requests of up to this size.
const SIZE_MIN: u64 = 128 * KIB;
/// Minimum block size for threads that wait for each request, as `KvikIO`'s do.
const LARGE: u64 = MIB;

/// A block size and a queue depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// Bytes of one request.
    pub request_size: u64,
    /// Requests in flight.
    pub depth: u64,
}

impl Cell {
    /// Bytes in flight.
    #[must_use]
    pub const fn in_flight(self) -> u64 {
        self.request_size.saturating_mul(self.depth)
    }
}

/// The result of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Bytes per second.
    pub bytes_per_second: Spread,
    /// Mean time of one request, from its submission to its completion.
    pub latency_s: f64,
    /// The rates of all samples, in bytes per second.
    pub samples: Vec<f64>,
}

impl Point {
    /// The median rate.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.bytes_per_second.median
    }
}

/// The points of one direction, sorted by cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve(pub Vec<Point>);

impl Curve {
    /// The block sizes, the smallest first.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.0.iter().map(|point| point.cell.request_size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The depths, the smallest first.
    #[must_use]
    pub fn depths(&self) -> Vec<u64> {
        let mut depths: Vec<u64> = self.0.iter().map(|point| point.cell.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        depths
    }

    /// The points with requests of `size`, the lowest depth first.
    pub fn of_size(&self, size: u64) -> impl Iterator<Item = &Point> + Clone {
        self.0.iter().filter(move |point| point.cell.request_size == size)
    }

    /// The point of a cell.
    #[must_use]
    pub fn at(&self, cell: Cell) -> Option<&Point> {
        self.0.iter().find(|point| point.cell == cell)
    }

    /// The fastest point with requests of up to `size_max`.
    #[must_use]
    pub fn best(&self, size_max: u64) -> Option<&Point> {
        fastest(self.0.iter().filter(|point| point.cell.request_size <= size_max))
    }

    /// Relative deviation of samples from the median of their cell (root mean square).
    #[must_use]
    pub fn noise(&self) -> f64 {
        let (mut sum, mut count) = (0.0, 0);
        for point in self.0.iter().filter(|point| point.samples.len() > 1 && point.rate() > 0.0) {
            let off = point.samples.iter().map(|sample| (sample / point.rate() - 1.0).powi(2));
            sum += off.sum::<f64>();
            count += point.samples.len() - 1;
        }
        if count == 0 { 0.0 } else { (sum / float(count as u64)).sqrt() }
    }

    /// The mean rate of the fastest of `points`, and the relative error of one sample.
    fn plateau<'a>(&self, points: impl Iterator<Item = &'a Point> + Clone) -> Option<Plateau> {
        let noise = self.noise();
        let top = fastest(points.clone())?.rate();
        let like = |point: &&Point| point.rate() >= top * (1.0 - LIKELY * error(noise, point));
        let (mut sum, mut count) = (0.0, 0);
        for point in points.filter(like) {
            sum += point.rate();
            count += 1;
        }
        Some(Plateau { rate: sum / float(count), noise })
    }

    /// The lowest sufficient depth for requests of `size`.
    #[must_use]
    pub fn knee(&self, size: u64) -> Option<&Point> {
        self.enough(size, self.plateau(self.of_size(size))?)
    }

    /// The lowest depth at which requests of `size` come near the rate `reached`.
    fn enough(&self, size: u64, reached: Plateau) -> Option<&Point> {
        self.of_size(size).find(|point| {
            let chance = CHANCE * error(reached.noise, point);
            point.rate() >= reached.rate * (ENOUGH - chance)
        })
    }

    /// The choice if requests may have up to `size_max` bytes. Among the sizes that are fast
    /// enough, it takes the largest that occupies the drive only briefly, or else the smallest. For
    /// that size it takes the lowest sufficient depth.
    #[must_use]
    pub fn found(&self, size_max: u64) -> Option<&Point> {
        let may = self.0.iter().filter(|point| point.cell.request_size <= size_max);
        let best = self.plateau(may)?;
        let reaches = |size: &u64| *size <= size_max && self.enough(*size, best).is_some();
        let sizes: Vec<u64> = self.sizes().into_iter().filter(reaches).collect();
        let short = |size: &&u64| **size <= SIZE_MIN || float(**size) <= best.rate * HOLDS_S;
        let size = sizes.iter().rfind(short).or(sizes.first())?;
        self.enough(*size, best)
    }

    /// The choice for threads that make one large request each and wait for it.
    #[must_use]
    pub fn found_for_threads(&self) -> Option<&Point> {
        let sizes = self.sizes();
        let large = sizes.iter().filter(|size| **size >= LARGE).copied();
        let knees = large.filter_map(|size| self.knee(size));
        // The fewest threads among those near the best.
        let knees: Vec<&Point> = knees.collect();
        let best = fastest(knees.iter().copied())?.rate();
        knees.into_iter().filter(|knee| knee.rate() >= best * ENOUGH).min_by_key(|k| k.cell.depth)
    }
}

/// The rate of the fastest points.
#[derive(Debug, Clone, Copy)]
struct Plateau {
    rate: f64,
    /// Relative deviation of samples from their medians.
    noise: f64,
}

/// The standard error of a point's rate, as a share of it.
fn error(noise: f64, point: &Point) -> f64 {
    MEDIAN * noise / float(point.samples.len().max(1) as u64).sqrt()
}

fn fastest<'a>(points: impl Iterator<Item = &'a Point>) -> Option<&'a Point> {
    // Of points with equal rates, the first has the smallest block size and depth.
    points.reduce(|best, point| if point.rate() > best.rate() { point } else { best })
}

/// `bytes` for a comparison with a rate.
#[expect(clippy::cast_precision_loss, reason = "a ratio needs no more than 52 bits")]
pub(crate) fn float(bytes: u64) -> f64 {
    bytes as f64
}

/// `value`, which is not negative, without its fraction.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A point with equal samples.
    pub(crate) fn point(request_size: u64, depth: u64, rate: f64) -> Point {
        let cell = Cell { request_size, depth };
        let latency_s = float(cell.in_flight()) / rate;
        let bytes_per_second = Spread { median: rate, min: rate, max: rate };
        Point { cell, bytes_per_second, latency_s, samples: vec![rate; 3] }
    }

    /// The curve of a drive with maximum rate `most` and a latency.
    pub(crate) fn pipe(most: f64, latency_s: f64, sizes: &[u64], depths: &[u64]) -> Curve {
        let rate = |size: u64, depth: u64| {
            let alone = float(size) / (latency_s + float(size) / most);
            (float(depth) * alone).min(most)
        };
        let of_size = |size: &u64| {
            let size = *size;
            depths.iter().map(move |depth| point(size, *depth, rate(size, *depth)))
        };
        Curve(sizes.iter().flat_map(of_size).collect())
    }

    const SIZES: [u64; 4] = [128 * KIB, 512 * KIB, MIB, 4 * MIB];
    const DEPTHS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

    fn found(curve: &Curve) -> (u64, u64) {
        let cell = curve.found(MIB).unwrap().cell;
        (cell.request_size / KIB, cell.depth)
    }

    #[test]
    fn the_lowest_depth_that_is_enough_is_found() {
        // A request of 1 MiB occupies a fast drive only briefly, and depth 32 is enough here.
        assert_eq!(found(&pipe(14e9, 0.0023, &SIZES, &DEPTHS)), (1024, 32));
        assert_eq!(found(&pipe(14e9, 0.0001, &SIZES, &DEPTHS)), (1024, 4));
        // A slow drive gets small requests, so that other users get their turn.
        assert_eq!(found(&pipe(200e6, 0.001, &SIZES, &DEPTHS)), (128, 4));
        assert_eq!(found(&pipe(200e6, 0.000_02, &SIZES, &DEPTHS)), (128, 2));
        assert_eq!(found(&pipe(1e9, 0.001, &SIZES, &DEPTHS)), (512, 4));
        // When depth no longer helps, larger requests may.
        assert_eq!(found(&pipe(1e9, 0.02, &SIZES, &[1, 2, 4, 8, 16])), (1024, 16));
    }

    #[test]
    fn two_percent_of_the_best_are_not_worth_the_wait() {
        let rates = [1.0, 1.9, 2.94, 2.96, 3.0, 2.7];
        let points = rates.iter().zip([1, 2, 4, 8, 16, 32]);
        let curve = Curve(points.map(|(rate, depth)| point(MIB, depth, rate * 1e9)).collect());
        assert_eq!(curve.best(MIB).unwrap().cell.depth, 16);
        assert_eq!(curve.knee(MIB).unwrap().cell.depth, 4);
        assert_eq!(found(&curve), (1024, 4));
    }

    #[test]
    fn threads_get_large_requests() {
        let curve = pipe(3e9, 0.001, &SIZES, &DEPTHS);
        let cell = curve.found_for_threads().unwrap().cell;
        assert_eq!((cell.request_size / MIB, cell.depth), (4, 2));
        let small = pipe(3e9, 0.001, &SIZES[..1], &DEPTHS);
        assert!(small.found_for_threads().is_none());
    }

    #[test]
    fn nothing_measured_is_nothing_found() {
        let curve = Curve::default();
        assert!(curve.found(MIB).is_none() && curve.best(MIB).is_none());
        assert!(curve.knee(MIB).is_none() && curve.found_for_threads().is_none());
        // Nor if all requests were larger than allowed.
        assert!(pipe(1e9, 0.001, &SIZES[3..], &DEPTHS).found(MIB).is_none());
    }
}

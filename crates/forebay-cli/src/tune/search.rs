//! The search: which cells are measured, how often, and for how long.
//!
//! Pure: a [`Probe`] measures and reports the time taken, so that tests can simulate drives without
//! waiting. First each block size is measured at doubling depths until two in a row gain nothing.
//! Then the likely cells are measured again, interleaved, so that a brief disturbance of the drive
//! affects all of them alike.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay::units::{KIB, MIB};

use super::curve::{Cell, Curve, Point, float};
use crate::bench::stats::Spread;
use crate::failure::Result;

/// Block sizes, in the order of the first round: the engine's default comes first.
pub(crate) const SIZES: [u64; 4] = [MIB, 128 * KIB, 512 * KIB, SIZE_MAX];
/// The largest of them.
pub(crate) const SIZE_MAX: u64 = 4 * MIB;
/// The greatest queue depth that is measured.
pub(crate) const DEPTH_MAX: u64 = 128;
/// Maximum bytes in flight: more than any drive needs, and limited since they use memory.
pub(crate) const IN_FLIGHT_MAX: u64 = 128 * MIB;

/// A doubled depth must gain at least this factor.
const GAINS: f64 = 1.02;
/// Depths in a row without gain that end the first round of a size.
const FLAT: u32 = 2;
/// Rounds of a search, and the minimum for a complete one.
const ROUNDS: (u32, u32) = (3, 2);
/// Samples that the result requires, and the maximum of extra samples taken for that.
const CONFIRMED: usize = 3;
const CONFIRM_MAX: u32 = 8;
/// A search stops early if it exceeds its time by this factor.
const OVERTIME: u32 = 2;
/// A greater depth is measured if the deepest point is faster than the others by this factor.
const DEEPENS: f64 = 1.005;
/// Number of samples by which the time of a search is divided.
const SAMPLES: u32 = 72;
/// The minimum and maximum time of a sample.
const SAMPLE: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(300));
/// A request must not wait longer than this, in seconds.
const WAIT_S_MAX: f64 = 0.25;
/// A block size, or a depth of it, is measured again if it reaches this share of the best rate.
const CONTENDS: (f64, f64) = (0.9, 0.85);

/// The result of one sample of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    /// Bytes per second.
    pub(crate) rate: f64,
    /// Mean time of a request.
    pub(crate) latency_s: f64,
    /// Time of the sample, with its preparation and cleanup.
    pub(crate) took: Duration,
}

/// Measures cells.
pub(crate) trait Probe {
    /// Keeps a cell's requests in flight for about `time`.
    ///
    /// # Errors
    /// The engine's; they end the search.
    fn measure(&mut self, cell: Cell, time: Duration) -> Result<Sample>;
}

/// The limits of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Time for all of it.
    pub(crate) time: Duration,
    /// Bytes in flight at most.
    pub(crate) in_flight: u64,
    /// The engine's maximum block size; the search is for the best up to it.
    pub(crate) size_max: u64,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) curve: Curve,
    /// Whether there was time to measure the likely cells twice.
    pub(crate) complete: bool,
}

/// Searches. `tell` gets each cell before it is measured, and the share of the time spent.
///
/// # Errors
/// Errors of `probe`.
pub(crate) fn search(
    bounds: Bounds,
    probe: &mut dyn Probe,
    tell: &mut dyn FnMut(Cell, f64),
) -> Result<Found> {
    let mut search =
        Search { bounds, probe, tell, cells: BTreeMap::new(), spent: Duration::ZERO, late: false };
    for size in SIZES {
        search.first_round(size)?;
    }
    let mut rounds = 1;
    while !search.late && (rounds < ROUNDS.0 || search.spent < bounds.time) {
        // Every second round runs backwards, so that no cell always follows the same one.
        let mut cells = search.contenders();
        if cells.is_empty() {
            // Nothing could be measured, and a further round would not change that.
            break;
        }
        if rounds % 2 == 1 {
            cells.reverse();
        }
        for cell in cells {
            search.measure(cell)?;
            if search.late || (rounds >= ROUNDS.0 && search.spent >= bounds.time) {
                break;
            }
        }
        rounds += u32::from(!search.late);
    }
    let complete = rounds >= ROUNDS.1;
    if complete {
        search.confirm()?;
    }
    Ok(Found { complete, curve: search.curve() })
}

/// A search in progress.
struct Search<'a> {
    bounds: Bounds,
    probe: &'a mut dyn Probe,
    tell: &'a mut dyn FnMut(Cell, f64),
    /// Rates and latencies of the samples.
    cells: BTreeMap<Cell, Vec<Sample>>,
    spent: Duration,
    /// Whether the search has exceeded its time by [`OVERTIME`].
    late: bool,
}

impl Search<'_> {
    fn measure(&mut self, cell: Cell) -> Result<f64> {
        let share = self.spent.as_secs_f64() / self.bounds.time.as_secs_f64();
        (self.tell)(cell, share);
        let time = (self.bounds.time / SAMPLES).clamp(SAMPLE.0, SAMPLE.1);
        let sample = self.probe.measure(cell, time)?;
        self.cells.entry(cell).or_default().push(sample);
        self.spent += sample.took;
        self.late |= self.spent > self.bounds.time * OVERTIME;
        Ok(sample.rate)
    }

    /// Measures the likely result again until it has [`CONFIRMED`] samples: it may lead by chance.
    fn confirm(&mut self) -> Result<()> {
        for _ in 0..CONFIRM_MAX {
            let curve = self.curve();
            let found = curve.found(self.bounds.size_max);
            match found.filter(|point| point.samples.len() < CONFIRMED) {
                Some(point) => self.measure(point.cell)?,
                None => break,
            };
        }
        Ok(())
    }

    /// Measures one block size at doubling depths.
    fn first_round(&mut self, request_size: u64) -> Result<()> {
        let (mut depth, mut best, mut flat) = (1, 0.0, 0);
        while flat < FLAT && !self.late {
            let cell = Cell { request_size, depth };
            // Depth 1 is measured for every size that fits. Earlier rates decide on other depths.
            let fits = cell.in_flight() <= self.bounds.in_flight;
            if !(self.may(cell) || (depth == 1 && fits)) {
                break;
            }
            let rate = self.measure(cell)?;
            flat = if rate >= best * GAINS { 0 } else { flat + 1 };
            best = f64::max(best, rate);
            depth *= 2;
        }
        Ok(())
    }

    /// Whether a cell is within all limits, by the rates so far.
    fn may(&self, cell: Cell) -> bool {
        let best = self.cells.values().flatten().map(|sample| sample.rate).fold(0.0, f64::max);
        let waits_s = if best > 0.0 { float(cell.in_flight()) / best } else { 0.0 };
        cell.depth <= DEPTH_MAX
            && cell.in_flight() <= self.bounds.in_flight
            && waits_s <= WAIT_S_MAX
    }

    /// The cells of the next round.
    fn contenders(&self) -> Vec<Cell> {
        let curve = self.curve();
        let best = |size_max| curve.best(size_max).map_or(0.0, Point::rate);
        // Sizes that the engine uses compete only among themselves.
        let enough = |size| if size <= self.bounds.size_max { self.bounds.size_max } else { size };
        let mut cells = Vec::new();
        for size in curve.sizes() {
            let points: Vec<&Point> = curve.of_size(size).collect();
            let Some((deepest, others)) = points.split_last() else { continue };
            let other = others.iter().map(|point| point.rate()).fold(0.0, f64::max);
            let top = other.max(deepest.rate());
            if top < best(enough(size)) * CONTENDS.0 {
                continue;
            }
            let near = points.iter().filter(|p| p.rate() >= top * CONTENDS.1);
            cells.extend(near.map(|point| point.cell));
            let knee = curve.knee(size).map_or(1, |point| point.cell.depth);
            let mut new = Vec::new();
            if deepest.rate() >= other * DEEPENS {
                new.push((deepest.cell.depth + 1).next_power_of_two());
            }
            if knee.is_power_of_two() && knee >= 4 {
                new.push(knee / 4 * 3);
            }
            let new = new.into_iter().map(|depth| Cell { request_size: size, depth });
            cells.extend(new.filter(|cell| curve.at(*cell).is_none() && self.may(*cell)));
        }
        cells.sort_unstable();
        cells
    }

    fn curve(&self) -> Curve {
        let point = |(cell, samples): (&Cell, &Vec<Sample>)| {
            let rates: Vec<f64> = samples.iter().map(|sample| sample.rate).collect();
            let latency = Spread::of(samples.iter().map(|sample| sample.latency_s))?;
            Some(Point {
                cell: *cell,
                bytes_per_second: Spread::of(rates.iter().copied())?,
                latency_s: latency.median,
                samples: rates,
            })
        };
        Curve(self.cells.iter().filter_map(point).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    /// A simulated drive with a maximum rate, a latency and noise.
    struct Drive {
        most: f64,
        latency_s: f64,
        /// Rates vary by this share, up and down.
        noise: f64,
        /// Requests above this number slow the drive by a twentieth.
        hurts_from: u64,
        state: u64,
        measured: Vec<Cell>,
    }

    impl Drive {
        fn new(most: f64, latency_s: f64, noise: f64, seed: u64) -> Self {
            let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            Self { most, latency_s, noise, hurts_from: u64::MAX, state, measured: Vec::new() }
        }

        /// A random number from -1 to 1.
        fn chance(&mut self) -> f64 {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            float(self.state >> 32) / float(1 << 31) - 1.0
        }

        fn rate(&self, cell: Cell) -> f64 {
            let size = float(cell.request_size);
            let alone = size / (self.latency_s + size / self.most);
            let more = cell.depth.saturating_sub(self.hurts_from);
            (float(cell.depth) * alone).min(self.most) / (1.0 + float(more) / 20.0)
        }
    }

    impl Probe for Drive {
        fn measure(&mut self, cell: Cell, time: Duration) -> Result<Sample> {
            self.measured.push(cell);
            let rate = self.rate(cell) * (1.0 + self.noise * self.chance());
            let turn = float(cell.in_flight()) / rate;
            // The queue fills, is measured for at least a few turns, and drains.
            let took = turn * 2.0 + time.as_secs_f64().max(turn * 3.0);
            Ok(Sample { rate, latency_s: turn, took: Duration::from_secs_f64(took) })
        }
    }

    const BOUNDS: Bounds =
        Bounds { time: Duration::from_secs(6), in_flight: IN_FLIGHT_MAX, size_max: MIB };

    fn searched(drive: &mut Drive) -> Found {
        search(BOUNDS, drive, &mut |_, share| assert!((0.0..=3.0).contains(&share))).unwrap()
    }

    #[test]
    fn what_is_found_is_near_the_best_and_not_deep() {
        for seed in 0..120 {
            for (most, latency_s) in [
                (200e6, 0.001),
                (200e6, 0.000_02),
                (1e9, 0.001),
                (3e9, 0.0003),
                (10e9, 0.005),
                (14e9, 0.0023),
                (14e9, 0.000_1),
                (1e9, 0.02),
            ] {
                let noise = [0.0, 0.01, 0.05][usize::try_from(seed % 3).unwrap()];
                let mut drive = Drive::new(most, latency_s, noise, seed);
                let found = searched(&mut drive);
                let cell = found.curve.found(MIB).unwrap().cell;
                let place = format!("seed {seed}: {most} B/s, {latency_s} s: {cell:?}");
                let every = SIZES.iter().flat_map(|size| {
                    let request_size = *size;
                    [1, 2, 4, 8, 16, 32, 64, 128].map(|depth| Cell { request_size, depth })
                });
                let own = every.filter(|cell| cell.request_size <= MIB);
                let best = own.map(|cell| drive.rate(cell)).fold(0.0, f64::max);
                assert!(drive.rate(cell) >= best * (0.975 - noise), "{place}");
                assert!(found.complete, "{place}");
                // Requests in flight beyond rate × latency only wait.
                let needed = best * latency_s + float(cell.request_size);
                let factor = if noise > 0.02 { 4.0 } else { 2.0 };
                let most = factor * needed + float(cell.request_size);
                assert!(float(cell.in_flight()) <= most, "{place}: {needed} bytes are enough");
                // Every cell that matters was measured several times.
                let samples = found.curve.at(cell).unwrap().samples.len();
                assert!(samples >= 2, "{place}: {samples} samples");
            }
        }
    }

    #[test]
    fn depths_that_only_add_latency_are_not_measured() {
        let mut drive = Drive::new(200e6, 0.000_02, 0.0, 1);
        searched(&mut drive);
        assert!(drive.measured.iter().all(|cell| cell.depth <= 8), "{:?}", drive.measured);
    }

    #[test]
    fn a_drive_that_more_requests_slow_down_gets_few() {
        let mut drive = Drive { hurts_from: 1, ..Drive::new(200e6, 0.000_02, 0.0, 1) };
        let found = searched(&mut drive).curve.found(MIB).unwrap().cell;
        assert_eq!(found.depth, 1);
    }

    #[test]
    fn a_slow_drive_ends_in_time_with_what_could_be_had() {
        let mut drive = Drive::new(2e6, 0.005, 0.0, 1);
        let found = searched(&mut drive);
        assert!(!found.complete && found.curve.found(MIB).is_some());
        assert!(drive.measured.len() < 20, "{:?}", drive.measured);
    }

    #[test]
    fn the_time_is_kept_where_a_drive_is_fast() {
        for seconds in [2, 6, 30] {
            let mut drive = Drive::new(10e9, 0.0003, 0.01, 3);
            let mut spent = 0.0;
            let bounds = Bounds { time: Duration::from_secs(seconds), ..BOUNDS };
            let found = search(bounds, &mut drive, &mut |_, share| spent = share).unwrap();
            assert!(found.complete && (0.9..1.4).contains(&spent), "{seconds} s: {spent}");
        }
    }

    #[test]
    fn a_small_file_bounds_what_is_in_flight() {
        let mut drive = Drive::new(14e9, 0.0023, 0.0, 1);
        let bounds = Bounds { in_flight: 8 * MIB, ..BOUNDS };
        search(bounds, &mut drive, &mut |_, _| ()).unwrap();
        assert!(drive.measured.iter().all(|cell| cell.in_flight() <= 8 * MIB));
        assert!(drive.measured.contains(&Cell { request_size: 4 * MIB, depth: 2 }));
    }

    #[test]
    fn a_search_without_room_for_a_request_ends() {
        let mut drive = Drive::new(1e9, 0.001, 0.0, 1);
        let bounds = Bounds { in_flight: 0, ..BOUNDS };
        let found = search(bounds, &mut drive, &mut |_, _| ()).unwrap();
        assert!(!found.complete && found.curve.0.is_empty() && drive.measured.is_empty());
    }

    /// A probe that fails.
    struct Broken;

    impl Probe for Broken {
        fn measure(&mut self, _cell: Cell, _time: Duration) -> Result<Sample> {
            Err(Failure::new("it fails"))
        }
    }

    #[test]
    fn a_failure_ends_the_search() {
        assert_eq!(search(BOUNDS, &mut Broken, &mut |_, _| ()), Err(Failure::new("it fails")));
    }
}

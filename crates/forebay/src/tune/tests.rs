//! The rule on simulated drives, whose times vary by 5 % from seeds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_base::units::{GIB, MIB};

use super::*;
use crate::gpu::sim::Dice;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const SEEDS: u64 = 20;

const fn limits(is_disk: bool, depth_max: usize, size_max: u64) -> DepthLimits {
    let rule = if is_disk { DepthRule::Disk } else { DepthRule::Tuned };
    DepthLimits { rule, depth_max, size_max }
}

/// A request passes one of the channels, which share the rate, and then waits the latency.
#[derive(Debug, Clone)]
struct Drive {
    channels: usize,
    rate: u64,
    latency_ns: u64,
    /// Time of each request without its bytes.
    op_ns: u64,
    /// Each request in flight beyond these costs one hundredth of the rate.
    falls_from: usize,
}

const fn pipe(rate: u64, latency_ns: u64) -> Drive {
    Drive { channels: 1, rate, latency_ns, op_ns: 0, falls_from: usize::MAX }
}

/// Keeps the queue of a drive as full as the tuner says.
struct World {
    drive: Drive,
    tuner: DepthTuner,
    dice: Dice,
    now_ns: u64,
    free_ns: Vec<u64>,
    flights: BinaryHeap<Reverse<(u64, u64, u64)>>,
    in_flight: u64,
}

impl World {
    fn new(drive: &Drive, limits: DepthLimits, seed: u64) -> Self {
        Self {
            drive: drive.clone(),
            tuner: DepthTuner::new(limits),
            dice: Dice::new(seed),
            now_ns: 0,
            free_ns: vec![0; drive.channels],
            flights: BinaryHeap::new(),
            in_flight: 0,
        }
    }

    fn tuned(drive: &Drive, is_disk: bool, seed: u64) -> Self {
        Self::new(drive, limits(is_disk, 128, MIB), seed)
    }

    fn varied(&mut self, ns: u64) -> u64 {
        ns * (95 + self.dice.next() % 11) / 100
    }

    fn submit(&mut self, len: u64) {
        let Drive { channels, rate, latency_ns, op_ns, falls_from } = self.drive;
        let too_many = self.flights.len().saturating_sub(falls_from) as u64;
        let rate = rate / channels as u64 * (100 - too_many.min(80)) / 100;
        let (busy_ns, latency_ns) =
            (self.varied(op_ns + Rate(rate).ns_for(len)), self.varied(latency_ns));
        let free_ns = self.free_ns.iter_mut().min().expect("there is a channel");
        *free_ns = (*free_ns).max(self.now_ns) + busy_ns;
        self.flights.push(Reverse((*free_ns + latency_ns, self.now_ns, len)));
        self.in_flight += len;
    }

    /// Moves `len` bytes in requests of at most `piece` bytes, and returns the rate.
    fn run_in(&mut self, len: u64, piece: u64) -> u64 {
        let (start_ns, mut left) = (self.now_ns, len);
        while left > 0 || !self.flights.is_empty() {
            while left > 0 && self.tuner.admits(self.flights.len(), self.in_flight) {
                let size = self.tuner.block_size().min(left).min(piece);
                self.submit(size);
                left -= size;
            }
            let (filled, Reverse(next)) = (self.in_flight, self.flights.pop().expect("one flies"));
            self.now_ns = next.0;
            self.in_flight -= next.2;
            self.tuner.completed(self.now_ns, next.2, self.now_ns - next.1, filled);
        }
        Rate::of(len, self.now_ns - start_ns).0
    }

    fn run(&mut self, len: u64) -> u64 {
        self.run_in(len, u64::MAX)
    }

    /// Milliseconds that the queue holds the drive beyond its latency.
    fn queue_ms(&self) -> u64 {
        Rate(self.drive.rate).ns_for(self.tuner.window()).saturating_sub(self.drive.latency_ns) / MS
    }
}

/// What the best fixed depth reaches.
fn best(drive: &Drive, len: u64) -> u64 {
    let depths = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128];
    depths
        .map(|depth| World::new(drive, DepthLimits::fixed(depth, MIB), 7).run(len))
        .into_iter()
        .max()
        .expect("some")
}

/// Asserts that a first transfer, and one after it, reach these thousandths of the best.
fn reaches(name: &str, drive: &Drive, len: u64, first: u64, later: u64) {
    let best = best(drive, len);
    for seed in 0..SEEDS {
        let mut world = World::tuned(drive, false, seed);
        let shares = [0; 2].map(|_| world.run(len) * 1000 / best);
        let tuner = &world.tuner;
        println!("{name}: {shares:?} of {best}, {} x {}", tuner.depth(), tuner.block_size());
        assert!(shares[0] >= first && shares[1] >= later, "{name}, seed {seed}: {shares:?}");
    }
}

#[test]
fn first_transfers_are_nearly_as_fast_as_at_the_best_depth() {
    let channels = |channels, rate| Drive { channels, ..pipe(rate, MS / 10) };
    reaches("4.5 GB/s, 0.5 ms", &pipe(4_500_000_000, MS / 2), 4 * GIB, 970, 980);
    reaches("14 GB/s, 2.3 ms", &pipe(14_000_000_000, 2_300_000), 4 * GIB, 950, 970);
    reaches("14 GB/s, 0.1 ms", &pipe(14_000_000_000, MS / 10), 4 * GIB, 970, 980);
    reaches("16 channels", &channels(16, 7_000_000_000), 4 * GIB, 970, 980);
    reaches("64 channels", &channels(64, 14_000_000_000), 4 * GIB, 900, 970);
    reaches("1 GB/s, 1 ms", &pipe(1_000_000_000, MS), 4 * GIB, 970, 980);
    reaches("200 MB/s, 1 ms", &pipe(200_000_000, MS), 4 * GIB, 970, 980);
    reaches("10 MB/s, 5 ms", &pipe(10_000_000, 5 * MS), GIB, 970, 980);
}

#[test]
fn drives_far_away_get_more_depth() {
    reaches("1 GB/s, 20 ms", &pipe(1_000_000_000, 20 * MS), 4 * GIB, 950, 970);
    reaches("1 GB/s, 100 ms", &pipe(1_000_000_000, 100 * MS), 16 * GIB, 900, 970);
    reaches("3 GB/s, 30 ms", &pipe(3_000_000_000, 30 * MS), 8 * GIB, 900, 970);
}

#[test]
fn requests_that_cost_time_stay_large() {
    let each = |rate, op_ns| Drive { op_ns, ..pipe(rate, MS) };
    reaches("1 ms each", &each(2_000_000_000, MS), 4 * GIB, 970, 980);
    reaches("10 ms each", &each(200_000_000, 10 * MS), 4 * GIB, 940, 970);
}

#[test]
fn deep_queues_that_cost_speed_are_made_shorter() {
    let falls = |from, latency_ns| Drive { falls_from: from, ..pipe(5_000_000_000, latency_ns) };
    reaches("from 8 on", &falls(8, MS / 2), 8 * GIB, 850, 850);
    reaches("from 16 on", &falls(16, MS), 8 * GIB, 900, 930);
    reaches("from 40 on", &falls(40, 10 * MS), 8 * GIB, 700, 700);
}

#[test]
fn queues_stay_short() {
    for (drive, late, ms) in [
        (pipe(200_000_000, MS), 0, 4),
        // All requests wait at first, so the least latency is not the drive's.
        (pipe(200_000_000, MS), 20 * MS, 4),
        (pipe(4_500_000_000, MS / 2), 0, 8),
    ] {
        for seed in 0..SEEDS {
            let mut world = World::tuned(&drive, false, seed);
            world.free_ns[0] = late;
            world.run(4 * GIB);
            assert!(world.queue_ms() <= ms, "seed {seed}: {} ms", world.queue_ms());
        }
    }
}

#[test]
fn a_disk_keeps_few_large_requests() {
    let disk = Drive { falls_from: 0, ..pipe(200_000_000, 0) };
    for seed in 0..SEEDS {
        let mut world = World::tuned(&disk, true, seed);
        world.run(2 * GIB);
        assert!(world.tuner.depth() <= 4, "seed {seed}: {}", world.tuner.depth());
        assert_eq!(world.tuner.block_size(), MIB);
    }
}

#[test]
fn a_drive_that_changes_is_fast_again() {
    let usual = pipe(1_000_000_000, MS);
    let others = [
        pipe(250_000_000, MS),
        pipe(100_000_000, MS),
        pipe(4_000_000_000, MS),
        pipe(1_000_000_000, 20 * MS),
        pipe(8_000_000_000, 5 * MS),
    ];
    for other in others {
        for seed in 0..SEEDS {
            let mut world = World::tuned(&usual, false, seed);
            for drive in [&usual, &other, &usual] {
                world.drive = drive.clone();
                // Two seconds to find it.
                world.run(2 * drive.rate);
                let share = world.run(2 * drive.rate) * 1000 / best(drive, drive.rate);
                assert!(share >= 940, "{drive:?}, seed {seed}: {share}, {:?}", world.tuner);
            }
            assert!(world.queue_ms() <= 30, "{} ms", world.queue_ms());
        }
    }
}

#[test]
fn a_drive_that_hung_is_fast_again() {
    for seed in 0..SEEDS {
        let drive = pipe(1_000_000_000, MS);
        let mut world = World::tuned(&drive, false, seed);
        world.run(GIB);
        for hang in [SECOND / 5, 10 * SECOND] {
            world.free_ns[0] = world.now_ns + hang;
            world.run(GIB / 2);
            let share = world.run(GIB) * 1000 / best(&drive, GIB);
            assert!(share >= 970, "seed {seed}: {share}");
        }
    }
}

#[test]
fn small_requests_teach_nothing() {
    let mut world = World::tuned(&pipe(1_000_000_000, MS), false, 1);
    world.run_in(64 * MIB, 4 * KIB);
    assert_eq!((world.tuner.best, world.tuner.depth()), (None, DEPTH_START));
    // They may be as many as the ring takes.
    assert!(world.tuner.admits(100, 100 * 4 * KIB));
    assert!(!world.tuner.admits(128, 128 * 4 * KIB));
    assert!(!world.tuner.admits(DEPTH_START, DEPTH_START as u64 * MIB));
}

#[test]
fn depth_and_size_stay_within_their_bounds() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let most = 1 + (dice.next() % 200) as usize;
        let limits = limits(seed % 4 == 0, most, (64 * KIB) << (dice.next() % 6));
        let mut tuner = DepthTuner::new(limits);
        let mut now_ns = 0;
        for _ in 0..5_000 {
            now_ns += dice.next() % (1 << (dice.next() % 40));
            let len = dice.next() % (4 * MIB);
            let in_flight = tuner.window() * (dice.next() % 3);
            tuner.completed(now_ns, len, dice.next() % (1 << (dice.next() % 40)), in_flight);
            assert!((1..=most).contains(&tuner.depth()), "seed {seed}: {tuner:?}");
            assert!((64 * KIB..=limits.size_max).contains(&tuner.block_size()));
        }
    }
}

/// Why depths are not kept for later engines.
#[test]
fn a_new_engine_is_as_fast_as_one_that_knows_the_depth() {
    const EARLY: u64 = GIB / 8;
    let share = |rate, latency, len| {
        let drive = pipe(rate, latency);
        let new = World::tuned(&drive, false, 3).run(len);
        let mut world = World::tuned(&drive, false, 3);
        world.run(16 * GIB);
        new * 1000 / world.run(len)
    };
    // Up to 32 MiB in flight are enough for these.
    for (rate, latency) in
        [(200_000_000, 2 * MS), (3_000_000_000, 5 * MS), (14_000_000_000, 2 * MS)]
    {
        let share = share(rate, latency, EARLY);
        assert!(share >= 990, "{rate} B/s and {latency} ns: {share}");
    }
    // This needs more, and loses at first.
    let (early, late) =
        (share(28_000_000_000, 2 * MS, GIB), share(28_000_000_000, 2 * MS, 4 * GIB));
    assert!((850..960).contains(&early) && late >= 950, "{early}, {late}");
}

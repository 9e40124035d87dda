//! The tuners on simulated drives, from seeds.
//!
//! `FOREBAY_SEED=N` replays one seed, `FOREBAY_SEEDS=N` runs that many instead of those of every
//! day.

mod applications;
mod changes;
mod cold;
mod drive;
mod moods;
mod table;
mod world;

use std::ops::Range;

use drive::{Drive, Kind};
use world::{Asks, Policy, World};

use super::{DepthLimits, DepthTuner, Learned};
use crate::units::MIB;

/// Seeds of every run of the tests.
const SEEDS: u64 = 6;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// Depths that a fixed setting may have.
const DEPTHS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

fn seeds() -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_SEEDS").unwrap_or(SEEDS),
    }
}

/// Runs `test` for every seed and says which failed.
fn every_seed(name: &str, test: impl Fn(u64) -> Result<(), String>) {
    each_of(seeds(), 0, name, test);
}

/// The same for a test that takes long, with a quarter of the seeds.
fn some_seeds(name: &str, test: impl Fn(u64) -> Result<(), String>) {
    each_of(some(), 0, name, test);
}

/// The same where times that vary by 20 % may mislead one seed in a hundred: among the few of every
/// day, none.
fn nearly_every_seed(name: &str, test: impl Fn(u64) -> Result<(), String>) {
    each_of(seeds(), in_a_hundred(&seeds()), name, test);
}

/// Both.
fn nearly_some_seeds(name: &str, test: impl Fn(u64) -> Result<(), String>) {
    each_of(some(), in_a_hundred(&some()), name, test);
}

fn some() -> Range<u64> {
    let Range { start, end } = seeds();
    start..start + (end - start).div_ceil(4)
}

fn in_a_hundred(seeds: &Range<u64>) -> usize {
    usize::try_from((seeds.end - seeds.start) / 100).expect("few seeds")
}

fn each_of(seeds: Range<u64>, misled: usize, name: &str, test: impl Fn(u64) -> Result<(), String>) {
    let failed: Vec<String> = seeds
        .filter_map(|seed| {
            let error = test(seed).err()?;
            Some(format!("FOREBAY_SEED={seed} cargo test -p forebay {name}: {error}"))
        })
        .collect();
    assert!(failed.len() <= misled, "{}", failed.join("\n"));
}

/// What all but one seed in twenty stay below.
fn nearly_all(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[(values.len() * 19 / 20).min(values.len() - 1)]
}

/// How much times vary: three kinds of seed.
fn jitter(seed: u64) -> u64 {
    [0, 5, 20][usize::try_from(seed % 3).expect("a small number")]
}

/// A drive of the catalogue.
#[derive(Debug, Clone)]
struct Model {
    name: &'static str,
    kind: Kind,
    members: usize,
}

impl Model {
    fn drive(&self, seed: u64) -> Drive {
        Drive::new(self.kind.clone(), self.members, jitter(seed), seed)
    }

    /// A drive that turns is known to do so, and begins with one request of the usual size.
    fn limits(&self) -> DepthLimits {
        let turns = matches!(self.kind, Kind::Disk { .. });
        DepthLimits::of(turns, 128, MIB, 16 * MIB)
    }

    fn tuned(&self, remembered: Option<Learned>) -> Policy {
        Policy::Tuned(Box::new(DepthTuner::new(self.limits(), remembered)))
    }

    /// What fixed depths reach with all of a transfer of `len` bytes.
    fn best_of(&self, len: u64, seed: u64) -> Best {
        Best::of(|depth| {
            let mut world = World::new(self.drive(seed), Policy::Fixed { depth, size: MIB });
            world.run(Asks::all(len));
            world.rate(0, world.now_ns)
        })
    }

    /// What fixed depths reach once their queue is full.
    fn best(drive: impl Fn() -> Drive) -> Best {
        Best::of(|depth| {
            let mut world = World::new(drive(), Policy::Fixed { depth, size: MIB });
            world.run(Asks::all(256 * MIB));
            world.rate(world.now_ns / 4, world.now_ns * 3 / 4)
        })
    }
}

/// What a fixed depth can reach.
#[derive(Debug, Clone, Copy)]
struct Best {
    rate: u64,
    knee: usize,
}

impl Best {
    /// The highest rate of 1 MiB requests, and the lowest depth within a thirtieth of it.
    fn of(rate_at: impl Fn(usize) -> u64) -> Self {
        let rates = DEPTHS.map(|depth| (depth, rate_at(depth)));
        let rate = rates.iter().map(|found| found.1).max().expect("there are depths");
        let knee = rates.iter().find(|found| found.1 * 1000 >= rate * 967).expect("the best");
        Self { rate, knee: knee.0 }
    }

    /// Bytes in flight at the knee.
    fn bytes(self) -> u64 {
        self.knee as u64 * MIB
    }
}

const fn pipe(rate: u64, latency_ns: u64) -> Kind {
    Kind::Pipe { rate, op_ns: 0, latency_ns }
}

/// The drives that are simulated, one after another.
fn models() -> Vec<Model> {
    let model = |name, kind, members| Model { name, kind, members };
    let disk = Kind::Disk { rate: 200_000_000, seek_ns: 8 * MS };
    let flash = Kind::Flash { channels: 16, rate: 7_000_000_000, latency_ns: MS / 10 };
    let cloud = Kind::Pipe { rate: 2_000_000_000, op_ns: MS, latency_ns: MS };
    vec![
        model("200 MB/s, 1 ms", pipe(200_000_000, MS), 1),
        model("200 MB/s, 0.02 ms (a cap alone)", pipe(200_000_000, MS / 50), 1),
        model("1 GB/s, 1 ms", pipe(1_000_000_000, MS), 1),
        model("14 GB/s, 2.3 ms", pipe(14_000_000_000, 2_300_000), 1),
        model("14 GB/s, 0.1 ms", pipe(14_000_000_000, MS / 10), 1),
        model("four of 200 MB/s, 1 ms, striped", pipe(200_000_000, MS), 4),
        model("1 GB/s, 20 ms (remote)", pipe(1_000_000_000, 20 * MS), 1),
        model("10 MB/s, 5 ms", pipe(10_000_000, 5 * MS), 1),
        model("2 GB/s, 1 ms, 1 ms for each request", cloud, 1),
        model("7 GB/s, 16 channels by chance", flash, 1),
        model("a disk, 200 MB/s, 8 ms", disk.clone(), 1),
        model("eight disks, striped", disk, 8),
    ]
}

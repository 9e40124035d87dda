//! The whole data path on one thread, with simulated files, time and faults, from a seed.
//!
//! The scheduler, the workers, the submitter and the planner are the real ones. Rings, the GPU and
//! the residency of files are simulated. `FOREBAY_SEED=N` replays one seed, `FOREBAY_SEEDS=N` runs
//! that many instead of those of every day.

mod device;
mod job;
mod judge;
mod many;
mod memory;
mod ring;
mod run;
mod shape;
mod start;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds of every run of the tests.
const SEEDS: u64 = 300;

#[test]
fn every_seed_moves_every_byte() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_SEEDS").unwrap_or(SEEDS),
    };
    let folder = tempfile::tempdir().unwrap();
    let mut failed = Vec::new();
    for seed in seeds {
        let run = || run::Run::new(seed, folder.path()).run();
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            println!("FOREBAY_SEED={seed} cargo test -p forebay every_seed_moves_every_byte");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
}

//! The whole data path on one thread, with simulated files, time and faults, from a seed.
//!
//! The scheduler, the workers, the submitter and the planner are the real ones. Rings, the GPU and
//! page cache residency are simulated. `FOREBAY_SEED=N` replays one seed, `FOREBAY_SEEDS=N` runs
//! that many seeds instead of the default; `cargo xtask soak` runs them for hours.

mod device;
mod direct;
mod end;
mod gates;
mod job;
mod judge;
mod many;
mod memory;
mod progress;
mod ring;
mod run;
mod shape;
mod start;
mod tally;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use progress::{Progress, Seeds};

/// Seeds in a normal test run.
const SEEDS: u64 = 300;

/// Faults that these seeds must trigger: a fault that no seed triggers tests nothing.
const FAULTS: [&str; 26] = [
    "again",
    "cancel",
    "cut",
    "eio",
    "empty",
    "enospc",
    "evicted",
    "gate",
    "gpu-call",
    "gpu-copy",
    "gpu-gone",
    "gpu-memory",
    "hung",
    "late",
    "lost",
    "no-direct",
    "odd",
    "port-again",
    "port-closed",
    "port-required",
    "port-empty",
    "port-odd",
    "port-refused",
    "port-short",
    "short",
    "taken-back",
];

#[test]
fn a_seed_replays_exactly() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..20 {
        let run = || {
            let run::Summary { steps, bytes, met } = run::Run::new(seed, folder.path()).run();
            format!("{steps} steps, {bytes} bytes, {met}")
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn every_seed_moves_every_byte() {
    let seeds = Seeds::from_env(SEEDS);
    let progress = if seeds.soaks() { Progress::printed() } else { Progress::default() };
    let folder = tempfile::tempdir().unwrap();
    let mut failed = Vec::new();
    let mut count = 0;
    for seed in seeds {
        progress.begin(seed);
        let run = catch_unwind(AssertUnwindSafe(|| run::Run::new(seed, folder.path()).run()));
        if run.is_err() {
            let how = "cargo test --release -p forebay --lib every_seed_moves_every_byte";
            println!("soak-failed: FOREBAY_SEED={seed} {how}");
            failed.push(seed);
        }
        progress.end(run.ok());
        count += 1;
    }
    let met = progress.met();
    drop(progress);
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
    if count >= SEEDS {
        let missed: Vec<_> = FAULTS.iter().filter(|fault| met.of(fault) == 0).collect();
        assert!(missed.is_empty(), "nothing of {missed:?} went wrong: {met}");
    }
}

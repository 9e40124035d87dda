//! Random reads and writes of one file, each compared with a model of it, on every kind of file
//! system, on drives without one, in all kinds of settings; and writers that are cut off.
//!
//! Which seeds, `lab/seeds.rs` says. Each runs in a process and, for root, a mount namespace of its
//! own.

#[path = "../lab/mod.rs"]
mod lab;

mod actor;
mod durable;
mod place;
#[path = "../lab/settings.rs"]
mod settings;
mod shadow;

use std::time::Duration;

use actor::Actor;
use lab::watchdog::Watchdog;
use lab::{child, note, or_skip, seeds};
use place::{KINDS, Place};

/// Seeds of every run of the tests: each kind of place once. The slow tests run many more.
const SEEDS: u64 = KINDS.len() as u64;
const SEEDS_CUT_OFF: u64 = 8;
const MANY: u64 = 10 * SEEDS;

/// Runs `of_seed` for each seed in a process of its own; `test` runs one again.
fn apart(test: &str, seeds: u64, of_seed: impl Fn(u64)) {
    if let Some(role) = child::role() {
        let _watchdog = Watchdog::new(Duration::from_secs(270));
        return of_seed(role.parse().expect("a seed"));
    }
    seeds::each(&format!("-p forebay --test differential {test}"), seeds, |seed| {
        child::finish(child::start_apart(&seed.to_string()));
        Some(())
    });
}

fn compare(seed: u64) {
    let kind = KINDS[seeds::index(seed % SEEDS)];
    note(format!("{kind:?}"));
    if let Some(place) = or_skip(Place::new(kind)) {
        Actor::new(seed, &place).run();
    }
}

#[test]
fn random_requests_agree_with_a_model() {
    apart("random_requests", SEEDS, compare);
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn many_random_requests_agree_with_a_model() {
    apart("random_requests", MANY, compare);
}

/// A writer's process, or the one that cuts it off.
fn cut_off(seeds: u64) {
    let role = child::role().unwrap_or_default();
    match role.strip_prefix("write ").and_then(|rest| rest.split_once(' ')) {
        Some((seed, path)) => durable::write_for_ever(seed.parse().expect("a seed"), path),
        None => apart("acknowledged_bytes", seeds, durable::check),
    }
}

#[test]
fn acknowledged_bytes_survive_a_kill_and_a_power_cut() {
    cut_off(SEEDS_CUT_OFF);
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn acknowledged_bytes_survive_many_kills_and_power_cuts() {
    cut_off(20 * SEEDS_CUT_OFF);
}

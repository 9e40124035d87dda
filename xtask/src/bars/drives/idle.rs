//! An engine with four idle drives takes no CPU time.

use std::thread::sleep;
use std::time::Duration;

use forebay::units::MIB;
use forebay::{Engine, Options};

use super::ground::Ground;
use super::reads::{self, Read};
use super::together::filled;
use crate::bar::{Bound, Check, Measured, Stop};
use crate::sample::timed;

/// Bytes on each drive.
const LEN: u64 = 64 * MIB;

pub(super) fn run(ground: &Ground) -> Result<Measured, Stop> {
    let engine = Engine::new(Options::from_env()?)?;
    let (_drives, mut reads) = filled(ground, &engine, &[ground.len(LEN); 4], 1)?;
    let quiet = Duration::from_millis(if ground.rounds(2) == 1 { 100 } else { 2000 });
    let mut samples = Vec::new();
    let mut route = String::new();
    for _ in 0..ground.rounds(3) {
        route = reads::run(&mut reads, |_| true)?.route();
        // Let the threads that worked go to sleep first.
        sleep(Duration::from_millis(100));
        samples.push(timed(1, || {
            sleep(quiet);
            Ok(())
        })?);
    }
    reads.iter().try_for_each(Read::check)?;
    let most = samples.iter().map(|sample| sample.cpu_s).fold(0.0, f64::max);
    let each: Vec<String> = samples.iter().map(|s| format!("{:.3}", s.cpu_s * 1e3)).collect();
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    Ok(Measured {
        checks: vec![Check::new("ms of CPU time in 2 s", most * 1e3, Bound::AtMost(1.0))],
        notes: vec![route, format!("{threads} threads; each ms: {}", each.join(", "))],
        series: Vec::new(),
    })
}

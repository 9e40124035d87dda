//! Compares a sweep's results for a drive with `fio`'s: a drive with a rate cap, and one with
//! latency.

use forebay::units::{KIB, MIB};

use super::ground::Ground;
use super::slow::Pace;
use super::together::RATE;
use crate::bar::{Measured, Stop};
use crate::fio::{Fio, Load};
use crate::sweep::{Asks, compare, rounds};

/// Bytes of the file.
const LEN: u64 = 256 * MIB;

/// Request sizes, requests in flight, and whether they are random.
const CAPPED: [(u64, u32, bool); 3] = [(MIB, 4, false), (128 * KIB, 16, false), (4 * KIB, 8, true)];
const DELAYED: [(u64, u32, bool); 4] =
    [(4 * KIB, 1, true), (4 * KIB, 16, true), (128 * KIB, 1, false), (128 * KIB, 8, false)];

/// How many points of a list are measured: one, if only the bar's function is tested.
fn points(ground: &Ground) -> usize {
    if ground.is_tiny() { 1 } else { usize::MAX }
}

pub(super) fn capped(ground: &Ground) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let mut drive = ground.drive("capped", ground.len(LEN))?;
    let path = drive.file("file", ground.len(LEN))?;
    ground.cap(&mut drive, RATE)?;
    let mut measured = Measured::default();
    for (size, depth, random) in CAPPED.into_iter().take(points(ground)) {
        drive.spend_burst()?;
        let load = Load { size, depth, random, time: Load::time(ground.is_tiny()) };
        let asks = Asks::Rate;
        let rounds = rounds(ground.is_tiny(), asks);
        compare(&fio, &path, (&load, asks), rounds, &mut measured)?;
    }
    Ok(measured)
}

pub(super) fn delayed(ground: &Ground) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let pace = Pace { latency_us: 1000, rate: RATE };
    let drive = ground.slow_drive("delayed", ground.len(LEN), pace)?;
    let path = drive.file("file", ground.len(LEN))?;
    let mut measured = Measured::default();
    for (size, depth, random) in DELAYED.into_iter().take(points(ground)) {
        let load = Load { size, depth, random, time: Load::time(ground.is_tiny()) };
        let asks = Asks::Latencies;
        let rounds = rounds(ground.is_tiny(), asks);
        compare(&fio, &path, (&load, asks), rounds, &mut measured)?;
    }
    Ok(measured)
}

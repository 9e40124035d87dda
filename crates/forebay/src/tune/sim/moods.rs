//! Drives whose rate varies by itself: virtual ones, and those that others use as well.

use super::drive::{Change, Drive, Kind};
use super::world::Moment;
use super::{Asks, DepthLimits, DepthTuner, MS, Policy, SECOND, World, nearly_some_seeds};
use crate::gpu::sim::Dice;
use crate::units::{GIB, MIB};

/// Rates up to a tenth higher or lower, for 20 to 200 ms each.
fn moods(seed: u64) -> Vec<Change> {
    let mut dice = Dice::new(seed ^ 0x6d6f_6f64);
    let mut at_ns = 0;
    std::iter::from_fn(|| {
        at_ns += 20 * MS + dice.next() % (180 * MS);
        let rate = 900 + dice.next() % 201;
        (at_ns < 20 * SECOND).then_some(Change { at_ns, rate, latency: 1000 })
    })
    .collect()
}

fn drive(seed: u64, loses: u64) -> Drive {
    let kind = Kind::Warm { rate: 5_500_000_000, latency_ns: MS / 2, from: 8, loses };
    let mut drive = Drive::new(kind, 1, 5, seed);
    drive.changes = moods(seed);
    drive
}

fn tuned() -> Policy {
    let limits = DepthLimits::of(false, 128, MIB, 16 * MIB);
    Policy::Tuned(Box::new(DepthTuner::new(limits, None)))
}

/// What is in flight half of the time, in MiB, and the rate, in thousandths of what a fixed depth
/// of eight reaches, after the first 4 GiB.
fn found(loses: u64, seed: u64) -> (u64, u64) {
    let run = |policy| {
        let mut world = World::new(drive(seed, loses), policy);
        world.run(Asks::all(4 * GIB));
        let from_ns = world.now_ns;
        world.run(Asks::all(12 * GIB));
        let bytes = |moment: &Moment| moment.depth as u64 * moment.size;
        (world.median(from_ns, world.now_ns, bytes) / MIB, world.rate(from_ns, world.now_ns))
    };
    let fixed = run(Policy::Fixed { depth: 8, size: MIB });
    let tuned = run(tuned());
    (tuned.0, tuned.1 * 1000 / fixed.1)
}

#[test]
fn moods_do_not_deepen_a_queue() {
    for loses in [0, 3, 10] {
        nearly_some_seeds("moods_do_not_deepen", |seed| {
            let (in_flight, share) = found(loses, seed);
            // Where deeper queues lose nothing, chance may keep one.
            let is_near = (in_flight <= 16 || loses == 0) && share >= 970;
            is_near.then_some(()).ok_or(format!("{in_flight} MiB, {share}, loses {loses}"))
        });
    }
}

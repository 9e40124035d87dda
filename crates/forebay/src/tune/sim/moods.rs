//! Drives whose rate varies by itself: virtual ones, and those that others use as well.

use super::drive::{Change, Drive, Kind};
use super::world::Moment;
use super::{Asks, DepthLimits, DepthTuner, MS, Policy, SECOND, World, nearly_all, seeds};
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

/// Depths half of the time, and thousandths of what the best fixed depth reaches, after the first
/// 4 GiB.
fn found(loses: u64, seed: u64) -> (u64, u64) {
    let end_ns = |policy| {
        let mut world = World::new(drive(seed, loses), policy);
        world.run(Asks::all(4 * GIB));
        let from_ns = world.now_ns;
        world.run(Asks::all(32 * GIB));
        (from_ns, world)
    };
    let best = |depth| {
        let (from_ns, world) = end_ns(Policy::Fixed { depth, size: MIB });
        world.rate(from_ns, world.now_ns)
    };
    let best = [4, 6, 8, 12, 16, 32].map(best).into_iter().max().expect("there are depths");
    let (from_ns, world) = end_ns(tuned());
    let depth = world.median(from_ns, world.now_ns, |moment: &Moment| moment.depth as u64);
    (depth, world.rate(from_ns, world.now_ns) * 1000 / best)
}

#[test]
fn moods_do_not_deepen_a_queue() {
    for loses in [0, 3, 10] {
        let all: Vec<(u64, u64)> = seeds().map(|seed| found(loses, seed)).collect();
        println!("{loses}: {all:?}");
    }
}

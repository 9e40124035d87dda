//! Drives whose rate varies by itself: virtual ones, and those that others use as well.

use super::drive::{Change, Drive, Kind};
use super::world::Moment;
use super::{Asks, DepthLimits, DepthTuner, MS, Policy, SECOND, World, nearly_some_seeds};
use crate::gpu::sim::Dice;
use crate::units::{GIB, MIB};

/// Rates up to a tenth higher or lower, each for a tenth to the whole of `most_ns`.
fn moods(seed: u64, most_ns: u64) -> Vec<Change> {
    let mut dice = Dice::new(seed ^ 0x6d6f_6f64);
    let mut at_ns = 0;
    std::iter::from_fn(|| {
        at_ns += most_ns / 10 + dice.next() % (most_ns * 9 / 10);
        let rate = 900 + dice.next() % 201;
        (at_ns < 80 * SECOND).then_some(Change { at_ns, rate, latency: 1000 })
    })
    .collect()
}

fn drive(seed: u64, loses: u64, most_ns: u64) -> Drive {
    let kind = Kind::Warm { rate: 5_500_000_000, latency_ns: MS / 2, from: 8, loses };
    let mut drive = Drive::new(kind, 1, 5, seed);
    drive.changes = moods(seed, most_ns);
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
        let mut world = World::new(drive(seed, loses, 200 * MS), policy);
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
            // Where deeper queues lose nothing, chance may keep one; and a queue of 3 ms, twelve
            // requests, is not made shorter, though each of four loses a hundredth.
            let least = if loses == 10 { 950 } else { 970 };
            let is_near = (in_flight <= 16 || loses == 0) && share >= least;
            is_near.then_some(()).ok_or(format!("{in_flight} MiB, {share}, loses {loses}"))
        });
    }
}

/// Time, in thousandths of that of forty transfers with pauses between them, in which another depth
/// than the usual one is in flight.
fn time_away(seed: u64) -> u64 {
    let mut world = World::new(drive(seed, 3, 30 * MS), tuned());
    world.run(Asks::all(8 * GIB));
    let (mut transfers, mut moments) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        world.now_ns += SECOND;
        let from_ns = world.now_ns;
        world.run(Asks::all(GIB));
        transfers.push((from_ns, world.now_ns));
    }
    for &(from_ns, until_ns) in &transfers {
        let usual = world.median(from_ns, until_ns, |moment| moment.depth as u64);
        moments.extend(world.moments.windows(2).filter_map(|pair| {
            let inside = pair[0].at_ns >= from_ns && pair[1].at_ns <= until_ns;
            (inside && pair[0].depth as u64 != usual).then_some(pair[1].at_ns - pair[0].at_ns)
        }));
    }
    let all: u64 = transfers.iter().map(|(from_ns, until_ns)| until_ns - from_ns).sum();
    moments.iter().sum::<u64>() * 1000 / all
}

#[test]
fn pauses_do_not_fill_transfers_with_looks() {
    let away: Vec<u64> = super::seeds().map(time_away).collect();
    // 190 on average; if time went on in pauses it would be 300.
    assert!(away.iter().sum::<u64>() <= 245 * away.len() as u64, "{away:?}");
}

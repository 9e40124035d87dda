//! A first transfer from a drive of which nothing is known, or something remembered.

use super::drive::Kind;
use super::world::Moment;
use super::{Asks, Learned, World};
use super::{MS, Model, every_seed, models, nearly_all, nearly_every_seed};
use super::{nearly_some_seeds, pipe, seeds, some_seeds};
use crate::tune::Rate;
use crate::tune::depth::QUEUE_NS;
use crate::units::{GIB, KIB, MIB};

/// Share of the best fixed depth's speed that a cold transfer must reach, in thousandths.
fn share_min(model: &Model) -> u64 {
    match (&model.kind, model.members) {
        // Which channel gets a request is chance: one in eight ends between 0.77 and 0.95.
        (Kind::Flash { .. }, _) => 760,
        // A transfer of three seconds, of which the first few tries cost a fifth of one.
        (Kind::Disk { .. }, 8) => 900,
        _ => 950,
    }
}

#[test]
fn a_cold_transfer_is_nearly_as_fast_as_at_the_best_depth() {
    for model in models() {
        every_seed("a_cold_transfer", |seed| {
            let best = model.best_of(4 * GIB, seed);
            let mut world = World::new(model.drive(seed), model.tuned(None));
            world.run(Asks::all(4 * GIB));
            let share = world.rate(0, world.now_ns) * 1000 / best.rate;
            if share < share_min(&model) {
                return Err(format!("{}: {share} thousandths of {best:?}", model.name));
            }
            Ok(())
        });
    }
}

#[test]
fn deep_knees_are_reached() {
    let model = |name, kind| Model { name, kind, members: 1 };
    let soft = |half_thousandths| Kind::Soft { rate: 10_000_000_000, half_thousandths };
    // The lowest depth that comes within a thirtieth of the best of 128, and the share of the best
    // that 32 GiB are to reach, all tries included.
    let deep = [
        (model("64 of 14 GB/s", pipe(14_000_000_000, 4_700_000)), 960),
        (model("96 of 14 GB/s", pipe(14_000_000_000, 7_000_000)), 960),
        (model("96 of 1 GB/s, far away", pipe(1_000_000_000, 98 * MS)), 950),
        (model("16, softly", soft(500)), 950),
        (model("48, softly", soft(2500)), 960),
        (model("96, softly", soft(5000)), 970),
    ];
    for (model, share_min) in deep {
        nearly_some_seeds("deep_knees_are_reached", |seed| {
            let best = model.best_of(4 * GIB, seed);
            let mut world = World::new(model.drive(seed), model.tuned(None));
            world.run(Asks::all(32 * GIB));
            let share = world.rate(0, world.now_ns) * 1000 / best.rate;
            if share < share_min {
                return Err(format!("{}: {share} thousandths of {best:?}", model.name));
            }
            Ok(())
        });
    }
}

#[test]
fn half_of_the_time_no_more_is_in_flight_than_twice_what_is_needed() {
    for model in models() {
        // Chance blurs the knees of flash, and requests that are costly in themselves end larger.
        let blurred = matches!(model.kind, Kind::Flash { .. } | Kind::Pipe { op_ns: 1.., .. });
        if blurred {
            continue;
        }
        let medians: Vec<u64> = seeds()
            .map(|seed| {
                let best = Model::best(|| model.drive(seed));
                let mut world = World::new(model.drive(seed), model.tuned(None));
                world.run(Asks::all(4 * GIB));
                let bytes = |moment: &Moment| moment.depth as u64 * moment.size;
                // Short queues are not made shorter.
                let spared = Rate(best.rate).bytes_in(QUEUE_NS);
                world.median(0, world.now_ns, bytes) * 100 / best.bytes().max(spared)
            })
            .collect();
        // A search tries twice of what it has, and noise may mislead a seed for longer.
        let shown = format!("{}: {medians:?} % of the knee", model.name);
        assert!(nearly_all(medians) <= 225, "{shown}");
    }
}

#[test]
fn a_capped_drive_that_needs_depth_one_is_left_at_a_small_one() {
    let model = Model { name: "cap", kind: pipe(200_000_000, MS / 50), members: 1 };
    nearly_every_seed("a_capped_drive", |seed| {
        let mut world = World::new(model.drive(seed), model.tuned(None));
        world.run(Asks::all(4 * GIB));
        let learned = world.policy.tuner().learned().expect("4 GiB are enough");
        let bytes = learned.depth as u64 * learned.size;
        if bytes > 2 * MIB { Err(format!("{learned:?}")) } else { Ok(()) }
    });
}

#[test]
fn what_is_remembered_is_used_at_once() {
    let model = Model { name: "far", kind: pipe(14_000_000_000, 2_300_000), members: 1 };
    let learned = Learned { depth: 34, size: MIB, rate: Rate(13_900_000_000) };
    every_seed("what_is_remembered", |seed| {
        let best = model.best_of(GIB, seed);
        let mut world = World::new(model.drive(seed), model.tuned(Some(learned)));
        assert_eq!(world.policy.setting(), (34, MIB));
        world.run(Asks::all(GIB));
        let share = world.rate(0, world.now_ns) * 1000 / best.rate;
        if share < 960 { Err(format!("{share} thousandths")) } else { Ok(()) }
    });
}

#[test]
fn what_is_remembered_wrongly_is_found_out() {
    let wrong = [
        Learned { depth: 1, size: 128 * KIB, rate: Rate(1_000_000) },
        Learned { depth: 1, size: 128 * KIB, rate: Rate(u64::MAX) },
        Learned { depth: 128, size: 16 * MIB, rate: Rate(200_000_000) },
        Learned { depth: 0, size: 0, rate: Rate(0) },
        Learned { depth: usize::MAX, size: u64::MAX, rate: Rate(5) },
        Learned { depth: 3, size: 777_777, rate: Rate(14_000_000_000) },
    ];
    for model in models().iter().filter(|model| matches!(model.kind, Kind::Pipe { .. })) {
        for learned in wrong {
            some_seeds("what_is_remembered_wrongly", |seed| {
                let best = Model::best(|| model.drive(seed));
                let mut world = World::new(model.drive(seed), model.tuned(Some(learned)));
                world.run(Asks::all(6 * GIB));
                let (half, end) = (world.now_ns / 2, world.now_ns);
                let share = world.rate(half, end) * 1000 / best.rate;
                let found = world.policy.setting();
                if share < 900 || !found.1.is_power_of_two() {
                    return Err(format!("{}, {learned:?}: {share}, {found:?}", model.name));
                }
                Ok(())
            });
        }
    }
}

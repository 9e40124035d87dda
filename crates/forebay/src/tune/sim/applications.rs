//! Applications that do not simply ask for everything at once.

use super::{Asks, MS, Model, SECOND, World, every_seed, models, nearly_all, seeds};
use super::{nearly_some_seeds, some_seeds};
use crate::units::{GIB, KIB, MIB};

/// The drive of 200 MB/s and 1 ms, and that of 1 GB/s.
fn two() -> Vec<Model> {
    vec![models()[0].clone(), models()[2].clone()]
}

#[test]
fn an_application_that_asks_for_little_changes_nothing() {
    for model in two() {
        every_seed("an_application_that_asks_for_little", |seed| {
            let mut world = World::new(model.drive(seed), model.tuned(None));
            world.run(Asks { until_ns: 10 * SECOND, ..Asks::all(1 << 50) });
            let learned = world.policy.tuner().learned().expect("ten seconds are enough");
            let before = world.policy.setting();
            let rate = 40_000_000;
            world.run(Asks { rate, ..Asks::all(rate * 60) });
            let after = world.policy.setting();
            // A look or a search that was under way ends at what was known.
            if after != before && after.0 != learned.depth && after.0 * 2 > before.0 * 3 {
                return Err(format!("{}: {before:?}, {learned:?}, {after:?}", model.name));
            }
            let start = world.now_ns;
            world.run(Asks::all(GIB));
            let share = world.rate(start, world.now_ns) * 1000 / learned.rate.0;
            if share < 950 { Err(format!("then {share} thousandths")) } else { Ok(()) }
        });
    }
}

#[test]
fn a_cold_queue_is_not_deepened_by_an_application_that_asks_for_little() {
    for model in two() {
        every_seed("a_cold_queue_is_not_deepened", |seed| {
            let mut world = World::new(model.drive(seed), model.tuned(None));
            world.run(Asks { rate: 40_000_000, ..Asks::all(2 * GIB) });
            let depth = world.policy.setting().0;
            if depth > 2 * model.limits().depth_start { Err(format!("{depth}")) } else { Ok(()) }
        });
    }
}

#[test]
fn pauses_small_requests_and_late_threads_do_not_mislead() {
    let all = Asks::all(4 * GIB);
    let kinds = [
        ("pauses", Asks { pauses: Some((96 * MIB, 200 * MS)), ..all }),
        ("long pauses", Asks { pauses: Some((512 * MIB, 3 * SECOND)), ..all }),
        ("small requests between", Asks { small: 30, ..all }),
        ("late threads", Asks { reaped_every_ns: MS / 4, ..all }),
    ];
    for model in two() {
        for (name, asks) in kinds {
            nearly_some_seeds("pauses_small_requests_and_late_threads", |seed| {
                let best = Model::best(|| model.drive(seed));
                let mut world = World::new(model.drive(seed), model.tuned(None));
                world.run(asks);
                let Some(learned) = world.policy.tuner().learned() else {
                    return Err(format!("{}, {name}: nothing learned", model.name));
                };
                // What was learned is then used by an application that asks for everything.
                let bytes = learned.depth as u64 * learned.size;
                let start = world.now_ns;
                world.run(Asks { reaped_every_ns: asks.reaped_every_ns, ..Asks::all(GIB) });
                let share = world.rate(start, world.now_ns) * 1000 / best.rate;
                if share < 930 || bytes > 3 * best.bytes() {
                    return Err(format!("{}, {name}: {share}, {learned:?}", model.name));
                }
                Ok(())
            });
        }
    }
}

#[test]
fn a_burst_at_the_start_is_forgotten() {
    let model = &models()[1];
    let run = |seed| {
        let mut drive = model.drive(seed);
        drive.burst = 20_000_000;
        let mut world = World::new(drive, model.tuned(None));
        world.run(Asks::all(4 * GIB));
        assert!(world.rate(0, world.now_ns) > 190_000_000, "FOREBAY_SEED={seed}");
        world.median(0, world.now_ns, |moment| moment.depth as u64 * moment.size)
    };
    let medians: Vec<u64> = seeds().map(run).collect();
    assert!(nearly_all(medians.clone()) <= 2 * MIB, "{medians:?}");
}

#[test]
fn transfers_of_every_length_end_in_the_middle_of_everything() {
    for model in two() {
        some_seeds("transfers_of_every_length", |seed| {
            let mut world = World::new(model.drive(seed), model.tuned(None));
            let mut len = seed + 1;
            for _ in 0..400 {
                len = len.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                world.run(Asks::all((len >> 40) * 8));
                world.now_ns += (len >> 33) % (50 * MS);
            }
            let best = Model::best(|| model.drive(seed));
            let start = world.now_ns;
            world.run(Asks::all(4 * GIB));
            let share = world.rate(start, world.now_ns) * 1000 / best.rate;
            let (depth, size) = world.policy.setting();
            if share < 950 || depth as u64 * size > 3 * best.bytes() {
                return Err(format!("{}: {share}, {depth} of {size}", model.name));
            }
            Ok(())
        });
    }
}

#[test]
fn an_application_of_small_requests_teaches_nothing() {
    for model in two() {
        every_seed("an_application_of_small_requests", |seed| {
            let mut world = World::new(model.drive(seed), model.tuned(None));
            world.run(Asks { small: 100, ..Asks::all(64 * MIB) });
            match world.policy.tuner().learned() {
                None => Ok(()),
                Some(learned) => Err(format!("{learned:?}")),
            }
        });
    }
    // And they may be more than the depth, as far as bytes and the ring allow.
    let tuner = models()[0].tuned(None);
    assert!(tuner.tuner().admits(100, 100 * 4 * KIB));
    assert!(!tuner.tuner().admits(128, 128 * 4 * KIB));
    assert!(!tuner.tuner().admits(8, 8 * MIB));
}

//! Drives that change while they are used: a full cache, a throttle, a neighbour that comes and
//! goes.

use super::drive::{Change, Drive, Kind};
use super::world::Moment;
use super::{Asks, Model, SECOND, World, models, nearly_every_seed, nearly_some_seeds};
use crate::units::MIB;

const FIRST_NS: u64 = 3 * SECOND;

fn change(at_ns: u64, rate: u64, latency: u64) -> Change {
    Change { at_ns, rate, latency }
}

/// What happens to a drive, by name.
fn histories() -> [(&'static str, Vec<Change>); 6] {
    let back = change(2 * FIRST_NS, 1000, 1000);
    [
        ("a fourth of the speed", vec![change(FIRST_NS, 250, 1000)]),
        ("a fourth, and back", vec![change(FIRST_NS, 250, 1000), back]),
        ("half, and back", vec![change(FIRST_NS, 500, 1000), back]),
        ("four times the speed", vec![change(FIRST_NS, 4000, 1000)]),
        ("twice the latency", vec![change(FIRST_NS, 1000, 2000)]),
        ("five times the latency, and back", vec![change(FIRST_NS, 1000, 5000), back]),
    ]
}

fn changed(model: &Model, seed: u64, changes: &[Change]) -> Drive {
    let mut drive = model.drive(seed);
    drive.changes = changes.to_vec();
    drive
}

/// Two seconds after a change, or a hundred requests later where that is more.
fn settled_ns(model: &Model) -> u64 {
    if model.name.starts_with("10 MB/s") { 40 * SECOND } else { 2 * SECOND }
}

/// Share of the best speed by then, in thousandths. A search on a disk or a far drive takes longer
/// than on others, and flash by chance is never quite found.
fn share_min(model: &Model) -> u64 {
    let hard = !matches!(model.kind, Kind::Pipe { .. }) || model.name.contains("remote");
    if hard { 750 } else { 940 }
}

#[test]
fn two_seconds_after_a_change_the_speed_is_that_of_the_best_depth_again() {
    for model in models() {
        for (history, changes) in histories() {
            nearly_some_seeds("two_seconds_after_a_change", |seed| {
                let last = *changes.last().expect("something happens");
                let after = [Change { at_ns: 0, ..last }];
                let best = Model::best(|| changed(&model, seed, &after));
                let mut world = World::new(changed(&model, seed, &changes), model.tuned(None));
                let from_ns = last.at_ns + settled_ns(&model);
                let until_ns = from_ns + settled_ns(&model);
                world.run(Asks { until_ns, ..Asks::all(1 << 50) });
                let share = world.rate(from_ns, until_ns) * 1000 / best.rate;
                if share < share_min(&model) {
                    return Err(format!("{}, {history}: {share}, {best:?}", model.name));
                }
                Ok(())
            });
        }
    }
}

#[test]
fn a_slower_drive_gets_less_in_flight() {
    let model = &models()[2];
    let changes = [change(FIRST_NS, 100, 1000)];
    nearly_every_seed("a_slower_drive", |seed| {
        let mut world = World::new(changed(model, seed, &changes), model.tuned(None));
        world.run(Asks { until_ns: 5 * FIRST_NS, ..Asks::all(1 << 50) });
        let bytes = |moment: &Moment| moment.depth as u64 * moment.size;
        let before = world.median(FIRST_NS - SECOND, FIRST_NS, bytes);
        let after = world.median(3 * FIRST_NS, 5 * FIRST_NS, bytes);
        if after * 3 > before * 2 || after > MIB {
            return Err(format!("{before} bytes before, {after} after"));
        }
        Ok(())
    });
}

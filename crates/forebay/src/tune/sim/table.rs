//! The table of `docs/internals/tuning.md`, which this keeps true.

use super::world::Moment;
use super::{Asks, Model, SECOND, World, models};
use crate::units::{GIB, KIB};

/// Times of the table's drives vary by 5 %.
const SEED: u64 = 1;

/// When what was learned at the end was first in use.
fn found_ns(world: &World, depth: usize, size: u64) -> u64 {
    let near = |moment: &Moment| {
        let (now, then) = (moment.depth as u64 * moment.size, depth as u64 * size);
        now * 2 >= then && now <= then * 2
    };
    world.moments.iter().find(|moment| near(moment)).map_or(0, |moment| moment.at_ns)
}

fn row(model: &Model) -> String {
    let best = model.best_of(4 * GIB, SEED);
    let mut world = World::new(model.drive(SEED), model.tuned(None));
    world.run(Asks::all(4 * GIB));
    let learned = world.policy.tuner().learned().expect("4 GiB are enough");
    let share = world.rate(0, world.now_ns) * 100 / best.rate;
    let found_ms = found_ns(&world, learned.depth, learned.size) * 1000 / SECOND;
    let total_ms = world.now_ns * 1000 / SECOND;
    format!(
        "| {} | {} × 1 MiB | {} × {} KiB | {found_ms} of {total_ms} | {}.{:02} |",
        model.name,
        best.knee,
        learned.depth,
        learned.size / KIB,
        share / 100,
        share % 100,
    )
}

#[test]
fn the_documented_table_is_what_the_simulation_gives() {
    let rows: Vec<String> = models().iter().map(row).collect();
    let page = include_str!("../../../../../docs/internals/tuning.md");
    let missing: Vec<&String> = rows.iter().filter(|row| !page.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/internals/tuning.md should hold\n{}", rows.join("\n"));
}

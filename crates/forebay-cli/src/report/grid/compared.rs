//! The table of a comparison: the first run separately, and each method relative to the standard
//! one.

use super::{Cell, Column, Grid};
use crate::report::compared::{Comparison, is_standard, said};
use crate::report::digest::{Axis, Digest, Line, Metric, digits};

/// A row for each method and direction of a comparison, `most` at most.
#[must_use]
pub fn people(digest: &Digest, compared: &Comparison, most: usize) -> Grid {
    let columns = vec![
        Column::text("way", "method"),
        Column::text("direction", "direction"),
        Column::number("first_bytes_per_second", "first, GB/s"),
        Column::number("mean_bytes_per_second", "average, GB/s"),
        Column::number("bytes_per_second", "median (min–max), GB/s"),
        Column::number("variation", "variation"),
        Column::number("speed_up", "against standard"),
        Column::text("verified", "data"),
        Column::text("simulated", "GPU"),
    ];
    let all = || digest.lines.iter().filter(|line| line.run == compared.run);
    let rows: Vec<Vec<Cell>> = all().take(most).map(row).collect();
    let left_out = all().count() - rows.len();
    Grid { caption: "Comparison".into(), columns, rows, left_out }.without_empty()
}

fn row(line: &Line) -> Vec<Cell> {
    let runs = line.runs.unwrap_or_default();
    let way = line.mark(Axis::Way);
    let rate = |rate: f64| Cell::number(rate, digits(rate * 1e-9));
    let text = |text: Option<String>| text.unwrap_or_default();
    let median = line.metric(Metric::Rate).map(|found| {
        let [median, min, max] =
            [found.median, found.min, found.max].map(|rate| digits(rate * 1e-9));
        Cell::number(found.median, format!("{median} ({min}–{max})"))
    });
    let shown = |number: Option<f64>, text: String| Cell {
        number: number.filter(|_| !text.is_empty()),
        text,
    };
    let against = said::against(line.speed_up, is_standard(way), line.verified);
    vec![
        Cell::text(said::method(way.unwrap_or_default(), line.mark(Axis::Demanded))),
        Cell::text(line.mark(Axis::Direction).unwrap_or_default()),
        runs.first.map_or_else(Cell::empty, rate),
        runs.mean.map_or_else(Cell::empty, rate),
        median.unwrap_or_else(Cell::empty),
        shown(runs.variation, text(runs.variation_text())),
        shown(line.speed_up, text(against)),
        Cell::text(line.data()),
        Cell::text(if line.simulated { "simulated" } else { "" }),
    ]
}

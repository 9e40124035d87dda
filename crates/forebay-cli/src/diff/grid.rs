//! Tables of a comparison, for programs and for people.

use std::collections::BTreeSet;

use super::draw::{quantities, ratio_text};
use super::json::{Alone, Compared, Comparison, Diff, Pair, Verdict, Why};
use super::pairs;
use super::quantity::{of_key, words};
use crate::report::digest::{Metric, digits};
use crate::report::grid::{Cell, Column, Grid, people};

/// Most rows of a table for people.
const ROWS_MAX: usize = 1000;

/// A row for each quantity of each point, and for each point that was not compared.
#[must_use]
pub fn all(diff: &Diff) -> Grid {
    let pairs = || diff.comparisons.iter().flat_map(|comparison| &comparison.points);
    let axes: BTreeSet<&str> =
        pairs().flat_map(|pair| pair.point.keys()).map(String::as_str).collect();
    let mut columns: Vec<Column> =
        ["base", "other", "name"].map(|key| Column::text(key, key)).into();
    columns.extend(axes.iter().map(|axis| Column::text(*axis, *axis)));
    columns.push(Column::text("quantity", "quantity"));
    columns.extend(
        ["base_median", "other_median", "base_samples", "other_samples", "ratio", "low", "high"]
            .map(|key| Column::number(key, key)),
    );
    columns.push(Column::number("chance", "chance"));
    columns.push(Column::text("verdict", "verdict"));
    let mut rows = Vec::new();
    for comparison in &diff.comparisons {
        for pair in &comparison.points {
            rows.extend(pair.quantities.iter().map(|found| row(comparison, pair, found, &axes)));
        }
        rows.extend(comparison.alone.iter().map(|alone| lone(comparison, alone, &axes)));
    }
    Grid { caption: "Side by side".into(), columns, rows, left_out: 0 }
}

fn row(comparison: &Comparison, pair: &Pair, found: &Compared, axes: &BTreeSet<&str>) -> Vec<Cell> {
    let mut cells =
        vec![Cell::text(&comparison.base), Cell::text(&comparison.other), Cell::text(&pair.name)];
    cells.extend(axes.iter().map(|axis| match pair.point.get(*axis) {
        Some(value) => match value.as_str() {
            Some(text) => Cell::text(text),
            None => Cell::text(value.to_string()),
        },
        None => Cell::empty(),
    }));
    cells.push(Cell::text(&found.quantity));
    #[expect(clippy::cast_precision_loss, reason = "a number of samples")]
    let count = |count: usize| Cell::number(count as f64, count.to_string());
    cells.extend([Cell::maybe(Some(found.base)), Cell::maybe(Some(found.other))]);
    cells.extend([count(found.samples.0), count(found.samples.1)]);
    cells.push(Cell::maybe(Some(found.ratio)));
    cells.push(Cell::maybe(found.interval.map(|interval| interval.0)));
    cells.push(Cell::maybe(found.interval.map(|interval| interval.1)));
    cells.push(Cell::maybe(found.chance));
    cells.push(Cell::text(match found.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NotShown => "not-shown",
    }));
    cells
}

fn lone(comparison: &Comparison, alone: &Alone, axes: &BTreeSet<&str>) -> Vec<Cell> {
    let mut cells =
        vec![Cell::text(&comparison.base), Cell::text(&comparison.other), Cell::text(&alone.name)];
    cells.extend(std::iter::repeat_n(Cell::empty(), axes.len() + 9));
    let why = match alone.why {
        Why::NoPartner => "no-partner",
        Why::Failed => "failed",
        Why::WrongData => "wrong-data",
        Why::NoNumber => "no-number",
        Why::NoQuantity => "no-quantity",
    };
    cells.push(Cell::text(format!("{why}: {}", alone.side)));
    cells
}

/// The points of one comparison: the medians, ratio and verdict of a quantity, then the ratios of
/// the others.
#[must_use]
pub fn people(comparison: &Comparison, metric: Metric) -> Grid {
    let others: Vec<Metric> =
        quantities(comparison).into_iter().filter(|other| *other != metric).collect();
    let of = |name: &str| format!("{name}, {}", metric.unit());
    let mut columns = vec![
        Column::text("name", "point"),
        Column::number("base", of(&comparison.base)),
        Column::number("other", of(&comparison.other)),
        Column::number("ratio", format!("ratio of {}", metric.name())),
        Column::text("verdict", "verdict"),
    ];
    columns.extend(others.iter().map(|other| Column::text(other.key(), other.name())));
    let found: Vec<_> = pairs::of(metric, &comparison.points).collect();
    let rows: Vec<Vec<Cell>> = found
        .iter()
        .take(ROWS_MAX)
        .map(|(pair, compared)| {
            let value = |value: f64| Cell::number(value, digits(value * metric.scale()));
            let mark = if pair.simulated.0 == pair.simulated.1 { "" } else { " (one simulated)" };
            let mut cells = vec![
                Cell::text(format!("{}{mark}", pair.name)),
                value(compared.base),
                value(compared.other),
                Cell::number(compared.ratio, ratio_text(compared.ratio, compared.interval)),
                Cell::text(words(metric, compared.verdict)),
            ];
            cells.extend(others.iter().map(|other| {
                let own = pair.quantities.iter().find(|found| found.quantity == other.key());
                own.map_or_else(Cell::empty, |own| Cell::text(short(own)))
            }));
            cells
        })
        .collect();
    let left_out = found.len() - rows.len();
    let caption = format!("{} compared with {}", comparison.other, comparison.base);
    Grid { caption, columns, rows, left_out }
}

/// A ratio and its verdict.
fn short(compared: &Compared) -> String {
    let verdict = of_key(&compared.quantity).map_or("", |metric| words(metric, compared.verdict));
    format!("{} {verdict}", ratio_text(compared.ratio, None))
}

/// Every quantity over all points of one comparison.
#[must_use]
pub fn overall(comparison: &Comparison) -> Grid {
    let columns = vec![
        Column::text("quantity", "quantity"),
        Column::number("ratio", "geometric mean of the ratios"),
        Column::text("range", "smallest, largest"),
        Column::text("points", "points"),
    ];
    let rows = comparison.overall.iter().filter_map(|overall| {
        let metric = of_key(&overall.quantity)?;
        let (least, most) = overall.range;
        Some(vec![
            Cell::text(people::heading(metric)),
            Cell::number(overall.ratio, ratio_text(overall.ratio, overall.interval)),
            Cell::text(format!("{}, {}", ratio_text(least, None), ratio_text(most, None))),
            Cell::text(super::draw::counts(overall, metric)),
        ])
    });
    Grid { caption: "All points".into(), columns, rows: rows.collect(), left_out: 0 }
}

/// Every quantity over all points, of all comparisons.
#[must_use]
pub fn means(diff: &Diff) -> Grid {
    let mut all = Grid { caption: "All points".into(), ..Grid::default() };
    for comparison in &diff.comparisons {
        let own = overall(comparison);
        all.columns = own.columns;
        all.rows.extend(own.rows.into_iter().map(|row| with_side(comparison, row)));
    }
    all.columns.insert(0, Column::text("side", "run"));
    all
}

/// Each point of all comparisons, `most` at most.
#[must_use]
pub fn points(diff: &Diff, metric: Metric, most: usize) -> Grid {
    let columns = vec![
        Column::text("side", "run"),
        Column::text("name", "point"),
        Column::number("base", format!("base, {}", metric.unit())),
        Column::number("other", format!("this run, {}", metric.unit())),
        Column::number("ratio", format!("ratio of {}", metric.name())),
        Column::text("verdict", "verdict"),
    ];
    let mut all = Grid { caption: "Each point".into(), columns, ..Grid::default() };
    for comparison in &diff.comparisons {
        for mut row in people(comparison, metric).rows {
            row.truncate(all.columns.len() - 1);
            all.rows.push(with_side(comparison, row));
        }
    }
    let count = diff.comparisons.iter().map(|own| pairs::of(metric, &own.points).count());
    let count: usize = count.sum();
    all.rows.truncate(most);
    all.left_out = count - all.rows.len();
    all
}

fn with_side(comparison: &Comparison, mut row: Vec<Cell>) -> Vec<Cell> {
    row.insert(0, Cell::text(&comparison.other));
    row
}

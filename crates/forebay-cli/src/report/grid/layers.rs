//! Tables of layers behind compute: one for people, and one with every number.

use super::{Cell, Column, Grid};
use crate::report::digest::{digits, grouped};
use crate::report::layers::{Layers, Of, Point, QUANTITIES, Way};

/// A row for each number of tokens and method of one run, `most` at most.
#[must_use]
pub fn people(layers: &Layers, most: usize) -> Grid {
    let columns = vec![
        Column::number("tokens", "tokens"),
        Column::text("way", "method"),
        Column::number("compute_turn_s", "compute, ms"),
        Column::number("transfer_layer_s", "transfer, ms"),
        Column::number("reads", "reads"),
        Column::number("pass_s", "pass, ms"),
        Column::number("line_s", "line, ms"),
        Column::number("over_line", "overhead, %"),
        Column::number("rested_over_line", "from rest, %"),
        Column::number("over_compute", "over compute, %"),
        Column::number("stall_s", "stall, ms"),
        Column::number("compute_beside", "compute slowdown"),
        Column::number("cpu_s_per_gb", "CPU, s/GB"),
    ];
    let all = layers
        .points
        .iter()
        .flat_map(|point| point.ways.iter().map(move |(name, way)| (point, name.as_str(), way)));
    let rows: Vec<Vec<Cell>> =
        all.clone().take(most).map(|(point, name, way)| row(point, name, way)).collect();
    let left_out = all.count() - rows.len();
    Grid { caption: layers.about(), columns, rows, left_out }.without_empty()
}

fn row(point: &Point, name: &str, way: &Way) -> Vec<Cell> {
    let beyond = |ratio: f64| Cell::number(ratio, format!("{:+.1}", (ratio - 1.0) * 100.0));
    let ratio = |value: f64| Cell::number(value, format!("{value:.3}"));
    let maybe =
        |value: Option<f64>, shown: &dyn Fn(f64) -> Cell| value.map_or_else(Cell::empty, shown);
    vec![
        whole(point.tokens),
        Cell::text(name),
        millis(point.compute_turn_s(), 2),
        millis(way.transfer(point), 2),
        maybe(way.reads, &layers_of),
        millis(way.pass_s, 1),
        millis(way.line_s, 1),
        beyond(way.over_line()),
        maybe(way.rested_over_line(), &beyond),
        beyond(way.over_compute(point)),
        maybe(way.stall_s, &|stall| millis(stall, 1)),
        maybe(way.compute_beside, &ratio),
        ratio(way.cpu_s_per_gb),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "a table's number has 52 bits")]
fn whole(count: u64) -> Cell {
    Cell::number(count as f64, grouped(count))
}

fn millis(seconds: f64, places: usize) -> Cell {
    Cell::number(seconds, format!("{:.places$}", seconds * 1e3))
}

/// A number of layers, which is seldom fractional.
fn layers_of(count: f64) -> Cell {
    let is_whole = count.fract() == 0.0 && count < 1e6;
    Cell::number(count, if is_whole { format!("{count}") } else { digits(count) })
}

/// A row for each number of tokens and method of all runs, with every number to the last digit.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a table's number has 52 bits")]
pub fn full(all: &[Layers]) -> Grid {
    let mut columns = vec![Column::text("run", "run")];
    columns.extend(["layers", "layer_bytes"].map(|key| Column::number(key, key)));
    columns.extend(["order", "from"].map(|key| Column::text(key, key)));
    columns.extend([Column::number("tokens", "tokens"), Column::text("way", "way")]);
    columns.extend(QUANTITIES.map(|quantity| Column::number(quantity.key, quantity.key)));
    columns.push(Column::text("simulated", "simulated"));
    let exact = |count: u64| Cell::number(count as f64, count.to_string());
    let row = |layers: &Layers, point: &Point, name: &str, way: &Way| {
        let mut cells = vec![Cell::text(&layers.name)];
        cells.extend([layers.count, layers.layer_bytes].map(exact));
        cells.extend([&layers.order, &layers.from].map(Cell::text));
        cells.extend([exact(point.tokens), Cell::text(name)]);
        cells.extend(QUANTITIES.map(|quantity| match quantity.of {
            Of::Point(of) => Cell::maybe(of(point)),
            Of::Way(of) => Cell::maybe(of(point, way)),
        }));
        cells.push(Cell::text(layers.simulated.to_string()));
        cells
    };
    let mut rows = Vec::new();
    for layers in all {
        for point in &layers.points {
            rows.extend(point.ways.iter().map(|(name, way)| row(layers, point, name, way)));
        }
    }
    Grid { caption: "Layers behind compute".into(), columns, rows, left_out: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::layers::read;
    use crate::report::layers::tests::MAPPED;

    #[test]
    fn passes_from_rest_have_a_column_where_they_were_told() {
        let json = include_str!("../../../../../benches/runs/2026-11-22-h200-layers-e/mid-1.json");
        let grid = people(&read::layers(json.as_bytes()).unwrap(), 99);
        let at = grid.columns.iter().position(|column| column.key == "rested_over_line").unwrap();
        assert_eq!(grid.rows[0][at].text, "+3.6");
        let before = people(&read::layers(MAPPED.as_bytes()).unwrap(), 99);
        assert!(before.columns.iter().all(|column| column.key != "rested_over_line"));
    }

    #[test]
    fn the_table_has_the_numbers_of_the_runs_own() {
        let log = include_str!("../../../../../benches/runs/2026-11-22-h200-layers-b/run.log");
        let layers = read::layers(MAPPED.as_bytes()).unwrap();
        let grid = people(&layers, 99);
        assert_eq!((grid.rows.len(), grid.left_out), (6, 0));
        assert_eq!(people(&layers, 4).left_out, 2);
        for row in &grid.rows {
            assert_eq!(row.len(), grid.columns.len());
            let texts = row.iter().zip(&grid.columns).map(|(cell, column)| {
                let unit = if column.key.starts_with("over") { "%" } else { "" };
                format!("{}{unit}", cell.text)
            });
            let texts: Vec<String> = texts.collect();
            let told = |line: &&str| line.split_whitespace().eq(texts.iter().map(String::as_str));
            assert_eq!(log.lines().filter(told).count(), 1, "{texts:?}");
        }
    }

    #[test]
    fn what_a_file_does_not_tell_has_no_column() {
        let mut layers = read::layers(MAPPED.as_bytes()).unwrap();
        for (_, way) in layers.points.iter_mut().flat_map(|point| &mut point.ways) {
            (way.stall_s, way.reads, way.compute_beside) = (None, Some(1.5e7), None);
        }
        let grid = people(&layers, 99);
        let keys: Vec<&str> = grid.columns.iter().map(|column| column.key.as_str()).collect();
        assert!(!keys.contains(&"stall_s") && keys.len() == 10, "{keys:?}");
        assert_eq!(grid.rows[0][4].text, "1.50e7");
        assert_eq!(layers_of(5.25).text, "5.25");
        assert!(people(&Layers::default(), 9).rows.is_empty());
    }

    #[test]
    fn the_full_table_has_every_number() {
        let layers = read::layers(MAPPED.as_bytes()).unwrap();
        let way = layers.points[0].way("forebay").unwrap().clone();
        let grid = full(&[layers.clone(), layers]);
        assert_eq!((grid.rows.len(), grid.columns.len()), (12, 8 + QUANTITIES.len()));
        let at = |key: &str| grid.columns.iter().position(|column| column.key == key).unwrap();
        let row = &grid.rows[0];
        assert_eq!(row[at("layer_bytes")].text, "1236996096");
        assert_eq!(row[at("pass_s")].number, Some(way.pass_s));
        assert_eq!(row[at("mapped_bytes")].number, Some(7_421_976_576.0));
        assert_eq!(
            (row[at("backward_layer_s")].number, row[at("from")].text.as_str()),
            (None, "mapped")
        );
    }
}

//! The table that programs read: every axis and every quantity, to the last digit.

use super::{Cell, Column, Grid};
use crate::report::digest::{Axis, Digest, Line, Metric};

/// A row for each line.
#[must_use]
pub fn results(digest: &Digest) -> Grid {
    let axes: Vec<Axis> = Axis::ALL
        .into_iter()
        .filter(|axis| digest.lines.iter().any(|line| line.marks.contains_key(axis)))
        .collect();
    let metrics: Vec<Metric> = Metric::ALL
        .into_iter()
        .filter(|metric| digest.lines.iter().any(|line| line.metrics.contains_key(metric)))
        .collect();
    let mut columns: Vec<Column> =
        axes.iter().map(|axis| Column::text(axis.key(), axis.name())).collect();
    for metric in &metrics {
        for end in ["", "_low", "_high", "_min", "_max"] {
            let key = format!("{}{end}", metric.key());
            columns.push(Column::number(key.clone(), key));
        }
    }
    columns.extend(
        ["samples", "failed", "bytes", "drive_read", "drive_written", "share_of_limit"]
            .map(|key| Column::number(key, key)),
    );
    columns.extend(
        ["limit", "route", "verdict", "verified", "simulated", "error"]
            .map(|key| Column::text(key, key)),
    );
    let rows = digest.lines.iter().map(|line| row(line, &axes, &metrics)).collect();
    Grid { caption: "Results".into(), columns, rows, left_out: 0 }
}

#[expect(clippy::cast_precision_loss, reason = "a table's number has 52 bits")]
fn row(line: &Line, axes: &[Axis], metrics: &[Metric]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = axes
        .iter()
        .map(|axis| match line.marks.get(axis) {
            // The number alone, without its unit; a run keeps its name.
            Some(mark) if *axis != Axis::Run && mark.number.is_some() => Cell::maybe(mark.number),
            Some(mark) => Cell::text(&mark.text),
            None => Cell::empty(),
        })
        .collect();
    for metric in metrics {
        let estimate = line.metric(*metric);
        let interval = estimate.and_then(|estimate| estimate.interval);
        cells.extend(
            [
                estimate.map(|estimate| estimate.median),
                interval.map(|interval| interval.0),
                interval.map(|interval| interval.1),
                estimate.map(|estimate| estimate.min),
                estimate.map(|estimate| estimate.max),
            ]
            .map(Cell::maybe),
        );
    }
    let samples = line.metric(Metric::Rate).map_or(0, |rate| rate.count);
    let whole = |count: u64| Cell::number(count as f64, count.to_string());
    cells.extend([whole(samples as u64), whole(line.failed as u64), whole(line.bytes)]);
    let drive = |bytes: Option<u64>| bytes.map_or_else(Cell::empty, whole);
    cells.push(drive(line.drive.map(|drive| drive.read)));
    cells.push(drive(line.drive.map(|drive| drive.written)));
    cells.push(Cell::maybe(line.share()));
    let text = |text: Option<&str>| Cell::text(text.unwrap_or_default());
    cells.push(text(line.limit.as_ref().map(|limit| limit.name.as_str())));
    cells.push(text(line.route.as_deref()));
    cells.push(text(line.verdict.as_deref()));
    cells.push(line.verified.map_or_else(Cell::empty, |right| Cell::text(right.to_string())));
    cells.push(Cell::text(line.simulated.to_string()));
    cells.push(text(line.error.as_deref()));
    cells
}

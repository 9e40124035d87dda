//! The table for programs: every axis and every quantity, to the last digit.

use super::{Cell, Column, Grid};
use crate::power::result::Throttled;
use crate::report::digest::{Axis, Digest, Heat, Line, Metric, digits, ratio};

/// Most GPUs and drives whose temperatures have columns.
const SENSORS_MAX: usize = 64;

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
    let mut rows: Vec<Vec<Cell>> =
        digest.lines.iter().map(|line| row(line, &axes, &metrics)).collect();
    steady(digest, &mut columns, &mut rows);
    heat(digest, &mut columns, &mut rows);
    speed_ups(digest, &mut columns, &mut rows);
    Grid { caption: "Results".into(), columns, rows, left_out: 0 }
}

/// Adds whether the rate of every sample was steady, if reported.
fn steady(digest: &Digest, columns: &mut Vec<Column>, rows: &mut [Vec<Cell>]) {
    if digest.lines.iter().all(|line| line.judged == 0) {
        return;
    }
    columns.push(Column::text("steady", "steady"));
    for (line, row) in digest.lines.iter().zip(rows) {
        let is_steady = (line.judged > 0).then_some(line.unsteady == 0);
        row.push(is_steady.map_or_else(Cell::empty, |steady| Cell::text(steady.to_string())));
    }
}

/// Adds the temperature of each GPU and drive, and throttling, if reported.
fn heat(digest: &Digest, columns: &mut Vec<Column>, rows: &mut [Vec<Cell>]) {
    let mut names: Vec<&str> = Vec::new();
    for heat in digest.lines.iter().flat_map(|line| &line.heat) {
        if names.len() < SENSORS_MAX && !names.contains(&heat.name.as_str()) {
            names.push(&heat.name);
        }
    }
    for name in &names {
        let keys = ["first", "last", "max"].map(|end| format!("{end}_celsius {name}"));
        columns.extend(keys.map(|key| Column::number(key.clone(), key)));
    }
    let any = digest.lines.iter().any(|line| !line.throttled.is_empty());
    columns.extend(any.then(|| Column::text("throttled", "throttled")));
    for (line, row) in digest.lines.iter().zip(rows) {
        for name in &names {
            let found = line.heat.iter().find(|heat| heat.name == *name);
            let of = |of: fn(&Heat) -> Option<f64>| Cell::maybe(found.and_then(of));
            row.extend([of(|heat| heat.first), of(|heat| heat.last), of(|heat| heat.max)]);
        }
        let told = line.throttled.iter().map(|Throttled { name, reason, share }| {
            let share = ratio(*share, 1.0).unwrap_or_default();
            format!("{name}: {reason} ({} %)", digits(share * 100.0))
        });
        let told: Vec<String> = told.collect();
        row.extend(any.then(|| Cell::text(told.join("; "))));
    }
}

/// Adds the speed-up over the standard method, if there are any.
fn speed_ups(digest: &Digest, columns: &mut Vec<Column>, rows: &mut [Vec<Cell>]) {
    if digest.lines.iter().all(|line| line.speed_up.is_none()) {
        return;
    }
    columns.push(Column::number("speed_up", "speed_up"));
    for (line, row) in digest.lines.iter().zip(rows) {
        row.push(Cell::maybe(line.speed_up));
    }
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    /// The texts of a column of the table of these records.
    fn column(records: &[Value], key: &str) -> Vec<String> {
        let grid = results(&digest_of(&[("a", &made::text(records))]));
        assert!(grid.rows.iter().all(|row| row.len() == grid.columns.len()));
        let at = grid.columns.iter().position(|column| column.key == key);
        let at = at.unwrap_or_else(|| panic!("no column `{key}` in {:?}", grid.columns));
        grid.rows.iter().map(|row| row[at].text.clone()).collect()
    }

    #[test]
    fn every_quantity_of_a_sample_has_a_column() {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1, 8], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep));
        for (number, record) in records[1..].iter_mut().enumerate() {
            let measured = &mut record["measured"];
            // Of the first of both points alone, in the order of its repeats.
            let repeat = (number / 2) as f64;
            if number % 2 == 0 {
                measured["cpu"]["user_s"] = (1.5 + repeat).into();
                measured["cpu"]["system_s"] = (0.25 + repeat).into();
                measured["page_cache"] = json!({"before": 0.125, "after": 0.5 + repeat / 8.0});
                measured["steady"]["slope"] = (0.1 * repeat).into();
                measured["steady"]["reached"] = (number != 4).into();
                let at = 40.0 + repeat;
                measured["power"] = json!({
                    "temperatures": [{"name": "drive nvme0n1", "first": at, "last": at, "max": 45}],
                    "throttled": [{"name": "gpu cuda:0", "reason": "heat", "share": 0.5}]
                });
            }
        }
        for (key, first, second) in [
            ("cpu_user_s", "2.5", "0.1"),
            ("cpu_system_s_max", "2.25", "0.2"),
            ("cpu_user_share", "1.25", "0.05"),
            ("cpu_system_share_max", "1.125", "0.1"),
            ("page_cache_before", "0.125", "0"),
            ("page_cache_after", "0.625", "0"),
            ("slope", "0.1", "0"),
            ("steady", "false", "true"),
            ("first_celsius drive nvme0n1", "41", ""),
            ("max_celsius drive nvme0n1", "45", ""),
            ("throttled", "gpu cuda:0: heat (50.0 %)", ""),
        ] {
            assert_eq!(column(&records, key), [first, second], "{key}");
        }
    }

    #[test]
    fn what_nobody_told_has_no_column() {
        let grid = results(&digest_of(&[("a", &made::file(&Sweep::default()))]));
        let known = |column: &Column| {
            ["celsius", "throttled", "first_", "watts"].iter().any(|word| column.key.contains(word))
        };
        assert!(!grid.columns.iter().any(known), "{:?}", grid.columns);
    }
}

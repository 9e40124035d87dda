//! A sweep as a table: a line for each point, with the columns in which points differ.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table};

use crate::args::sweep::direction_name;
use crate::bench::stats::Spread;
use crate::report::plain::plain;
use crate::report::table::{footnotes, header, lines, mark, rate};
use crate::results::file::samples;
use crate::results::{Measured, Point, Record, Run};
use crate::workload::pattern::exact_size;

/// An axis: its name, and the words of a point's value.
type Axis = (&'static str, fn(&Point) -> String);

/// All axes, in the order of the columns.
const AXES: [Axis; 12] = [
    ("path", |point| point.path.clone()),
    ("target", |point| point.targets.join("+")),
    ("way", |point| point.way.clone()),
    ("route", |point| point.route.clone().unwrap_or_else(|| "any".into())),
    ("cache", |point| point.cache.name().into()),
    ("direction", |point| direction_name(point.read_percent)),
    ("pattern", |point| point.pattern.clone()),
    ("request", |point| exact_size(point.request_size)),
    ("depth", |point| point.depth.to_string()),
    ("batch", |point| point.batch.to_string()),
    ("threads", |point| point.threads.to_string()),
    ("files", |point| point.files.to_string()),
];

const HEADINGS: [&str; 9] = [
    "GB/s (min–max)",
    "requests/s",
    "p50",
    "p99",
    "CPU s/GB",
    "of limit",
    "bound by",
    "data",
    "verdict",
];

/// A point, what was measured of it, and what failed.
type Seen<'a> = (&'a Point, Vec<&'a Measured>, Vec<&'a str>);

/// The whole text.
pub(super) fn render(records: &[Record]) -> String {
    let mut text = String::new();
    let run = records.iter().rev().find_map(|record| match record {
        Record::Run(run) => Some(&**run),
        _ => None,
    });
    let Some(run) = run else { return text };
    let points = points(records);
    let _ = writeln!(text, "{}", head(run, &points));
    text.push_str(&table(&points));
    text
}

/// What all points have in common stands above the table.
fn head(run: &Run, points: &[Seen<'_>]) -> String {
    let mut paths: Vec<&str> = Vec::new();
    for (point, ..) in points {
        if !paths.contains(&point.path.as_str()) {
            paths.push(&point.path);
        }
    }
    let mut text = header(&run.environment, paths.first().copied(), paths.len() > 1);
    let same = AXES.iter().filter(|axis| !differs(points, axis.1));
    let same = same.filter_map(|(name, value)| {
        points.first().map(|(point, ..)| format!("{name} {}", value(point)))
    });
    let _ = writeln!(text, "points   {}", plain(&same.collect::<Vec<_>>().join(", ")));
    text
}

fn differs(points: &[Seen<'_>], value: fn(&Point) -> String) -> bool {
    points.iter().any(|(point, ..)| value(point) != value(points[0].0))
}

/// The points in the order of their first samples, with what was measured and what failed.
fn points(records: &[Record]) -> Vec<Seen<'_>> {
    let mut points: Vec<Seen<'_>> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (_, sample) in samples(records) {
        let place = *places.entry(&sample.point).or_insert_with(|| {
            points.push((&sample.point, Vec::new(), Vec::new()));
            points.len() - 1
        });
        points[place].1.extend(&sample.measured);
        points[place].2.extend(sample.error.as_deref());
    }
    points
}

fn table(points: &[Seen<'_>]) -> String {
    let axes: Vec<_> = AXES.iter().filter(|axis| differs(points, axis.1)).collect();
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(axes.iter().map(|(name, _)| *name).chain(HEADINGS));
    let mut failures: Vec<&str> = Vec::new();
    for (point, all, errors) in points {
        let mut row: Vec<String> = axes.iter().map(|(_, value)| plain(&value(point))).collect();
        match all.as_slice() {
            [] => {
                let error = errors.first().copied().unwrap_or("it was not measured");
                row.push(format!("failed [{}]", mark(error, &mut failures)));
            }
            all => row.extend(cells(all)),
        }
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if (axes.len()..axes.len() + 6).contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    lines(&table) + &footnotes(&failures)
}

/// What was measured of one point.
fn cells(all: &[&Measured]) -> Vec<String> {
    let spread = |value: &dyn Fn(&Measured) -> Option<f64>| {
        Spread::of(all.iter().filter_map(|measured| value(measured)))
    };
    let rates = spread(&|m| Some(m.bytes_per_second));
    let number = |value: Option<Spread>, text: &dyn Fn(f64) -> String| {
        value.map_or_else(|| "–".into(), |spread| text(spread.median))
    };
    let time = |value: &dyn Fn(&Measured) -> Option<f64>| {
        spread(value).map_or_else(|| "–".into(), |spread| duration(spread.median))
    };
    let share = spread(&|m| m.bound.as_ref().and_then(|bound| bound.share));
    let bound = all.iter().find_map(|m| m.bound.as_ref().map(|bound| bound.name.clone()));
    let right = all.iter().filter_map(|m| m.verified).reduce(|a, b| a && b);
    let mut verdicts: Vec<&str> = Vec::new();
    for verdict in all.iter().filter_map(|m| m.verdict.as_ref()) {
        if !verdicts.contains(&verdict.text.as_str()) {
            verdicts.push(&verdict.text);
        }
    }
    vec![
        rates.map_or_else(
            || "–".into(),
            |s| format!("{} ({}–{})", rate(s.median), rate(s.min), rate(s.max)),
        ),
        number(spread(&|m| Some(m.requests_per_second)), &|rate| format!("{rate:.0}")),
        time(&|m| m.latency.map(|latency| float(latency.p50_ns))),
        time(&|m| m.latency.map(|latency| float(latency.p99_ns))),
        number(spread(&|m| m.cpu.and_then(|cpu| cpu.s_per_gb)), &|cost| format!("{cost:.3}")),
        number(share, &|share| format!("{:.0} %", share * 100.0)),
        bound.unwrap_or_else(|| "–".into()),
        match right {
            Some(true) => "right".into(),
            Some(false) => "WRONG".into(),
            None => "–".into(),
        },
        if verdicts.is_empty() { "–".into() } else { plain(&verdicts.join(" or ")) },
    ]
}

/// Nanoseconds in the unit that suits them.
fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn float(ns: u64) -> f64 {
    ns as f64
}

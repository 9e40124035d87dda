//! A comparison as text for people: what is compared, a line for each run, then the table.

use std::fmt::Write as _;
use std::path::Path;

use comfy_table::{CellAlignment, Table};
use forebay::units::format_size;

use super::json::{CompareReport, CompareRow};
use super::run::Told;
use super::runs::faster;
use crate::report::json::{Cache, Environment, MethodName, Row};
use crate::report::plain::plain;
use crate::report::proof;
use crate::report::table::{self, lines, rate};

const HEADINGS: [&str; 11] = [
    "method",
    "direction",
    "first",
    "average",
    "median (min–max)",
    "variation",
    "against standard",
    "CPU s/GB",
    "data",
    "route",
    "verdict",
];
/// Columns of numbers.
const NUMBERS: std::ops::Range<usize> = 2..8;

/// What is compared, on what.
pub(super) fn head(
    facts: &Environment,
    path: &Path,
    len: u64,
    cache: Cache,
    simulated: bool,
) -> String {
    let mut text = table::header(facts, Some(&path.display().to_string()), false);
    let how = match cache {
        Cache::Cold => "writes end on the drive, reads begin there",
        Cache::Resident => "writes end in the page cache, reads begin there",
    };
    let played = if simulated { ", simulated GPU" } else { "" };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "each run {} written and read; {how}{played}\n", format_size(len));
    text
}

/// The line of one run.
pub(super) fn run(told: &Told, simulated: bool) -> String {
    let verified = match told.verified {
        (true, true) => "verified",
        (false, true) => "WRONG DATA written",
        (true, false) => "WRONG DATA read",
        (false, false) => "WRONG DATA written and read",
    };
    let played = if simulated { ", simulated" } else { "" };
    format!(
        "{}, run {}: write {} GB/s, read {} GB/s, {verified}{played}\n",
        plain(&told.name),
        told.run,
        rate(told.write),
        rate(told.read),
    )
}

/// What all runs come to.
pub(super) fn summary(report: &CompareReport) -> String {
    let mut text = String::from("\n");
    text.push_str(&table(&report.results));
    text
}

fn table(rows: &[CompareRow]) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(HEADINGS);
    let mut reasons = Vec::new();
    for row in rows {
        table.add_row(cells(row, &mut reasons));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if NUMBERS.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = lines(&table);
    text.push_str(&table::footnotes(&reasons));
    text
}

/// A way, with the route that was demanded of it.
fn method(row: &Row) -> String {
    match &row.demanded {
        Some(route) => format!("{}, by `{route}`", row.method.name()),
        None => row.method.name().to_owned(),
    }
}

fn cells<'a>(CompareRow { row, runs }: &'a CompareRow, reasons: &mut Vec<&'a str>) -> [String; 11] {
    let none = || "–".to_owned();
    let variation = runs.judgement.zip(runs.variation);
    let ratio = row.speed_up.filter(|_| row.method != MethodName::Standard);
    [
        method(row),
        row.direction.name().to_owned(),
        rate(runs.first),
        rate(runs.mean),
        table::rates(row),
        variation.map_or_else(none, |(judgement, share)| {
            format!("{:.0} %, {}", share * 100.0, judgement.name())
        }),
        ratio.map_or_else(none, faster),
        row.cpu_s_per_gb.map_or_else(none, |seconds| format!("{seconds:.3}")),
        table::data(row).to_owned(),
        table::route(row, reasons),
        proof::cell(row, reasons),
    ]
}

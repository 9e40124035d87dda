//! A comparison as text for people: what is compared, a line for each run, then the table.

use std::fmt::Write as _;
use std::path::Path;

use comfy_table::{CellAlignment, Table};
use forebay::units::format_size;

use super::beside::Turn;
use super::json::{CompareReport, CompareRow, ComputeFacts};
use super::run::Told;
use super::runs::faster;
use super::sockets::Sockets;
use crate::report::json::{Cache, Direction, Environment, MethodName, Row};
use crate::report::plain::plain;
use crate::report::proof::{self, VerdictFacts};
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
#[derive(Debug)]
pub(super) struct Head<'a> {
    pub(super) environment: &'a Environment,
    pub(super) sockets: Option<&'a Sockets>,
    pub(super) path: &'a Path,
    pub(super) len: u64,
    pub(super) cache: Cache,
}

impl Head<'_> {
    pub(super) fn text(&self, simulated: bool) -> String {
        let path = self.path.display().to_string();
        let mut text = table::header(self.environment, Some(&path), false);
        // Writing to a string cannot fail.
        for drive in self.sockets.iter().flat_map(|sockets| &sockets.drives) {
            let _ = writeln!(text, "distance {}: {}", plain(&drive.name), plain(&drive.text));
        }
        let how = match self.cache {
            Cache::Cold => "writes end on the drive, reads begin there",
            Cache::Resident => "writes end in the page cache, reads begin there",
        };
        let played = if simulated { ", simulated GPU" } else { "" };
        let len = format_size(self.len);
        let _ = writeln!(text, "each run {len} written and read; {how}{played}\n");
        text
    }
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

/// The line of the kernel's turn.
pub(super) fn turn(turn: &Turn, simulated: bool) -> String {
    let verified = if turn.verified { "verified" } else { "WRONG DATA" };
    let played = if simulated { ", simulated" } else { "" };
    format!(
        "xor, run {}: alone {} GB/s, beside a read {} GB/s, that read {} GB/s, \
         {verified}{played}\n",
        turn.run,
        rate(turn.alone),
        rate(turn.beside),
        rate(turn.read),
    )
}

/// What all runs come to.
pub(super) fn summary(report: &CompareReport) -> String {
    let mut text = String::from("\n");
    text.push_str(&table(&report.results));
    text.push('\n');
    for direction in [Direction::Write, Direction::Read] {
        text.push_str(&dma(&report.results, direction));
    }
    if let Some(facts) = &report.compare.compute {
        text.push_str(&compute(facts));
    }
    text
}

/// Whether our bytes went by DMA between drive and GPU, as their verdicts alone say.
fn dma(rows: &[CompareRow], direction: Direction) -> String {
    let ours = rows.iter().map(|found| &found.row).filter(|row| {
        row.method == MethodName::Forebay && row.direction == direction && row.verdict.is_some()
    });
    let ours: Vec<&Row> = ours.collect();
    let of = |is_so: fn(&VerdictFacts) -> bool| -> Vec<&Row> {
        ours.iter().copied().filter(|row| row.verdict.as_ref().is_some_and(is_so)).collect()
    };
    let answers = [
        ("yes", of(VerdictFacts::is_direct)),
        ("in part", of(VerdictFacts::is_partly_direct)),
        ("not proven", of(|verdict| verdict.shares.is_empty())),
        ("no", ours.clone()),
    ];
    let Some((answer, rows)) = answers.into_iter().find(|(_, rows)| !rows.is_empty()) else {
        return String::new();
    };
    let said = rows.iter().map(|row| {
        let verdict = row.verdict.as_ref().map_or("", |verdict| &verdict.text);
        format!("{}: {verdict}", method(row))
    });
    let said: Vec<String> = said.collect();
    let played = if rows.iter().any(|row| row.simulated) { ", simulated" } else { "" };
    format!("DMA      {}: {answer}: {}{played}\n", direction.name(), said.join("; "))
}

/// The kernel beside the memory's limit and beside a read.
fn compute(facts: &ComputeFacts) -> String {
    let by = match facts.limit_by.as_str() {
        "filling" => "that filling it reaches",
        _ => "that its clock and width give",
    };
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    let read = facts.share_of_read.map(|of| format!(", {} of what it is alone", share(of)));
    let data = if facts.verified { "right" } else { "WRONG" };
    let played = if facts.simulated { ", simulated" } else { "" };
    format!(
        "xor      {} of the GPU's memory, read and written: {} GB/s, {} of the {} GB/s {by}; \
         data {data}{played}\n\
         beside   a read: {} GB/s, {} of what it is alone; that read {} GB/s{}{played}\n",
        format_size(facts.bytes),
        rate(facts.alone.mean),
        share(facts.share_of_limit),
        rate(facts.limit),
        rate(facts.beside.mean),
        share(facts.beside.mean / facts.alone.mean),
        rate(facts.read.mean),
        read.unwrap_or_default(),
    )
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
    let ratio = row.speed_up.filter(|_| {
        // The speed of wrong data means nothing.
        row.method != MethodName::Standard && row.verified != Some(false)
    });
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

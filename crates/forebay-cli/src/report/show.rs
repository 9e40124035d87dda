//! The parts of a report, which every form for people shows in its own way. Pure.

use super::compare::{Compared, Comparison, Pair, Verdict, text};
use super::grid::{Cell, Column, Grid};
use super::model::{Axis, Line, Metric, Model, facts};
use super::numbers::{counted, digits, percent, rate_text};
use crate::power::result::Part;
use crate::workload::backend::Plain;

/// A part of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// A heading.
    Title(String),
    /// A sentence or a line of facts.
    Line(String),
    /// A table.
    Table(Grid),
}

/// Quantities of a table, with the rank of their columns.
const METRICS: [(Metric, u8); 18] = [
    (Metric::Rate, 0),
    (Metric::Iops, 3),
    (Metric::Mean, 6),
    (Metric::P50, 2),
    (Metric::P90, 6),
    (Metric::P99, 2),
    (Metric::P999, 6),
    (Metric::Max, 6),
    (Metric::CpuCost, 4),
    (Metric::CpuUser, 7),
    (Metric::CpuSystem, 7),
    (Metric::SlowestGpu, 5),
    (Metric::FirstDone, 3),
    (Metric::LastDone, 3),
    (Metric::Watts(Part::Gpu), 6),
    (Metric::Watts(Part::Package), 6),
    (Metric::Watts(Part::Server), 5),
    (Metric::Joules(Part::Gpu), 5),
];
/// Columns of this rank and above are details.
pub const DETAIL: u8 = 6;
/// Most facts of two sides that are listed.
const FACTS_MAX: usize = 8;

/// The results of all runs: what they share, the table, and the best.
#[must_use]
pub fn results(model: &Model, rows: usize) -> Vec<Block> {
    if model.lines.is_empty() {
        return Vec::new();
    }
    let mut blocks = Vec::new();
    let varying = model.varying();
    let shared = shared(model, &varying);
    if !shared.is_empty() {
        blocks.push(Block::Line(format!("all: {shared}")));
    }
    blocks.push(Block::Table(table(model, &varying, rows)));
    blocks.extend(best(model, &varying).into_iter().map(Block::Line));
    blocks
}

/// The values that all points share.
#[must_use]
pub fn shared(model: &Model, varying: &[Axis]) -> String {
    let Some(first) = model.lines.first() else { return String::new() };
    let shared = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Run && !varying.contains(axis));
    let text = |axis: Axis| Some(format!("{} {}", axis.name(), axis.text(model, first)?));
    shared.filter_map(text).collect::<Vec<_>>().join(", ")
}

/// A row for each point, `rows` at most.
#[must_use]
pub fn table(model: &Model, varying: &[Axis], rows: usize) -> Grid {
    let mut axes = varying.to_vec();
    if axes.is_empty() {
        axes.push(Axis::Method);
    }
    let metrics = METRICS.iter().filter(|(metric, _)| {
        let has = |line: &&Line| !line.samples(*metric).is_empty();
        // The mean stands for percentiles that are unknown.
        let counts = |line: &&Line| *metric != Metric::Mean || line.samples(Metric::P50).is_empty();
        // A missing rate is shown as such.
        *metric == Metric::Rate || model.lines.iter().filter(counts).any(|line| has(&line))
    });
    let metrics: Vec<(Metric, u8)> = metrics.copied().collect();
    let mut columns: Vec<Column> = axes
        .iter()
        .map(|axis| {
            let number = Axis::NUMBERS.contains(axis) && *axis != Axis::Run;
            Column { heading: axis.name().into(), number, rank: 0 }
        })
        .collect();
    for (metric, rank) in &metrics {
        columns.push(Column::number(metric.heading(), *rank));
        if *metric == Metric::Rate {
            columns.push(Column::number("±", 3));
        }
    }
    columns.extend([
        Column::number("of limit", 1),
        Column::text("bound by", 4),
        Column::text("data", 1),
        Column::text("path", 5),
        Column::text("route", 7),
        Column::text("failure", 7),
    ]);
    let row = |line: &Line| {
        let axis = |axis: &Axis| {
            let text = axis.text(model, line).unwrap_or_default();
            Cell { text, number: axis.number(model, line) }
        };
        let mut cells: Vec<Cell> = axes.iter().map(axis).collect();
        for (metric, _) in &metrics {
            let found = line.estimate(*metric);
            let median = Cell::number(found.map(|found| found.median), |value| metric.text(value));
            let is_missing = *metric == Metric::Rate && found.is_none();
            cells.push(match line.failed {
                _ if !is_missing => median,
                0 => Cell::text("too short"),
                _ => Cell::text("failed"),
            });
            if *metric == Metric::Rate {
                cells.push(Cell::number(found.and_then(|found| found.deviation()), percent));
            }
        }
        // Above its limit a rate has no share.
        let share = line.share();
        let of_limit = match share {
            Some(share) if share > 1.0 => Cell { text: "at it".into(), number: Some(1.0) },
            share => Cell::number(share, percent),
        };
        cells.extend([
            of_limit,
            Cell::text(line.bound_by().unwrap_or_default()),
            Cell::text(if line.verified == Some(false) { "MISMATCH" } else { "" }),
            Cell::text(&line.verdict),
            Cell::text(&line.route),
            Cell::text(line.error.as_deref().unwrap_or_default()),
        ]);
        cells
    };
    let best = model.best().map(|(number, _)| number);
    let shown: Vec<Vec<Cell>> = model.lines.iter().take(rows).map(row).collect();
    let left_out = model.lines.len() - shown.len();
    let bars = Some(axes.len());
    Grid { columns, rows: shown, best, bars, left_out }.without_empty()
}

/// A sentence on the best rate of each direction, and one on its path.
fn best(model: &Model, varying: &[Axis]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut directions: Vec<u8> = Vec::new();
    for percent in model.lines.iter().map(|line| line.point.read_percent) {
        if !directions.contains(&percent) && directions.len() < 4 {
            directions.push(percent);
        }
    }
    for direction in &directions {
        let own =
            |line: &&Line| line.point.read_percent == *direction && line.verified != Some(false);
        let rate = |line: &Line| line.rate().unwrap_or(f64::NEG_INFINITY);
        let lines = model.lines.iter().filter(own);
        let Some(line) = lines.max_by(|a, b| rate(a).total_cmp(&rate(b))) else { continue };
        let Some(rate) = line.rate() else { continue };
        let mut text = format!("Best: {}", rate_text(rate));
        if !varying.is_empty() {
            text.push_str(&format!(" ({})", model.name(line, varying)));
        }
        if let Some((times, baseline)) = speed_up(model, line) {
            text.push_str(&format!(", {times} × `{baseline}`"));
        }
        if let (Some(share), Some((name, limit))) = (line.share(), &line.limit) {
            let share = if share > 1.0 { "at the limit".into() } else { percent(share) + " of" };
            text.push_str(&format!(", {share} {name} ({})", rate_text(*limit)));
        }
        texts.push(text + ".");
    }
    if let Some((_, line)) = model.best() {
        texts.push(format!("Path: {}. {}", path(line), data(model)));
    }
    texts
}

/// The path of a line's bytes, and how it is known.
#[must_use]
pub fn path(line: &Line) -> String {
    match (line.verdict.as_str(), line.imported) {
        ("", true) => "not verified, another tool measured".into(),
        ("", false) => "not verified".into(),
        (verdict, _) if line.simulated => format!("{verdict} (simulated GPU)"),
        (verdict, _) => verdict.to_owned(),
    }
}

/// Whether counters prove the path of a line's bytes.
#[must_use]
pub fn is_proven(line: &Line) -> bool {
    let is_doubted = |word| line.verdict.contains(word);
    !line.verdict.is_empty() && !["unproven", "contradictory"].into_iter().any(is_doubted)
}

/// Whether the data were compared.
#[must_use]
pub fn data(model: &Model) -> &'static str {
    let measured = || model.lines.iter().filter(|line| line.rate().is_some());
    if measured().any(|line| line.verified == Some(false)) {
        "Some data are WRONG."
    } else if measured().all(|line| line.verified == Some(true)) {
        "All data verified."
    } else {
        "Data not verified."
    }
}

/// How many times as fast as a plain method at the same point a line is.
fn speed_up<'a>(model: &'a Model, line: &Line) -> Option<(String, &'a str)> {
    let is_plain = |name: &str| name == "standard" || name == Plain::CpuGpu.name();
    let same = |other: &&Line| {
        let mut point = other.point.clone();
        (point.way, point.route) = (line.point.way.clone(), line.point.route.clone());
        is_plain(&other.method) && other.run == line.run && point == line.point
    };
    let other = model.lines.iter().filter(|_| !is_plain(&line.method)).find(same)?;
    let times = line.rate()? / other.rate().filter(|rate| *rate > 0.0)?;
    Some((digits(times), &other.method))
}

/// The limits of the machines.
#[must_use]
pub fn limits(model: &Model) -> Grid {
    let columns = vec![
        Column::text("run", 0),
        Column::text("limit", 0),
        Column::text("of", 0),
        Column::text("direction", 0),
        Column::number("GB/s", 0),
        Column::number("theory, GB/s", 1),
        Column::text("found by", 1),
        Column::text("why not more", 2),
    ];
    let several = model.runs.len() > 1;
    let row = |(run, limit): &(usize, crate::results::Ceiling)| {
        let rate = |rate: Option<f64>| Cell::number(rate, |rate| Metric::Rate.text(rate));
        vec![
            Cell::text(if several { model.runs[*run].name.as_str() } else { "" }),
            Cell::text(&limit.name),
            Cell::text(&limit.of),
            Cell::text(limit.direction.map_or("", |direction| direction.name())),
            rate(Some(limit.bytes_per_second)),
            rate(limit.theory_bytes_per_second.filter(|_| !limit.theory)),
            Cell::text(if limit.theory { "theory" } else { &limit.how }),
            Cell::text(limit.limits.as_deref().unwrap_or_default()),
        ]
    };
    let rows = model.limits.iter().map(row).collect();
    Grid { columns, rows, ..Grid::default() }.without_empty()
}

/// The machine of a run in one line.
#[must_use]
pub fn machine(model: &Model, run: usize) -> String {
    let all = facts::machine(&model.runs[run].record);
    let shown = ["measured by", "GPU", "drive", "file system", "processor", "kernel"];
    let named = all.iter().filter(|(name, _)| shown.contains(&name.as_str()));
    let texts: Vec<String> = named
        .map(|(name, text)| match (name.as_str(), text.as_str()) {
            ("GPU", "none") => "no GPU".into(),
            ("measured by", tool) => format!("measured by {tool}"),
            (_, text) => text.to_owned(),
        })
        .collect();
    texts.join(" · ")
}

/// A comparison: what differs, the points with a significant difference, and the means.
#[must_use]
pub fn comparison(found: &Comparison, metric: Metric, rows: usize) -> Vec<Block> {
    let mut blocks = vec![Block::Title(format!("{} compared with {}", found.other, found.base))];
    let mut facts: Vec<String> = found
        .axes
        .iter()
        .map(|(axis, one, two)| format!("{} ({two}, not {one})", axis.name()))
        .collect();
    let more = found.facts.len().saturating_sub(FACTS_MAX);
    let shown = found.facts.iter().take(FACTS_MAX);
    facts.extend(shown.map(|(name, one, two)| format!("{name} ({two}, not {one})")));
    if more > 0 {
        facts.push(format!("{more} more settings"));
    }
    if !facts.is_empty() {
        blocks.push(Block::Line(format!("differs in: {}", facts.join("; "))));
    }
    let all: Vec<(&Pair, &Compared)> = found.of(metric).collect();
    let is_shown =
        |one: &&(&Pair, &Compared)| one.1.verdict().is_some() || one.1.ratio.interval().is_none();
    let shown: Vec<&(&Pair, &Compared)> = all.iter().filter(is_shown).collect();
    if !shown.is_empty() {
        blocks.push(Block::Table(points(found, metric, &shown, rows)));
    }
    let same = all.len() - shown.len();
    if same > 0 {
        let of = if same == all.len() { String::new() } else { format!(" of {}", all.len()) };
        let points = if same == 1 && of.is_empty() { "point" } else { "points" };
        blocks.push(Block::Line(format!("{same}{of} {points}: no significant difference")));
    }
    let (significant, rest): (Vec<_>, Vec<_>) =
        found.means.iter().partition(|mean| mean.is_significant());
    if !significant.is_empty() {
        blocks.push(Block::Table(means(&significant)));
    }
    let with_interval = rest.iter().filter(|mean| mean.ratio.interval().is_some());
    let names: Vec<&str> = with_interval.map(|mean| mean.metric.name()).collect();
    if !names.is_empty() {
        let count = names.len();
        let text = format!("no significant change in {}", counted(count, "metric"));
        blocks.push(Block::Line(format!("{text}: {}", names.join(", "))));
    }
    blocks.extend(found.notes(metric).into_iter().map(Block::Line));
    blocks
}

fn points(found: &Comparison, metric: Metric, shown: &[&(&Pair, &Compared)], rows: usize) -> Grid {
    let unit = metric.heading().rsplit(' ').next().filter(|unit| unit.contains('/'));
    let heading = [metric.name()].into_iter().chain(unit).collect::<Vec<_>>().join(", ");
    let columns = vec![
        Column::text(heading, 0),
        Column::number(&found.base, 1),
        Column::number(&found.other, 1),
        Column::text("ratio", 0),
        Column::text("", 2),
    ];
    let (better, worse) = metric.words();
    let row = |(pair, one): &&(&Pair, &Compared)| {
        let median = |value| Cell::number(Some(value), |value| metric.text(value));
        vec![
            Cell::text(&pair.name),
            median(one.medians.0),
            median(one.medians.1),
            Cell { text: text(one.ratio), number: Some(one.ratio.value()) },
            Cell::text(match one.verdict() {
                Some(Verdict::Better) => better,
                Some(Verdict::Worse) => worse,
                None => "",
            }),
        ]
    };
    let all: Vec<Vec<Cell>> = shown.iter().take(rows).map(row).collect();
    let left_out = shown.len() - all.len();
    Grid { columns, rows: all, left_out, ..Grid::default() }
}

fn means(means: &[&super::compare::Mean]) -> Grid {
    let columns =
        vec![Column::text("mean of all points", 0), Column::text("ratio", 0), Column::text("", 1)];
    let row = |mean: &&super::compare::Mean| {
        let (better, worse) = mean.metric.words();
        let counts = [(mean.better, better), (mean.worse, worse)];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, word)| format!("{count} {word}")).collect();
        let of = format!("{} of {}", counts.join(", "), counted(mean.points, "point"));
        vec![
            Cell::text(mean.metric.name()),
            Cell { text: text(mean.ratio), number: Some(mean.ratio.value()) },
            Cell::text(if counts.is_empty() { "in the mean alone".into() } else { of }),
        ]
    };
    Grid { columns, rows: means.iter().map(row).collect(), ..Grid::default() }
}

/// All parts of a report, tables with `rows` rows at most. Several files are compared; if they have
/// no point in common, their results are in one table.
#[must_use]
pub fn report(
    model: &Model,
    comparisons: &[Comparison],
    metric: Metric,
    rows: usize,
) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (number, run) in model.runs.iter().enumerate() {
        let command = run.record.environment.command.as_str();
        let text = if run.record.imported.is_some() { "" } else { command };
        blocks.push(Block::Line([run.name.as_str(), text].join("  ").trim_end().to_owned()));
        let other = number.checked_sub(1).map(|last| machine(model, last));
        let machine = machine(model, number);
        if !machine.is_empty() && other.as_ref() != Some(&machine) {
            blocks.push(Block::Line(machine));
        }
    }
    for found in comparisons {
        blocks.extend(comparison(found, metric, rows));
    }
    if comparisons.is_empty() {
        blocks.extend(results(model, rows));
    }
    for layers in &model.layers {
        blocks.push(Block::Title(layers.name.clone()));
        blocks.extend(layers.about().into_iter().filter(|text| !text.is_empty()).map(Block::Line));
        blocks.push(Block::Table(layers.grid()));
    }
    blocks
}

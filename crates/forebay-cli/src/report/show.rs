//! The parts of a report, which every form for people shows in its own way, and the tables of CSV.
//! Pure.

use forebay_measure::failure::{Failure, Result};
use forebay_measure::plain;
use forebay_measure::results::{Bound, Direction, Limit, Record};
use forebay_measure::workload::backend::Plain;

use super::compare::{Compared, Comparison, Mean, Pair, Verdict, text};
use super::grid::{CSV, Cell, Column, Fields, Grid, Mark, WIDTH};
use super::model::{Axis, Line, Metric, Model, NUMBERS, facts, unique};
use super::numbers::{counted, digits, percent, rate_text};
use super::ratio::{ERROR_MIN, Ratio};

/// Most rows of a table in a file.
pub const FILE_ROWS_MAX: usize = 2000;

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

/// Columns of this rank and above are details.
pub const DETAIL: u8 = 6;
/// Requests of a sample from which tables show its percentiles above the median.
const PERCENTILES_MIN: u64 = 100;
/// Most runs with separate tables.
const RUNS_MAX: usize = 16;
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
    blocks.extend(stragglers(model));
    blocks
}

/// The slowest and the fastest rank of the point where they differ most.
#[must_use]
pub fn stragglers(model: &Model) -> Option<Block> {
    let all = model.lines.iter().filter_map(|line| Some((line, line.ranks.as_ref()?)));
    let ratio = |ranks: &[(String, f64); 2]| ranks[1].1 / ranks[0].1.max(1.0);
    let (line, [slowest, fastest]) = all.max_by(|a, b| ratio(a.1).total_cmp(&ratio(b.1)))?;
    let named = |(name, rate): &(String, f64)| format!("{name} with {} GB/s", digits(rate * 1e-9));
    let point = model.name(line, &model.varying());
    let (slowest, fastest) = (named(slowest), named(fastest));
    let text = format!("Ranks differ most in {point}: slowest {slowest}, fastest {fastest}.");
    Some(Block::Line(text))
}

/// The values that all points share.
#[must_use]
pub fn shared(model: &Model, varying: &[Axis]) -> String {
    let Some(first) = model.lines.first() else { return String::new() };
    let shared = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Run && !varying.contains(axis));
    let text = |axis: Axis| Some(format!("{} {}", axis.name(), model.text(axis, first)?));
    shared.filter_map(text).collect::<Vec<_>>().join(", ")
}

/// A row per point, `rows` at most. CSV shows all axes, and the interval of every quantity.
#[must_use]
pub fn table(model: &Model, varying: &[Axis], rows: usize) -> Grid {
    let any = |fits: &dyn Fn(&Line) -> bool| model.lines.iter().any(fits);
    let is_known = |axis: &Axis| any(&|line| model.text(*axis, line).is_some());
    let mut fields: Fields<'_, Line> = Fields::new();
    let axes: Vec<Axis> = Axis::ALL.into_iter().filter(is_known).collect();
    let bars = Some(axes.len());
    for axis in axes {
        let is_shown = varying.contains(&axis) || (varying.is_empty() && axis == Axis::Method);
        let is_number = NUMBERS.contains(&axis) && axis != Axis::Run;
        let rank = if is_shown { 0 } else { CSV };
        let column = Column::new((&axis.name(), rank, axis.key()), is_number);
        fields.add_all(vec![column], move |line| {
            let text = model.text(axis, line).unwrap_or_default();
            let number = model.number(axis, line).filter(|_| is_number);
            vec![Cell { number, ..Cell::text(text) }]
        });
    }
    // The mean stands for percentiles that are unknown.
    let has = |line: &Line, metric| !line.samples(metric).is_empty();
    let needs_mean = any(&|line| !has(line, Metric::P50) && has(line, Metric::Mean));
    for metric in Metric::all() {
        // A missing rate is shown as such.
        if metric == Metric::Rate || any(&|line| has(line, metric)) {
            let is_hidden = metric == Metric::Mean && !needs_mean;
            quantity(metric, if is_hidden { CSV } else { metric.rank() }, &mut fields);
        }
    }
    // A rate above its limit is no share of it.
    let share = |share| match share {
        above if above > Bound::ABOVE => "above".into(),
        at if at > 1.0 => "at it".into(),
        below => percent(below),
    };
    let mismatch = |line: &Line| if line.verified == Some(false) { "MISMATCH" } else { "" };
    let limit = |line: &Line| line.limit.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
    let known = |flag: Option<bool>| flag.map(|flag| flag.to_string()).unwrap_or_default();
    fields.number(("of limit", 1, "share_of_limit"), Line::share, share);
    fields.text(("bound by", 4, "bound"), |line| line.bound_by().unwrap_or_default().into());
    fields.text(("data", 1, ""), move |line| mismatch(line).into());
    fields.text(("data path", 5, "path_taken"), |line| line.verdict.clone());
    fields.text(("route", 7, "route_taken"), |line| line.route.clone());
    fields.text(("failure", 7, "error"), |line| line.error.clone().unwrap_or_default());
    fields.text(("", CSV, "samples"), |line| line.count().to_string());
    fields.text(("", CSV, "note"), |line| line.why_no_rate().unwrap_or_default().into());
    fields.text(("", CSV, "failed"), |line| line.failed.to_string());
    fields.text(("", CSV, "bytes"), |line| line.bytes.map(|n| n.to_string()).unwrap_or_default());
    fields.text(("", CSV, "limit"), limit);
    fields.text(("", CSV, "verified"), move |line| known(line.verified));
    fields.text(("", CSV, "steady"), move |line| known(line.steady));
    fields.text(("", CSV, "simulated"), move |line| {
        known((!line.imported).then_some(line.simulated))
    });
    let best = model.best(|_| true).map(|(number, _)| number);
    let mark = |line| if Some(line) == best { Mark::Best } else { Mark::None };
    let marks = (0..model.lines.len()).map(mark).collect();
    Grid { marks, bars, ..fields.grid(&model.lines, rows) }
}

/// Adds the columns of a quantity: its median, deviation, interval and range.
fn quantity(metric: Metric, rank: u8, fields: &mut Fields<'_, Line>) {
    let rank_of_deviation = if metric == Metric::Rate { 3 } else { CSV };
    let mut columns = vec![
        Column::new((metric.heading(), rank, metric.key()), true),
        Column::new(("±", rank_of_deviation, &format!("{}_deviation", metric.key())), true),
    ];
    let ends = ["low", "high", "min", "max"].map(|end| format!("{}_{end}", metric.key()));
    columns.extend(ends.map(|key| Column::new(("", CSV, &key), true)));
    fields.add_all(columns, move |line| {
        let found = line.estimate(metric);
        let mut median = Cell::number(found.map(|found| found.median), |value| metric.text(value));
        match (metric, line.why_no_rate()) {
            (Metric::Rate, Some(why)) => median.text = why.into(),
            // Of fewer requests it is the longest latency. CSV shows the number.
            (Metric::P90 | Metric::P99 | Metric::P999, _) if line.requests() < PERCENTILES_MIN => {
                median.text.clear();
            }
            _ => {}
        }
        let (low, high) = found.and_then(|found| found.interval).unzip();
        let (min, max) = found.map(|found| (found.min, found.max)).unzip();
        median.range = min.zip(max);
        let mut deviation = Cell::number(found.and_then(|found| found.deviation()), percent);
        deviation.text = found.map_or_else(String::new, |found| found.spread());
        let ends = [low, high, min, max].map(|end| Cell::number(end, digits));
        [median, deviation].into_iter().chain(ends).collect()
    });
}

/// Sentences on the best rate per direction, and on its path.
fn best(model: &Model, varying: &[Axis]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let directions = unique(model.lines.iter().map(|line| line.point.read_percent));
    for direction in directions.into_iter().take(4) {
        let best = model.best(|line| line.point.read_percent == direction);
        let Some((_, line)) = best else { continue };
        let mut text = format!("Best: {}", rate_text(line.rate().unwrap_or_default()));
        if !varying.is_empty() {
            text.push_str(&format!(" ({})", model.name(line, varying)));
        }
        if let Some((times, baseline)) = speed_up(model, line) {
            text.push_str(&format!(", {times} × `{baseline}`"));
        }
        if let (Some(share), Some((name, limit))) = (line.share(), &line.limit) {
            let share = match share {
                above if above > Bound::ABOVE => "above the measured limit".into(),
                at if at > 1.0 => "at the limit".into(),
                below => percent(below) + " of",
            };
            text.push_str(&format!(", {share} {name} ({})", rate_text(*limit)));
        }
        texts.push(text + ".");
    }
    if let Some((_, line)) = model.best(|_| true) {
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
    !line.verdict.is_empty() && !line.is_doubtful()
}

/// Whether the data were compared.
#[must_use]
pub fn data(model: &Model) -> &'static str {
    // Samples too short for a rate are compared as well.
    let moved = |line: &&Line| line.rate().is_some() || line.verified.is_some();
    let checks = unique(model.lines.iter().filter(moved).map(|line| line.verified));
    match checks.as_slice() {
        checks if checks.contains(&Some(false)) => "Some data are WRONG.",
        [Some(true)] => "All data verified.",
        _ => "Data not verified.",
    }
}

/// How many times as fast as a plain method at the same point a line is.
fn speed_up<'a>(model: &'a Model, line: &Line) -> Option<(String, &'a str)> {
    let is_plain = |name: &str| name == "standard" || name == Plain::CpuGpu.name();
    let same = |other: &&Line| {
        let mut point = other.point.clone();
        (point.method, point.route) = (line.point.method.clone(), line.point.route.clone());
        is_plain(&other.method) && other.run == line.run && point == line.point
    };
    let other = model.lines.iter().filter(|_| !is_plain(&line.method)).find(same)?;
    Some((digits(times(other, line)?.value()), &*other.method))
}

/// The ratio of two rates; `None` for wrong data, too few samples or too much noise.
pub(crate) fn times(base: &Line, line: &Line) -> Option<Ratio> {
    let rates = |line| Line::samples(line, Metric::Rate);
    let is_known = |line: &&Line| {
        let rate = line.estimate(Metric::Rate);
        line.verified != Some(false) && rate.is_some_and(|rate| rate.is_known())
    };
    let ratio = Ratio::of(rates(base), rates(line), ERROR_MIN)?;
    [base, line].iter().all(is_known).then_some(ratio)
}

/// The limits of the machines.
#[must_use]
pub fn limits(model: &Model) -> Grid {
    let run = |run: usize| if model.runs.len() > 1 { &*model.runs[run].name } else { "" };
    let direction = |limit: &Limit| limit.direction.map_or("", Direction::name);
    let gb_per_s = |rate| Metric::Rate.text(rate);
    let mut fields: Fields<'_, (usize, Limit)> = Fields::new();
    fields.text(("run", 0, ""), |(number, _)| run(*number).into());
    fields.text(("limit", 0, ""), |(_, limit)| limit.name.clone());
    fields.text(("of", 0, ""), |(_, limit)| limit.of.clone());
    fields.text(("direction", 0, ""), |(_, limit)| direction(limit).into());
    fields.number(("GB/s", 0, ""), |(_, limit)| Some(limit.bytes_per_second), gb_per_s);
    fields.number(("predicted", 0, ""), |(_, limit)| limit.predicted, gb_per_s);
    fields.text(("found by", 1, ""), |(_, limit)| limit.how.clone());
    fields.grid(&model.limits, usize::MAX)
}

/// The machine of a run in a line.
#[must_use]
pub fn machine(model: &Model, run: usize) -> String {
    let all = facts::machine(&model.runs[run].record);
    let is_imported = model.runs[run].record.imported.is_some();
    let shown = |(name, text): (String, String)| match (name.as_str(), text.as_str()) {
        ("GPU", "none") => Some("no GPU".into()),
        ("measured by", tool) if is_imported => Some(format!("measured by {tool}")),
        ("GPU" | "drive" | "file system" | "processor" | "kernel", _) => Some(text),
        _ => None,
    };
    all.into_iter().filter_map(shown).collect::<Vec<_>>().join(" · ")
}

/// A comparison: what differs, the points with a significant difference, and the means.
#[must_use]
pub fn comparison(found: &Comparison, metric: Metric, rows: usize) -> Vec<Block> {
    let mut blocks = vec![Block::Title(format!("{} compared with {}", found.other, found.base))];
    let axes = found.axes.iter().map(|(axis, one, two)| (axis.name(), one, two));
    let shown = found.facts.iter().take(FACTS_MAX);
    let all = axes.chain(shown.map(|(name, one, two)| (name.clone(), one, two)));
    let mut facts: Vec<String> =
        all.map(|(name, one, two)| format!("{name} {two} vs {one}")).collect();
    let more = found.facts.len().saturating_sub(FACTS_MAX);
    if more > 0 {
        facts.push(counted(more, "more setting"));
    }
    if !facts.is_empty() {
        blocks.push(Block::Line(format!("differs in: {}", facts.join("; "))));
    }
    let is_shown =
        |one: &(&Pair, &Compared)| one.1.verdict().is_some() || one.1.ratio.interval().is_none();
    let (shown, same): (Vec<_>, Vec<_>) = found.of(metric).partition(is_shown);
    if !shown.is_empty() {
        let unit = metric.heading().rsplit(' ').next().filter(|unit| unit.contains('/'));
        let heading = [metric.name()].into_iter().chain(unit).collect::<Vec<_>>().join(", ");
        blocks.push(Block::Table(points(found, &heading, &shown, rows)));
    }
    if !same.is_empty() {
        let text = match (same.len(), shown.len()) {
            (count, 0) => counted(count, "point"),
            (count, more) => format!("{count} of {}", counted(count + more, "point")),
        };
        blocks.push(Block::Line(format!("{text}: no significant difference")));
    }
    let means_of_all = Metric::compared().filter_map(|(_, metric)| found.mean(metric));
    let (significant, rest): (Vec<Mean>, Vec<Mean>) = means_of_all.partition(Mean::is_significant);
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

/// A row per quantity of a point, `rows` at most.
fn points(found: &Comparison, title: &str, shown: &[(&Pair, &Compared)], rows: usize) -> Grid {
    let low = |one: &Compared| one.ratio.interval().map(|(low, _)| low);
    let high = |one: &Compared| one.ratio.interval().map(|(_, high)| high);
    let verdict = |one: &Compared| {
        let (better, worse) = one.metric.words();
        one.verdict().map_or("", |verdict| if verdict == Verdict::Better { better } else { worse })
    };
    let mut fields: Fields<'_, (&Pair, &Compared)> = Fields::new();
    fields.text(("", CSV, "base"), |_| found.base.clone());
    fields.text(("", CSV, "other"), |_| found.other.clone());
    fields.text(("", CSV, "metric"), |(_, one)| one.metric.key().into());
    fields.text((title, 0, "point"), |(pair, _)| pair.name.clone());
    let medians = [(&found.base, "base_median"), (&found.other, "other_median")];
    let columns = medians.map(|(name, key)| Column::new((name, 1, key), true));
    fields.add_all(columns.into(), |(_, one)| {
        let medians = [one.medians.0, one.medians.1];
        medians.map(|median| Cell::number(Some(median), |value| one.metric.text(value))).into()
    });
    fields.add_all(vec![Column::new(("ratio", 0, "ratio"), false)], |(_, one)| ratio(one.ratio));
    fields.text(("", 2, "verdict"), |(_, one)| verdict(one).into());
    fields.number(("", CSV, "ratio_low"), |(_, one)| low(one), digits);
    fields.number(("", CSV, "ratio_high"), |(_, one)| high(one), digits);
    fields.number(("", CSV, "chance"), |(_, one)| one.chance, digits);
    fields.text(("", CSV, "base_samples"), |(_, one)| one.samples.0.to_string());
    fields.text(("", CSV, "other_samples"), |(_, one)| one.samples.1.to_string());
    fields.grid(shown, rows)
}

fn ratio(ratio: Ratio) -> Vec<Cell> {
    vec![Cell { number: Some(ratio.value()), ..Cell::text(text(ratio)) }]
}

/// The records of results files, a line per record.
///
/// # Errors
/// Errors of the writer.
pub fn json<'a>(records: impl IntoIterator<Item = &'a Record>) -> Result<String> {
    let failed = |error: serde_json::Error| Failure::stdout(&error.into());
    let line = |record| plain::json(record).map(|line| line + "\n").map_err(failed);
    records.into_iter().map(line).collect()
}

/// CSV with every number: a row per quantity of a compared point, or per point.
///
/// # Errors
/// Errors of the writer.
pub fn csv(model: &Model, comparisons: &[Comparison]) -> Result<String> {
    let compared = |found: &Comparison| {
        let all = found.pairs.iter();
        let all = all.flat_map(|pair| pair.quantities.iter().map(move |one| (pair, one)));
        points(found, "", &all.collect::<Vec<_>>(), usize::MAX)
    };
    let mut tables = comparisons.iter().map(compared);
    let Some(mut all) = tables.next() else {
        return table(model, &model.varying(), usize::MAX).csv();
    };
    all.rows.extend(tables.flat_map(|table| table.rows));
    all.csv()
}

fn means(means: &[Mean]) -> Grid {
    let counts = |mean: &Mean| {
        let (better, worse) = mean.metric.words();
        let counts = [(mean.better, better), (mean.worse, worse)];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, word)| format!("{count} {word}")).collect();
        match counts.is_empty() {
            true => "in the mean alone".into(),
            false => format!("{} of {}", counts.join(", "), counted(mean.points, "point")),
        }
    };
    let mut fields: Fields<'_, Mean> = Fields::new();
    fields.text(("mean of all points", 0, ""), |mean| mean.metric.name().into());
    fields.add_all(vec![Column::new(("ratio", 0, ""), false)], |mean| ratio(mean.ratio));
    fields.text(("", 1, ""), counts);
    fields.grid(means, usize::MAX)
}

/// All parts of a report, tables with `rows` rows at most. Several files are compared; if they have
/// no point in common, their results share a table.
#[must_use]
pub fn report(model: &Model, found: &[Comparison], metric: Metric, rows: usize) -> Vec<Block> {
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
    match found {
        [] => blocks.extend(all_results(model, rows)),
        found => blocks.extend(found.iter().flat_map(|one| comparison(one, metric, rows))),
    }
    blocks
}

/// The results of all runs: in a common table, or in a table per run if that would be too wide.
fn all_results(model: &Model, rows: usize) -> Vec<Block> {
    let varying = model.varying();
    let is_apart = varying.contains(&Axis::Run) && model.runs.len() <= RUNS_MAX;
    if !is_apart || table(model, &varying, rows).has_room(WIDTH) {
        return results(model, rows);
    }
    let of = |number: usize| {
        let lines = model.lines.iter().filter(|line| line.run == number).cloned().collect();
        let one = Model { runs: model.runs.clone(), lines, ..Model::default() };
        [vec![Block::Title(model.runs[number].name.clone())], results(&one, rows)].concat()
    };
    (0..model.runs.len()).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::foreign;
    use crate::report::made::{self, Sweep};
    use crate::report::model::gather::tests::{model_of, of_records, of_sweep, records_of};

    #[test]
    fn csv_has_every_number_to_the_last_digit() {
        let model = of_sweep(&Sweep { fails: 7, ..Sweep::default() });
        let text = csv(&model, &[]).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let head = reader.headers().unwrap().clone();
        let at = |key: &str| head.iter().position(|other| other == key).unwrap();
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 15);
        let unique: std::collections::BTreeSet<&str> = head.iter().collect();
        assert_eq!(unique.len(), head.len(), "{head:?}");
        for (row, line) in rows.iter().zip(&model.lines) {
            for metric in [Metric::Rate, Metric::P99, Metric::CpuCost] {
                let found = row[at(metric.key())].parse().ok();
                assert_eq!(found, line.estimate(metric).map(|found| found.median));
            }
            assert_eq!(row[at("block-size")].parse::<u64>().unwrap(), line.point.request_size);
        }
        let hostile = csv(&model_of(&[("a", &made::hostile())]), &[]).unwrap();
        let rows = csv::Reader::from_reader(hostile.as_bytes()).into_records().count();
        assert_eq!(rows, model_of(&[("a", &made::hostile())]).lines.len());
    }

    #[test]
    fn a_rate_above_its_limit_is_not_at_it() {
        let best = |limit: f64| {
            let mut records = records_of(&Sweep::default());
            for record in &mut records[1..] {
                record["measured"]["bytes_per_second"] = 2e9.into();
                record["measured"]["bound"]["bytes_per_second"] = limit.into();
            }
            let model = of_records(&records);
            super::best(&model, &[]).concat()
        };
        assert!(best(1e9).contains(", above the measured limit "), "{}", best(1e9));
        assert!(best(1.99e9).contains(", at the limit "), "{}", best(1.99e9));
        assert!(best(4e9).contains(", 50 % of "), "{}", best(4e9));
    }

    #[test]
    fn csv_is_empty_where_a_value_is_unknown() {
        let text = "throughput (MB/s),block size,operation\n900,4096,read\n";
        let path = std::path::Path::new("a.csv");
        let records = foreign::records(path, text.as_bytes(), &foreign::Hints::default());
        let lines = json(&records.unwrap()).unwrap();
        let text = csv(&model_of(&[("a", &lines)]), &[]).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let head = reader.headers().unwrap().clone();
        let row = reader.records().next().unwrap().unwrap();
        let known: Vec<_> = head.iter().zip(&row).filter(|(_, value)| !value.is_empty()).collect();
        let rate = ["", "_min", "_max"].map(|end| format!("bytes_per_second{end}"));
        let rate = rate.each_ref().map(|key| (key.as_str(), "900000000"));
        let axes =
            [("label", "a"), ("method", "csv"), ("direction", "read"), ("block-size", "4096")];
        let counts = [("samples", "1"), ("failed", "0")];
        assert_eq!(known, [&axes[..], &rate, &counts].concat());
    }

    #[test]
    fn nothing_is_verified_where_nothing_was_measured() {
        let text = |sweep| data(&of_sweep(&sweep));
        assert_eq!(text(Sweep::default()), "All data verified.");
        assert_eq!(data(&Model::default()), "Data not verified.");
    }
}

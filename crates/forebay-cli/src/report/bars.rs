//! Results as text: bars for methods that move whole files, else the table of
//! a report, with a row per combination of values.

use std::fmt::Write as _;

use forebay::units::format_size;
use forebay_measure::plain::plain;
use forebay_measure::results::machine::Gpu;
use forebay_measure::results::machine::place;
use forebay_measure::results::{Bound, Cache, Point, Record};

use super::compare::{Comparison, compare};
use super::forms;
use super::grid::{Cell, Column, Grid, Mark};
use super::model::{Axis, Line, Metric, Model, gather, grouped, is_host, method, unique};
use super::numbers::counted;
use super::ratio::{Ratio, SAMPLES_MIN};
use super::show::{self, Block, stragglers};

/// Most rows of a table.
const ROWS_MAX: usize = 200;

/// The model of a run's records.
#[must_use]
pub fn model(records: &[Record]) -> Model {
    gather::of_own_run(records)
}

/// The results of a run, as wide as a terminal. With `base`, its other path is compared with that
/// path.
#[must_use]
pub fn render(model: &Model, base: Option<&str>, width: usize) -> String {
    forms::terminal(&results(model, base, ROWS_MAX), Some(width))
}

/// A report: of a single run of whole files its sections, else as [`show::report`] has it.
#[must_use]
pub fn report(model: &Model, found: &[Comparison], metric: Metric, rows: usize) -> Vec<Block> {
    match found.is_empty() && model.runs.len() == 1 && model.has_whole_files() {
        true => results(model, None, rows),
        false => show::report(model, found, metric, rows),
    }
}

fn results(model: &Model, base: Option<&str>, rows: usize) -> Vec<Block> {
    let mut blocks = vec![Block::Line(head(model))];
    let is_whole = model.has_whole_files();
    blocks.extend(if is_whole { sections(model) } else { show::results(model, rows) });
    if let Some(base) = base.filter(|_| !model.lines.is_empty()) {
        match compare(model, &[], Some(Axis::Path), Some(base)) {
            Ok(found) => blocks
                .extend(found.iter().flat_map(|one| show::comparison(one, Metric::Rate, rows))),
            Err(failure) => blocks.push(Block::Line(failure.in_one_line())),
        }
    }
    blocks.extend(closing(model).filter(|_| is_whole).map(Block::Line));
    blocks
}

/// The path, the target, and how much was measured.
fn head(model: &Model) -> String {
    let mut parts = vec![title(model)];
    if model.has_whole_files() {
        let run = model.runs.last().map(|run| &run.record.request["largest_file"]);
        let largest = run.and_then(|largest| largest.as_u64());
        let requests = model.lines.iter().map(|line| line.point.request_size);
        let largest = largest.or_else(|| requests.max()).unwrap_or(0);
        parts.push(format!("files of {}", format_size(largest)));
    }
    let samples = model.lines.iter().map(|line| line.samples(Metric::CpuUser).len()).max();
    parts.push(counted(samples.unwrap_or(0), "sample"));
    parts.join(" · ")
}

/// The program, the path and the target of the last run.
pub(crate) fn title(model: &Model) -> String {
    let Some(run) = model.runs.last().map(|run| &run.record) else { return String::new() };
    let tool = run.imported.as_ref().map_or("forebay bench", |from| &*from.tool);
    let paths = unique(model.lines.iter().map(|line| line.point.path.as_str()));
    let path = if let [path] = paths[..] { plain(path) } else { "several paths".into() };
    let path = match place(&run.environment, paths.len() > 1) {
        Some(storage) => format!("{path} ({})", plain(&storage)),
        None => path,
    };
    let name = |gpu: &Gpu| plain(gpu.name.trim_start_matches("NVIDIA "));
    let target = match run.gpus.as_slice() {
        [] => "host memory".to_owned(),
        [gpu] => name(gpu),
        [first, ..] => format!("{} GPUs, {}", run.gpus.len(), name(first)),
    };
    let target = if run.imported.is_some() { String::new() } else { format!(" → {target}") };
    let hosts = unique(run.ranks.iter().map(String::as_str)).len();
    let ranks = match run.ranks.len() {
        0 => String::new(),
        ranks => format!(" · {} on {}", counted(ranks, "rank"), counted(hosts, "host")),
    };
    format!("{} · {path}{target}{ranks}", plain(tool))
}

/// The bars of all methods, by direction, cache, path and GPUs; of ranks, the slowest and fastest.
pub(crate) fn sections(model: &Model) -> Vec<Block> {
    let varying = model.varying();
    let key = |line: &Line| {
        let mut key = state(&line.point).to_owned();
        for axis in [Axis::Path, Axis::Target].iter().filter(|axis| varying.contains(axis)) {
            let _ = write!(key, " · {}", model.text(*axis, line).unwrap_or_default());
        }
        key
    };
    let sections = grouped(model.lines.iter().map(|line| (key(line), line)));
    let bars = sections.iter().flat_map(|(key, lines)| section(model, key, lines));
    bars.chain(stragglers(model)).collect()
}

/// The table of all numbers, with the names of methods that the sections have.
pub(crate) fn table(model: &Model, rows: usize) -> Grid {
    let mut grid = show::table(model, &model.varying(), rows);
    if let Some(at) = grid.columns.iter().position(|column| column.heading == "method") {
        let cells = grid.rows.iter_mut().map(|row| &mut row[at].text);
        cells.zip(&model.lines).for_each(|(text, line)| *text = model.method(line));
    }
    grid
}

/// The direction and the state of the cache in words.
const fn state(point: &Point) -> &'static str {
    match (point.read_percent, point.cache) {
        (0, Some(Cache::Cold)) => "WRITE, synced to the drive",
        (0, Some(Cache::Warm)) => "WRITE, warm (page cache)",
        (0, None) => "WRITE",
        (_, Some(Cache::Cold)) => "READ, cold (from the drive)",
        (_, Some(Cache::Warm)) => "READ, warm (page cache)",
        (_, None) => "READ",
    }
}

/// A point of whole files in a few words: `read() + copy, cold`.
pub(crate) fn name(point: &Point) -> String {
    format!("{}, {}", method(point), short_state(point))
}

const fn short_state(point: &Point) -> &'static str {
    match (point.read_percent, point.cache) {
        (0, _) => "writing",
        (_, Some(Cache::Warm)) => "warm",
        (_, Some(Cache::Cold)) => "cold",
        (_, None) => "reading",
    }
}

/// Methods as bars, the fastest first, below their limits; then the rows that exceed a limit.
fn section(model: &Model, key: &str, lines: &[&Line]) -> Vec<Block> {
    let rate = |line: &Line| line.rate().filter(|_| line.verified != Some(false)).unwrap_or(0.0);
    let base = lines.iter().copied().find(|line| line.point.method == "standard");
    let limits = limits(model, &lines[0].point);
    let versus = base.map_or_else(String::new, |base| format!("vs {}", base_name(&base.point)));
    let mut sorted = lines.to_vec();
    sorted.sort_by(|one, two| rate(two).total_cmp(&rate(one)));
    let of_limits = limits.iter().map(|(name, rate)| {
        let name = Cell::text(format!("{name} (limit)"));
        vec![name, Cell::number(Some(*rate), gb_per_s), Cell::default(), Cell::default()]
    });
    let mut rows: Vec<Vec<Cell>> = of_limits.collect();
    rows.extend(sorted.iter().map(|line| cells(line, base)));
    rows.iter_mut().for_each(|row| row.resize(5, Cell::default()));
    let marks = sorted.iter().enumerate().map(|(number, line)| {
        match (line.verified, number, line.point.method.as_str()) {
            (Some(false), ..) => Mark::Wrong,
            (_, 0, _) if line.rate().is_some() => Mark::Best,
            (_, _, "forebay") => Mark::Own,
            _ => Mark::None,
        }
    });
    let marks = limits.iter().map(|_| Mark::Limit).chain(marks).collect();
    let heading = |text: &str, number| Column::new((text, 0, ""), number);
    let mut columns = vec![heading(&plain(key), false)];
    columns.extend(["GB/s", "±", &versus, "CPU s/GB"].map(|text| heading(text, true)));
    let grid = Grid { columns, rows, marks, bars: Some(1), is_section: true, ..Grid::default() };
    let mut blocks = vec![Block::Table(grid)];
    for (name, limit) in &limits {
        let above = sorted.iter().filter(|line| rate(line) > Bound::ABOVE * limit);
        let above: Vec<String> = above.map(|line| method(&line.point)).collect();
        if !above.is_empty() {
            let above = above.join(", ");
            blocks.push(Block::Line(format!("above the limit measured: {above} ({name})")));
        }
    }
    blocks
}

/// The cells of a method: its rate, the error of it, how many times `base` it is, its cost; or why
/// its rate is missing.
fn cells(line: &Line, base: Option<&Line>) -> Vec<Cell> {
    let name = Cell::text(method(&line.point));
    let rates = match (line.estimate(Metric::Rate), line.failed) {
        _ if line.verified == Some(false) => return vec![name, Cell::text("MISMATCH in the data")],
        (Some(rates), _) => rates,
        _ if line.is_unavailable() => {
            let why = line.error.as_deref().unwrap_or_default();
            return vec![name, Cell::text(format!("not available: {why}"))];
        }
        (_, 0) => return vec![name, Cell::text("not measurable: samples are too short")],
        _ => return vec![name, Cell::text("not measured, see below")],
    };
    let range = Some((rates.min, rates.max));
    let rate = Cell { range, ..Cell::number(Some(rates.median), gb_per_s) };
    let spread = Cell { number: rates.deviation(), ..Cell::text(rates.spread()) };
    let ratio = base.and_then(|base| show::times(base, line)).map(|ratio| ratio.value());
    let cost = line.estimate(Metric::CpuCost).map(|cost| cost.median);
    let ratio = Cell::number(ratio, |ratio| format!("{ratio:.1}×"));
    vec![name, rate, spread, ratio, Cell::number(cost, |cost| format!("{cost:.3}"))]
}

/// The plain method that is the base of ratios.
const fn base_name(point: &Point) -> &'static str {
    if point.read_percent == 0 { "write()" } else { "read()" }
}

/// The limits of a point, with their names for people.
pub(super) fn limits(model: &Model, point: &Point) -> Vec<(&'static str, f64)> {
    let find = |name: &str, of: &str| {
        let limit = model.limits_of(point, of).find(|limit| limit.name == name);
        limit.map(|limit| limit.bytes_per_second)
    };
    let link = if is_host(point) { "memory copy" } else { "PCIe link" };
    let links = [
        ("links", "PCIe links"),
        ("uplink", "PCIe uplink"),
        ("shared", "links, shared"),
        ("link", link),
    ];
    let all = point.targets.join("+");
    let link = links.into_iter().find_map(|(name, shown)| Some((shown, find(name, &all)?)));
    let storage = find("storage", &point.path).filter(|_| point.cache == Some(Cache::Cold));
    link.into_iter().chain(storage.map(|rate| ("storage", rate))).collect()
}

/// How much faster Forebay is, whether the data were right, and the path.
pub(crate) fn closing(model: &Model) -> Option<String> {
    if model.lines.is_empty() {
        return None;
    }
    let mut sentences: Vec<String> = compared(model).into_iter().collect();
    sentences.push(show::data(model).into());
    let own = || model.lines.iter().filter(|line| line.point.method == "forebay");
    let paths = unique(own().map(show::path));
    if !paths.is_empty() {
        let how = match own().all(show::is_proven) {
            true => ", by the counters of kernel and driver",
            false => "",
        };
        sentences.push(format!("Path: {}{how}.", paths.join("; ")));
    }
    Some(sentences.join(" "))
}

/// How many times as fast as `read()` or `write()` and a copy Forebay is in each state, over all
/// paths, targets and routes, and its share of the lowest limit.
fn compared(model: &Model) -> Option<String> {
    let all = states(model).into_iter().map(|State { name, speed, note, share }| {
        let note = if note.is_empty() { note } else { format!(" ({note})") };
        let share = if share.is_empty() { share } else { format!(", {share}") };
        format!("{name} {speed}{note}{share}")
    });
    let all: Vec<String> = all.collect();
    (!all.is_empty()).then(|| format!("Forebay: {}.", all.join("; ")))
}

/// Forebay's rows of a state of the files, in words.
pub(crate) struct State {
    /// `warm`, `cold` or `writing`.
    pub(crate) name: &'static str,
    /// How many times as fast as a plain method, or the rate.
    pub(crate) speed: String,
    /// The interval of the ratio, the number of rows, or why there is no ratio.
    pub(crate) note: String,
    /// The share of the lowest limit.
    pub(crate) share: String,
}

/// The states of whole files in which Forebay was measured.
pub(crate) fn states(model: &Model) -> Vec<State> {
    let key = |line: &Line| (line.point.read_percent, line.point.cache);
    let own = model.lines.iter().filter(|line| line.point.method == "forebay");
    let own = own.filter(|line| line.rate().is_some() && line.verified != Some(false));
    let all = grouped(own.map(|line| (key(line), line)));
    all.iter().map(|(_, lines)| state_of(model, lines)).collect()
}

fn state_of(model: &Model, lines: &[&Line]) -> State {
    let name = short_state(&lines[0].point);
    let base = |line: &Line| {
        let point = Point { method: "standard".into(), route: None, ..line.point.clone() };
        model.lines.iter().find(|other| other.point == point)
    };
    let ratios: Vec<Ratio> =
        lines.iter().filter_map(|line| show::times(base(line)?, line)).collect();
    let plain = base_name(&lines[0].point);
    let rows = || format!("{} rows", lines.len());
    let (speed, note) = match ratios.as_slice() {
        [ratio] if lines.len() == 1 => {
            let (low, high) = ratio.interval().unwrap_or_default();
            (format!("{:.1}× {plain}", ratio.value()), format!("{low:.1} to {high:.1}"))
        }
        all if all.len() == lines.len() => {
            let (low, high) = range(all.iter().map(Ratio::value));
            (format!("{low:.1} to {high:.1}× {plain}"), rows())
        }
        _ => {
            let rates = range(lines.iter().filter_map(|line| line.rate()));
            let (low, high) = (gb_per_s(rates.0), gb_per_s(rates.1));
            let few = lines.iter().any(|line| line.count() < SAMPLES_MIN && base(line).is_some());
            let speed =
                if low == high { format!("{low} GB/s") } else { format!("{low} to {high} GB/s") };
            let note = match (few, lines) {
                (true, _) => "too few samples to compare".into(),
                (_, [line]) if base(line).is_some() => "too noisy to compare".into(),
                (_, [_]) => String::new(),
                _ => rows(),
            };
            (speed, note)
        }
    };
    State { name, speed, note, share: share_of(model, lines) }
}

/// The shares that rows have of their lowest limits.
fn share_of(model: &Model, lines: &[&Line]) -> String {
    let shares = lines.iter().filter_map(|line| {
        let lowest = limits(model, &line.point).into_iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((lowest.0, line.rate()? / lowest.1))
    });
    let shares: Vec<(&str, f64)> = shares.collect();
    if shares.len() < lines.len() {
        return String::new();
    }
    let mut names = unique(shares.iter().map(|(name, _)| *name));
    names.sort_unstable();
    let names = names.join(", ");
    match range(shares.iter().map(|(_, share)| (share * 100.0).round())) {
        (_, 0.0) => format!("less than 1 % of the {names}"),
        (low, _) if low > 100.0 * Bound::ABOVE => format!("above the {names} measured"),
        (low, _) if low >= 100.0 => format!("at the limit of the {names}"),
        (low, high) if low == high => format!("{low} % of the {names}"),
        (low, high) => format!("{low} to {high} % of the {names}"),
    }
}

/// Bytes per second in GB/s, without the unit.
fn gb_per_s(rate: f64) -> String {
    Metric::Rate.text(rate)
}

/// The least and the largest number.
fn range(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((f64::INFINITY, 0.0), |(low, high), one| (low.min(one), high.max(one)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::report::grid::WIDTH;
    use crate::report::made::{self, Sweep};
    use crate::report::model::gather::tests::{model_of, of_records};

    /// The text of cold reads of whole files: a limit, and rates of two methods.
    fn shown(limit: f64, standard: f64, forebay: f64, seconds: f64) -> String {
        spread(limit, standard, forebay, seconds, 1.0)
    }

    /// As `shown`, where each sample is so many times the last one.
    fn spread(limit: f64, standard: f64, forebay: f64, seconds: f64, spread: f64) -> String {
        let coloured = coloured(limit, standard, forebay, seconds, spread);
        anstream::adapter::strip_str(&coloured).to_string()
    }

    /// Cold reads of whole files by two methods, and their limit.
    fn whole_files(limit: f64) -> Vec<Value> {
        let sweep = Sweep {
            methods: vec!["standard", "forebay"],
            request_sizes: vec![1 << 30],
            depths: vec![1],
            ..Sweep::default()
        };
        let mut run = made::run(&sweep);
        run["request"]["whole_files"] = true.into();
        let mut records = vec![run, made::limit("storage", &sweep.path, limit)];
        records.extend(made::samples(&sweep));
        records
    }

    fn coloured(limit: f64, standard: f64, forebay: f64, seconds: f64, spread: f64) -> String {
        let mut records = whole_files(limit);
        let samples = records.iter_mut().filter(|record| record["record"] == "sample");
        for (number, record) in (0..).zip(samples) {
            let rate = if record["point"]["method"] == "forebay" { forebay } else { standard };
            record["measured"]["bytes_per_second"] = json!(rate * spread.powi(number));
            record["measured"]["seconds"] = json!(seconds);
            record["measured"]["bound"] = Value::Null;
        }
        render(&of_records(&records), None, WIDTH)
    }

    #[test]
    fn whole_files_are_bars_below_their_limit() {
        insta::assert_snapshot!(shown(4e9, 1e9, 3.6e9, 2.0), @"
        forebay bench · /data/model.safetensors (ext4 on nvme0n1 (Fast One)) → H200 ·
          files of 1 GiB · 3 samples

        READ, cold (from the drive)                   GB/s         ±  vs read() CPU s/GB
          storage (limit)        █████████████████    4.00
          forebay                ███████████████▎     3.60     0.1 %       3.6×    0.022
          read() + copy          ████▎                1.00     0.1 %       1.0×    0.036

        Forebay: cold 3.6× read() (3.6 to 3.6), 90 % of the storage. All data verified.
          Path: mixed 75 % staged / 25 % cached, by the counters of kernel and driver.
        ");
    }

    #[test]
    fn sections_follow_the_width_and_name_what_has_no_room() {
        let records = whole_files(4e9);
        let model = of_records(&records);
        for (width, bar, dropped) in [(40, 14, 3), (60, 6, 1), (80, 17, 0), (120, 34, 0)] {
            let text = anstream::adapter::strip_str(&render(&model, None, width)).to_string();
            let most = text.lines().map(|line| line.chars().count()).max();
            assert!(most.is_some_and(|most| most <= width), "{width}: {text}");
            let bars = text.lines().map(|line| line.matches('█').count()).max();
            assert!(bars.is_some_and(|longest| longest <= bar && longest + 10 > bar), "{text}");
            let names = ["CPU s/GB", "vs read()", "±"];
            let named = text.lines().filter(|line| line.starts_with("more columns: ")).count();
            assert_eq!(named, usize::from(dropped > 0), "{text}");
            let is_named = |name: &&&str| {
                text.lines()
                    .skip_while(|line| !line.starts_with("more columns"))
                    .any(|line| line.contains(**name))
            };
            assert_eq!(names.iter().filter(is_named).count(), dropped, "{width}: {text}");
        }
    }

    #[test]
    fn a_rate_above_its_limit_is_named_and_no_share() {
        let text = shown(3e9, 1e9, 9.2e9, 2.0);
        assert!(text.contains("above the limit measured: forebay (storage)"), "{text}");
        assert!(
            text.contains("cold 9.2× read() (9.2 to 9.2), above the storage measured"),
            "{text}"
        );
        assert!(!text.contains("307"), "{text}");
        assert!(text.contains(" 3.00\n"), "the limit is as measured: {text}");
    }

    #[test]
    fn a_rate_far_below_its_limit_is_no_zero() {
        let text = shown(4e9, 1e3, 2e4, 2.0);
        assert!(
            text.contains(" 2.0e-5 ") && text.contains("less than 1 % of the storage"),
            "{text}"
        );
    }

    #[test]
    fn methods_have_their_names_in_sentences_too() {
        let model = model_of(&[("a", &made::text(&whole_files(4e9)))]);
        let names = model.lines.iter().map(|line| model.name(line, &[Axis::Method]));
        assert_eq!(names.collect::<Vec<_>>(), ["read() + copy", "forebay"]);
    }

    #[test]
    fn samples_far_apart_make_no_ratio() {
        let text = spread(4e9, 1e9, 1.5e9, 2.0, 0.4);
        assert!(!text.contains('×') && text.contains("too noisy to compare"), "{text}");
    }

    #[test]
    fn counters_are_named_only_where_they_prove_the_path() {
        let sweep = Sweep { methods: vec!["forebay"], ..Sweep::default() };
        let closing = |verdict: Option<&str>| {
            let mut run = made::run(&sweep);
            run["request"]["whole_files"] = true.into();
            let mut records = vec![run];
            records.extend(made::samples(&sweep));
            for record in records.iter_mut().filter(|record| record["record"] == "sample") {
                match verdict {
                    Some(text) => record["measured"]["verdict"]["text"] = text.into(),
                    None => record["measured"]["verdict"] = Value::Null,
                }
            }
            super::closing(&of_records(&records)).unwrap()
        };
        let proven = "Path: staged, by the counters of kernel and driver.";
        assert!(closing(Some("staged")).ends_with(proven));
        assert!(closing(Some("unproven")).ends_with("Path: unproven."));
        assert!(closing(Some("contradictory")).ends_with("Path: contradictory."));
        assert!(closing(None).ends_with("Path: not verified."));
    }

    #[test]
    fn short_samples_have_no_rate() {
        let text = shown(4e9, 1e9, 3.6e9, 0.05);
        assert_eq!(text.matches("not measurable").count(), 2, "{text}");
        assert!(!text.contains("3.60"), "{text}");
        // The fastest row is green, and none of these is.
        let green = |seconds| coloured(4e9, 1e9, 3.6e9, seconds, 1.0).contains("\u{1b}[32m");
        assert!(green(2.0) && !green(0.05));
    }

    #[test]
    fn a_method_that_the_machine_lacks_is_no_failure() {
        let sweep = Sweep { methods: vec!["cufile-compat", "forebay"], ..Sweep::default() };
        let shown = |methods: &[&str]| {
            let mut run = made::run(&sweep);
            (run["request"]["whole_files"], run["request"]["methods"]) =
                (true.into(), json!(methods));
            let mut records = vec![run];
            records.extend(made::samples(&sweep));
            for sample in records.iter_mut().filter(|one| one["point"]["method"] == "cufile-compat")
            {
                (sample["measured"], sample["error"]) = (Value::Null, "5027: bind it".into());
            }
            let model = of_records(&records);
            let text = anstream::adapter::strip_str(&render(&model, None, WIDTH)).to_string();
            (text, model.warnings.join("\n"))
        };
        let (text, warnings) = shown(&[]);
        assert!(text.contains("cuFile compat          not available: 5027: bind it\n"), "{text}");
        assert_eq!(warnings, "`cufile-compat` is not available: 5027: bind it");
        let (text, warnings) = shown(&["cufile-compat"]);
        assert!(text.contains("not measured, see below"), "{text}");
        assert!(warnings.contains("failed (first error: 5027: bind it)"), "{warnings}");
    }

    #[test]
    fn no_line_is_longer_than_80_columns() {
        let path = format!("/{}", "long/".repeat(40));
        for whole_files in [true, false] {
            let sweep = Sweep { path: path.clone(), ..Sweep::default() };
            let mut run = made::run(&sweep);
            run["request"]["whole_files"] = whole_files.into();
            let records = [vec![run], made::samples(&sweep)].concat();
            let model = of_records(&records);
            for line in
                anstream::adapter::strip_str(&render(&model, None, WIDTH)).to_string().lines()
            {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }
}

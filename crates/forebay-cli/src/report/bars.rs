//! Results as text of at most 80 columns: bars for methods that move whole files, else the table of
//! a report, with a row for each combination of values.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use forebay::units::format_size;
use forebay_measure::plain::{cut, padded, plain};
use forebay_measure::results::machine::Gpu;
use forebay_measure::results::machine::place;
use forebay_measure::results::{Cache, Direction};
use forebay_measure::results::{Point, Record};

use super::compare::compare;
use super::forms::{self, wrapped};
use super::grid::{WIDTH, bar};
use super::model::{Axis, Line, Metric, Model, gather, grouped, unique};
use super::numbers::counted;
use super::numbers::rate as gb_per_s;
use super::ratio::{ERROR_MIN, Estimate, Ratio, SAMPLES_MIN};
use super::show::{self, Block};

/// Columns of a method's name, and of its bar.
const NAME: usize = 25;
const BAR: usize = 17;
/// Most rows of a table.
const ROWS_MAX: usize = 200;
/// From this share of a limit on, a rate is above it; less is noise.
const ABOVE: f64 = 1.02;
/// A ratio whose interval is wider than this many times says nothing.
const RATIO_SPREAD_MAX: f64 = 10.0;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const BEST: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
const WRONG: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));

/// The model of a run's records.
#[must_use]
pub fn model(records: &[Record]) -> Model {
    gather::model(&[("this run".into(), records.to_vec())])
}

/// Whether a run moved whole files, so that its methods are shown as bars.
pub(crate) fn has_whole_files(model: &Model) -> bool {
    let last = model.runs.last();
    last.is_some_and(|run| run.record.asked["whole_files"].as_bool().unwrap_or(false))
}

/// The results of a run. With `base`, its other path is compared with this one.
#[must_use]
pub fn render(model: &Model, base: Option<&str>) -> String {
    let is_whole = has_whole_files(model);
    let mut text = wrapped(&head(model, is_whole), WIDTH);
    if model.lines.is_empty() {
        return text;
    }
    let mut blocks = Vec::new();
    if is_whole {
        text.push_str(&sections(model));
    } else {
        blocks = show::results(model, ROWS_MAX);
    }
    match base.map(|base| compare(model, &[], Some(Axis::Path), Some(base))) {
        None => {}
        Some(Ok(found)) => {
            blocks
                .extend(found.iter().flat_map(|one| show::comparison(one, Metric::Rate, ROWS_MAX)));
        }
        Some(Err(failure)) => blocks.push(Block::Line(failure.in_one_line())),
    }
    if is_whole {
        blocks.push(Block::Line(closing(model)));
    }
    format!("{text}\n{}", forms::terminal(&blocks, false))
}

/// The path, the target, and how much was measured.
fn head(model: &Model, is_whole: bool) -> String {
    let run = &model.runs[model.runs.len() - 1].record;
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
    let mut parts = vec![format!("forebay bench · {path} → {target}")];
    if is_whole {
        let largest = model.lines.iter().map(|line| line.point.request_size).max().unwrap_or(0);
        parts.push(format!("files of {}", format_size(largest)));
    }
    let samples = model.lines.iter().map(|line| line.samples(Metric::CpuUser).len()).max();
    parts.push(counted(samples.unwrap_or(0), "sample"));
    parts.join(" · ")
}

/// The bars of all methods, by direction, cache, path and GPUs.
fn sections(model: &Model) -> String {
    let varying = model.varying();
    let key = |line: &Line| {
        let mut key = state(&line.point).to_owned();
        for axis in [Axis::Path, Axis::Target].iter().filter(|axis| varying.contains(axis)) {
            let _ = write!(key, " · {}", axis.text(model, line).unwrap_or_default());
        }
        key
    };
    let sections = grouped(model.lines.iter().map(|line| (key(line), line)));
    sections.iter().map(|(key, lines)| format!("\n{}", bars(model, key, lines))).collect()
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

fn is_host(point: &Point) -> bool {
    point.targets.iter().all(|target| target == "host")
}

/// A point of whole files in a few words: `read() + copy, cold`.
pub(crate) fn name(point: &Point) -> String {
    let state = match (point.read_percent, point.cache) {
        (0, _) => "writing",
        (_, Some(Cache::Warm)) => "warm",
        (_, Some(Cache::Cold)) => "cold",
        (_, None) => "reading",
    };
    format!("{}, {state}", method(point))
}

/// A method's name for people.
fn method(point: &Point) -> String {
    let copy = if is_host(point) { "" } else { " + copy" };
    match point.method.as_str() {
        "forebay" => match &point.route {
            Some(route) => format!("forebay --route {route}"),
            None => "forebay".into(),
        },
        "standard" if point.read_percent == 0 => format!("write(){copy}"),
        "standard" => format!("read(){copy}"),
        "mmap" => format!("mmap{copy}"),
        "cufile-compat" => "cuFile compat".into(),
        "cufile-compat-tuned" => "cuFile compat, tuned".into(),
        "kvikio" => "KvikIO".into(),
        "kvikio-tuned" => "KvikIO, tuned".into(),
        other => plain(other),
    }
}

/// Methods as bars, the fastest first, below their limits.
fn bars(model: &Model, key: &str, lines: &[&Line]) -> String {
    let rate = |line: &Line| line.rate().filter(|_| line.verified != Some(false)).unwrap_or(0.0);
    let base = lines.iter().copied().find(|line| line.point.method == "standard");
    let limits = limits(model, &lines[0].point);
    let rates = lines.iter().map(|line| rate(line)).chain(limits.iter().map(|limit| limit.1));
    let most = rates.fold(1.0, f64::max);
    let drawn = |rate: f64| bar(rate / most, BAR);
    let versus = match base {
        None => String::new(),
        Some(base) => format!("vs {}", base_name(&base.point)),
    };
    let title = cut(&plain(key), NAME + BAR + 1);
    let heads = ["GB/s", "±", &versus, "CPU s/GB"].map(str::to_owned);
    let mut text = row(BOLD, &title, "", heads);
    for (name, rate) in &limits {
        let numbers = [gb_per_s(*rate), String::new(), String::new(), String::new()];
        text += &row(DIM, &format!("  {name} (limit)"), &drawn(*rate), numbers);
    }
    let mut sorted = lines.to_vec();
    sorted.sort_by(|one, two| rate(two).total_cmp(&rate(one)));
    for (number, line) in sorted.iter().enumerate() {
        let is_wrong = line.verified == Some(false);
        let style = match (is_wrong, number, line.point.method.as_str()) {
            (true, ..) => WRONG,
            (_, 0, _) => BEST,
            (_, _, "forebay") => BOLD,
            _ => Style::new(),
        };
        let (bar, numbers) = match (line.estimate(Metric::Rate), line.failed) {
            (Some(rates), _) if !is_wrong => (drawn(rates.median), numbers(line, &rates, base)),
            _ if is_wrong => ("MISMATCH in the data".into(), Default::default()),
            (_, 0) => ("not measurable: samples are too short".into(), Default::default()),
            _ => ("not measured, see below".into(), Default::default()),
        };
        let name = format!("  {}", cut(&method(&line.point), NAME - 3));
        text += &row(style, &name, &bar, numbers);
    }
    for (name, limit) in &limits {
        let above = sorted.iter().filter(|line| rate(line) > ABOVE * limit);
        let above: Vec<String> = above.map(|line| method(&line.point)).collect();
        if !above.is_empty() {
            let above = above.join(", ");
            text += &wrapped(&format!("  above the limit measured: {above} ({name})"), WIDTH);
        }
    }
    text
}

/// A line of a section: a name, a bar, and numbers.
fn row(style: Style, name: &str, bar: &str, [rate, spread, ratio, cpu]: [String; 4]) -> String {
    let begin = padded(&(padded(name, NAME) + bar), NAME + BAR + 1);
    let line = format!("{begin}{rate:>7}{spread:>9}{ratio:>11}{cpu:>10}");
    format!("{style}{}{style:#}\n", line.trim_end())
}

/// The numbers of a method: its rate, the error of it, how many times `base` it is, its cost.
fn numbers(line: &Line, rates: &Estimate, base: Option<&Line>) -> [String; 4] {
    let ratio = base.and_then(|base| times(base, line));
    let ratio = ratio.map(|ratio| format!("{:.1}×", ratio.value())).unwrap_or_default();
    let cpu = line.estimate(Metric::CpuCost).map(|cpu| format!("{:.3}", cpu.median));
    [gb_per_s(rates.median), rates.spread(), ratio, cpu.unwrap_or_default()]
}

/// The ratio of two rates; `None` if a side moved wrong data, or has too few samples or samples too
/// far apart to say how many times faster it is.
fn times(base: &Line, line: &Line) -> Option<Ratio> {
    let is_wrong = |line: &Line| line.verified == Some(false);
    let rates = |line| Line::samples(line, Metric::Rate);
    let ratio = Ratio::of(rates(base), rates(line), ERROR_MIN)?;
    let is_known = ratio.interval().is_some_and(|(low, high)| high <= RATIO_SPREAD_MAX * low);
    (!is_wrong(base) && !is_wrong(line) && is_known).then_some(ratio)
}

/// The plain method that others are compared with.
const fn base_name(point: &Point) -> &'static str {
    if point.read_percent == 0 { "write()" } else { "read()" }
}

/// The limits of a point of whole files, with their names for people.
fn limits(model: &Model, point: &Point) -> Vec<(&'static str, f64)> {
    let direction = if point.read_percent > 0 { Direction::Read } else { Direction::Write };
    let find = |name: &str, of: &str| {
        let all = model.limits.iter().map(|(_, limit)| limit);
        let mut same = all.filter(|limit| limit.name == name && limit.of == of);
        same.find(|limit| limit.direction == Some(direction)).map(|limit| limit.bytes_per_second)
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
fn closing(model: &Model) -> String {
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
    sentences.join(" ")
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

/// Forebay's rows of one state of the files, in words.
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
    let name = match (lines[0].point.read_percent, lines[0].point.cache) {
        (0, _) => "writing",
        (_, Some(Cache::Warm)) => "warm",
        _ => "cold",
    };
    let base = |line: &Line| {
        let point = Point { method: "standard".into(), route: None, ..line.point.clone() };
        model.lines.iter().find(|other| other.point == point)
    };
    let ratios: Vec<Ratio> = lines.iter().filter_map(|line| times(base(line)?, line)).collect();
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
                (_, [line]) if base(line).is_some() => "too unsteady to compare".into(),
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
    let names = unique(shares.iter().map(|(name, _)| *name)).join(", ");
    match range(shares.iter().map(|(_, share)| (share * 100.0).round())) {
        (low, _) if low > 100.0 * ABOVE => format!("above the {names} measured"),
        (low, _) if low >= 100.0 => format!("at the limit of the {names}"),
        (low, high) if low == high => format!("{low} % of the {names}"),
        (low, high) => format!("{low} to {high} % of the {names}"),
    }
}

/// The least and the largest number.
fn range(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((f64::INFINITY, 0.0), |(low, high), one| (low.min(one), high.max(one)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::report::made::{self, Sweep};
    use crate::report::model::gather::tests::model_of;

    /// The text of cold reads of whole files: a limit, and rates of two methods.
    fn shown(limit: f64, standard: f64, forebay: f64, seconds: f64) -> String {
        spread(limit, standard, forebay, seconds, 1.0)
    }

    /// As `shown`, where each sample is so many times the last one.
    fn spread(limit: f64, standard: f64, forebay: f64, seconds: f64, spread: f64) -> String {
        let sweep = Sweep {
            methods: vec!["standard", "forebay"],
            request_sizes: vec![1 << 30],
            depths: vec![1],
            ..Sweep::default()
        };
        let mut run = made::run(&sweep);
        run["asked"]["whole_files"] = true.into();
        let mut records = vec![run, made::limit("storage", &sweep.path, limit)];
        records.extend(made::samples(&sweep));
        let samples = records.iter_mut().filter(|record| record["record"] == "sample");
        for (number, record) in (0..).zip(samples) {
            let rate = if record["point"]["method"] == "forebay" { forebay } else { standard };
            record["measured"]["bytes_per_second"] = json!(rate * spread.powi(number));
            record["measured"]["seconds"] = json!(seconds);
            record["measured"]["bound"] = Value::Null;
        }
        let model = model_of(&[("a", &made::text(&records))]);
        anstream::adapter::strip_str(&render(&model, None)).to_string()
    }

    #[test]
    fn whole_files_are_bars_below_their_limit() {
        insta::assert_snapshot!(shown(4e9, 1e9, 3.6e9, 2.0), @"
        forebay bench · /data/model.safetensors (ext4 on nvme0n1 (Fast One)) → H200 ·
          files of 1 GiB · 3 samples

        READ, cold (from the drive)                   GB/s        ±  vs read()  CPU s/GB
          storage (limit)        █████████████████    4.00
          forebay                ███████████████▎     3.60    0.1 %       3.6×     0.022
          read() + copy          ████▎                1.00    0.1 %       1.0×     0.036

        Forebay: cold 3.6× read() (3.6 to 3.6), 90 % of the storage. All data verified.
          Path: mixed 75 % staged / 25 % cached, by the counters of kernel and driver.
        ");
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
    fn samples_far_apart_make_no_ratio() {
        let text = spread(4e9, 1e9, 1.5e9, 2.0, 0.4);
        assert!(!text.contains('×') && text.contains("too unsteady to compare"), "{text}");
    }

    #[test]
    fn counters_are_named_only_where_they_prove_the_path() {
        let sweep = Sweep { methods: vec!["forebay"], ..Sweep::default() };
        let closing = |verdict: Option<&str>| {
            let mut run = made::run(&sweep);
            run["asked"]["whole_files"] = true.into();
            let mut records = vec![run];
            records.extend(made::samples(&sweep));
            for record in records.iter_mut().filter(|record| record["record"] == "sample") {
                match verdict {
                    Some(text) => record["measured"]["verdict"]["text"] = text.into(),
                    None => record["measured"]["verdict"] = Value::Null,
                }
            }
            super::closing(&model_of(&[("a", &made::text(&records))]))
        };
        let proven = "Path: staged, by the counters of kernel and driver.";
        assert!(closing(Some("staged")).ends_with(proven));
        assert!(closing(Some("unproven")).ends_with("Path: unproven."));
        assert!(closing(Some("contradictory")).ends_with("Path: contradictory."));
        assert!(closing(None).ends_with("Path: not verified."));
    }

    #[test]
    fn short_samples_have_no_rate() {
        let text = shown(4e9, 1e9, 3.6e9, 0.1);
        assert_eq!(text.matches("not measurable").count(), 2, "{text}");
        assert!(!text.contains("3.60"), "{text}");
    }

    #[test]
    fn no_line_is_longer_than_80_columns() {
        let path = format!("/{}", "long/".repeat(40));
        for whole_files in [true, false] {
            let sweep = Sweep { path: path.clone(), ..Sweep::default() };
            let mut run = made::run(&sweep);
            run["asked"]["whole_files"] = whole_files.into();
            let records = [vec![run], made::samples(&sweep)].concat();
            let model = model_of(&[("a", &made::text(&records))]);
            for line in anstream::adapter::strip_str(&render(&model, None)).to_string().lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }
}

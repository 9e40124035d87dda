//! What the charts of a page show: quantities over the numeric axis that varies most. Pure.

use std::collections::HashMap;

use forebay_measure::plain::json;
use serde::Serialize;

use super::super::bars;
use super::super::model::{Axis, Line, Metric, Model, NUMBERS, unique};
use super::super::numbers::rate_text;
use super::super::ratio::Estimate;

/// Most lines of a chart: colours of more look alike.
const SERIES_MAX: usize = 8;
/// The quantities with a chart.
const METRICS: [Metric; 4] = [Metric::Rate, Metric::P50, Metric::P99, Metric::CpuCost];
/// Colours of lines; the next is that of limits.
const COLORS: usize = 7;
/// Dashes of lines with the same colour, in pixels.
const DASHES: [&[u8]; 4] = [&[], &[10, 4], &[2, 4], &[10, 4, 2, 4]];
/// Dashes of limits, which share a colour.
const LIMIT_DASHES: [&[u8]; 4] = [&[8, 6], &[2, 4], &[14, 4], &[8, 4, 2, 4]];
/// From this range on, a scale is logarithmic.
const LOG_RANGE: f64 = 8.0;

/// All charts: they share their horizontal axis and their lines. The page's script reads them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Charts {
    axis: String,
    /// The measured values on the axis, in order.
    x: Vec<f64>,
    /// Their texts.
    xs: Vec<String>,
    /// Whether the axis is logarithmic.
    log: bool,
    /// The lines.
    pub(super) series: Vec<Series>,
    /// Lines that are not drawn.
    #[serde(skip)]
    pub(super) left_out: usize,
    pub(super) charts: Vec<Chart>,
}

/// The name of a line and how it looks: colours stand for methods, dashes for everything else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) color: usize,
    dash: &'static [u8],
}

impl Series {
    /// The dashes as an attribute of SVG; `None` for an unbroken line.
    pub(super) fn dashes(&self) -> Option<String> {
        (!self.dash.is_empty()).then(|| dashes(self.dash))
    }
}

fn dashes(dash: &[u8]) -> String {
    dash.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")
}

/// A chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Chart {
    pub(super) id: String,
    #[serde(skip)]
    pub(super) metric: Metric,
    /// The unit and the kind of the scale.
    #[serde(skip)]
    pub(super) note: String,
    log: bool,
    /// Whether it shows seconds.
    time: bool,
    series: Vec<Drawn>,
    /// How the lowest limit changes along the axis.
    #[serde(skip)]
    pub(super) lowest: Option<String>,
}

impl Chart {
    /// The names of its limits, and their dashes as an attribute of SVG.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&str, String)> {
        self.series.iter().filter_map(|one| Some((one.limit.as_deref()?, dashes(one.dash))))
    }
}

/// A line of a chart: a value per position on the axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Drawn {
    /// The number of its name.
    name: usize,
    /// The name of a limit; `None` for a measured line.
    limit: Option<String>,
    /// The dashes of a limit.
    dash: &'static [u8],
    values: Vec<Option<f64>>,
    /// The least and the largest sample of every value; empty for a limit.
    ranges: Vec<Option<(f64, f64)>>,
}

impl Charts {
    /// The charts of a model; none without an axis of two numbers.
    pub(super) fn of(model: &Model) -> Self {
        let varying = model.varying();
        let axes = NUMBERS.into_iter().chain(COUNTS).filter(|axis| varying.contains(axis));
        let mut numbered =
            axes.map(|axis| (axis, numbers(model, axis))).filter(|(_, xs)| xs.len() > 1);
        let Some((axis, xs)) = numbered.next() else { return Self::default() };
        let others: Vec<Axis> = varying.into_iter().filter(|other| *other != axis).collect();
        let name = |line: &Line| model.name(line, &others);
        let numbered = model.lines.iter().filter(|line| place(axis, model, line).is_some());
        let mut names = unique(numbered.map(|line| (name(line), line.method.clone())));
        let left_out = names.len().saturating_sub(SERIES_MAX);
        names.truncate(SERIES_MAX);
        let series = looks(&names);
        // The first line per name and position on the axis.
        let mut places: HashMap<(String, u64), &Line> = HashMap::new();
        for line in &model.lines {
            if let Some(x) = place(axis, model, line) {
                places.entry((name(line), x.to_bits())).or_insert(line);
            }
        }
        let (limits, lowest) = ceilings(model, axis, &xs);
        let chart = |metric: Metric| {
            let scale = if metric == Metric::Rate { 1e-9 } else { 1.0 };
            let drawn = |(name, own): (usize, &Series)| {
                let found = xs.iter().map(|(x, _)| {
                    let line = places.get(&(own.name.clone(), x.to_bits()))?;
                    line.estimate(metric)
                });
                let found: Vec<_> = found.collect();
                let values = found.iter().map(|one| one.as_ref().map(|one| one.median * scale));
                let range = |one: &Estimate| (one.min * scale, one.max * scale);
                let ranges = found.iter().map(|one| one.as_ref().map(range)).collect();
                Drawn { name, limit: None, dash: &[], values: values.collect(), ranges }
            };
            let mut drawn: Vec<Drawn> = series.iter().enumerate().map(drawn).collect();
            let all = || drawn.iter().flat_map(|line| line.values.iter().copied().flatten());
            let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
            if most <= 0.0 {
                return None;
            }
            let log = least > 0.0 && most / least > LOG_RANGE;
            if metric == Metric::Rate {
                let dashes = LIMIT_DASHES.into_iter().cycle();
                drawn.extend(limits.iter().zip(dashes).map(|((name, values), dash)| Drawn {
                    name: 0,
                    limit: Some(name.clone()),
                    dash,
                    values: values.clone(),
                    ranges: Vec::new(),
                }));
            }
            let unit = match metric {
                Metric::Rate => "GB/s",
                Metric::CpuCost => "s/GB",
                _ => "",
            };
            let scale = if log { "log scale" } else { "" };
            Some(Chart {
                id: format!("chart-{}", metric.key()),
                metric,
                note: [unit, scale].join(", ").trim_matches([',', ' ']).to_owned(),
                log,
                time: matches!(metric, Metric::P50 | Metric::P99),
                series: drawn,
                lowest: lowest.clone(),
            })
        };
        let charts = METRICS.into_iter().filter_map(chart).collect();
        let log = xs[0].0 > 0.0 && xs[xs.len() - 1].0 / xs[0].0 >= LOG_RANGE;
        let (x, xs) = xs.iter().cloned().unzip();
        Self { axis: axis_name(axis), x, xs, log, series, left_out, charts }
    }

    /// The data for the script. No letter ends the element or acts on a terminal.
    pub(super) fn json(&self) -> String {
        json(self).unwrap_or_default().replace('<', "\\u003c")
    }
}

/// Axes along which more and more devices work concurrently.
const COUNTS: [Axis; 2] = [Axis::Target, Axis::Path];

/// Where a line is on a horizontal axis.
fn place(axis: Axis, model: &Model, line: &Line) -> Option<f64> {
    let count = match axis {
        Axis::Target => line.point.targets.len(),
        Axis::Path => line.point.path.split(" + ").count(),
        _ => return model.number(axis, line),
    };
    u32::try_from(count).ok().map(f64::from)
}

/// The numbers along an axis in order, with their texts.
fn numbers(model: &Model, axis: Axis) -> Vec<(f64, String)> {
    let number = |line: &Line| {
        let number = place(axis, model, line)?;
        let text = if COUNTS.contains(&axis) { None } else { model.text(axis, line) };
        Some((number, text.unwrap_or_else(|| number.to_string())))
    };
    let mut xs: Vec<(f64, String)> = model.lines.iter().filter_map(number).collect();
    xs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    xs.dedup_by(|(a, _), (b, _)| a == b);
    xs
}

fn axis_name(axis: Axis) -> String {
    match axis {
        Axis::Target => "GPUs at once".into(),
        Axis::Path => "paths at once".into(),
        _ => axis.name(),
    }
}

/// The limits along an axis, and how the lowest limit changes.
fn ceilings(model: &Model, axis: Axis, xs: &[(f64, String)]) -> (Vec<Named>, Option<String>) {
    if COUNTS.contains(&axis) {
        let at = |x: f64| model.lines.iter().find(|line| place(axis, model, line) == Some(x));
        return roofline(model, &xs.iter().map(|(x, _)| (*x, at(*x))).collect::<Vec<_>>());
    }
    let Some((name, rate)) = shared_limit(model) else { return (Vec::new(), None) };
    let text = format!("limit: {name}, {}", rate_text(*rate));
    (vec![(text, vec![Some(rate * 1e-9); xs.len()])], None)
}

/// A name, and a value per position on the axis.
type Named = (String, Vec<Option<f64>>);

/// The ceilings along the axis, and where the lowest changes, in words: the sum of the links,
/// what these carried together and what was predicted of that, and the storage.
fn roofline(model: &Model, xs: &[(f64, Option<&Line>)]) -> (Vec<Named>, Option<String>) {
    type Find<'a> = &'a dyn Fn(&Line) -> Option<f64>;
    let found = |line: &Line, is_storage: bool| {
        let all = bars::limits(model, &line.point).into_iter();
        all.filter(|(name, _)| (*name == "storage") == is_storage).map(|(_, rate)| rate).next()
    };
    let link = |line: &Line, target: &String| {
        let limit = model.limits_of(&line.point, target).find(|limit| limit.name == "link");
        limit.map(|limit| limit.bytes_per_second)
    };
    let links = |line: &Line| {
        line.point.targets.iter().map(|target| link(line, target)).sum::<Option<f64>>()
    };
    let together = |line: &Line| found(line, false).filter(|_| line.point.targets.len() > 1);
    let predicted = |line: &Line| {
        let all = line.point.targets.join("+");
        model.limits_of(&line.point, &all).find_map(|limit| limit.predicted)
    };
    let storage = |line: &Line| found(line, true);
    let all: [(&str, Find<'_>); 4] = [
        ("links, added up", &links),
        ("links at once", &together),
        ("predicted for links at once", &predicted),
        ("storage", &storage),
    ];
    let named = all.map(|(name, find)| {
        let at = |(_, line): &(f64, Option<&Line>)| find((*line)?).map(|rate| rate * 1e-9);
        (name.to_owned(), xs.iter().map(at).collect::<Vec<_>>())
    });
    let named = named.into_iter().filter(|(_, values)| values.iter().any(Option::is_some));
    let mut changes: Vec<String> = Vec::new();
    let mut last = None;
    for (x, line) in xs {
        let limits = line.map_or_else(Vec::new, |line| bars::limits(model, &line.point));
        let now = limits.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, _)| *name);
        if let Some(name) = now.filter(|_| now != last) {
            changes.push(if last.is_none() { name.into() } else { format!("{name} from {x} on") });
            last = now;
        }
    }
    let text = (!changes.is_empty()).then(|| format!("lowest limit: {}", changes.join(", ")));
    (named.collect(), text)
}

/// The limit of all points, if it is the same.
fn shared_limit(model: &Model) -> Option<&(String, f64)> {
    let mut limits = model.lines.iter().map(|line| line.limit.as_ref());
    let first = limits.next().flatten();
    first.filter(|first| limits.all(|other| other == Some(*first)))
}

/// How lines with these names and methods look: a colour per method and dashes for its lines, or a
/// colour per line if all have the same method.
fn looks(names: &[(String, String)]) -> Vec<Series> {
    let methods = unique(names.iter().map(|(_, method)| method));
    let look = |(number, (name, method)): (usize, &(String, String))| {
        let color = methods.iter().position(|other| *other == method).unwrap_or_default();
        let before = names[..number].iter().filter(|(_, other)| other == method).count();
        let (color, dash) = if methods.len() > 1 { (color, before) } else { (number, 0) };
        Series { name: name.clone(), color: color % COLORS, dash: DASHES[dash % DASHES.len()] }
    };
    names.iter().enumerate().map(look).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;
    use crate::report::made::{self, Sweep};
    use crate::report::model::gather::tests::{model_of, of_records, of_sweep};

    #[test]
    fn the_numeric_axis_is_horizontal_and_the_rest_are_lines() {
        let model = of_sweep(&Sweep { fails: 7, ..Sweep::default() });
        let charts = Charts::of(&model);
        assert_eq!((charts.axis.as_str(), charts.xs.len()), ("block size", 5));
        let names: Vec<&str> = charts.series.iter().map(|series| &*series.name).collect();
        assert_eq!(names, ["depth 1", "depth 8", "depth 32"]);
        let colors: Vec<usize> = charts.series.iter().map(|series| series.color).collect();
        assert_eq!(colors, [0, 1, 2]);
        assert_eq!(charts.charts.len(), 4);
        let rate = &charts.charts[0];
        assert_eq!(rate.series[0].values[0], model.lines[0].rate().map(|rate| rate * 1e-9));
        let ranges = rate.series[0].ranges[0].unwrap();
        let median = rate.series[0].values[0].unwrap();
        assert!(ranges.0 <= median && median <= ranges.1 && ranges.0 < ranges.1, "{ranges:?}");
        // The seventh point failed.
        assert_eq!(rate.series[0].values[2], None);
        let data: serde_json::Value = serde_json::from_str(&charts.json()).unwrap();
        assert_eq!((&data["xs"][0], &data["log"]), (&json!("64 KiB"), &json!(true)));
    }

    #[test]
    fn a_method_has_one_colour() {
        let sweep = Sweep { methods: vec!["forebay", "mmap"], ..Sweep::default() };
        let series = Charts::of(&of_sweep(&sweep)).series;
        let look = |method: &str| {
            let own = series.iter().filter(|series| series.name.contains(method));
            own.map(|series| (series.color, series.dash)).collect::<Vec<_>>()
        };
        let dashes = &DASHES[..3];
        assert_eq!(look("forebay"), dashes.iter().map(|dash| (0, *dash)).collect::<Vec<_>>());
        assert_eq!(look("mmap"), dashes.iter().map(|dash| (1, *dash)).collect::<Vec<_>>());
    }

    #[test]
    fn more_and_more_gpus_have_a_roofline() {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        let mut limit = |name: &str, of: &str, rate: f64, predicted: Option<f64>| {
            records.push(json!({
                "record": "limit", "name": name, "of": of, "direction": "read",
                "bytes_per_second": rate, "how": "", "simulated": true, "predicted": predicted,
            }));
        };
        limit("link", "sim:0", 50e9, None);
        limit("link", "sim:1", 50e9, None);
        // A busy first round: of all names, the highest counts.
        limit("shared", "sim:0+sim:1", 60e9, Some(64e9));
        limit("uplink", "sim:0+sim:1", 64e9, None);
        for targets in [json!(["sim:0"]), json!(["sim:0", "sim:1"])] {
            records.extend(made::samples(&sweep).into_iter().map(|mut sample| {
                sample["point"]["targets"] = targets.clone();
                sample["point"]["cache"] = json!("warm");
                sample
            }));
        }
        let charts = Charts::of(&of_records(&records));
        assert_eq!(
            (charts.axis.as_str(), &charts.xs[..]),
            ("GPUs at once", &["1".into(), "2".into()][..])
        );
        let rate = &charts.charts[0];
        let limits =
            rate.series.iter().filter_map(|one| Some((one.limit.as_deref()?, one.values.clone())));
        let limits: Vec<_> = limits.collect();
        assert_eq!(
            limits,
            [
                ("links, added up", vec![Some(50.0), Some(100.0)]),
                ("links at once", vec![None, Some(64.0)]),
                ("predicted for links at once", vec![None, Some(64.0)]),
            ]
        );
        assert_eq!(rate.lowest.as_deref(), Some("lowest limit: PCIe link, PCIe uplink from 2 on"));
        let dashes: HashSet<String> = rate.limits().map(|(_, dashes)| dashes).collect();
        assert_eq!(dashes.len(), 3, "each has its own");
    }

    #[test]
    fn lines_are_bounded_and_one_number_has_no_chart() {
        let one = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        assert_eq!(Charts::of(&of_sweep(&one)), Charts::default());
        let many = Sweep { depths: (1..=20).collect(), repeats: 1, ..Sweep::default() };
        let charts = Charts::of(&of_sweep(&many));
        assert_eq!((charts.series.len(), charts.left_out), (SERIES_MAX, 12));
        let hostile = Charts::of(&model_of(&[("a", &made::hostile())]));
        assert!(!hostile.json().contains("</script"));
    }
}

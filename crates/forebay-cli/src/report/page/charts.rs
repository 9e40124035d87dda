//! What the charts of a page show: quantities over the numeric axis that varies most. Pure.

use std::collections::HashMap;

use forebay_measure::plain::json;
use serde::Serialize;

use super::super::model::{Axis, Line, Metric, Model, unique};
use super::super::numbers::rate_text;

/// Most lines of a chart: colours of more look alike.
const SERIES_MAX: usize = 8;
/// The quantities with a chart.
const METRICS: [Metric; 4] = [Metric::Rate, Metric::P50, Metric::P99, Metric::CpuCost];
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
    /// The names of the lines.
    pub(super) series: Vec<String>,
    /// Lines that are left out.
    #[serde(skip)]
    pub(super) left_out: usize,
    pub(super) charts: Vec<Chart>,
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
    /// The limit of all points, if they share one.
    pub(super) limit: Option<String>,
}

/// A line of a chart: a value for each of the axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Drawn {
    /// The number of its name.
    name: usize,
    limit: bool,
    values: Vec<Option<f64>>,
}

impl Charts {
    /// The charts of a model; none if no axis has two numbers.
    pub(super) fn of(model: &Model) -> Self {
        let varying = model.varying();
        let numbers = |axis: Axis| {
            let number = |line: &Line| Some((axis.number(model, line)?, axis.text(model, line)?));
            let mut xs: Vec<(f64, String)> = model.lines.iter().filter_map(number).collect();
            xs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            xs.dedup_by(|(a, _), (b, _)| a == b);
            xs
        };
        let axes = Axis::NUMBERS.into_iter().filter(|axis| varying.contains(axis));
        let mut numbered = axes.map(|axis| (axis, numbers(axis))).filter(|(_, xs)| xs.len() > 1);
        let Some((axis, xs)) = numbered.next() else { return Self::default() };
        let others: Vec<Axis> = varying.into_iter().filter(|other| *other != axis).collect();
        let name = |line: &Line| model.name(line, &others);
        let numbered = model.lines.iter().filter(|line| axis.number(model, line).is_some());
        let mut series = unique(numbered.map(name));
        let left_out = series.len().saturating_sub(SERIES_MAX);
        series.truncate(SERIES_MAX);
        // The first line of each name at each place of the axis.
        let mut places: HashMap<(String, u64), &Line> = HashMap::new();
        for line in &model.lines {
            if let Some(x) = axis.number(model, line) {
                places.entry((name(line), x.to_bits())).or_insert(line);
            }
        }
        let mut limits = model.lines.iter().map(|line| line.limit.as_ref());
        let first = limits.next().flatten();
        let limit = first.filter(|first| limits.all(|other| other == Some(*first)));
        let limit_text = limit.map(|(name, rate)| format!("limit: {name}, {}", rate_text(*rate)));
        let chart = |metric: Metric| {
            let value = |own: &str, x: f64| {
                let line = places.get(&(own.to_owned(), x.to_bits()))?;
                let scale = if metric == Metric::Rate { 1e-9 } else { 1.0 };
                line.estimate(metric).map(|found| found.median * scale)
            };
            let values = |own: &String| xs.iter().map(|(x, _)| value(own, *x)).collect();
            let drawn = |(name, own)| Drawn { name, limit: false, values: values(own) };
            let mut drawn: Vec<Drawn> = series.iter().enumerate().map(drawn).collect();
            let all = || drawn.iter().flat_map(|line| line.values.iter().copied().flatten());
            let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
            if most <= 0.0 {
                return None;
            }
            let log = least > 0.0 && most / least > LOG_RANGE && metric != Metric::CpuCost;
            if let Some((_, rate)) = limit.filter(|_| metric == Metric::Rate) {
                let values = vec![Some(rate * 1e-9); xs.len()];
                drawn.push(Drawn { name: drawn.len(), limit: true, values });
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
                limit: limit_text.clone(),
            })
        };
        let charts = METRICS.into_iter().filter_map(chart).collect();
        let log = xs[0].0 > 0.0 && xs[xs.len() - 1].0 / xs[0].0 >= LOG_RANGE;
        let (x, xs) = xs.iter().cloned().unzip();
        Self { axis: axis.name(), x, xs, log, series, left_out, charts }
    }

    /// The data for the script. No letter ends the element or acts on a terminal.
    pub(super) fn json(&self) -> String {
        json(self).unwrap_or_default().replace('<', "\\u003c")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::made::{self, Sweep};
    use crate::report::model::gather::tests::model_of;

    #[test]
    fn the_numeric_axis_is_horizontal_and_the_rest_are_lines() {
        let model = model_of(&[("a", &made::file(&Sweep { fails: 7, ..Sweep::default() }))]);
        let charts = Charts::of(&model);
        assert_eq!((charts.axis.as_str(), charts.xs.len()), ("block size", 5));
        assert_eq!(charts.series, ["depth 1", "depth 8", "depth 32"]);
        assert_eq!(charts.charts.len(), 4);
        let rate = &charts.charts[0];
        assert_eq!(rate.series[0].values[0], model.lines[0].rate().map(|rate| rate * 1e-9));
        // The seventh point failed.
        assert_eq!(rate.series[0].values[2], None);
        let data: serde_json::Value = serde_json::from_str(&charts.json()).unwrap();
        assert_eq!((&data["xs"][0], &data["log"]), (&json!("64 KiB"), &json!(true)));
    }

    #[test]
    fn lines_are_bounded_and_one_number_has_no_chart() {
        let one = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        assert_eq!(Charts::of(&model_of(&[("a", &made::file(&one))])), Charts::default());
        let many = Sweep { depths: (1..=20).collect(), repeats: 1, ..Sweep::default() };
        let charts = Charts::of(&model_of(&[("a", &made::file(&many))]));
        assert_eq!((charts.series.len(), charts.left_out), (SERIES_MAX, 12));
        let hostile = Charts::of(&model_of(&[("a", &made::hostile())]));
        assert!(!hostile.json().contains("</script"));
    }
}

//! The plots of some results: their axes, and the meaning of each line or cell.
//!
//! Pure. Plots above the limits of a page are left out, and counted.

use std::collections::BTreeMap;

use crate::report::digest::{Axis, Digest, Line, Metric};
use crate::results::summary::Estimate;

/// The quantities of charts.
const METRICS: [Metric; 9] = [
    Metric::Rate,
    Metric::P50,
    Metric::P99,
    Metric::CpuPerGb,
    Metric::GpuJoules,
    Metric::PackageJoules,
    Metric::DramJoules,
    Metric::PlatformJoules,
    Metric::ServerJoules,
];
/// Most lines in one chart: more cannot be distinguished.
pub(crate) const SERIES_MAX: usize = 8;
/// Most charts of a page.
pub(crate) const CHARTS_MAX: usize = 32;
/// Most points of a line.
pub(crate) const POINTS_MAX: usize = 256;
/// Most heat maps of a page.
const MAPS_MAX: usize = 16;
/// Most columns and rows of a heat map.
const CELLS_MAX: usize = 24;

/// A chart of lines.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    /// The values that all of its points share.
    pub(crate) facet: String,
    /// The quantity on its horizontal axis.
    pub(crate) x: &'static str,
    pub(crate) y: Measure,
    /// The values of the horizontal axis, as numbers and as text, the smallest first.
    pub(crate) ticks: Vec<(f64, String)>,
    pub(crate) series: Vec<Series>,
    /// The reference of all points, in words, and its value.
    pub(crate) limit: Option<(String, f64)>,
}

/// The quantity on a chart's vertical axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Measure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// The factor from values to that unit.
    pub(crate) scale: f64,
    pub(crate) reach: Reach,
}

/// The start of a vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// At 0.
    Zero,
    /// Around 1, as values are ratios: both axes are logarithmic.
    One,
}

impl Measure {
    /// The name with the unit.
    pub(crate) fn heading(&self) -> String {
        if self.unit.is_empty() {
            self.name.into()
        } else {
            format!("{}, {}", self.name, self.unit)
        }
    }
}

impl From<Metric> for Measure {
    fn from(metric: Metric) -> Self {
        let (name, unit, scale) = (metric.name(), metric.unit(), metric.scale());
        Self { name, unit, scale, reach: Reach::Zero }
    }
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Each spot with the index of its tick, in order.
    pub(crate) points: Vec<(usize, Spot)>,
}

/// A value, and the range of its bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spot {
    pub(crate) value: f64,
    pub(crate) bar: Option<(f64, f64)>,
}

impl From<Estimate> for Spot {
    fn from(estimate: Estimate) -> Self {
        Self { value: estimate.median, bar: estimate.interval }
    }
}

/// A map of cells.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Map {
    pub(crate) facet: String,
    pub(crate) metric: Metric,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<String>,
    /// By row and column; `None` if not measured.
    pub(crate) cells: Vec<Vec<Option<f64>>>,
}

/// Plots, and how many are left out.
pub(crate) struct Plots<T> {
    pub(crate) shown: Vec<T>,
    pub(crate) left_out: usize,
}

impl<T> Plots<T> {
    fn of(mut all: Vec<T>, most: usize) -> Self {
        let left_out = all.len().saturating_sub(most);
        all.truncate(most);
        Self { shown: all, left_out }
    }
}

/// The numbers on an axis with their text, the smallest first.
fn ticks<'a>(lines: impl IntoIterator<Item = &'a Line>, axis: Axis) -> Vec<(f64, String)> {
    let mut found: Vec<(f64, String)> = lines
        .into_iter()
        .filter_map(|line| {
            let mark = line.marks.get(&axis)?;
            Some((mark.number.filter(|number| number.is_finite())?, mark.text.clone()))
        })
        .collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    found.dedup_by(|a, b| a.1 == b.1);
    found
}

/// The axes of numbers that vary, with how many values each has.
fn numbers(digest: &Digest) -> Vec<(Axis, usize)> {
    let counted = Axis::NUMBERS.into_iter().map(|axis| (axis, ticks(&digest.lines, axis).len()));
    counted.filter(|(_, count)| *count > 1).collect()
}

/// Groups lines by their values on `axes`, each group with those values in words.
fn split<'a>(lines: &[&'a Line], axes: &[Axis]) -> Vec<(String, Vec<&'a Line>)> {
    let mut parts: Vec<(Vec<Option<&str>>, Vec<&'a Line>)> = Vec::new();
    let mut places: BTreeMap<Vec<Option<&str>>, usize> = BTreeMap::new();
    for line in lines {
        let key: Vec<Option<&str>> = axes.iter().map(|axis| line.mark(*axis)).collect();
        let place = *places.entry(key.clone()).or_insert(parts.len());
        match parts.get_mut(place) {
            Some((_, part)) => part.push(line),
            None => parts.push((key, vec![line])),
        }
    }
    let named = |key: Vec<Option<&str>>| {
        let words = axes.iter().zip(key).filter_map(|(axis, mark)| {
            // A method or a direction needs no axis name.
            let plain = [Axis::Way, Axis::Direction, Axis::Cache, Axis::Run, Axis::Target];
            let mark = mark?;
            Some(if plain.contains(axis) { mark.into() } else { format!("{} {mark}", axis.name()) })
        });
        words.collect::<Vec<String>>().join(", ")
    };
    parts.into_iter().map(|(key, lines)| (named(key), lines)).collect()
}

/// The charts of a digest: throughput, latency, processor time and energy by block size if that
/// varies, or else by the next numeric axis.
pub(crate) fn charts(digest: &Digest) -> Plots<Chart> {
    let Some((x, _)) = numbers(digest).first().copied() else { return Plots::of(Vec::new(), 0) };
    let mut apart: Vec<Axis> = digest.varying().into_iter().filter(|axis| *axis != x).collect();
    let lines: Vec<&Line> = digest.lines.iter().collect();
    let mut facets = Vec::new();
    // The axes by which lines differ move into the chart's name, one by one, until the rest fit
    // into one chart. Numeric axes move last, since their lines belong together.
    apart.sort_by_key(|axis| (Axis::NUMBERS.contains(axis), *axis));
    while !apart.is_empty()
        && split(&lines, &facets).iter().any(|(_, part)| split(part, &apart).len() > SERIES_MAX)
    {
        facets.push(apart.remove(0));
    }
    let mut all = Vec::new();
    for (facet, part) in split(&lines, &facets) {
        for metric in METRICS {
            all.extend(chart(&part, facet.clone(), x, metric, &apart));
        }
    }
    Plots::of(all, CHARTS_MAX)
}

fn chart(lines: &[&Line], facet: String, x: Axis, metric: Metric, apart: &[Axis]) -> Option<Chart> {
    let measured: Vec<&Line> =
        lines.iter().copied().filter(|line| line.metric(metric).is_some()).collect();
    let mut ticks = ticks(measured.iter().copied(), x);
    ticks.truncate(POINTS_MAX);
    let place = |line: &Line| {
        let mark = line.mark(x)?;
        ticks.iter().position(|(_, text)| text == mark)
    };
    let series = split(&measured, apart).into_iter().map(|(name, part)| {
        let points =
            part.iter().filter_map(|line| Some((place(line)?, line.metric(metric)?.into())));
        let mut points: Vec<(usize, Spot)> = points.collect();
        points.sort_by_key(|(tick, _)| *tick);
        Series { name, points }
    });
    let series: Vec<Series> =
        series.filter(|series| !series.points.is_empty()).take(SERIES_MAX).collect();
    let limit = (metric == Metric::Rate).then(|| limit(&measured)).flatten();
    let (x, y) = (x.name(), metric.into());
    (ticks.len() > 1).then_some(Chart { facet, x, y, ticks, series, limit })
}

/// The limit that all of these lines share.
fn limit(lines: &[&Line]) -> Option<(String, f64)> {
    let first = lines.first()?.limit.as_ref()?;
    let same = lines.iter().all(|line| line.limit.as_ref() == Some(first));
    same.then(|| (format!("limit: {}", first.name), first.rate))
}

/// The maps of a digest, of the two axes of numbers that vary most.
pub(crate) fn maps(digest: &Digest) -> Plots<Map> {
    let mut numbers = numbers(digest);
    // Axes with the same number of values keep their order.
    numbers.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let [(a, _), (b, _), ..] = numbers.as_slice() else { return Plots::of(Vec::new(), 0) };
    let order = |axis: &Axis| Axis::NUMBERS.iter().position(|other| other == axis);
    let (x, y) = if order(a) <= order(b) { (*a, *b) } else { (*b, *a) };
    let facets: Vec<Axis> =
        digest.varying().into_iter().filter(|axis| *axis != x && *axis != y).collect();
    let lines: Vec<&Line> = digest.lines.iter().collect();
    let mut all = Vec::new();
    for (facet, part) in split(&lines, &facets) {
        for metric in [Metric::Rate, Metric::P99] {
            all.extend(map(&part, &facet, (x, y), metric));
        }
    }
    Plots::of(all, MAPS_MAX)
}

fn map(lines: &[&Line], facet: &str, (x, y): (Axis, Axis), metric: Metric) -> Option<Map> {
    let names = |axis: Axis| {
        let found = ticks(lines.iter().copied(), axis);
        found.into_iter().map(|(_, text)| text).take(CELLS_MAX).collect::<Vec<String>>()
    };
    let (columns, rows) = (names(x), names(y));
    let mut cells = vec![vec![None; columns.len()]; rows.len()];
    let mut found = false;
    for line in lines {
        let at =
            |names: &[String], axis| names.iter().position(|name| line.mark(axis) == Some(name));
        let (Some(row), Some(column)) = (at(&rows, y), at(&columns, x)) else { continue };
        cells[row][column] = line.metric(metric).map(|estimate| estimate.median);
        found |= cells[row][column].is_some();
    }
    let plenty = columns.len() > 1 && rows.len() > 1 && found;
    plenty.then(|| Map { facet: facet.to_owned(), metric, x, y, columns, rows, cells })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    fn digest(sweep: &Sweep) -> Digest {
        digest_of(&[("a", &made::file(sweep))])
    }

    #[test]
    fn a_sweep_over_two_axes_has_lines_and_maps() {
        let digest = digest(&Sweep::default());
        let charts = charts(&digest).shown;
        let measures: Vec<Measure> = charts.iter().map(|chart| chart.y).collect();
        assert_eq!(measures, METRICS.map(Measure::from)[..5]);
        let chart = &charts[0];
        assert_eq!((chart.x, chart.ticks.len(), chart.series.len()), ("block size", 5, 3));
        assert_eq!(
            (chart.series[1].name.as_str(), chart.limit.clone()),
            ("depth 8", Some(("limit: storage".into(), 7e9)))
        );
        let maps = maps(&digest).shown;
        assert_eq!((maps.len(), maps[0].columns.len(), maps[0].rows.len()), (2, 5, 3));
        assert_eq!((maps[0].x, maps[0].y), (Axis::RequestSize, Axis::Depth));
        assert_eq!(maps[0].cells[0][0], digest.lines[0].rate());
        assert_eq!(maps[0].cells[2][4], digest.lines[14].rate());
    }

    #[test]
    fn many_lines_are_spread_over_charts() {
        let mut sweep = Sweep { ways: vec!["forebay", "cpu-gpu"], ..Sweep::default() };
        (sweep.read_percents, sweep.repeats) = (vec![100, 0], 1);
        let all = charts(&digest(&sweep)).shown;
        assert!(all.iter().all(|chart| chart.series.len() <= SERIES_MAX));
        let points: usize = all
            .iter()
            .filter(|chart| chart.y == Metric::Rate.into())
            .flat_map(|chart| &chart.series)
            .map(|series| series.points.len())
            .sum();
        assert_eq!(points, 60);
        sweep.depths = (1..200).collect();
        let many = charts(&digest(&sweep));
        assert_eq!(many.shown.len(), CHARTS_MAX);
        assert!(many.left_out > 0);
        let maps = maps(&digest(&sweep));
        assert!(maps.shown.iter().all(|map| map.rows.len() <= CELLS_MAX));
    }

    #[test]
    fn nothing_varies_in_a_bench() {
        let report = crate::report::json::tests::report();
        let digest = digest_of(&[("b", &report.to_text().unwrap())]);
        assert!(charts(&digest).shown.is_empty() && maps(&digest).shown.is_empty());
    }

    #[test]
    fn labels_that_are_numbers_are_an_axis() {
        let sweep = |label| {
            made::file(&Sweep {
                label: Some(label),
                depths: vec![8],
                request_sizes: vec![65536],
                ..Sweep::default()
            })
        };
        let texts = ["1", "7", "15"].map(sweep);
        let files: Vec<(&str, &str)> = texts.iter().map(|text| ("a", text.as_str())).collect();
        let charts = charts(&digest_of(&files)).shown;
        assert_eq!(charts[0].x, "run");
        let names: Vec<&str> = charts[0].ticks.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["1", "7", "15"]);
    }
}

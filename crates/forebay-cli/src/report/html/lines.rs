//! A chart of lines as SVG: axes, units, markers, dashes, and bars for the interval of each median.

use super::markup::{Markup, at, cut};
use super::plots::Chart;
use crate::report::digest::{Metric, digits};
use crate::report::grid::people::heading;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 48.0;
/// Space that the text of a tick needs.
const TICK: f64 = 58.0;
/// A line that is so much lower than a ceiling is drawn without it: it would be flat.
const LIMIT_MAX: f64 = 2.0;

/// How lines are told apart without colour.
const DASHES: [&str; 8] = ["", "8 4", "2 3", "10 3 2 3", "5 5", "12 4", "2 6", "6 2 2 2 2 2"];

/// The chart; `number` tells its elements from those of others.
pub(crate) fn draw(markup: &mut Markup, chart: &Chart, number: usize) {
    let name = title(chart);
    markup.within("figure", &[], |markup| {
        markup.element("figcaption", &[], &name);
        let (title, about) = (format!("c{number}"), format!("d{number}"));
        let labels = format!("{title} {about}");
        let size = format!("0 0 {WIDTH} {HEIGHT}");
        let attributes: [(&str, &dyn std::fmt::Display); 3] =
            [("viewBox", &size), ("role", &"img"), ("aria-labelledby", &labels)];
        markup.within("svg", &attributes, |markup| {
            markup.element("title", &[("id", &title)], &name);
            markup.element("desc", &[("id", &about)], description(chart));
            let scale = Scale::of(chart);
            axes(markup, chart, &scale);
            for (index, series) in chart.series.iter().enumerate() {
                line(markup, chart, &scale, index, series);
            }
        });
        legend(markup, chart);
    });
}

fn title(chart: &Chart) -> String {
    let what = format!("{} by {}", heading(chart.metric), chart.x.name());
    if chart.facet.is_empty() { what } else { format!("{what}: {}", cut(&chart.facet, 120)) }
}

/// What the chart shows, for those who do not see it.
fn description(chart: &Chart) -> String {
    let each = chart.series.iter().map(|series| {
        let medians = series.points.iter().map(|(_, estimate)| estimate.median);
        let (low, high) = medians.fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        let name = if series.name.is_empty() { "the line" } else { &series.name };
        let shown = |value: f64| digits(value * chart.metric.scale());
        format!("{}: from {} to {} {}", cut(name, 80), shown(low), shown(high), chart.metric.unit())
    });
    format!("{}. The table of results has all numbers.", each.collect::<Vec<_>>().join("; "))
}

/// Where values lie.
struct Scale {
    /// Of each tick.
    x: Vec<f64>,
    /// The value at the top.
    top: f64,
    /// Between two lines of the grid.
    step: f64,
    unit: f64,
}

impl Scale {
    fn of(chart: &Chart) -> Self {
        let unit = chart.metric.scale();
        let values = chart.series.iter().flat_map(|series| &series.points);
        let most = values.map(|(_, point)| point.range().1.max(point.median)).fold(0.0, f64::max);
        let limit = chart.limit.as_ref().map(|(_, rate)| *rate);
        let most = limit.filter(|rate| *rate < most * LIMIT_MAX).unwrap_or(0.0).max(most) * unit;
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let step = step(most / 5.0);
        let top = (most / step).ceil() * step;
        let first = chart.ticks.first().map_or(0.0, |tick| tick.0);
        let last = chart.ticks.last().map_or(1.0, |tick| tick.0);
        // Powers of two are as far from each other as their logarithms.
        let steep = first > 0.0 && last / first >= 8.0;
        let place = |value: f64| if steep { value.log2() } else { value };
        let span = (place(last) - place(first)).max(f64::MIN_POSITIVE);
        let x = |value: f64| LEFT + (place(value) - place(first)) / span * (WIDTH - LEFT - RIGHT);
        Self { x: chart.ticks.iter().map(|tick| x(tick.0)).collect(), top, step, unit }
    }

    /// The height of a value in base units; what lies outside is at the edge.
    fn y(&self, value: f64) -> f64 {
        let share = (value * self.unit / self.top).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// The next of 1, 2 and 5 with zeros.
fn step(least: f64) -> f64 {
    let ten = 10_f64.powf(least.log10().floor());
    let ten = if ten.is_finite() && ten > 0.0 { ten } else { 1.0 };
    [1.0, 2.0, 5.0].into_iter().map(|times| times * ten).find(|s| *s >= least).unwrap_or(ten * 10.0)
}

fn axes(markup: &mut Markup, chart: &Chart, scale: &Scale) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut value = 0.0;
    // A step is a fifth of the top or more.
    for _ in 0..=6 {
        if value > scale.top * 1.0001 {
            break;
        }
        let y = scale.y(value / scale.unit);
        let path = format!("M{LEFT} {}H{right}", at(y));
        markup.alone("path", &[("class", &"rule"), ("d", &path)]);
        let attributes: [(&str, &dyn std::fmt::Display); 3] =
            [("x", &(LEFT - 6.0)), ("y", &at(y + 4.0)), ("text-anchor", &"end")];
        markup.element("text", &attributes, digits(value));
        value += scale.step;
    }
    let mut free = f64::MIN;
    for (x, (_, name)) in scale.x.iter().zip(&chart.ticks) {
        let path = format!("M{} {bottom}v4", at(*x));
        markup.alone("path", &[("class", &"rule"), ("d", &path)]);
        if *x >= free {
            let attributes: [(&str, &dyn std::fmt::Display); 3] =
                [("x", &at(*x)), ("y", &(bottom + 18.0)), ("text-anchor", &"middle")];
            markup.element("text", &attributes, cut(name, 9));
            free = x + TICK;
        }
    }
    let attributes: [(&str, &dyn std::fmt::Display); 3] =
        [("class", &"soft"), ("x", &"2"), ("y", &"14")];
    markup.element("text", &attributes, heading(chart.metric));
    let middle = f64::midpoint(LEFT, right);
    let attributes: [(&str, &dyn std::fmt::Display); 4] = [
        ("class", &"soft"),
        ("x", &at(middle)),
        ("y", &(HEIGHT - 8.0)),
        ("text-anchor", &"middle"),
    ];
    markup.element("text", &attributes, chart.x.name());
    if let Some((_, rate)) = &chart.limit
        && rate * scale.unit <= scale.top
    {
        let path = format!("M{LEFT} {}H{right}", at(scale.y(*rate)));
        markup.alone("path", &[("class", &"limit"), ("d", &path)]);
    }
}

fn line(
    markup: &mut Markup,
    chart: &Chart,
    scale: &Scale,
    index: usize,
    series: &super::plots::Series,
) {
    let class = format!("line s{}", index % DASHES.len());
    let place = |tick: usize| scale.x.get(tick).copied().unwrap_or(LEFT);
    let mut path = String::new();
    for (tick, point) in &series.points {
        let word = if path.is_empty() { 'M' } else { 'L' };
        path.push_str(&format!("{word}{} {}", at(place(*tick)), at(scale.y(point.median))));
    }
    let dash = DASHES[index % DASHES.len()];
    markup.alone("path", &[("class", &class), ("stroke-dasharray", &dash), ("d", &path)]);
    for (tick, point) in &series.points {
        let (x, y) = (place(*tick), scale.y(point.median));
        markup.within("g", &[], |markup| {
            let name = chart.ticks.get(*tick).map_or("", |tick| &tick.1);
            markup.element("title", &[], said(chart.metric, name, &series.name, point));
            if let Some((low, high)) = point.interval {
                let (low, high) = (at(scale.y(low)), at(scale.y(high)));
                let (from, to) = (at(x - 4.0), at(x + 4.0));
                let middle = at(x);
                let bar = format!("M{from} {low}H{to}M{middle} {low}V{high}M{from} {high}H{to}");
                markup.alone("path", &[("class", &class), ("d", &bar)]);
            }
            marker(markup, index, x, y);
        });
    }
}

/// A point in words.
fn said(
    metric: Metric,
    tick: &str,
    series: &str,
    point: &crate::results::summary::Estimate,
) -> String {
    let shown = |value: f64| digits(value * metric.scale());
    let name = if series.is_empty() { String::new() } else { format!("{}, ", cut(series, 80)) };
    let unit = metric.unit();
    let text = format!("{name}{}: {} {unit}", cut(tick, 40), shown(point.median));
    match point.interval {
        Some((low, high)) => format!("{text} ({} to {})", shown(low), shown(high)),
        None => text,
    }
}

/// The mark of a point, another for each line.
fn marker(markup: &mut Markup, index: usize, x: f64, y: f64) {
    let class = format!("mark s{}", index % DASHES.len());
    let moved = format!("M{} {}", at(x), at(y));
    let shape = match index % DASHES.len() {
        0 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        1 => "m-4 -4h8v8h-8z",
        2 => "m0 -5l5 9h-10z",
        3 => "m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
        4 => "m-4 -4l8 8m0 -8l-8 8",
        5 => "m0 -5v10m-5 -5h10",
        6 => "m0 5l5 -9h-10z",
        _ => "m-2.5 -4.5h5l2.5 4.5l-2.5 4.5h-5l-2.5 -4.5z",
    };
    markup.alone("path", &[("class", &class), ("d", &format!("{moved}{shape}"))]);
}

fn legend(markup: &mut Markup, chart: &Chart) {
    let named = chart.series.iter().any(|series| !series.name.is_empty());
    if !named && chart.limit.is_none() {
        return;
    }
    markup.within("ul", &[("class", &"legend")], |markup| {
        let hidden: [(&str, &dyn std::fmt::Display); 2] =
            [("viewBox", &"0 0 34 14"), ("aria-hidden", &"true")];
        for (index, series) in chart.series.iter().enumerate().filter(|_| named) {
            markup.within("li", &[], |markup| {
                markup.within("svg", &hidden, |markup| {
                    let class = format!("line s{index}");
                    let dash = DASHES[index % DASHES.len()];
                    let attributes: [(&str, &dyn std::fmt::Display); 3] =
                        [("class", &class), ("stroke-dasharray", &dash), ("d", &"M0 7H34")];
                    markup.alone("path", &attributes);
                    marker(markup, index, 17.0, 7.0);
                });
                markup.text(&cut(&series.name, 120));
            });
        }
        if let Some((name, rate)) = &chart.limit {
            markup.within("li", &[], |markup| {
                markup.within("svg", &hidden, |markup| {
                    markup.alone("path", &[("class", &"limit"), ("d", &"M0 7H34")]);
                });
                let rate = digits(rate * chart.metric.scale());
                let unit = chart.metric.unit();
                markup.text(&format!("ceiling: {} {rate} {unit}", cut(name, 60)));
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::digest::Axis;
    use crate::report::html::markup::tests::elements;
    use crate::report::html::plots::Series;
    use crate::results::summary::Estimate;

    fn chart(values: &[f64], numbers: &[f64]) -> Chart {
        let mut ticks: Vec<(f64, String)> =
            numbers.iter().map(|number| (*number, format!("{number}"))).collect();
        ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let point = |value: f64| Estimate::of([value, value * 1.1]);
        let points = values.iter().enumerate().filter_map(|(n, v)| Some((n, point(*v)?))).collect();
        let series = vec![Series { name: "one".into(), points }];
        let (x, metric, limit) = (Axis::Depth, Metric::Rate, Some(("storage".into(), 7e9)));
        Chart { facet: String::new(), x, metric, ticks, series, limit }
    }

    #[test]
    fn values_stand_where_they_belong() {
        let chart = Chart { limit: None, ..chart(&[2e9, 4e9], &[1.0, 2.0]) };
        let scale = Scale::of(&chart);
        assert_eq!((scale.top, scale.step), (5.0, 1.0));
        let (zero, whole) = (scale.y(0.0), scale.y(5e9));
        assert_eq!((zero, whole), (HEIGHT - BOTTOM, TOP));
        assert!((scale.y(2.5e9) - f64::midpoint(zero, whole)).abs() < 1e-9);
        assert_eq!(scale.x, [LEFT, WIDTH - RIGHT]);
        assert_eq!([0.11, 0.2, 3.0, 6.0].map(step), [0.2, 0.2, 5.0, 10.0]);
    }

    proptest! {
        #[test]
        fn any_numbers_make_a_chart_of_its_size(
            values in prop::collection::vec(any::<f64>(), 0..9),
            numbers in prop::collection::vec(any::<f64>(), 2..9),
        ) {
            let numbers: Vec<f64> = numbers.into_iter().filter(|n| n.is_finite()).collect();
            let mut markup = Markup::default();
            draw(&mut markup, &chart(&values, &numbers), 1);
            let text = markup.done();
            prop_assert!(elements(&text).contains(&"svg".to_owned()));
            prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
            prop_assert!(text.len() < 20_000);
        }
    }
}

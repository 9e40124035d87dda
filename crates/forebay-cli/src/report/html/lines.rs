//! A chart of lines as SVG: axes, units, markers, dashes, and a bar around each value.

use super::markup::{Markup, at, cut};
use super::plots::{Chart, Measure, Reach, Spot};
use crate::report::digest::digits;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 48.0;
/// Space that the text of a tick needs.
const TICK: f64 = 58.0;
/// A limit above a line by more than this factor is not drawn: the line would be flat.
const LIMIT_MAX: f64 = 2.0;

/// Line styles, to distinguish lines without colour.
const DASHES: [&str; 8] = ["", "8 4", "2 3", "10 3 2 3", "5 5", "12 4", "2 6", "6 2 2 2 2 2"];

/// The chart; `number` makes the ids of its elements unique.
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
    let what = format!("{} by {}", chart.y.heading(), chart.x);
    if chart.facet.is_empty() { what } else { format!("{what}: {}", cut(&chart.facet, 120)) }
}

/// A description of the chart, for screen readers.
fn description(chart: &Chart) -> String {
    let each = chart.series.iter().map(|series| {
        let values = series.points.iter().map(|(_, spot)| spot.value);
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        let name = if series.name.is_empty() { "the line" } else { &series.name };
        let shown = |value: f64| digits(value * chart.y.scale);
        let text = format!("{}: from {} to {}", cut(name, 80), shown(low), shown(high));
        with_unit(text, &chart.y)
    });
    format!("{}. The table has all numbers.", each.collect::<Vec<_>>().join("; "))
}

/// A value with its unit.
fn with_unit(text: String, measure: &Measure) -> String {
    if measure.unit.is_empty() { text } else { format!("{text} {}", measure.unit) }
}

/// Maps values to positions.
struct Scale {
    /// Of each tick.
    x: Vec<f64>,
    /// The values at the bottom and at the top, in the unit in which they are shown.
    ends: (f64, f64),
    /// The positions of the grid's lines.
    marks: Vec<f64>,
    /// Whether the scale is logarithmic.
    steep: bool,
    unit: f64,
}

impl Scale {
    fn of(chart: &Chart) -> Self {
        let (x, unit) = (places(chart), chart.y.scale);
        let spots = chart.series.iter().flat_map(|series| &series.points);
        let values = spots.flat_map(|(_, spot)| {
            let (low, high) = spot.bar.unwrap_or((spot.value, spot.value));
            [low, spot.value, high]
        });
        if chart.y.reach == Reach::One {
            let values = values.map(|value| value * unit);
            let values = values.filter(|value| value.is_finite() && *value > 0.0);
            // Values near 1 are not scaled up into noise.
            let ends = values.fold((0.95, 1.05), |(a, b): (f64, f64), v| (a.min(v), b.max(v)));
            return Self { x, ends, marks: ratios(ends), steep: true, unit };
        }
        let most = values.fold(0.0, f64::max);
        let limit = chart.limit.as_ref().map(|(_, rate)| *rate);
        let most = limit.filter(|rate| *rate < most * LIMIT_MAX).unwrap_or(0.0).max(most) * unit;
        // The top is above the largest value, and below twice that.
        let most = if (most * 2.0).is_finite() && most > 0.0 { most } else { 1.0 };
        let step = step(most / 5.0);
        let top = (most / step).ceil() * step;
        // A step is a fifth of the top or more.
        let marks = (0..=6).map(|number| f64::from(number) * step);
        let marks = marks.take_while(|mark| *mark <= top * 1.0001).collect();
        Self { x, ends: (0.0, top), marks, steep: false, unit }
    }

    /// The height of a value in base units; values outside are drawn at the edge.
    fn y(&self, value: f64) -> f64 {
        let place = |value: f64| if self.steep { value.ln() } else { value };
        let (low, high) = (place(self.ends.0), place(self.ends.1));
        let share = ((place(value * self.unit) - low) / (high - low)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// The positions of the horizontal axis's ticks.
fn places(chart: &Chart) -> Vec<f64> {
    let first = chart.ticks.first().map_or(0.0, |tick| tick.0);
    let last = chart.ticks.last().map_or(1.0, |tick| tick.0);
    // Powers of two are placed by their logarithms.
    let steep = first > 0.0 && (last / first >= 8.0 || chart.y.reach == Reach::One);
    let place = |value: f64| if steep { value.log2() } else { value };
    let span = place(last) - place(first);
    let share = |value: f64| if span > 0.0 { (place(value) - place(first)) / span } else { 0.5 };
    let ticks = chart.ticks.iter();
    ticks.map(|tick| LEFT + share(tick.0) * (WIDTH - LEFT - RIGHT)).collect()
}

/// Round ratios between two values, nine at most.
fn ratios((low, high): (f64, f64)) -> Vec<f64> {
    let between = |step: f64, of: fn(f64) -> f64, low: f64, high: f64| {
        let first = (low / step).ceil();
        let numbers = (0..=8).map(move |number| (first + f64::from(number)) * step);
        numbers.take_while(move |value| *value <= high).map(of).collect()
    };
    let steps = [0.02, 0.05, 0.1, 0.2, 0.5];
    if let Some(step) = steps.into_iter().find(|step| (high - low) / step <= 8.0) {
        return between(step, |value| value, low, high);
    }
    let (low, high) = (low.log2(), high.log2());
    between(((high - low) / 8.0).ceil().max(1.0), f64::exp2, low, high)
}

/// The next of 1, 2 and 5, times a power of ten.
fn step(least: f64) -> f64 {
    let ten = 10_f64.powf(least.log10().floor());
    let ten = if ten.is_finite() && ten > 0.0 { ten } else { 1.0 };
    [1.0, 2.0, 5.0].into_iter().map(|times| times * ten).find(|s| *s >= least).unwrap_or(ten * 10.0)
}

fn axes(markup: &mut Markup, chart: &Chart, scale: &Scale) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for mark in &scale.marks {
        let y = scale.y(mark / scale.unit);
        let path = format!("M{LEFT} {}H{right}", at(y));
        markup.alone("path", &[("class", &"rule"), ("d", &path)]);
        let attributes: [(&str, &dyn std::fmt::Display); 3] =
            [("x", &(LEFT - 6.0)), ("y", &at(y + 4.0)), ("text-anchor", &"end")];
        markup.element("text", &attributes, digits(*mark));
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
    markup.element("text", &attributes, chart.y.heading());
    let middle = f64::midpoint(LEFT, right);
    let attributes: [(&str, &dyn std::fmt::Display); 4] = [
        ("class", &"soft"),
        ("x", &at(middle)),
        ("y", &(HEIGHT - 8.0)),
        ("text-anchor", &"middle"),
    ];
    markup.element("text", &attributes, chart.x);
    if let Some((_, rate)) = &chart.limit
        && rate * scale.unit <= scale.ends.1
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
        path.push_str(&format!("{word}{} {}", at(place(*tick)), at(scale.y(point.value))));
    }
    let dash = DASHES[index % DASHES.len()];
    markup.alone("path", &[("class", &class), ("stroke-dasharray", &dash), ("d", &path)]);
    for (tick, point) in &series.points {
        let (x, y) = (place(*tick), scale.y(point.value));
        markup.within("g", &[], |markup| {
            let name = chart.ticks.get(*tick).map_or("", |tick| &tick.1);
            markup.element("title", &[], said(&chart.y, name, &series.name, point));
            if let Some((low, high)) = point.bar {
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
fn said(measure: &Measure, tick: &str, series: &str, point: &Spot) -> String {
    let shown = |value: f64| digits(value * measure.scale);
    let name = if series.is_empty() { String::new() } else { format!("{}, ", cut(series, 80)) };
    let text = format!("{name}{}: {}", cut(tick, 40), shown(point.value));
    let text = with_unit(text, measure);
    match point.bar {
        Some((low, high)) => format!("{text} ({} to {})", shown(low), shown(high)),
        None => text,
    }
}

/// The marker of a point; each line has its own shape.
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
                let text = format!("{} {}", cut(name, 70), digits(rate * chart.y.scale));
                markup.text(&with_unit(text, &chart.y));
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::digest::Metric;
    use crate::report::html::markup::tests::elements;
    use crate::report::html::plots::Series;
    use crate::results::summary::Estimate;

    fn chart(values: &[f64], numbers: &[f64], reach: Reach) -> Chart {
        let mut ticks: Vec<(f64, String)> =
            numbers.iter().map(|number| (*number, format!("{number}"))).collect();
        ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let point = |value: f64| Estimate::of([value, value * 1.1]).map(Spot::from);
        let points = values.iter().enumerate().filter_map(|(n, v)| Some((n, point(*v)?))).collect();
        let series = vec![Series { name: "one".into(), points }];
        let y = Measure { reach, ..Metric::Rate.into() };
        let limit = Some(("limit: storage".into(), 7e9));
        Chart { facet: String::new(), x: "depth", y, ticks, series, limit }
    }

    #[test]
    fn values_stand_where_they_belong() {
        let chart = Chart { limit: None, ..chart(&[2e9, 4e9], &[1.0, 2.0], Reach::Zero) };
        let scale = Scale::of(&chart);
        assert_eq!((scale.ends.1, scale.marks.len()), (5.0, 6));
        let (zero, whole) = (scale.y(0.0), scale.y(5e9));
        assert_eq!((zero, whole), (HEIGHT - BOTTOM, TOP));
        assert!((scale.y(2.5e9) - f64::midpoint(zero, whole)).abs() < 1e-9);
        assert_eq!(scale.x, [LEFT, WIDTH - RIGHT]);
        assert_eq!([0.11, 0.2, 3.0, 6.0].map(step), [0.2, 0.2, 5.0, 10.0]);
    }

    #[test]
    fn ratios_lie_around_one() {
        let mut chart = chart(&[1.0], &[1024.0, 4096.0, 8192.0], Reach::One);
        (chart.y.scale, chart.y.unit) = (1.0, "");
        chart.limit = Some(("the line".into(), 1.0));
        let scale = Scale::of(&chart);
        assert_eq!((scale.ends, scale.marks.len()), ((0.95, 1.1), 8));
        // Twice the tokens are always as far.
        let third = (scale.x[2] - scale.x[0]) / 3.0;
        assert!((scale.x[2] - scale.x[1] - third).abs() < 1e-9);
        let (below, above) = (scale.y(0.98) - scale.y(1.0), scale.y(1.0) - scale.y(1.0 / 0.98));
        assert!(below > 0.0 && (below - above).abs() < 1e-9);
        assert_eq!(ratios((0.95, 30.0)), [1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!(ratios((1e-300, 1e300)).len(), 7);
        // One alone is in the middle.
        chart.ticks.truncate(1);
        assert_eq!(Scale::of(&chart).x, [f64::midpoint(LEFT, WIDTH - RIGHT)]);
        let mut markup = Markup::default();
        draw(&mut markup, &chart, 1);
        let text = markup.done();
        assert!(
            text.contains("the line 1.00<") && text.contains(": 1.05 (1.00 to 1.10)<"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn any_numbers_make_a_chart_of_its_size(
            values in prop::collection::vec(any::<f64>(), 0..9),
            numbers in prop::collection::vec(any::<f64>(), 2..9),
            is_ratio: bool,
        ) {
            let reach = if is_ratio { Reach::One } else { Reach::Zero };
            let numbers: Vec<f64> = numbers.into_iter().filter(|n| n.is_finite()).collect();
            let mut markup = Markup::default();
            draw(&mut markup, &chart(&values, &numbers, reach), 1);
            let text = markup.done();
            prop_assert!(elements(&text).contains(&"svg".to_owned()));
            prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
            prop_assert!(text.len() < 20_000);
        }
    }
}

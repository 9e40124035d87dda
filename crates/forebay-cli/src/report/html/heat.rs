//! A sweep over two axes as SVG: a cell for each point, with its number. The background is darker
//! for larger numbers.

use super::markup::{Markup, at, cut};
use super::plots::Map;
use crate::report::digest::digits;
use crate::report::grid::people::heading;

const CELL: f64 = 62.0;
const ROW: f64 = 30.0;
const LEFT: f64 = 92.0;
const TOP: f64 = 44.0;
/// How many backgrounds there are, the lightest first.
pub(crate) const STEPS: usize = 8;
/// From this background on, the text is light.
pub(crate) const LIGHT_FROM: usize = 5;

/// The map; `number` makes the ids of its elements unique.
pub(crate) fn draw(markup: &mut Markup, map: &Map, number: usize) {
    let name = title(map);
    #[expect(clippy::cast_precision_loss, reason = "a few cells")]
    let (width, height) =
        (LEFT + CELL * map.columns.len() as f64 + 2.0, TOP + ROW * map.rows.len() as f64 + 2.0);
    markup.within("figure", &[], |markup| {
        markup.element("figcaption", &[], &name);
        let label = format!("{name}, scrollable");
        let scrolled: [(&str, &dyn std::fmt::Display); 4] =
            [("class", &"scroll"), ("tabindex", &"0"), ("role", &"group"), ("aria-label", &label)];
        markup.within("div", &scrolled, |markup| {
            let (title, about) = (format!("m{number}"), format!("n{number}"));
            let labels = format!("{title} {about}");
            let size = format!("0 0 {width} {height}");
            let attributes: [(&str, &dyn std::fmt::Display); 5] = [
                ("viewBox", &size),
                ("width", &width),
                ("height", &height),
                ("role", &"img"),
                ("aria-labelledby", &labels),
            ];
            markup.within("svg", &attributes, |markup| {
                markup.element("title", &[("id", &title)], &name);
                markup.element("desc", &[("id", &about)], description(map));
                heads(markup, map);
                cells(markup, map);
            });
        });
    });
}

fn title(map: &Map) -> String {
    let what = format!("{} by {} and {}", heading(map.metric), map.x.name(), map.y.name());
    if map.facet.is_empty() { what } else { format!("{what}: {}", cut(&map.facet, 120)) }
}

fn values(map: &Map) -> impl Iterator<Item = f64> + '_ {
    map.cells.iter().flatten().flatten().copied()
}

fn description(map: &Map) -> String {
    let (low, high) = values(map).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
    let shown = |value: f64| digits(value * map.metric.scale());
    let unit = map.metric.unit();
    format!("From {} to {} {unit}; darker cells are larger.", shown(low), shown(high))
}

fn heads(markup: &mut Markup, map: &Map) {
    let soft: [(&str, &dyn std::fmt::Display); 3] = [("class", &"soft"), ("x", &"2"), ("y", &"16")];
    let axes = format!("{} →, {} ↓", map.x.name(), map.y.name());
    markup.element("text", &soft, axes);
    let mut x = LEFT + CELL / 2.0;
    for name in &map.columns {
        let attributes: [(&str, &dyn std::fmt::Display); 3] =
            [("x", &at(x)), ("y", &(TOP - 8.0)), ("text-anchor", &"middle")];
        markup.element("text", &attributes, cut(name, 9));
        x += CELL;
    }
    let mut y = TOP + ROW / 2.0 + 4.0;
    for name in &map.rows {
        let attributes: [(&str, &dyn std::fmt::Display); 3] =
            [("x", &(LEFT - 8.0)), ("y", &at(y)), ("text-anchor", &"end")];
        markup.element("text", &attributes, cut(name, 11));
        y += ROW;
    }
}

fn cells(markup: &mut Markup, map: &Map) {
    let most = values(map).fold(0.0, f64::max);
    let mut y = TOP;
    for row in &map.cells {
        let mut x = LEFT;
        for value in row {
            let step = value.map(|value| step(value, most));
            let ground = step.map_or("room".to_owned(), |step| format!("h{step}"));
            let rectangle: [(&str, &dyn std::fmt::Display); 5] = [
                ("class", &ground),
                ("x", &at(x + 1.0)),
                ("y", &at(y + 1.0)),
                ("width", &(CELL - 2.0)),
                ("height", &(ROW - 2.0)),
            ];
            markup.alone("rect", &rectangle);
            let class = match step {
                None => "soft",
                Some(step) if step >= LIGHT_FROM => "light",
                Some(_) => "dark",
            };
            let attributes: [(&str, &dyn std::fmt::Display); 4] = [
                ("class", &class),
                ("x", &at(x + CELL / 2.0)),
                ("y", &at(y + ROW / 2.0 + 4.0)),
                ("text-anchor", &"middle"),
            ];
            let text = value.map_or("–".into(), |value| digits(value * map.metric.scale()));
            markup.element("text", &attributes, text);
            x += CELL;
        }
        y += ROW;
    }
}

/// The background of a value.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a small number from 0 on"
)]
fn step(value: f64, most: f64) -> usize {
    let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
    ((share * STEPS as f64) as usize).min(STEPS - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::digest::{Axis, Metric};
    use crate::report::html::markup::tests::elements;

    #[test]
    fn more_is_darker() {
        assert_eq!([0.0, 0.1, 0.5, 0.99, 1.0].map(|value| step(value, 1.0)), [0, 0, 4, 7, 7]);
        assert_eq!((step(1.0, 0.0), step(-1.0, 2.0)), (0, 0));
    }

    proptest! {
        #[test]
        fn every_cell_has_its_ground_and_its_text(
            cells in prop::collection::vec(prop::collection::vec(any::<Option<f64>>(), 3), 1..5)
        ) {
            let finite = |row: Vec<Option<f64>>| -> Vec<Option<f64>> {
                row.into_iter().map(|value| value.filter(|value| value.is_finite())).collect()
            };
            let cells: Vec<Vec<Option<f64>>> = cells.into_iter().map(finite).collect();
            let names = |count| (0..count).map(|n| format!("{n}")).collect::<Vec<_>>();
            let (rows, columns) = (names(cells.len()), names(3));
            let count = 3 * cells.len();
            let (x, y, metric) = (Axis::RequestSize, Axis::Depth, Metric::P99);
            let map = Map { facet: "a".into(), metric, x, y, columns, rows, cells };
            let mut markup = Markup::default();
            draw(&mut markup, &map, 1);
            let found = elements(&markup.done());
            prop_assert_eq!(found.iter().filter(|name| *name == "rect").count(), count);
            prop_assert_eq!(found.iter().filter(|name| *name == "text").count(),
                count + 1 + map.rows.len() + map.columns.len());
        }
    }
}

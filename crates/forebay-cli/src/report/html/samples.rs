//! Each single measurement: the first as a table, all as JSON within the page.

use super::markup::{Markup, cut};
use super::tables;
use crate::report::digest::{Axis, Digest, Metric, Raw, digits};
use crate::report::grid::{Cell, Column, Grid};

/// Most rows of the table.
const ROWS_MAX: usize = 200;
/// Most bytes of the JSON: a browser opens this much at once.
const JSON_MAX: usize = 16 << 20;
/// Most letters of a name or a failure in it.
const NAME_MAX: usize = 300;

/// The table, and a place for the button that saves all samples.
pub(crate) fn draw(markup: &mut Markup, digest: &Digest) {
    markup.within("div", &[("class", &"tools"), ("id", &"save")], |_| {});
    markup.within("details", &[], |markup| {
        let count = digest.raw.len();
        markup.element("summary", &[], format!("{count} samples"));
        tables::draw(markup, &grid(digest), "raw");
    });
}

fn grid(digest: &Digest) -> Grid {
    let columns = vec![
        Column::number("line", "row of results"),
        Column::number("repeat", "repeat"),
        Column::number("seconds", "seconds"),
        Column::number(Metric::Rate.key(), "GB/s"),
        Column::text("error", "failure"),
    ];
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    let whole = |count: usize| Cell::number(count as f64, count.to_string());
    let number = |value: Option<f64>, scale: f64| {
        value.map_or_else(Cell::empty, |value| Cell::number(value, digits(value * scale)))
    };
    let row = |raw: &Raw| {
        vec![
            whole(raw.line + 1),
            whole(raw.repeat + 1),
            number(raw.seconds, 1.0),
            number(raw.values.get(Metric::Rate.key()).copied(), Metric::Rate.scale()),
            Cell::text(raw.error.as_deref().unwrap_or_default()),
        ]
    };
    let rows: Vec<Vec<Cell>> = digest.raw.iter().take(ROWS_MAX).map(row).collect();
    let left_out = digest.raw.len() - rows.len();
    Grid { caption: "Samples".into(), columns, rows, left_out }
}

/// `{"lines": […], "samples": […], "left_out": N}`: the identity of each row of results, and its
/// samples, which refer to it by its number from 0 on.
pub(crate) fn json(digest: &Digest) -> String {
    let mut lines = String::new();
    let mut whole = 0;
    for line in &digest.lines {
        let marks: serde_json::Map<String, serde_json::Value> = Axis::ALL
            .into_iter()
            .filter_map(|axis| Some((axis.key(), cut(line.mark(axis)?, NAME_MAX).into())))
            .collect();
        let text = serde_json::to_string(&marks).unwrap_or_default();
        if !push(&mut lines, &text, JSON_MAX / 2) {
            break;
        }
        whole += 1;
    }
    let mut samples = String::new();
    let mut shown = 0;
    for raw in digest.raw.iter().filter(|raw| raw.line < whole) {
        let error = raw.error.as_deref().map(|error| cut(error, NAME_MAX));
        let text = serde_json::to_string(&Raw { error, ..raw.clone() }).unwrap_or_default();
        if !push(&mut samples, &text, JSON_MAX / 2) {
            break;
        }
        shown += 1;
    }
    let left_out = digest.raw.len() - shown;
    format!("{{\"lines\":[{lines}],\"samples\":[{samples}],\"left_out\":{left_out}}}")
}

/// Adds a part to a list while there is room.
fn push(list: &mut String, part: &str, most: usize) -> bool {
    if list.len() + part.len() > most {
        return false;
    }
    if !list.is_empty() {
        list.push_str(",\n");
    }
    list.push_str(part);
    true
}

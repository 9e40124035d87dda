//! Tables as HTML; a script sorts and copies them.

use super::markup::Markup;
use crate::report::grid::{Cell, Grid};

/// The table in a frame that scrolls separately; nothing if it has no rows.
pub(crate) fn draw(markup: &mut Markup, grid: &Grid, id: &str) {
    if grid.rows.is_empty() {
        return;
    }
    let label = format!("{}, scrollable", grid.caption);
    let attributes: [(&str, &dyn std::fmt::Display); 4] =
        [("class", &"scroll"), ("tabindex", &"0"), ("role", &"region"), ("aria-label", &label)];
    markup.within("div", &attributes, |markup| {
        markup.within("table", &[("class", &"sorts"), ("id", &id)], |markup| {
            markup.element("caption", &[], &grid.caption);
            markup.within("thead", &[], |markup| markup.within("tr", &[], |m| heads(m, grid)));
            markup.within("tbody", &[], |markup| {
                for row in &grid.rows {
                    markup.within("tr", &[], |markup| {
                        for (cell, column) in row.iter().zip(&grid.columns) {
                            draw_cell(markup, cell, column.number);
                        }
                    });
                }
            });
        });
    });
    if grid.left_out > 0 {
        let text = format!("{} more rows: `forebay report --csv` has all.", grid.left_out);
        markup.element("p", &[("class", &"note")], text);
    }
}

fn class(number: bool) -> &'static str {
    if number { "number" } else { "text" }
}

fn heads(markup: &mut Markup, grid: &Grid) {
    for column in &grid.columns {
        let attributes: [(&str, &dyn std::fmt::Display); 3] =
            [("scope", &"col"), ("class", &class(column.number)), ("data-key", &column.key)];
        markup.element("th", &attributes, &column.heading);
    }
}

fn draw_cell(markup: &mut Markup, cell: &Cell, number: bool) {
    let shown = if cell.text.is_empty() { "–" } else { &cell.text };
    match cell.number {
        Some(value) => {
            let attributes: [(&str, &dyn std::fmt::Display); 2] =
                [("class", &class(number)), ("data-value", &value)];
            markup.element("td", &attributes, shown);
        }
        None => markup.element("td", &[("class", &class(number))], shown),
    }
}

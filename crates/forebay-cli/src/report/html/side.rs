//! Several runs side by side: each compared with the first, as in `forebay diff`.

use super::markup::Markup;
use super::tables;
use crate::diff::json::Diff;
use crate::diff::{grid, ratio};
use crate::report::digest::{Digest, Metric};

/// The result of `forebay diff` for the digest's runs, if several have common points.
pub(crate) fn of(digest: &Digest) -> Option<Diff> {
    crate::diff::of_runs(digest, Metric::Rate)
}

/// The means over all points, then each point.
pub(crate) fn draw(markup: &mut Markup, diff: &Diff) {
    let base = diff.sides.first().map_or("", |side| &side.name);
    let about = format!(
        "The median of each run divided by that of {base}. Brackets hold an interval that contains \
         the ratio with a confidence of {:.0} %. A dash (–) marks a difference that is not \
         significant, given the number of points.",
        ratio::CONFIDENCE * 100.0
    );
    markup.element("p", &[("class", &"note")], about);
    for fact in &diff.environment {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".into());
        let values: Vec<String> = fact.values.iter().map(shown).collect();
        let text = format!("{} differs: {}", fact.what, values.join(" / "));
        markup.element("p", &[("class", &"note")], text);
    }
    tables::draw(markup, &grid::means(diff), "side-means");
    tables::draw(markup, &grid::points(diff, Metric::Rate, super::ROWS_MAX), "side-points");
}

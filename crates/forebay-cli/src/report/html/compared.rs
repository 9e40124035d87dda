//! The findings of `forebay compare`, as a section of the page.

use super::markup::Markup;
use super::{ROWS_MAX, RUNS_MAX, facts, more, tables};
use crate::report::compared::said;
use crate::report::digest::Digest;
use crate::report::grid;

/// The section: the results of each comparison, with the first run separate.
pub(crate) fn draw(markup: &mut Markup, digest: &Digest) {
    let rows = ROWS_MAX / digest.comparisons.len().max(1);
    for (number, compared) in digest.comparisons.iter().take(RUNS_MAX).enumerate() {
        if digest.comparisons.len() > 1 {
            let name = digest.runs.get(compared.run).map_or("", |run| &run.name);
            markup.element("h3", &[], name);
        }
        let id = format!("compared-{}", number + 1);
        tables::draw(markup, &grid::compared::people(digest, compared, rows), &id);
        facts::list(markup, &compared.sentences());
    }
    more(markup, digest.comparisons.len().saturating_sub(RUNS_MAX), "comparisons");
    facts::list(markup, &said::LEGEND.map(|(name, text)| (name, text.to_owned())));
}

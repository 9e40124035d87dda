//! A comparison as Markdown, for a ticket or a repository.

use std::fmt::Write as _;

use super::json::Diff;
use super::{gate, grid};
use crate::report::digest::Metric;
use crate::report::forms::markdown::{code, escaped, table};

/// The whole comparison.
#[must_use]
pub fn text(diff: &Diff, metric: Metric) -> String {
    let mut text = "# Side by side\n\n".to_owned();
    for side in &diff.sides {
        let command = side.commands.first().map_or("", String::as_str);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- {}: {}", escaped(&side.name), code(command));
    }
    if !diff.environment.is_empty() {
        text.push_str("\n## Differences in machine and settings\n\n");
    }
    for fact in &diff.environment {
        let shown = |value: &Option<String>| value.as_deref().map_or("–".into(), escaped);
        let values: Vec<String> = fact.values.iter().map(shown).collect();
        let _ = writeln!(text, "- {}: {}", escaped(&fact.what), values.join(" / "));
    }
    for comparison in &diff.comparisons {
        let points = grid::people(comparison, metric);
        let _ = write!(text, "\n## {}\n\n", escaped(&points.caption));
        for axes in &comparison.compared {
            let shown = |value: &Option<String>| value.as_deref().map_or("–".into(), escaped);
            let (base, other) = (shown(&axes.base), shown(&axes.other));
            let _ = writeln!(text, "Compared: {}, {base} → {other}.\n", escaped(axes.name()));
        }
        if points.rows.is_empty() {
            text.push_str("No point in common.\n");
            continue;
        }
        text.push_str(&table(&grid::overall(comparison)));
        let _ = write!(text, "\n{}", table(&points));
    }
    let passed = diff.gate.as_ref().and_then(|gate| gate::sentence(gate, metric));
    if let Some(passed) = passed {
        let _ = writeln!(text, "\nGate: {passed}.");
    }
    if !diff.warnings.is_empty() {
        text.push_str("\n## Warnings\n\n");
        for warning in &diff.warnings {
            let _ = writeln!(text, "- {}", escaped(warning));
        }
    }
    text
}

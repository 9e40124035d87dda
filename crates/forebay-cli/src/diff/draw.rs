//! A comparison for a terminal: each point's ratio with its interval as a line around 1, in 80
//! columns, then every quantity over all points.

use std::fmt::Write as _;

use super::json::{Compared, Comparison, Diff, Overall, Pair};
use super::quantity::{QUANTITIES, more_is_better, of_key, words};
use super::{gate, pairs};
use crate::report::digest::{Metric, digits};
use crate::report::plain::plain;

/// Columns of the whole text.
const WIDTH: usize = 80;
/// Minimum and maximum width of the picture; odd, so that 1 has a column.
const PICTURE: (usize, usize) = (15, 41);
/// Most points of one comparison.
const POINTS_MAX: usize = 200;
/// Most differences between the machines that are shown.
const DIFFERENCES_MAX: usize = 24;
/// A picture extends at least from 1 / 1.02 to 1.02.
const SCALE_MIN: f64 = 0.02;

/// The whole text.
#[must_use]
pub fn text(diff: &Diff, metric: Metric) -> String {
    let mut text = String::new();
    let names: Vec<String> = diff.sides.iter().map(|side| plain(&side.name)).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(24);
    for (side, name) in diff.sides.iter().zip(&names) {
        let command = side.commands.first().map_or("", String::as_str);
        let line = format!("{:<longest$}  {}", cut(name, longest), plain(command));
        line_of(&mut text, &line);
    }
    if !diff.environment.is_empty() {
        text.push_str("\ndifferences in machine and settings\n");
    }
    for fact in diff.environment.iter().take(DIFFERENCES_MAX) {
        let shown = |value: &Option<String>| value.as_deref().map_or("–".into(), plain);
        let values: Vec<String> = fact.values.iter().map(shown).collect();
        line_of(&mut text, &format!("  {}: {}", plain(&fact.what), values.join(" | ")));
    }
    if diff.environment.len() > DIFFERENCES_MAX {
        let more = diff.environment.len() - DIFFERENCES_MAX;
        line_of(&mut text, &format!("  and {more} more: `--json` has all"));
    }
    for comparison in &diff.comparisons {
        block(&mut text, comparison, metric);
    }
    if diff.comparisons.len() > 1 {
        together(&mut text, diff, metric);
    }
    let passed = diff.gate.as_ref().and_then(|gate| gate::sentence(gate, metric));
    if let Some(passed) = passed {
        let _ = writeln!(text, "\n{passed}");
    }
    text
}

/// Writes one line, cut to the width.
fn line_of(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", cut(line.trim_end(), WIDTH));
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

fn block(text: &mut String, comparison: &Comparison, metric: Metric) {
    text.push('\n');
    let (base, other) = (plain(&comparison.base), plain(&comparison.other));
    line_of(text, &format!("{other} compared with {base}"));
    for axes in &comparison.compared {
        let shown = |value: &Option<String>| value.as_deref().map_or("–".into(), plain);
        let (one, two) = (shown(&axes.base), shown(&axes.other));
        line_of(text, &format!("  compared: {}, {one} → {two}", axes.name()));
    }
    let found: Vec<_> = pairs::of(metric, &comparison.points).collect();
    if found.is_empty() {
        line_of(text, "  no point in common");
        return;
    }
    picture(text, &found, metric);
    let _ = writeln!(text);
    comparison.overall.iter().for_each(|overall| total(text, overall));
}

/// One line for each point.
fn picture(text: &mut String, found: &[(&Pair, &Compared)], metric: Metric) {
    let told = &found[..found.len().min(POINTS_MAX)];
    let value = |value: f64| digits(value * metric.scale());
    let names: Vec<String> = told.iter().map(|(pair, _)| plain(&pair.name)).collect();
    let longest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
    let number = longest(
        &mut told.iter().flat_map(|(_, c)| [c.base, c.other]).map(|v| value(v).chars().count()),
    )
    .max(5);
    let ratios: Vec<String> = told.iter().map(|(_, c)| ratio_text(c.ratio, c.interval)).collect();
    let ratio = longest(&mut ratios.iter().map(|text| text.chars().count()));
    // One blank each between name, two numbers, ratio, picture and verdict.
    let room = WIDTH.saturating_sub(2 * number + ratio + 6 + 5);
    let name = longest(&mut names.iter().map(|name| name.chars().count()))
        .min(room.saturating_sub(PICTURE.0));
    let width = (room - name).clamp(PICTURE.0, PICTURE.1);
    let width = width - (width + 1) % 2;
    let scale = scale(told);
    let (left, right) = if more_is_better(metric) {
        ("‹ slower", "faster ›")
    } else {
        ("‹ less", "more ›")
    };
    let heading = format!("{}, {}", metric.name(), metric.unit());
    let before = name + 2 * number + ratio + 3;
    let heading = cut(heading.trim_end_matches(", "), before);
    let gap = width.saturating_sub(left.chars().count() + right.chars().count());
    line_of(text, &format!("{heading:<before$} {left}{}{right}", " ".repeat(gap)));
    for (((_, compared), own), shown) in told.iter().zip(&names).zip(&ratios) {
        let (base, other) = (value(compared.base), value(compared.other));
        let drawn = drawn(compared.ratio, compared.interval, scale, width);
        let verdict = words(metric, compared.verdict);
        let own = cut(own, name);
        line_of(
            text,
            &format!(
                "{own:<name$} {base:>number$} {other:>number$} {shown:<ratio$} {drawn} {verdict}"
            ),
        );
    }
    let (low, high) = (digits((-scale).exp()), digits(scale.exp()));
    let half = width / 2;
    let right = half.max(high.chars().count());
    line_of(text, &format!("{:before$} {low:<half$}1{high:>right$}", ""));
    if told.len() < found.len() {
        let more = found.len() - told.len();
        line_of(text, &format!("{more} more points: `--csv` has all"));
    }
}

/// The logarithm at both ends of the picture. All ratios fit; an interval is cut where it reaches
/// more than twice as far.
fn scale(found: &[(&Pair, &Compared)]) -> f64 {
    let far = |value: f64| Some(value.ln().abs()).filter(|far| far.is_finite());
    let ratios = found.iter().filter_map(|(_, compared)| far(compared.ratio));
    let ratios = ratios.fold(SCALE_MIN, f64::max);
    let ends = found.iter().filter_map(|(_, compared)| compared.interval);
    let ends = ends.flat_map(|(low, high)| [low, high]).filter_map(far).fold(0.0, f64::max);
    ends.clamp(ratios, 2.0 * ratios)
}

/// A ratio with its interval as a line around 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a column number below 100"
)]
fn drawn(ratio: f64, interval: Option<(f64, f64)>, scale: f64, width: usize) -> String {
    let last = width.saturating_sub(1) as f64;
    let place = |value: f64| {
        let share = f64::midpoint(value.ln() / scale, 1.0);
        let share = if share.is_nan() { 0.5 } else { share.clamp(0.0, 1.0) };
        (share * last).round() as usize
    };
    let mut letters = vec![' '; width];
    if let Some(middle) = letters.get_mut(width / 2) {
        *middle = '│';
    }
    // A value that is not a positive number has no position.
    if let Some((low, high)) = interval.filter(|(low, high)| 0.0 < *low && low <= high) {
        for letter in &mut letters[place(low)..=place(high)] {
            *letter = if *letter == '│' { '┼' } else { '─' };
        }
        if low.ln() < -scale {
            letters[0] = '‹';
        }
        if high.ln() > scale {
            letters[width - 1] = '›';
        }
    }
    letters[place(ratio)] = '●';
    letters.into_iter().collect()
}

/// A ratio and its interval.
#[must_use]
pub fn ratio_text(ratio: f64, interval: Option<(f64, f64)>) -> String {
    let short = |value: f64| match value {
        0.01..10.0 => format!("{value:.3}"),
        _ => digits(value),
    };
    match interval {
        Some((low, high)) => format!("{} ({}–{})", short(ratio), short(low), short(high)),
        None => short(ratio),
    }
}

/// One quantity over all points.
fn total(text: &mut String, overall: &Overall) {
    let Some(metric) = of_key(&overall.quantity) else { return };
    line_of(
        text,
        &format!(
            "{:<14} {:<19} {}",
            metric.name(),
            ratio_text(overall.ratio, overall.interval),
            counts(overall, metric)
        ),
    );
}

/// How many points are significantly better or worse, and how many show no difference.
#[must_use]
pub fn counts(overall: &Overall, metric: Metric) -> String {
    use super::json::Verdict;
    let (better, worse) = (words(metric, Verdict::Better), words(metric, Verdict::Worse));
    let mut parts = Vec::new();
    for (count, word) in [(overall.better, better), (overall.worse, worse)] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    let together = overall.interval.is_some_and(|(low, high)| low > 1.0 || high < 1.0);
    match (overall.not_shown, overall.not_shown == overall.points, together) {
        (0, ..) => {}
        (_, true, false) => parts.push("no significant difference".into()),
        (_, true, true) => parts.push("significant only in the mean".into()),
        (count, ..) => parts.push(format!("{count} not significant")),
    }
    format!("of {}: {}", overall.points, parts.join(", "))
}

/// All sides in one table, a line for each: the base, and the means of the others.
fn together(text: &mut String, diff: &Diff, metric: Metric) {
    let _ = writeln!(text);
    line_of(text, &format!("{}, all sides, geometric means over their points", metric.name()));
    let mut rows: Vec<(String, Option<&Overall>)> =
        diff.sides.iter().take(1).map(|side| (plain(&side.name), None)).collect();
    for comparison in &diff.comparisons {
        let own = comparison.overall.iter().find(|overall| overall.quantity == metric.key());
        rows.push((plain(&comparison.other), own));
    }
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(24);
    for (index, (name, overall)) in rows.iter().enumerate() {
        let shown = match overall {
            Some(overall) => format!(
                "{:<19} {}",
                ratio_text(overall.ratio, overall.interval),
                counts(overall, metric)
            ),
            None if index == 0 => format!("{:<19} the base", "1"),
            None => "–".into(),
        };
        line_of(text, &format!("{:<longest$}  {shown}", cut(name, longest)));
    }
}

/// The quantities that a comparison has.
#[must_use]
pub fn quantities(comparison: &Comparison) -> Vec<Metric> {
    let has = |metric: &Metric| pairs::of(*metric, &comparison.points).next().is_some();
    QUANTITIES.into_iter().map(|(metric, _)| metric).filter(has).collect()
}

#[cfg(test)]
#[path = "draw/tests.rs"]
mod tests;

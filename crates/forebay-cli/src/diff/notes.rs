//! Notes on a comparison, each with the next step. Pure.

use std::collections::BTreeMap;

use super::json::{Axes, Comparison, Diff, Verdict, Why};
use super::pairs;
use super::sides::Side;
use crate::report::digest::{Digest, Metric, Raw};
use crate::report::plain::plain;

/// Most names of points that were not compared.
const NAMES_MAX: usize = 3;

/// The warnings, except those on the sides' times.
#[must_use]
pub fn of(diff: &Diff, metric: Metric) -> Vec<String> {
    let mut found = Vec::new();
    for comparison in &diff.comparisons {
        several_axes(&mut found, &diff.by, comparison);
        alone(&mut found, comparison, metric.name());
        failed_in_part(&mut found, comparison);
        simulated(&mut found, comparison);
    }
    few_samples(&mut found, diff, metric);
    by_chance(&mut found, diff, metric);
    found
}

fn several_axes(found: &mut Vec<String>, by: &str, comparison: &Comparison) {
    // A file and a label only name the sides.
    let named = Some(by).filter(|by| !["file", "label"].contains(by));
    // A plain method has no required route, so a missing one is no further difference.
    let of_ways = |axes: &&Axes| by == "way" && (axes.base.is_none() || axes.other.is_none());
    let others = comparison.compared.iter().filter(|axes| !of_ways(axes));
    let axes: Vec<&str> = named.into_iter().chain(others.map(Axes::name)).collect();
    if axes.len() > 1 {
        found.push(format!(
            "`{}` and `{}` differ in {} things at once ({}), so the cause of a difference is \
             unknown; change one at a time",
            plain(&comparison.base),
            plain(&comparison.other),
            axes.len(),
            axes.join(", "),
        ));
    }
}

fn alone(found: &mut Vec<String>, comparison: &Comparison, quantity: &str) {
    let mut groups: BTreeMap<(Why, &str), Vec<&str>> = BTreeMap::new();
    for point in &comparison.alone {
        groups.entry((point.why, &point.side)).or_default().push(&point.name);
    }
    for ((why, side), names) in groups {
        let (count, side) = (names.len(), plain(side));
        let points = if count == 1 { "1 point".into() } else { format!("{count} points") };
        let (has, are) = if count == 1 { ("has", "is") } else { ("have", "are") };
        let other =
            if side == plain(&comparison.base) { &comparison.other } else { &comparison.base };
        let what = match why {
            Why::NoPartner => {
                format!("{points} of `{side}` {has} no partner in `{}`", plain(other))
            }
            Why::Failed => format!("{points} failed in `{side}`"),
            Why::WrongData => format!("{points} moved wrong data in `{side}`"),
            Why::NoNumber => format!("{points} of `{side}` {has} no positive rate"),
            Why::NoQuantity => format!("{points} of `{side}` {has} no {quantity}"),
        };
        let mut told: Vec<String> = names.iter().take(NAMES_MAX).map(|name| plain(name)).collect();
        if count > NAMES_MAX {
            told.push("…".into());
        }
        let next = match why {
            Why::NoPartner => "measure them on both sides to compare them",
            Why::Failed => "remove the cause, and measure again",
            Why::WrongData => "their speed means nothing; look at the kernel's log",
            Why::NoNumber => "measure for longer",
            Why::NoQuantity => "measure it on both sides, or choose another with `--metric`",
        };
        found.push(format!("{what} and {are} not compared ({}); {next}", told.join("; ")));
    }
}

/// Points of which only some samples failed.
fn failed_in_part(found: &mut Vec<String>, comparison: &Comparison) {
    for (side, of) in [(&comparison.base, true), (&comparison.other, false)] {
        let count = |failed: (usize, usize)| if of { failed.0 } else { failed.1 };
        let failed: Vec<usize> =
            comparison.points.iter().map(|pair| count(pair.failed)).filter(|n| *n > 0).collect();
        if !failed.is_empty() {
            found.push(format!(
                "{} samples of {} points failed in `{}`, and only the rest are compared; remove \
                 the cause, and measure again",
                failed.iter().sum::<usize>(),
                failed.len(),
                plain(side)
            ));
        }
    }
}

fn simulated(found: &mut Vec<String>, comparison: &Comparison) {
    let mixed = comparison.points.iter().filter(|pair| pair.simulated.0 != pair.simulated.1);
    let mixed = mixed.count();
    if mixed > 0 {
        found.push(format!(
            "{mixed} of {} points compare a simulated GPU with a real one (`{}` and `{}`), so \
             their ratios say nothing about hardware; measure both on the same kind of GPU",
            comparison.points.len(),
            plain(&comparison.base),
            plain(&comparison.other),
        ));
    }
}

fn few_samples(found: &mut Vec<String>, diff: &Diff, metric: Metric) {
    let points = || diff.comparisons.iter().flat_map(|c| pairs::of(metric, &c.points));
    let single = points().filter(|(_, compared)| compared.interval.is_none()).count();
    if single > 0 {
        found.push(format!(
            "{single} of {} points have one sample on a side, which shows no difference; measure \
             three times or more (`--repeats`)",
            points().count()
        ));
    }
}

/// Points whose interval excludes 1, but which are not significant among so many points.
fn by_chance(found: &mut Vec<String>, diff: &Diff, metric: Metric) {
    let points = || diff.comparisons.iter().flat_map(|c| pairs::of(metric, &c.points));
    let outside = points().filter(|(_, compared)| {
        let outside = compared.interval.is_some_and(|(low, high)| low > 1.0 || high < 1.0);
        outside && compared.verdict == Verdict::NotShown
    });
    let outside = outside.count();
    if outside > 0 {
        let all = points().count();
        found.push(format!(
            "{outside} of {all} points have an interval that excludes 1, but no verdict, since one \
             interval in twenty excludes 1 by chance; measure these points with more repeats",
        ));
    }
}

/// The sides whose sweeps are incomplete. A run on several sides is reported once, by its own name.
#[must_use]
pub fn unfinished(digest: &Digest, sides: &[Side<'_>]) -> Vec<String> {
    let told = digest.runs.iter().enumerate().filter_map(|(number, run)| {
        let lack = run.unfinished?;
        let mut of = sides.iter().filter(|side| side.runs.contains(&number));
        let name = match (of.next()?, of.next()) {
            (side, None) => &side.name,
            (_, Some(_)) => &run.name,
        };
        Some(lack.sentence(&format!("`{name}`")))
    });
    told.collect()
}

/// Warns if all samples of one side were taken before those of another.
#[must_use]
pub fn of_times(base: &Side<'_>, other: &Side<'_>, raw: &[Vec<&Raw>]) -> Option<String> {
    let span = |side: &Side<'_>| {
        let lines = side.points.iter().flat_map(|point| &point.lines);
        let samples = lines.filter_map(|(number, _)| raw.get(*number)).flatten();
        let times = samples.filter_map(|sample| sample.unix_time).filter(|time| time.is_finite());
        times.fold(None, |span: Option<(f64, f64)>, time| {
            let (first, last) = span.unwrap_or((time, time));
            Some((first.min(time), last.max(time)))
        })
    };
    let ((base_first, base_last), (other_first, other_last)) = (span(base)?, span(other)?);
    let (first, last) = if base_last < other_first {
        (&base.name, &other.name)
    } else if other_last < base_first {
        (&other.name, &base.name)
    } else {
        return None;
    };
    Some(format!(
        "all of `{}` was measured before `{}`, so the ratios include any other change in between; \
         `forebay sweep --vs` measures two paths in turns",
        plain(first),
        plain(last)
    ))
}

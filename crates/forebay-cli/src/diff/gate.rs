//! Decides whether a side is significantly worse than allowed. Pure.

use std::collections::HashSet;

use super::json::{Compared, Comparison, Diff, Gate, GateFailure, Pair, Why};
use super::pairs;
use super::quantity::more_is_better;
use super::ratio::{CONFIDENCE, Ratio, holm};
use crate::failure::{Failure, Result};
use crate::report::digest::{Metric, digits};

/// Finds the points, and the means over all points, that are significantly worse than the base by
/// more than `worse_by`. A point that fails more often than on the base, or that moves wrong data
/// only on the other side, counts too.
///
/// # Errors
/// No point has an interval, so nothing can be judged.
pub fn judge(diff: &Diff, metric: Metric, worse_by: f64) -> Result<Gate> {
    let mut asked: Vec<(GateFailure, f64)> = Vec::new();
    let mut failed: Vec<GateFailure> = Vec::new();
    let (mut judged, mut points_of_base) = (0, 0);
    for comparison in &diff.comparisons {
        let found: Vec<_> = pairs::of(metric, &comparison.points).collect();
        let ratios: Vec<Ratio> = found.iter().filter_map(|(_, compared)| compared.exact).collect();
        let lost_in_part = comparison.points.iter().filter(|pair| fails_more(pair, metric));
        failed.extend(lost_in_part.map(|pair| GateFailure {
            side: comparison.other.clone(),
            point: Some(pair.name.clone()),
            ratio: None,
            interval: None,
        }));
        judged += ratios.iter().filter(|ratio| ratio.interval().is_some()).count();
        points_of_base += of_base(comparison);
        let points =
            found.iter().filter_map(|(pair, compared)| Some((Some(&pair.name), compared.exact?)));
        let mean = Ratio::mean(&ratios).filter(|_| ratios.len() > 1).map(|mean| (None, mean));
        for (point, ratio) in points.chain(mean) {
            let Some(chance) = worse_than(metric, ratio, worse_by) else { continue };
            let failure = GateFailure {
                side: comparison.other.clone(),
                point: point.cloned(),
                ratio: Some(ratio.value()),
                interval: ratio.interval(),
            };
            asked.push((failure, chance));
        }
        let at = |base: bool| {
            let own = if base { &comparison.base } else { &comparison.other };
            let lost = comparison.alone.iter().filter(move |alone| alone.side == *own);
            lost.filter(|alone| matches!(alone.why, Why::Failed | Why::WrongData))
        };
        let lost_anyhow: HashSet<&str> = at(true).map(|alone| alone.name.as_str()).collect();
        let lost = at(false).filter(|alone| !lost_anyhow.contains(alone.name.as_str()));
        failed.extend(lost.map(|alone| GateFailure {
            side: alone.side.clone(),
            point: Some(alone.name.clone()),
            ratio: None,
            interval: None,
        }));
    }
    if asked.is_empty() && failed.is_empty() {
        return Err(Failure::new("cannot judge `--fail-if-worse`")
            .because(format!("no point has two samples of {} on both sides", metric.name()))
            .hint("measure each point three times or more (`--repeats`)"));
    }
    let chances: Vec<f64> = asked.iter().map(|(_, chance)| *chance).collect();
    let shown = holm(&chances).into_iter().map(|chance| chance < 1.0 - CONFIDENCE);
    let worse = asked.into_iter().zip(shown).filter(|(_, shown)| *shown);
    failed.extend(worse.map(|((failure, _), _)| failure));
    Ok(Gate { worse_by, judged, points: points_of_base, failed })
}

/// Whether a larger share of samples failed than on the base.
#[expect(clippy::cast_precision_loss, reason = "a number of samples")]
fn fails_more(pair: &Pair, metric: Metric) -> bool {
    let of = |quantity: &&Compared| quantity.quantity == metric.key();
    let Some(found) = pair.quantities.iter().find(of).or(pair.quantities.first()) else {
        return false;
    };
    let share = |failed: usize, went: usize| failed as f64 / (failed + went).max(1) as f64;
    share(pair.failed.1, found.samples.1) > share(pair.failed.0, found.samples.0)
}

/// Counts the points of the base that have the quantity. Points at which the other side failed are
/// left out, since they count as worse anyway.
fn of_base(comparison: &Comparison) -> usize {
    let count = |why: Why, side: &str| {
        comparison.alone.iter().filter(|alone| alone.why == why && alone.side == side).count()
    };
    let own = |why| count(why, &comparison.base);
    let shared = comparison.points.len() - own(Why::NoQuantity).min(comparison.points.len());
    shared + own(Why::NoPartner) + count(Why::NoNumber, &comparison.other)
}

/// The probability of a result this bad if the side were worse by `worse_by` at most.
fn worse_than(metric: Metric, ratio: Ratio, worse_by: f64) -> Option<f64> {
    if more_is_better(metric) {
        ratio.reciprocal().chance_above(1.0 / (1.0 - worse_by))
    } else {
        ratio.chance_above(1.0 + worse_by)
    }
}

/// The sentence on a passed gate.
#[must_use]
pub fn sentence(gate: &Gate, metric: Metric) -> Option<String> {
    let is_passed = gate.failed.is_empty() && gate.judged >= gate.points;
    is_passed.then(|| {
        format!(
            "judged {} of {} points of the base: no significant regression of {} above {} %",
            gate.judged,
            gate.points,
            metric.name(),
            digits(gate.worse_by * 100.0)
        )
    })
}

/// The failure of a gate that was not passed.
#[must_use]
pub fn failure(gate: &Gate, metric: Metric) -> Option<Failure> {
    let Some(first) = gate.failed.first() else {
        let (judged, of) = (gate.judged, gate.points);
        return (judged < of).then(|| {
            Failure::new(format!("judged {judged} of {of} points of the base"))
                .because("the gate passes only if every point is judged")
                .hint("measure the same points on both sides, each three times or more")
        });
    };
    let text = format!(
        "{} is worse than the base by more than {} %",
        metric.name(),
        digits(gate.worse_by * 100.0)
    );
    let what = |failure: &GateFailure| {
        let point = failure.point.as_deref().unwrap_or("the mean over all points");
        match (failure.ratio, failure.interval) {
            (Some(ratio), Some((low, high))) => format!(
                "`{}`, {point}: {} ({} to {}) times the base",
                failure.side,
                digits(ratio),
                digits(low),
                digits(high)
            ),
            _ => format!(
                "`{}`, {point}: it fails more often than the base, or moved wrong data",
                failure.side
            ),
        }
    };
    let more = match gate.failed.len() - 1 {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(Failure::new(text).because(format!("{}{more}", what(first))))
}

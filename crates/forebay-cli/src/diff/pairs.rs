//! Pairs the points of two sides, and decides the verdicts. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::json::{Alone, Axes, Compared, Comparison, Overall, Pair, Verdict, Why};
use super::quantity::{QUANTITIES, more_is_better};
use super::ratio::{CONFIDENCE, Ratio, holm};
use super::sides::{Key, Point, Side};
use crate::bench::stats::Spread;
use crate::report::digest::{Axis, Metric, Raw};

/// Compares two sides point by point; [`judge`] decides the verdicts later.
#[must_use]
pub fn compare(base: &Side<'_>, other: &Side<'_>, raw: &[Vec<&Raw>], metric: Metric) -> Comparison {
    let differing = differing(base, other);
    let partners: HashMap<Key, &Point<'_>> =
        other.points.iter().map(|point| (without(&point.key, &differing), point)).collect();
    let mut own: BTreeSet<Key> = BTreeSet::new();
    let (mut pairs, mut alone) = (Vec::new(), Vec::new());
    let shown = shown_axes(&[base, other], &differing);
    for point in &base.points {
        let key = without(&point.key, &differing);
        let name = name(&key, &shown);
        own.insert(key.clone());
        let Some(partner) = partners.get(&key) else {
            alone.push(Alone { name, side: base.name.clone(), why: Why::NoPartner });
            continue;
        };
        match pair(point, partner, raw) {
            Ok(quantities) => {
                if !quantities.iter().any(|found| found.quantity == metric.key()) {
                    let lacks = Ratio::of(&point.samples(metric, raw), &[1.0]).is_none();
                    let side = if lacks { &base.name } else { &other.name };
                    let name = name.clone();
                    alone.push(Alone { name, side: side.clone(), why: Why::NoQuantity });
                }
                pairs.push(Pair {
                    point: values(&key, point),
                    name,
                    simulated: (point.simulated(), partner.simulated()),
                    failed: (point.failed(), partner.failed()),
                    quantities,
                });
            }
            Err((is_base, why)) => {
                let side = if is_base { &base.name } else { &other.name };
                alone.push(Alone { name, side: side.clone(), why });
            }
        }
    }
    for point in &other.points {
        let key = without(&point.key, &differing);
        if !own.contains(&key) {
            let name = name(&key, &shown);
            alone.push(Alone { name, side: other.name.clone(), why: Why::NoPartner });
        }
    }
    Comparison {
        base: base.name.clone(),
        other: other.name.clone(),
        compared: differing.into_values().collect(),
        overall: Vec::new(),
        points: pairs,
        alone,
    }
}

/// The axes on which each side has one value, and the values differ.
fn differing(base: &Side<'_>, other: &Side<'_>) -> BTreeMap<Axis, Axes> {
    let mut found = BTreeMap::new();
    for axis in Axis::ALL {
        if let (Some(one), Some(two)) = (only(base, axis), only(other, axis))
            && one != two
        {
            let (base, other) = (one.map(str::to_owned), two.map(str::to_owned));
            found.insert(axis, Axes { axis: axis.key(), base, other });
        }
    }
    found
}

/// The value that all points of a side share on an axis; `Some(None)` if all of them lack one.
fn only<'a>(side: &'a Side<'_>, axis: Axis) -> Option<Option<&'a str>> {
    let mut values = side.points.iter().map(|point| point.key.get(&axis).map(String::as_str));
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

fn without(key: &Key, axes: &BTreeMap<Axis, Axes>) -> Key {
    let left = key.iter().filter(|(axis, _)| !axes.contains_key(axis));
    left.map(|(axis, text)| (*axis, text.clone())).collect()
}

/// The axes on which points differ; the values there make the name of a point.
fn shown_axes(sides: &[&Side<'_>], differing: &BTreeMap<Axis, Axes>) -> Vec<Axis> {
    let varies = |axis: &Axis| {
        let points = sides.iter().flat_map(|side| &side.points);
        let mut values = points.map(|point| point.key.get(axis));
        let first = values.next();
        !differing.contains_key(axis) && values.any(|value| Some(value) != first)
    };
    Axis::ALL.into_iter().filter(varies).collect()
}

fn name(key: &Key, shown: &[Axis]) -> String {
    // A count needs the axis's name; a size or a word does not.
    let named = |axis: &Axis| {
        let text = key.get(axis)?;
        let counts = [Axis::Queues, Axis::Depth, Axis::Batch, Axis::Threads, Axis::Files];
        Some(if counts.contains(axis) { format!("{} {text}", axis.name()) } else { text.clone() })
    };
    let marks: Vec<String> = shown.iter().filter_map(named).collect();
    if marks.is_empty() { "all".into() } else { marks.join(", ") }
}

/// The values of a point for programs.
fn values(key: &Key, point: &Point<'_>) -> BTreeMap<String, Value> {
    let number = |axis: &Axis| point.lines.first()?.1.marks.get(axis)?.number;
    let whole = |number: f64| {
        let text = format!("{number:.0}");
        text.parse::<u64>().map_or_else(|_| Value::from(number), Value::from)
    };
    let value = |(axis, text): (&Axis, &String)| {
        let value = number(axis).map_or_else(|| Value::from(text.clone()), whole);
        (axis.key(), value)
    };
    key.iter().map(value).collect()
}

/// Compares every quantity that both points have. An error says which point has no result (true:
/// the base), and why.
fn pair(
    base: &Point<'_>,
    other: &Point<'_>,
    raw: &[Vec<&Raw>],
) -> Result<Vec<Compared>, (bool, Why)> {
    for (is_base, point) in [(true, base), (false, other)] {
        if point.is_wrong() {
            return Err((is_base, Why::WrongData));
        }
        let rates = point.samples(Metric::Rate, raw);
        if rates.is_empty() {
            return Err((is_base, Why::Failed));
        }
        if Ratio::of(&rates, &rates).is_none() {
            return Err((is_base, Why::NoNumber));
        }
    }
    let quantity = |(metric, _): (Metric, &str)| {
        let (one, two) = (base.samples(metric, raw), other.samples(metric, raw));
        let ratio = Ratio::of_told((&one, base.error_min()), (&two, other.error_min()))?;
        let median = |samples: &[f64]| Spread::of(samples.iter().copied()).map(|s| s.median);
        Some(Compared {
            quantity: metric.key().into(),
            base: median(&one)?,
            other: median(&two)?,
            samples: (one.len(), two.len()),
            ratio: ratio.value(),
            interval: ratio.interval(),
            chance: None,
            verdict: Verdict::NotShown,
            exact: Some(ratio),
        })
    };
    Ok(QUANTITIES.into_iter().filter_map(quantity).collect())
}

/// Decides the verdicts: for each quantity all points of all comparisons together.
pub fn judge(comparisons: &mut [Comparison]) {
    for (metric, _) in QUANTITIES {
        let mut all: Vec<&mut Compared> = comparisons
            .iter_mut()
            .flat_map(|comparison| &mut comparison.points)
            .flat_map(|pair| &mut pair.quantities)
            .filter(|compared| compared.quantity == metric.key())
            .collect();
        let chance = |compared: &Compared| compared.exact.and_then(|ratio| ratio.chance());
        let known: Vec<f64> = all.iter().filter_map(|compared| chance(compared)).collect();
        let mut adjusted = holm(&known).into_iter();
        for compared in &mut all {
            if chance(compared).is_some() {
                compared.chance = adjusted.next();
            }
            let shown = compared.chance.is_some_and(|chance| chance < 1.0 - CONFIDENCE);
            let better = (compared.ratio > 1.0) == more_is_better(metric);
            compared.verdict = match (shown, better) {
                (false, _) => Verdict::NotShown,
                (true, true) => Verdict::Better,
                (true, false) => Verdict::Worse,
            };
        }
    }
    for comparison in comparisons {
        comparison.overall = QUANTITIES
            .into_iter()
            .filter_map(|(metric, _)| overall(metric, &comparison.points))
            .collect();
    }
}

/// One quantity over all points.
fn overall(metric: Metric, pairs: &[Pair]) -> Option<Overall> {
    let found: Vec<&Compared> = of(metric, pairs).map(|(_, compared)| compared).collect();
    let ratios: Vec<Ratio> = found.iter().filter_map(|compared| compared.exact).collect();
    let mean = Ratio::mean(&ratios)?;
    let count = |verdict| found.iter().filter(|compared| compared.verdict == verdict).count();
    let values = || found.iter().map(|compared| compared.ratio);
    Some(Overall {
        quantity: metric.key().into(),
        points: found.len(),
        ratio: mean.value(),
        interval: mean.interval(),
        range: (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max)),
        better: count(Verdict::Better),
        worse: count(Verdict::Worse),
        not_shown: count(Verdict::NotShown),
    })
}

/// A quantity of each pair that has it.
pub fn of(metric: Metric, pairs: &[Pair]) -> impl Iterator<Item = (&Pair, &Compared)> {
    pairs.iter().flat_map(move |pair| {
        let own = pair.quantities.iter().filter(move |found| found.quantity == metric.key());
        own.map(move |compared| (pair, compared))
    })
}

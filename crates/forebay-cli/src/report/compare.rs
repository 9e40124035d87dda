//! Compares the points of several runs by the ratios of their medians. Pure.
//!
//! Two points match if they have the same value on every axis. An axis with a single value per
//! side is compared, so it does not separate points. [`gate`] judges whether a side is worse.

use std::collections::{BTreeMap, BTreeSet};

use forebay_measure::failure::{Failure, Result};

use super::model::{Axis, Line, Metric, Model, differ, facts, grouped, unique};
use super::numbers::{counted, digits, percent};
use super::ratio::{CONFIDENCE, ERROR_MIN, ERROR_MIN_IMPORTED, Estimate, Ratio, SAMPLES_MIN, holm};

/// Most sides.
const SIDES_MAX: usize = 64;

/// A side compared with the base.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// The name of the base.
    pub base: String,
    /// The name of the other side.
    pub other: String,
    /// The axes that differ as a whole, and both values.
    pub axes: Vec<(Axis, String, String)>,
    /// Facts of machine and settings that differ, and both values.
    pub facts: Vec<(String, String, String)>,
    /// The points of both sides.
    pub pairs: Vec<Pair>,
    /// Points of the base that have a rate.
    pub base_points: usize,
    /// Points that are not compared, by their side and why.
    pub alone: BTreeMap<(String, &'static str), Vec<String>>,
}

/// A point of both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Its name.
    pub name: String,
    /// The quantities that both sides have.
    pub quantities: Vec<Compared>,
    /// Whether a larger share of the other side's samples failed.
    pub fails_more: bool,
}

/// A quantity of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// The quantity.
    pub metric: Metric,
    /// Both medians.
    pub medians: (f64, f64),
    /// Both numbers of samples.
    pub samples: (usize, usize),
    /// The other median over the base's.
    pub ratio: Ratio,
    /// The probability of such a difference by chance, among so many points.
    pub chance: Option<f64>,
}

/// A significant difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The other side is better.
    Better,
    /// The other side is worse.
    Worse,
}

impl Compared {
    /// The difference, if it is significant.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let shown = self.chance.is_some_and(|chance| chance < 1.0 - CONFIDENCE);
        let is_better = (self.ratio.value() > 1.0) == self.metric.more_is_better();
        shown.then_some(if is_better { Verdict::Better } else { Verdict::Worse })
    }
}

/// A quantity over all points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The quantity.
    pub metric: Metric,
    /// The geometric mean of the ratios.
    pub ratio: Ratio,
    /// How many points have it.
    pub points: usize,
    /// How many are significantly better.
    pub better: usize,
    /// How many are significantly worse.
    pub worse: usize,
}

impl Mean {
    /// Whether the mean or a point differs significantly.
    #[must_use]
    pub fn is_significant(&self) -> bool {
        let apart = self.ratio.interval().is_some_and(|(low, high)| low > 1.0 || high < 1.0);
        apart || self.better + self.worse > 0
    }
}

struct Side<'a> {
    name: String,
    number: Option<f64>,
    lines: Vec<&'a Line>,
}

/// The value of a line on an axis. Runs with the same label are the same.
fn value(model: &Model, axis: Axis, line: &Line) -> Option<String> {
    match axis {
        Axis::Run => Some(model.runs[line.run].given.clone()),
        axis => model.text(axis, line),
    }
}

/// Compares the sides with the base: the side of that name, else the smallest number, else the
/// first. The values of the axis `by` are the sides; of [`Axis::Run`], the labels. Without an axis
/// the model's `files` are.
///
/// # Errors
/// There are no two sides, or none of that name.
pub fn compare(
    model: &Model,
    files: &[String],
    by: Option<Axis>,
    base: Option<&str>,
) -> Result<Vec<Comparison>> {
    let name = |line: &Line| match by {
        None => files.get(model.runs[line.run].source).cloned(),
        // Without a required route the engine chooses.
        Some(axis) => Some(value(model, axis, line).unwrap_or_else(|| "any".into())),
    };
    let name = |line: &Line| name(line).unwrap_or_else(|| model.runs[line.run].name.clone());
    let sides = grouped(model.lines.iter().map(|line| (name(line), line)));
    let side = |(name, lines): (String, Vec<_>)| Side {
        name,
        number: by.and_then(|axis| model.number(axis, lines[0])),
        lines,
    };
    let mut sides: Vec<Side<'_>> = sides.into_iter().map(side).collect();
    if let [] | [_] = sides.as_slice() {
        let only = sides.first().map_or_else(
            || "no point was measured".to_owned(),
            |side| format!("all points are of `{}`", side.name),
        );
        return Err(Failure::usage("there are no two sides to compare")
            .because(only)
            .hint("give two files, or an axis that differs within one with `--by`"));
    }
    if sides.len() > SIDES_MAX {
        return Err(Failure::usage(format!("{} sides are too many", sides.len()))
            .hint(format!("compare at most {SIDES_MAX}")));
    }
    if sides.iter().all(|side| side.number.is_some()) {
        sides.sort_by(|a, b| a.number.unwrap_or(0.0).total_cmp(&b.number.unwrap_or(0.0)));
    }
    if let Some(base) = base {
        let Some(place) = sides.iter().position(|side| side.name == base) else {
            let names: Vec<String> = sides.iter().map(|side| format!("`{}`", side.name)).collect();
            return Err(Failure::usage(format!("there is no side `{base}`"))
                .hint(format!("the sides are {}", names.join(", "))));
        };
        sides[..=place].rotate_right(1);
    }
    let (base, others) = (&sides[0], &sides[1..]);
    let mut found: Vec<Comparison> =
        others.iter().map(|other| compared(model, by, base, other)).collect();
    judge(&mut found);
    Ok(found)
}

fn compared(model: &Model, by: Option<Axis>, base: &Side<'_>, other: &Side<'_>) -> Comparison {
    let only = |side: &Side<'_>, axis: Axis| {
        let first = value(model, axis, side.lines[0]);
        let is_only = side.lines.iter().all(|line| value(model, axis, line) == first);
        is_only.then(|| first.unwrap_or_else(|| "none".into()))
    };
    let differs = |axis: Axis| {
        let (one, two) = (only(base, axis)?, only(other, axis)?);
        (one != two).then_some((axis, one, two))
    };
    let mut axes: Vec<(Axis, String, String)> = Axis::ALL.into_iter().filter_map(differs).collect();
    let is_kept = |axis: &Axis| by != Some(*axis) && axes.iter().all(|(other, ..)| other != axis);
    let kept: Vec<Axis> = Axis::ALL.into_iter().filter(is_kept).collect();
    axes.retain(|(axis, ..)| *axis != Axis::Run && by != Some(*axis));
    let all = || base.lines.iter().chain(&other.lines);
    let varies = |axis: &&Axis| differ(all().map(|line| value(model, **axis, line)));
    let shown: Vec<Axis> = kept.iter().filter(varies).copied().collect();
    let mut found = Comparison {
        base: base.name.clone(),
        other: other.name.clone(),
        axes,
        facts: differences(model, base, other),
        ..Comparison::default()
    };
    // In the order of the base's points.
    let own = base.lines.iter().map(|line| (*line, true));
    let both = own.chain(other.lines.iter().map(|line| (*line, false)));
    let values = |line: &Line| kept.iter().map(|axis| value(model, *axis, line)).collect();
    for (_, lines) in grouped(both.map(|both| -> (Vec<_>, _) { (values(both.0), both) })) {
        let name = if shown.is_empty() { "all".into() } else { model.name(lines[0].0, &shown) };
        let (own, others): (Vec<_>, Vec<_>) = lines.into_iter().partition(|(_, is_own)| *is_own);
        let [own, others] = [own, others]
            .map(|lines| -> Vec<&Line> { lines.into_iter().map(|(line, _)| line).collect() });
        found.base_points += usize::from(lacks(&own).is_none());
        let is_alone = own.is_empty() || others.is_empty();
        let why = |lines: &[&Line]| match is_alone {
            true => (!lines.is_empty()).then_some("no partner"),
            false => lacks(lines),
        };
        let whys = [(&base.name, why(&own)), (&other.name, why(&others))];
        if whys.iter().all(|(_, why)| why.is_none()) {
            found.pairs.push(pair(name, &own, &others));
            continue;
        }
        for (side, why) in whys.into_iter().filter_map(|(side, why)| Some((side, why?))) {
            found.alone.entry((side.clone(), why)).or_default().push(name.clone());
        }
    }
    found
}

fn samples(lines: &[&Line], metric: Metric) -> Vec<f64> {
    lines.iter().flat_map(|line| line.samples(metric)).copied().collect()
}

/// Why a point's rate cannot be compared.
fn lacks(lines: &[&Line]) -> Option<&'static str> {
    if lines.iter().any(|line| line.verified == Some(false)) {
        return Some("wrong data");
    }
    let rates = samples(lines, Metric::Rate);
    Ratio::of(&rates, &rates, ERROR_MIN).is_none().then_some("no result")
}

fn pair(name: String, base: &[&Line], other: &[&Line]) -> Pair {
    let is_imported = base.iter().chain(other).any(|line| line.imported);
    let error_min = if is_imported { ERROR_MIN_IMPORTED } else { ERROR_MIN };
    let quantity = |(_, metric): (&str, Metric)| {
        let (one, two) = (samples(base, metric), samples(other, metric));
        Some(Compared {
            metric,
            medians: (Estimate::of(&one)?.median, Estimate::of(&two)?.median),
            samples: (one.len(), two.len()),
            ratio: Ratio::of(&one, &two, error_min)?,
            chance: None,
        })
    };
    #[expect(clippy::cast_precision_loss, reason = "a number of samples")]
    let failed = |lines: &[&Line]| {
        let failed: usize = lines.iter().map(|line| line.failed).sum();
        failed as f64 / (failed + samples(lines, Metric::Rate).len()).max(1) as f64
    };
    Pair {
        name,
        quantities: Metric::compared().filter_map(quantity).collect(),
        fails_more: failed(other) > failed(base),
    }
}

/// Facts of machine and settings in which two sides differ.
fn differences(model: &Model, base: &Side<'_>, other: &Side<'_>) -> Vec<(String, String, String)> {
    let facts = |side: &Side<'_>| -> Vec<(String, String)> {
        let runs: BTreeSet<usize> = side.lines.iter().map(|line| line.run).collect();
        let runs = runs.into_iter().map(|run| &*model.runs[run].record);
        runs.flat_map(|run| [facts::machine(run), facts::settings(run)].concat()).collect()
    };
    let both = [facts(base), facts(other)];
    let is_imported = base.lines.iter().chain(&other.lines).any(|line| line.imported);
    let names = unique(both.iter().flatten().map(|(name, _)| name));
    let differs = |name: &String| {
        let values = |side: &Vec<(String, String)>| {
            let own = side.iter().filter(|(other, _)| other == name);
            let values = unique(own.map(|(_, value)| value.as_str()));
            (!values.is_empty()).then(|| values.join(" and "))
        };
        let (one, two) = (values(&both[0]), values(&both[1]));
        // Facts that a foreign tool does not report are no difference.
        let is_known = !is_imported || (one.is_some() && two.is_some());
        let text = |value: Option<String>| value.unwrap_or_else(|| "none".into());
        (is_known && one != two).then(|| (name.clone(), text(one), text(two)))
    };
    names.into_iter().filter_map(differs).collect()
}

/// Corrects the chances for the number of points.
fn judge(comparisons: &mut [Comparison]) {
    for (_, metric) in Metric::compared() {
        let pairs = comparisons.iter_mut().flat_map(|comparison| &mut comparison.pairs);
        let found = pairs.flat_map(|pair| &mut pair.quantities);
        let found = found.filter(|found| found.metric == metric);
        let (all, chances): (Vec<&mut Compared>, Vec<f64>) =
            found.filter_map(|found| found.ratio.chance().map(|chance| (found, chance))).unzip();
        for (found, chance) in all.into_iter().zip(holm(&chances)) {
            found.chance = Some(chance);
        }
    }
}

impl Comparison {
    /// A quantity of the points that have it.
    pub fn of(&self, metric: Metric) -> impl Iterator<Item = (&Pair, &Compared)> {
        self.pairs.iter().flat_map(move |pair| {
            let own = pair.quantities.iter().filter(move |found| found.metric == metric);
            own.map(move |found| (pair, found))
        })
    }

    /// A quantity over all points that have it.
    #[must_use]
    pub fn mean(&self, metric: Metric) -> Option<Mean> {
        let found: Vec<&Compared> = self.of(metric).map(|(_, found)| found).collect();
        let ratios: Vec<Ratio> = found.iter().map(|found| found.ratio).collect();
        let count = |verdict| found.iter().filter(|one| one.verdict() == Some(verdict)).count();
        let (better, worse) = (count(Verdict::Better), count(Verdict::Worse));
        let ratio = Ratio::mean(&ratios)?;
        Some(Mean { metric, ratio, points: found.len(), better, worse })
    }

    /// Notes on how far the ratios can be trusted.
    #[must_use]
    pub fn notes(&self, metric: Metric) -> Vec<String> {
        let mut notes = Vec::new();
        let mut few = self.of(metric).filter(|(_, found)| found.ratio.interval().is_none());
        if let Some((_, first)) = few.next() {
            let least = first.samples.0.min(first.samples.1);
            notes.push(format!(
                "{} too few for an interval: measure {SAMPLES_MIN} times or more (`--repeats`)",
                if least == 1 { "1 sample is".into() } else { format!("{least} samples are") },
            ));
        }
        for ((side, why), names) in &self.alone {
            let (has, more) = if names.len() == 1 { ("has", "") } else { ("have", ", …") };
            let points = counted(names.len(), "point");
            notes.push(format!("{points} of `{side}` {has} {why}: {}{more}", names[0]));
        }
        let axes: Vec<String> = self.axes.iter().map(|(axis, ..)| axis.name()).collect();
        if axes.len() > 1 {
            notes.push(format!("the cause is unclear: {} differ at once", axes.join(", ")));
        }
        notes
    }
}

/// Judges whether a side is worse than the base by more than `worse_by`: a point, the mean of all
/// points, or more failures. Returns a sentence if none is.
///
/// # Errors
/// A side is worse, or a point of the base cannot be judged.
pub fn gate(comparisons: &[Comparison], metric: Metric, worse_by: f64) -> Result<String> {
    let (mut tested, mut failed) = (Vec::new(), Vec::new());
    let (mut judged, mut points, mut possible) = (0, 0, 0.0_f64);
    let limit = if metric.more_is_better() { 1.0 - worse_by } else { 1.0 + worse_by };
    for comparison in comparisons {
        let found = || comparison.of(metric).map(|(pair, found)| (pair.name.as_str(), found.ratio));
        judged += found().filter(|(_, ratio)| ratio.interval().is_some()).count();
        let ends = found().filter_map(|(_, ratio)| ratio.interval());
        let loss = |(low, high)| if metric.more_is_better() { 1.0 - low } else { high - 1.0 };
        possible = ends.map(loss).fold(possible, f64::max);
        points += comparison.base_points;
        let mean = comparison.mean(metric).filter(|mean| mean.points > 1);
        for (name, ratio) in found().chain(mean.map(|mean| ("the mean", mean.ratio))) {
            let chance = ratio.chance_beyond(limit, !metric.more_is_better());
            tested.extend(chance.map(|chance| (format!("{name}: {}", text(ratio)), chance)));
        }
        let more = comparison.pairs.iter().filter(|pair| pair.fails_more);
        failed.extend(more.map(|pair| format!("{}: more samples failed", pair.name)));
    }
    let chances: Vec<f64> = tested.iter().map(|(_, chance)| *chance).collect();
    let worse = tested.into_iter().zip(holm(&chances)).filter(|(_, one)| *one < 1.0 - CONFIDENCE);
    failed.extend(worse.map(|((text, _), _)| text));
    let limit = digits(worse_by * 100.0);
    if let Some(first) = failed.first() {
        let more = match failed.len() - 1 {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let text = format!("{} is worse than the base by more than {limit} %", metric.name());
        return Err(Failure::new(text).because(format!("{first}{more}")));
    }
    if judged < points || points == 0 {
        let failure = Failure::new(format!("judged {judged} of {points} points of the base"))
            .because("`--fail-if-worse` passes only if every point is judged");
        let notes = comparisons.iter().flat_map(|one| one.notes(metric)).take(2);
        return Err(notes
            .fold(failure, Failure::because)
            .hint(format!("measure the same points on both sides, {SAMPLES_MIN} times or more")));
    }
    let name = metric.name();
    Ok(match possible > worse_by {
        true => format!(
            "no regression of {name} above {limit} % was found in {}, but one of up to {} is not \
             excluded: more samples (`--repeats`) narrow that",
            counted(judged, "point"),
            percent(possible)
        ),
        false => format!("no regression of {name} above {limit} %: {judged} points judged"),
    })
}

/// A ratio and its interval.
#[must_use]
pub fn text(ratio: Ratio) -> String {
    let short = |value: f64| match value {
        0.1..10.0 => format!("{value:.2}"),
        _ => digits(value),
    };
    match ratio.interval() {
        // An interval over more than two orders of magnitude says nothing.
        Some((low, high)) if high / low < 100.0 => {
            format!("{}× ({}–{})", short(ratio.value()), short(low), short(high))
        }
        _ => format!("{}×", short(ratio.value())),
    }
}

#[cfg(test)]
mod tests;

//! Compares the points of several runs by the ratios of their medians. Pure.
//!
//! Two points match if they have the same value on every axis. An axis on which each side has one
//! value is compared, so it does not separate points. [`gate`] judges whether a side is worse.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::model::{Axis, Line, Metric, Model, facts};
use super::numbers::{counted, digits};
use super::ratio::{CONFIDENCE, ERROR_MIN_IMPORTED, Estimate, Ratio, SAMPLES_MIN, holm};
use crate::failure::{Failure, Result};

/// Most sides.
const SIDES_MAX: usize = 64;

/// What separates the sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Each file is a side.
    File,
    /// Each value of an axis is a side; of [`Axis::Run`], each label.
    Axis(Axis),
}

/// One side compared with the base.
#[derive(Debug, Clone, PartialEq)]
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
    /// The geometric means over all points.
    pub means: Vec<Mean>,
    /// Points of the base that have a rate.
    pub base_points: usize,
    /// Points that are not compared: their side, why, and their name.
    pub alone: Vec<(String, Why, String)>,
    /// Whether one side was measured before the other began.
    pub in_sequence: bool,
}

/// Why a point is not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The other side lacks it.
    NoPartner,
    /// It has no positive rate.
    NoRate,
    /// It moved wrong data.
    WrongData,
}

/// A point of both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Its name.
    pub name: String,
    /// Its values on all axes that are not compared.
    pub key: Key,
    /// The quantities that both sides have.
    pub quantities: Vec<Compared>,
    /// The share of samples that failed on each side.
    pub failed: (f64, f64),
    /// Whether one side has a simulated GPU and the other a real one.
    pub is_mixed: bool,
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
    /// Whether all points together differ, or one of them does.
    #[must_use]
    pub fn is_significant(&self) -> bool {
        let apart = self.ratio.interval().is_some_and(|(low, high)| low > 1.0 || high < 1.0);
        apart || self.better + self.worse > 0
    }
}

/// The position of a point: its values on the axes that are not compared.
pub type Key = BTreeMap<Axis, String>;

struct Side<'a> {
    name: String,
    number: Option<f64>,
    runs: Vec<usize>,
    points: Vec<(Key, Vec<&'a Line>)>,
    places: HashMap<Key, usize>,
}

/// Compares the sides with the base: the one of that name, else the smallest number, else the
/// first. `files` are the names of the model's files.
///
/// # Errors
/// There are no two sides, or none of that name.
pub fn compare(
    model: &Model,
    files: &[String],
    by: By,
    base: Option<&str>,
) -> Result<Vec<Comparison>> {
    let mut sides = sides(model, files, by)?;
    if by != By::File && sides.iter().all(|side| side.number.is_some()) {
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
    let Some((base, others)) = sides.split_first() else { return Ok(Vec::new()) };
    let mut found: Vec<Comparison> = others.iter().map(|other| pairs(model, base, other)).collect();
    judge(&mut found);
    Ok(found)
}

fn sides<'a>(model: &'a Model, files: &[String], by: By) -> Result<Vec<Side<'a>>> {
    let mut sides: Vec<Side<'a>> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for line in &model.lines {
        let run = &model.runs[line.run];
        let (id, name, number) = match by {
            By::File => {
                let name = files.get(run.source).unwrap_or(&run.name);
                (run.source.to_string(), name.clone(), None)
            }
            By::Axis(Axis::Run) => {
                let number =
                    run.given.trim().parse().ok().filter(|number: &f64| number.is_finite());
                (run.given.clone(), run.given.clone(), number)
            }
            By::Axis(axis) => {
                // Without a required route the engine chooses one.
                let text = axis.text(model, line).unwrap_or_else(|| "any".into());
                (text.clone(), text, axis.number(model, line))
            }
        };
        let place = *known.entry(id).or_insert(sides.len());
        if place == sides.len() {
            let (runs, points, places) = (Vec::new(), Vec::new(), HashMap::new());
            sides.push(Side { name, number, runs, points, places });
        }
        let is_apart = |axis: &Axis| *axis != Axis::Run && by != By::Axis(*axis);
        let text = |axis| Some((axis, Axis::text(axis, model, line)?));
        let mut key: Key = Axis::ALL.into_iter().filter(is_apart).filter_map(text).collect();
        if !matches!(by, By::File | By::Axis(Axis::Run)) && model.runs.len() > 1 {
            // A comparison within runs is made within each of them.
            key.insert(Axis::Run, run.given.clone());
        }
        let side = &mut sides[place];
        if !side.runs.contains(&line.run) {
            side.runs.push(line.run);
        }
        let next = side.points.len();
        let place = *side.places.entry(key.clone()).or_insert(next);
        if place == next {
            side.points.push((key, Vec::new()));
        }
        side.points[place].1.push(line);
    }
    match sides.len() {
        0 | 1 => {
            let only = sides.first().map_or_else(
                || "no point was measured".to_owned(),
                |side| format!("all points are of `{}`", side.name),
            );
            Err(Failure::usage("there are no two sides to compare")
                .because(only)
                .hint("give two files, or an axis that differs within one with `--by`"))
        }
        count if count > SIDES_MAX => Err(Failure::usage(format!("{count} sides are too many"))
            .hint(format!("compare at most {SIDES_MAX}"))),
        _ if by == By::File => refuse_labels(model, &sides).map(|()| sides),
        _ => Ok(sides),
    }
}

/// Refuses a file that has one point under several labels: they would be mixed.
fn refuse_labels(model: &Model, sides: &[Side<'_>]) -> Result<()> {
    for side in sides {
        for (_, lines) in &side.points {
            let labels: HashSet<&str> =
                lines.iter().map(|line| model.runs[line.run].given.as_str()).collect();
            if labels.len() > 1 {
                let text = format!("`{}` has the same points under several labels", side.name);
                return Err(Failure::usage(text).hint("`--by label` compares these"));
            }
        }
    }
    Ok(())
}

fn pairs(model: &Model, base: &Side<'_>, other: &Side<'_>) -> Comparison {
    let axes: Vec<(Axis, String, String)> = Axis::ALL
        .into_iter()
        .filter_map(|axis| {
            let (one, two) = (only(base, axis)?, only(other, axis)?);
            (one != two).then(|| (axis, one.to_owned(), two.to_owned()))
        })
        .collect();
    let without = |key: &Key| -> Key {
        let left = key.iter().filter(|(axis, _)| axes.iter().all(|(other, ..)| other != *axis));
        left.map(|(axis, text)| (*axis, text.clone())).collect()
    };
    let keys: Vec<Key> =
        base.points.iter().chain(&other.points).map(|(key, _)| without(key)).collect();
    let varies = |axis: &Axis| keys.iter().any(|key| key.get(axis) != keys[0].get(axis));
    let shown: Vec<Axis> = Axis::ALL.into_iter().filter(varies).collect();
    let partners: HashMap<Key, &Vec<&Line>> =
        other.points.iter().map(|(key, lines)| (without(key), lines)).collect();
    let (mut pairs, mut alone, mut base_points) = (Vec::new(), Vec::new(), 0);
    for ((_, lines), key) in base.points.iter().zip(&keys) {
        let name = name(key, &shown);
        let lacks = lacks(lines);
        base_points += usize::from(lacks.is_none());
        let Some(partner) = partners.get(key) else {
            alone.push((base.name.clone(), Why::NoPartner, name));
            continue;
        };
        let of_other = self::lacks(partner);
        if lacks.is_none() && of_other.is_none() {
            pairs.push(pair(name, key.clone(), lines, partner));
            continue;
        }
        let sides = [(base, lacks), (other, of_other)];
        let found = sides.into_iter().filter_map(|(side, why)| Some((side.name.clone(), why?)));
        alone.extend(found.map(|(side, why)| (side, why, name.clone())));
    }
    let own: HashSet<&Key> = keys[..base.points.len()].iter().collect();
    let lonely = keys[base.points.len()..].iter().filter(|key| !own.contains(key));
    alone.extend(lonely.map(|key| (other.name.clone(), Why::NoPartner, name(key, &shown))));
    Comparison {
        base: base.name.clone(),
        other: other.name.clone(),
        axes,
        facts: differences(model, base, other),
        pairs,
        means: Vec::new(),
        base_points,
        alone,
        in_sequence: in_sequence(base, other),
    }
}

/// The value that all points of a side share on an axis.
fn only<'a>(side: &'a Side<'_>, axis: Axis) -> Option<&'a str> {
    let mut values =
        side.points.iter().map(|(key, _)| key.get(&axis).map_or("none", String::as_str));
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

fn name(key: &Key, shown: &[Axis]) -> String {
    let counts = [Axis::Queues, Axis::Depth, Axis::Batch, Axis::Threads, Axis::Files];
    let named = |axis: &Axis| {
        let text = key.get(axis)?;
        Some(if counts.contains(axis) { format!("{} {text}", axis.name()) } else { text.clone() })
    };
    let names: Vec<String> = shown.iter().filter_map(named).collect();
    if names.is_empty() { "all".into() } else { names.join(", ") }
}

fn samples(lines: &[&Line], metric: Metric) -> Vec<f64> {
    lines.iter().flat_map(|line| line.samples(metric)).copied().collect()
}

/// Why a point has no rate to compare.
fn lacks(lines: &[&Line]) -> Option<Why> {
    if lines.iter().any(|line| line.verified == Some(false)) {
        return Some(Why::WrongData);
    }
    let rates = samples(lines, Metric::Rate);
    Ratio::of(&rates, &rates).is_none().then_some(Why::NoRate)
}

fn pair(name: String, key: Key, base: &[&Line], other: &[&Line]) -> Pair {
    let floor = |lines: &[&Line]| match lines.iter().any(|line| line.imported) {
        true => ERROR_MIN_IMPORTED,
        false => 0.0,
    };
    let quantity = |(_, metric): (&str, Metric)| {
        let (one, two) = (samples(base, metric), samples(other, metric));
        Some(Compared {
            metric,
            medians: (Estimate::of(&one)?.median, Estimate::of(&two)?.median),
            samples: (one.len(), two.len()),
            ratio: Ratio::with_floors((&one, floor(base)), (&two, floor(other)))?,
            chance: None,
        })
    };
    #[expect(clippy::cast_precision_loss, reason = "a number of samples")]
    let failed = |lines: &[&Line]| {
        let failed: usize = lines.iter().map(|line| line.failed).sum();
        failed as f64 / (failed + samples(lines, Metric::Rate).len()).max(1) as f64
    };
    let simulated = |lines: &[&Line]| lines.iter().any(|line| line.simulated);
    Pair {
        name,
        key,
        quantities: Metric::COMPARED.into_iter().filter_map(quantity).collect(),
        failed: (failed(base), failed(other)),
        is_mixed: simulated(base) != simulated(other),
    }
}

/// Facts of machine and settings in which two sides differ.
fn differences(model: &Model, base: &Side<'_>, other: &Side<'_>) -> Vec<(String, String, String)> {
    let of = |side: &Side<'_>| {
        let mut all: Vec<(String, String)> = Vec::new();
        for run in &side.runs {
            let run = &model.runs[*run].record;
            for (name, value) in [facts::machine(run), facts::settings(run)].concat() {
                match all.iter_mut().find(|(other, _)| *other == name) {
                    Some((_, values)) if !values.contains(&value) => {
                        values.push_str(&format!(" and {value}"));
                    }
                    Some(_) => {}
                    None => all.push((name, value)),
                }
            }
        }
        all
    };
    let (one, two) = (of(base), of(other));
    let value = |all: &[(String, String)], name: &str| {
        let found = all.iter().find(|(other, _)| other == name);
        found.map_or_else(|| "unknown".to_owned(), |(_, value)| value.clone())
    };
    let mut names: Vec<&String> = one.iter().map(|(name, _)| name).collect();
    names.extend(
        two.iter().map(|(name, _)| name).filter(|name| !one.iter().any(|(n, _)| n == *name)),
    );
    let both = names.into_iter().map(|name| (name.clone(), value(&one, name), value(&two, name)));
    both.filter(|(_, one, two)| one != two).collect()
}

/// Whether all samples of one side began before those of the other.
fn in_sequence(base: &Side<'_>, other: &Side<'_>) -> bool {
    let span = |side: &Side<'_>| {
        let times = side.points.iter().flat_map(|(_, lines)| lines).filter_map(|line| line.times);
        times.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    };
    let spans = span(base).zip(span(other));
    spans.is_some_and(|(one, two)| one.1 < two.0 || two.1 < one.0)
}

/// Corrects the chances for the number of points, and adds the means over all points.
fn judge(comparisons: &mut [Comparison]) {
    for (_, metric) in Metric::COMPARED {
        let mut all: Vec<&mut Compared> = comparisons
            .iter_mut()
            .flat_map(|comparison| &mut comparison.pairs)
            .flat_map(|pair| &mut pair.quantities)
            .filter(|found| found.metric == metric && found.ratio.chance().is_some())
            .collect();
        let chances: Vec<f64> = all.iter().filter_map(|found| found.ratio.chance()).collect();
        for (found, chance) in all.iter_mut().zip(holm(&chances)) {
            found.chance = Some(chance);
        }
        for comparison in comparisons.iter_mut() {
            let found: Vec<Compared> = comparison.of(metric).map(|(_, found)| *found).collect();
            let ratios: Vec<Ratio> = found.iter().map(|found| found.ratio).collect();
            let count = |verdict| found.iter().filter(|one| one.verdict() == Some(verdict)).count();
            let (better, worse) = (count(Verdict::Better), count(Verdict::Worse));
            let mean = Ratio::mean(&ratios);
            comparison.means.extend(mean.map(|ratio| Mean {
                metric,
                ratio,
                points: ratios.len(),
                better,
                worse,
            }));
        }
    }
}

impl Comparison {
    /// A quantity of each point that has it.
    pub fn of(&self, metric: Metric) -> impl Iterator<Item = (&Pair, &Compared)> {
        self.pairs.iter().flat_map(move |pair| {
            let own = pair.quantities.iter().filter(move |found| found.metric == metric);
            own.map(move |found| (pair, found))
        })
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
        for side in [&self.base, &self.other] {
            for (why, text) in [
                (Why::NoPartner, "no partner"),
                (Why::NoRate, "no result"),
                (Why::WrongData, "wrong data"),
            ] {
                let own = self.alone.iter().filter(|(of, other, _)| of == side && *other == why);
                let names: Vec<&str> = own.map(|(.., name)| name.as_str()).collect();
                if let Some(first) = names.first() {
                    let has = if names.len() == 1 { "has" } else { "have" };
                    let points = counted(names.len(), "point");
                    let more = if names.len() == 1 { "" } else { ", …" };
                    notes.push(format!("{points} of `{side}` {has} {text}: {first}{more}"));
                }
            }
        }
        let axes: Vec<&str> = self.axes.iter().map(|(axis, ..)| axis.name()).collect();
        if axes.len() > 1 {
            notes.push(format!("the cause is unclear: {} differ at once", axes.join(", ")));
        }
        if self.pairs.iter().any(|pair| pair.is_mixed) {
            notes.push("a simulated GPU is compared with a real one".into());
        }
        if self.in_sequence && !self.pairs.is_empty() {
            notes.push("one side was measured after the other, so other changes count too".into());
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
    let (mut asked, mut failed) = (Vec::new(), Vec::new());
    let (mut judged, mut points) = (0, 0);
    for comparison in comparisons {
        let found: Vec<(&str, Ratio)> =
            comparison.of(metric).map(|(pair, found)| (pair.name.as_str(), found.ratio)).collect();
        judged += found.iter().filter(|(_, ratio)| ratio.interval().is_some()).count();
        points += comparison.base_points;
        let ratios: Vec<Ratio> = found.iter().map(|(_, ratio)| *ratio).collect();
        let mean = Ratio::mean(&ratios).filter(|_| ratios.len() > 1);
        for (name, ratio) in found.into_iter().chain(mean.map(|mean| ("the mean", mean))) {
            let chance = if metric.more_is_better() {
                ratio.reciprocal().chance_above(1.0 / (1.0 - worse_by))
            } else {
                ratio.chance_above(1.0 + worse_by)
            };
            asked.extend(chance.map(|chance| (format!("{name}: {}", text(ratio)), chance)));
        }
        let more = comparison.pairs.iter().filter(|pair| pair.failed.1 > pair.failed.0);
        failed.extend(more.map(|pair| format!("{}: more samples failed", pair.name)));
        let lost = |side: &str| -> HashSet<&str> {
            let own =
                comparison.alone.iter().filter(|(of, why, _)| of == side && *why != Why::NoPartner);
            own.map(|(.., name)| name.as_str()).collect()
        };
        let lost_anyhow = lost(&comparison.base);
        let lost = lost(&comparison.other);
        failed.extend(lost.difference(&lost_anyhow).map(|name| format!("{name}: no valid result")));
    }
    let chances: Vec<f64> = asked.iter().map(|(_, chance)| *chance).collect();
    let worse = asked.into_iter().zip(holm(&chances)).filter(|(_, one)| *one < 1.0 - CONFIDENCE);
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
        return Err(Failure::new(format!("judged {judged} of {points} points of the base"))
            .because("`--fail-if-worse` passes only if every point is judged")
            .hint(format!("measure the same points on both sides, {SAMPLES_MIN} times or more")));
    }
    Ok(format!("no regression of {} above {limit} %: {judged} points judged", metric.name()))
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

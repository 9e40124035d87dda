//! Assigns the lines of a digest to sides. Pure.

use std::collections::{BTreeMap, HashMap};

use super::ratio::ERROR_MIN_TOLD;
use crate::failure::{Failure, Result};
use crate::report::digest::{Axis, Digest, Line, Metric, Raw};

/// Most sides.
pub const SIDES_MAX: usize = 64;

/// The property that separates sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Each file is a side.
    File,
    /// Each value of an axis is a side; for [`Axis::Run`], each label.
    Axis(Axis),
}

/// The axes, with their names on the command line.
pub const AXES: [(&str, Axis); 15] = [
    ("label", Axis::Run),
    ("path", Axis::Path),
    ("queues", Axis::Queues),
    ("way", Axis::Way),
    ("settings", Axis::Settings),
    ("route", Axis::Demanded),
    ("gpu", Axis::Target),
    ("cache", Axis::Cache),
    ("pattern", Axis::Pattern),
    ("direction", Axis::Direction),
    ("request-size", Axis::RequestSize),
    ("depth", Axis::Depth),
    ("batch", Axis::Batch),
    ("threads", Axis::Threads),
    ("files", Axis::Files),
];

/// Parses the name of an axis.
///
/// # Errors
/// The name is unknown; the text lists the known ones.
pub fn by(text: &str) -> Result<By, String> {
    let known = AXES.into_iter().find(|(name, _)| *name == text);
    known.map(|(_, axis)| By::Axis(axis)).ok_or_else(|| {
        let names = AXES.map(|(name, _)| format!("`{name}`"));
        format!("it takes {}", names.join(", "))
    })
}

impl By {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Axis(axis) => {
                let known = AXES.into_iter().find(|(_, other)| *other == axis);
                known.map_or(axis.name(), |(name, _)| name)
            }
        }
    }
}

/// The position of a line: its value on each axis that is not compared, and its run.
pub type Key = BTreeMap<Axis, String>;

/// A side: its points, in the order of measurement.
#[derive(Debug, Clone)]
pub struct Side<'a> {
    /// Its name.
    pub name: String,
    /// Its runs, by their numbers.
    pub runs: Vec<usize>,
    /// Its points.
    pub points: Vec<Point<'a>>,
    number: Option<f64>,
    places: HashMap<Key, usize>,
}

/// A point of a side, with its lines: several if one label was measured more than once.
#[derive(Debug, Clone)]
pub struct Point<'a> {
    /// Its position.
    pub key: Key,
    /// The measurements.
    pub lines: Vec<(usize, &'a Line)>,
}

/// The sides of a digest, the base first. `base` names it. By default it is the first side, or the
/// smallest if all names are numbers.
///
/// # Errors
/// There are fewer than two or too many, none is called `base`, or a file has a point twice.
pub fn sides<'a>(
    digest: &'a Digest,
    names: &[String],
    by: By,
    base: Option<&str>,
) -> Result<Vec<Side<'a>>> {
    let mut sides: Vec<Side<'a>> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for (number, line) in digest.lines.iter().enumerate() {
        let (id, name, value) = identity(digest, names, by, line);
        let place = *known.entry(id).or_insert(sides.len());
        if place == sides.len() {
            let (runs, points, places) = (Vec::new(), Vec::new(), HashMap::new());
            sides.push(Side { name, runs, points, number: value, places });
        }
        sides[place].add(key(digest, by, line), (number, line));
    }
    if by == By::File {
        let has = |index: &usize| digest.lines.iter().any(|l| digest.runs[l.run].source == *index);
        if let Some(empty) = (0..names.len()).find(|index| !has(index)) {
            return Err(Failure::new("there is nothing to compare")
                .because(format!("`{}` holds no sample", names[empty]))
                .hint("wait until its run has measured its first point"));
        }
    }
    check(digest, by, &sides)?;
    if by != By::File && sides.iter().all(|side| side.number.is_some()) {
        sides.sort_by(|a, b| a.number.unwrap_or(0.0).total_cmp(&b.number.unwrap_or(0.0)));
    }
    if let Some(base) = base {
        let Some(place) = sides.iter().position(|side| side.name == base) else {
            let names: Vec<String> = sides.iter().map(|side| format!("`{}`", side.name)).collect();
            return Err(Failure::usage(format!("no side is called `{base}`"))
                .hint(format!("the sides are {}", names.join(", "))));
        };
        sides[..=place].rotate_right(1);
    }
    Ok(sides)
}

/// The key of a line's side, its name, and its numeric value.
fn identity(
    digest: &Digest,
    names: &[String],
    by: By,
    line: &Line,
) -> (String, String, Option<f64>) {
    let run = &digest.runs[line.run];
    match by {
        By::File => {
            let name = names.get(run.source).unwrap_or(&run.given);
            (run.source.to_string(), name.clone(), None)
        }
        By::Axis(Axis::Run) => {
            let label = run.label();
            let number = label.trim().parse().ok().filter(|number: &f64| number.is_finite());
            (label.to_owned(), label.to_owned(), number)
        }
        By::Axis(axis) => match line.marks.get(&axis) {
            Some(mark) => (mark.text.clone(), mark.text.clone(), mark.number),
            // Without a required route, the engine chooses one.
            None if axis == Axis::Demanded => ("any".into(), "any".into(), None),
            None => ("none".into(), "none".into(), None),
        },
    }
}

fn key(digest: &Digest, by: By, line: &Line) -> Key {
    let within = |axis: &Axis| *axis != Axis::Run && by != By::Axis(*axis);
    let mut key: Key = line
        .marks
        .iter()
        .filter(|(axis, _)| within(axis))
        .map(|(axis, mark)| (*axis, mark.text.clone()))
        .collect();
    // A comparison within runs is made within each of them.
    if !matches!(by, By::File | By::Axis(Axis::Run)) && digest.runs.len() > 1 {
        key.insert(Axis::Run, digest.runs[line.run].label().to_owned());
    }
    key
}

impl<'a> Side<'a> {
    fn add(&mut self, key: Key, line: (usize, &'a Line)) {
        if !self.runs.contains(&line.1.run) {
            self.runs.push(line.1.run);
        }
        if let Some(place) = self.places.get(&key) {
            self.points[*place].lines.push(line);
            return;
        }
        self.places.insert(key.clone(), self.points.len());
        self.points.push(Point { key, lines: vec![line] });
    }
}

impl Point<'_> {
    /// All samples of a quantity, or its median if no samples were kept.
    #[must_use]
    pub fn samples(&self, metric: Metric, raw: &[Vec<&Raw>]) -> Vec<f64> {
        let of_line = |(number, line): &(usize, &Line)| -> Vec<f64> {
            let kept = raw.get(*number).into_iter().flatten();
            let values = kept.filter_map(|raw| raw.values.get(metric.key()).copied());
            let values: Vec<f64> = values.collect();
            match line.metric(metric) {
                Some(estimate) if values.is_empty() => vec![estimate.median],
                _ => values,
            }
        };
        self.lines.iter().flat_map(of_line).collect()
    }

    /// Whether bytes that it moved were wrong.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.lines.iter().any(|(_, line)| line.verified == Some(false))
    }

    /// The least standard error of its medians, relative to them.
    #[must_use]
    pub fn error_min(&self) -> f64 {
        let told = self.lines.iter().any(|(_, line)| line.imported.is_some());
        if told { ERROR_MIN_TOLD } else { 0.0 }
    }

    /// Samples that failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.lines.iter().map(|(_, line)| line.failed).sum()
    }

    /// Whether a simulated GPU took part.
    #[must_use]
    pub fn simulated(&self) -> bool {
        self.lines.iter().any(|(_, line)| line.simulated)
    }
}

/// The samples of each line that count.
#[must_use]
pub fn samples_of_lines(digest: &Digest) -> Vec<Vec<&Raw>> {
    let mut raw: Vec<Vec<&Raw>> = vec![Vec::new(); digest.lines.len()];
    for sample in &digest.raw {
        if let Some(line) = raw.get_mut(sample.line) {
            line.push(sample);
        }
    }
    raw
}

fn check(digest: &Digest, by: By, sides: &[Side<'_>]) -> Result<()> {
    let count = sides.len();
    if count < 2 {
        let text = format!("there is nothing to compare by {}", by.name());
        let only = sides.first().map_or_else(
            || "no point was measured".to_owned(),
            |side| format!("all points have `{}`", side.name),
        );
        return Err(Failure::usage(text)
            .because(only)
            .hint("give two files, or choose an axis that differs within one with `--by`"));
    }
    if count > SIDES_MAX {
        return Err(Failure::usage(format!("{count} sides are too many to compare"))
            .hint(format!("give at most {SIDES_MAX}")));
    }
    if by != By::File {
        return Ok(());
    }
    for side in sides {
        let twice = side.points.iter().find(|point| {
            let mut labels = point.lines.iter().map(|(_, line)| digest.runs[line.run].label());
            let first = labels.next();
            labels.any(|label| Some(label) != first)
        });
        if twice.is_some() {
            let mut labels: Vec<&str> =
                side.runs.iter().map(|run| digest.runs[*run].label()).collect();
            labels.sort_unstable();
            labels.dedup();
            let text = format!("`{}` has the same points under several labels", side.name);
            return Err(Failure::usage(text)
                .because(format!("its labels are `{}`", labels.join("`, `")))
                .hint("`--by label` compares these"));
        }
    }
    Ok(())
}

//! `forebay diff`: compares results point by point.
//!
//! [`sides`] assigns the lines of a [digest](crate::report::digest) to sides, and [`pairs`] finds
//! the points that two of them share. [`ratio`] computes the error of a ratio of medians
//! ([`student`] is the distribution that it needs). [`facts`] lists other differences, [`notes`]
//! the warnings, and [`gate`] decides whether a side is worse than allowed. The result is a
//! [`json::Diff`], from which [`draw`], [`grid`] and [`markdown`] write output for people and
//! programs. [`quantity`] lists the compared quantities.

pub mod draw;
pub mod facts;
pub mod gate;
pub mod grid;
pub mod json;
pub mod markdown;
pub mod notes;
pub mod pairs;
pub mod quantity;
pub mod ratio;
pub mod sides;
pub mod student;

use std::io::Write as _;
use std::path::Path;

use self::json::{Diff, SCHEMA};
use self::sides::{By, Side};
use crate::args::DiffArgs;
use crate::failure::{Failure, Result};
use crate::report::digest::{Axis, Digest, Metric, gather};
use crate::report::forms::csv;
use crate::report::input::{self, Source};
use crate::report::plain::{json_lines, plain};
use crate::stdio::say;
use crate::steps::Step;

/// Most files.
const FILES_MAX: usize = 64;

/// Runs the verb.
///
/// # Errors
/// A file cannot be read, the files have no point in common, or a side is worse than allowed.
pub fn command(args: &DiffArgs) -> Result<()> {
    if args.results.len() > FILES_MAX {
        let text = format!("{} files are too many to compare", args.results.len());
        return Err(Failure::usage(text).hint(format!("give at most {FILES_MAX}")));
    }
    let by = match args.by {
        Some(by) => by,
        None if args.results.len() > 1 => By::File,
        None => {
            return Err(Failure::usage("only one file is given, without `--by`").hint(
                "give a second file, or compare within this one, by `--by label` or `--by path`",
            ));
        }
    };
    let names = names(&args.results);
    let mut sources = Vec::new();
    for (path, name) in args.results.iter().zip(&names) {
        let _step = Step::of_thread("read", path);
        let source = input::read(path)?;
        refuse_layers(path, &source)?;
        sources.push((name.clone(), source));
    }
    let digest = gather::digest(&sources);
    let metric = args.metric.map_or(Metric::Rate, |quantity| quantity.0);
    let mut diff = diff(&digest, &names, (by, args.base.as_deref()), metric)?;
    if let Some(worse_by) = args.fail_if_worse {
        diff.gate = Some(gate::judge(&diff, metric, worse_by)?);
    }
    show(args, &diff, metric)?;
    match diff.gate.as_ref().and_then(|gate| gate::failure(gate, metric)) {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Refuses files of `forebay.stream_bench`: a pass has a duration, not the rate of a point.
fn refuse_layers(path: &Path, source: &Source) -> Result<()> {
    if !matches!(source, Source::Layers(_)) {
        return Ok(());
    }
    let text = format!("cannot compare `{}`", path.display());
    Err(Failure::new(text).because("it holds passes of layers, not samples of points").hint(
        "`forebay report` shows several such files in one report; give `forebay diff` results \
             files (`forebay sweep -o FILE`, `forebay import`) or output of `bench --json`",
    ))
}

/// Names of files: without their folders and extensions if they are still unique.
fn names(paths: &[impl AsRef<Path>]) -> Vec<String> {
    let short = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let whole = |path: &Path| path.display().to_string();
    let shorts: Vec<String> = paths
        .iter()
        .map(|path| short(path.as_ref()).unwrap_or_else(|| whole(path.as_ref())))
        .collect();
    let alone = |name: &String| shorts.iter().filter(|other| *other == name).count() == 1;
    if shorts.iter().all(alone) {
        return shorts;
    }
    let mut names: Vec<String> = Vec::new();
    for path in paths {
        let (mut name, mut number) = (whole(path.as_ref()), 1);
        while names.contains(&name) {
            number += 1;
            name = format!("{} ({number})", whole(path.as_ref()));
        }
        names.push(name);
    }
    names
}

/// Compares the results. `files` are the names of the digest's files, `base` is the name of the
/// base side.
///
/// # Errors
/// There are no two sides, or they have no point in common.
pub fn diff(
    digest: &Digest,
    files: &[String],
    (by, base): (By, Option<&str>),
    metric: Metric,
) -> Result<Diff> {
    let sides = sides::sides(digest, files, by, base)?;
    let raw = sides::samples_of_lines(digest);
    let (first, others) = sides.split_first().ok_or_else(|| Failure::new("there are no sides"))?;
    let mut comparisons: Vec<_> =
        others.iter().map(|other| pairs::compare(first, other, &raw, metric)).collect();
    pairs::judge(&mut comparisons);
    let mut diff = Diff {
        schema: SCHEMA,
        by: by.name().into(),
        quantity: metric.key().into(),
        confidence: ratio::CONFIDENCE,
        sides: sides.iter().map(|side| facts_of(digest, side)).collect(),
        environment: facts::differences(digest, &sides),
        comparisons,
        warnings: Vec::new(),
        gate: None,
    };
    let has = |metric: Metric| {
        diff.comparisons.iter().any(|one| pairs::of(metric, &one.points).next().is_some())
    };
    diff.warnings = notes::of(&diff, metric);
    if !has(metric) {
        return Err(nothing_in_common(&diff, metric, has(Metric::Rate)));
    }
    diff.warnings.extend(notes::unfinished(digest, &sides));
    diff.warnings.extend(others.iter().filter_map(|other| notes::of_times(first, other, &raw)));
    Ok(diff)
}

/// The comparison for a report: each file, or else each label, compared with the first. `None` if
/// no two of them share a point.
#[must_use]
pub fn of_runs(digest: &Digest, metric: Metric) -> Option<Diff> {
    if digest.runs.len() < 2 {
        return None;
    }
    let mut files: Vec<String> = Vec::new();
    for run in &digest.runs {
        if run.source == files.len() {
            files.push(run.name.clone());
        }
    }
    let by = |by| diff(digest, &files, (by, None), metric).ok();
    by(By::File).or_else(|| by(By::Axis(Axis::Run)))
}

fn nothing_in_common(diff: &Diff, metric: Metric, has_points: bool) -> Failure {
    let failure = Failure::new("there is nothing to compare");
    if has_points {
        return failure
            .because(format!("no point has {} on both sides", metric.name()))
            .hint("choose another quantity with `--metric`");
    }
    let names: Vec<String> =
        diff.sides.iter().map(|side| format!("`{}`", plain(&side.name))).collect();
    let failure = failure.because(format!("no point is the same in {}", names.join(" and ")));
    let failure = diff.warnings.iter().take(2).fold(failure, |f, text| f.because(text.clone()));
    if !["file", "label"].contains(&diff.by.as_str()) {
        return failure.hint(
            "measure the same sizes, depths and directions on both sides, with the same `--label`; \
             runs with different labels, or imported without one, share no point",
        );
    }
    failure.hint("measure the same sizes, depths and directions on both sides")
}

fn facts_of(digest: &Digest, side: &Side<'_>) -> json::Side {
    let mut commands: Vec<String> = Vec::new();
    for run in &side.runs {
        let command = &digest.runs[*run].environment.command;
        if !commands.contains(command) {
            commands.push(command.clone());
        }
    }
    json::Side { name: side.name.clone(), commands, points: side.points.len() }
}

fn show(args: &DiffArgs, diff: &Diff, metric: Metric) -> Result<()> {
    let text = if args.json {
        json_lines(diff).map_err(|error| {
            Failure::new("cannot write a comparison as JSON").because(error.to_string())
        })?
    } else if args.csv {
        csv::text(&grid::all(diff))
    } else if args.markdown {
        markdown::text(diff, metric)
    } else {
        draw::text(diff, metric)
    };
    let mut out = anstream::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    shown.map_err(|error| Failure::stdout(&error))?;
    // The other formats include the warnings, or are for programs.
    if !(args.json || args.csv || args.markdown) {
        diff.warnings.iter().for_each(|warning| say(warning));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

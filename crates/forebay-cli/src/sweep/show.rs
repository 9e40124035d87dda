//! The output of a sweep: progress and warnings on stderr, results on stdout.

use std::collections::HashMap;
use std::io::Write as _;

use indicatif::{ProgressBar, ProgressStyle};

use super::beside;
use crate::args::SweepArgs;
use crate::failure::{Failure, Result};
use crate::log;
use crate::report::input::Source;
use crate::report::model::{Model, gather};
use crate::report::plain::{json, plain};
use crate::report::table;
use crate::report::{forms, show};
use crate::results::file::samples;
use crate::results::{Record, Sample};
use crate::stdio::say;

/// Most rows of the table.
const ROWS_MAX: usize = 200;

/// Why samples failed or had wrong data; for repeated samples the last result counts.
pub(super) fn failures(records: &[Record]) -> Vec<&str> {
    let mut last = HashMap::new();
    for (_, sample) in samples(records) {
        last.insert((&sample.point, sample.repeat), sample);
    }
    let failed = samples(records).map(|(_, sample)| sample);
    let failed = failed.filter(|sample| {
        last.get(&(&sample.point, sample.repeat)).is_some_and(|last| std::ptr::eq(*last, *sample))
    });
    failed.filter_map(failure_of).collect()
}

fn failure_of(sample: &Sample) -> Option<&str> {
    let wrong = sample.measured.as_ref().is_some_and(|m| m.verified == Some(false));
    sample.error.as_deref().or(wrong.then_some("wrong data were moved"))
}

/// Prints the results and their warnings, except those printed at the start and at the end of the
/// command.
pub(super) fn print(args: &SweepArgs, records: &[Record], failed: &[&str]) -> Result<()> {
    let model = gather::model(&[("this sweep".into(), Source::Records(records.to_vec()))]);
    let mut warnings = model.warnings.clone();
    warnings.retain(|text| {
        let is_same =
            |record: &Record| matches!(record, Record::Warning { text: told } if told == text);
        !records.iter().any(is_same) && !failed.iter().any(|why| text.contains(why))
    });
    let mut out = anstream::stdout();
    let shown = if args.json {
        records.iter().try_for_each(|record| {
            let line = json(record).map_err(std::io::Error::other)?;
            writeln!(out, "{line}")
        })
    } else {
        out.write_all(text(args, &model).as_bytes())
    };
    shown.and_then(|()| out.flush()).map_err(|error| Failure::stdout(&error))?;
    warnings.iter().for_each(|text| say(text));
    Ok(())
}

/// The report for a terminal, below the machine.
fn text(args: &SweepArgs, model: &Model) -> String {
    let Some(run) = model.runs.last() else { return String::new() };
    let path = args.paths.first().map_or_else(|| ".".into(), |path| path.display().to_string());
    let head = table::header(&run.record.environment, Some(&path), args.paths.len() > 1);
    let mut blocks = show::results(model, ROWS_MAX);
    if args.vs.is_some() {
        blocks.extend(beside::blocks(args, model));
    }
    head + &forms::terminal(&blocks, false)
}

/// Prints a line on the progress.
pub(super) fn tell(text: &str) {
    let _ = writeln!(anstream::stderr(), "{}", plain(text));
}

/// How many samples there are, and how many are done.
pub(super) fn progress(steps: u64) -> ProgressBar {
    if log::is_on() {
        return ProgressBar::hidden();
    }
    ProgressBar::new(steps).with_style(
        ProgressStyle::with_template("{bar:20} {pos}/{len} {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

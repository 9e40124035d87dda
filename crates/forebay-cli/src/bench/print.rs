//! Prints the results of a run, its warnings and its verdict.

use std::collections::HashMap;
use std::io::Write as _;

use forebay_measure::failure::{Failure, Result};
use forebay_measure::plain::json;
use forebay_measure::results::file::samples;
use forebay_measure::results::{Record, Sample};
use forebay_measure::stdio::say;

use super::table;
use crate::bench::args::BenchArgs;
use crate::report::model::Model;
use crate::report::show;

/// Warnings that are shown without `--verbose`.
const WARNINGS_MAX: usize = 3;

/// Prints the results and the warnings; failed samples and wrong data fail the command.
pub(crate) fn show(args: &BenchArgs, records: &[Record]) -> Result<()> {
    let model = table::model(records);
    let mut out = anstream::stdout();
    let shown = if args.json {
        records.iter().try_for_each(|record| {
            let line = json(record).map_err(std::io::Error::other)?;
            writeln!(out, "{line}")
        })
    } else if args.csv {
        out.write_all(show::csv(&model, &[])?.as_bytes())
    } else {
        out.write_all(table::render(&model, base(args)).as_bytes())
    };
    let shown = shown.and_then(|()| out.flush()).map_err(|error| Failure::stdout(&error));
    if !args.quiet {
        say_warnings(args, &model);
    }
    // Wrong data are reported even if stdout was closed.
    verdict(args, records).and(shown)
}

/// The path that `--vs` compares others with.
pub(super) fn base(args: &BenchArgs) -> Option<&str> {
    args.vs.as_ref().and_then(|_| args.paths.first()?.to_str())
}

fn say_warnings(args: &BenchArgs, model: &Model) {
    // Whole files are measured for some time, not for a number of samples.
    let is_complete = |text: &&String| !text.contains("is incomplete: ");
    let warnings: Vec<&String> = model.warnings.iter().filter(is_complete).collect();
    let most = if args.verbose { usize::MAX } else { WARNINGS_MAX };
    warnings.iter().take(most).for_each(|text| say(text));
    match warnings.len().saturating_sub(most) {
        0 => {}
        1 => say("1 more: `-v` shows it"),
        more => say(&format!("{more} more: `-v` shows them")),
    }
}

/// The last sample of each point and repeat: an earlier one may have failed.
fn last_samples(records: &[Record]) -> Vec<&Sample> {
    let mut last = HashMap::new();
    for (place, (_, sample)) in samples(records).enumerate() {
        last.insert((&sample.point, sample.repeat), place);
    }
    let all = samples(records).enumerate();
    let is_last = |(place, (_, sample)): &(usize, (_, &Sample))| {
        last.get(&(&sample.point, sample.repeat)) == Some(place)
    };
    all.filter(is_last).map(|(_, (_, sample))| sample).collect()
}

/// Fails if data were wrong, or if a sample failed: of whole files, only the engine's or those of
/// methods that were named.
fn verdict(args: &BenchArgs, records: &[Record]) -> Result<()> {
    let last = last_samples(records);
    let mut wrong: Vec<&str> = Vec::new();
    for sample in &last {
        let is_wrong = sample.measured.as_ref().is_some_and(|m| m.verified == Some(false));
        if is_wrong && !wrong.contains(&sample.point.method.as_str()) {
            wrong.push(&sample.point.method);
        }
    }
    if !wrong.is_empty() {
        let s = if wrong.len() == 1 { "" } else { "s" };
        let names = wrong.iter().map(|way| format!("`{way}`")).collect::<Vec<_>>().join(", ");
        return Err(Failure::new(format!("{} method{s} moved wrong data", wrong.len()))
            .because(names)
            .hint("check whether the files changed meanwhile, and the kernel's log (`dmesg`)"));
    }
    let is_asked = |sample: &&&Sample| {
        !args.method.is_empty() || !args.moves_whole_files() || sample.point.method == "forebay"
    };
    let failed: Vec<&str> =
        last.iter().filter(is_asked).filter_map(|sample| sample.error.as_deref()).collect();
    match failed.as_slice() {
        [] => Ok(()),
        [one] => Err(Failure::new("one sample failed").because(*one)),
        [first, ..] => {
            Err(Failure::new(format!("{} samples failed", failed.len())).because(*first))
        }
    }
}

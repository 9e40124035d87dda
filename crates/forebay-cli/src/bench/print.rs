//! Prints the results of a run, its warnings and its verdict.

use forebay_measure::failure::{Failure, Result};
use forebay_measure::results::Record;
use forebay_measure::stdio::print;

use crate::bench::args::BenchArgs;
use crate::map::look::Look;
use crate::report::bars;
use crate::report::command::warn;
use crate::report::model::{Line, Metric, Model, unique};
use crate::report::numbers::counted;
use crate::report::{forms, page, show};
use crate::values::Format;

/// Warnings that are shown without `--verbose`.
const WARNINGS_MAX: usize = 3;

/// Prints the results and the warnings; failed samples and wrong data fail the command.
pub(crate) fn show(args: &BenchArgs, records: &[Record]) -> Result<()> {
    let shown = print(&text(args, records)?);
    // Wrong data are reported even if stdout was closed.
    judge(args, records).and(shown)
}

/// Prints the warnings; failed samples and wrong data fail the command.
pub(super) fn judge(args: &BenchArgs, records: &[Record]) -> Result<()> {
    let model = bars::model(records);
    let verdict = verdict(args, &model);
    // What the error says is no warning as well.
    let causes = verdict.as_ref().err().map_or(&[][..], |failure| failure.causes.as_slice());
    let is_new = |text: &&String| !causes.iter().any(|cause| text.contains(cause.as_str()));
    let most = if args.verbose { usize::MAX } else { WARNINGS_MAX.max(model.grave) };
    warn(&model.warnings.iter().filter(is_new).collect::<Vec<_>>(), most);
    verdict
}

/// The results in the form that was requested.
pub(super) fn text(args: &BenchArgs, records: &[Record]) -> Result<String> {
    let model = || bars::model(records);
    match args.format.unwrap_or_default() {
        Format::Json => show::json(records),
        Format::Table => Ok(bars::render(&model(), base(args), Look::of_stdout().0)),
        Format::Csv => show::csv(&model(), &[]),
        Format::Md => {
            let model = model();
            let blocks = bars::report(&model, &[], Metric::Rate, show::FILE_ROWS_MAX);
            Ok(forms::markdown(&blocks, &model.warnings))
        }
        Format::Html => Ok(page::page(&model(), &[], Metric::Rate)),
    }
}

/// The path that `--vs` compares others with.
pub(super) fn base(args: &BenchArgs) -> Option<&str> {
    args.vs.as_ref().and_then(|_| args.paths.first()?.to_str())
}

/// Fails if data were wrong, or if a sample failed: of whole files, only the engine's or those of
/// methods that were named.
fn verdict(args: &BenchArgs, model: &Model) -> Result<()> {
    let wrong = model.lines.iter().filter(|line| line.verified == Some(false));
    let wrong = unique(wrong.map(|line| format!("`{}`", line.point.method)));
    if !wrong.is_empty() {
        return Err(Failure::new(counted(wrong.len(), "method") + " moved wrong data")
            .because(wrong.join(", "))
            .hint("check whether the files changed meanwhile, and the kernel's log (`dmesg`)"));
    }
    let is_required = |line: &&Line| {
        !args.method.is_empty() || !args.moves_whole_files() || line.point.method == "forebay"
    };
    let required = || model.lines.iter().filter(is_required);
    let Some(first) = required().find_map(|line| line.error.as_deref()) else { return Ok(()) };
    let count = required().map(|line| line.failed).sum();
    Err(Failure::new(counted(count, "sample") + " failed").because(first))
}

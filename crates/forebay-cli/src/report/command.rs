//! `forebay report`: reads results, and shows, writes or compares them.

use std::path::{Path, PathBuf};

use super::compare::{self, Comparison};
use super::foreign::Hints;
use super::model::{Metric, Model, gather, unique};
use super::numbers::counted;

use forebay_measure::failure::{Failure, Result};
use forebay_measure::stdio::{message, print, say};
use forebay_measure::steps::Step;

use super::grid::WIDTH;
use super::{bars, forms, input, output, page, show};
use crate::map::look::Look;
use crate::report::args::ReportArgs;
use crate::values::Format;

/// Warnings without `--verbose`.
const WARNINGS_MAX: usize = 5;
/// Most rows of a table in a terminal.
const ROWS_MAX: usize = 200;

/// Runs the verb.
///
/// # Errors
/// A file cannot be read or holds no results, the report cannot be written, or a side is worse than
/// allowed.
pub fn command(args: &ReportArgs) -> Result<()> {
    let file = args.output.as_deref().filter(|path| *path != Path::new("-"));
    let format = format(args, file)?;
    let names = names(&args.files);
    let hints = Hints { tool: args.tool, map: args.columns.clone() };
    let mut sources = Vec::new();
    for (path, name) in args.files.iter().zip(&names) {
        let _step = Step::of_thread("read", path);
        sources.push((name.clone(), input::read(path, &hints)?));
    }
    let mut model = gather::model(&sources);
    let json = (format == Format::Json)
        .then(|| show::json(sources.iter().flat_map(|(_, records)| records)))
        .transpose()?;
    drop(sources);
    if model.lines.is_empty() {
        return Err(Failure::new("there is nothing to report")
            .because("the results hold no sample")
            .hint("wait until the run has measured its first point"));
    }
    let metric = args.metric.unwrap_or(Metric::Rate);
    let comparisons = comparisons(&mut model, &names, args, metric)?;
    let text = match format {
        Format::Json => json.unwrap_or_default(),
        Format::Csv => show::csv(&model, &comparisons)?,
        Format::Html => page::page(&model, &comparisons, metric),
        Format::Md => {
            let blocks = bars::report(&model, &comparisons, metric, show::FILE_ROWS_MAX);
            forms::markdown(&blocks, &model.warnings)
        }
        Format::Table => {
            let blocks = bars::report(&model, &comparisons, metric, ROWS_MAX);
            let width = if file.is_some() { WIDTH } else { Look::of_stdout().0 };
            forms::terminal(&blocks, (!args.wide).then_some(width))
        }
    };
    match file {
        Some(path) => {
            output::refuse_input(path, &args.files)?;
            let text = anstream::adapter::strip_str(&text).to_string();
            output::write(path, args.overwrite, text.as_bytes())?;
            let size = forebay::units::format_size(text.len() as u64);
            message(&format!("wrote {} ({size})", path.display()));
        }
        None => print(&text)?,
    }
    if format == Format::Table {
        warn(
            &model.warnings,
            if args.verbose { usize::MAX } else { WARNINGS_MAX.max(model.grave) },
        );
    }
    let Some(worse_by) = args.fail_if_worse else { return Ok(()) };
    message(&compare::gate(&comparisons, metric, worse_by)?);
    Ok(())
}

/// Shows `most` of these warnings, and how many there are more.
pub(crate) fn warn(warnings: &[impl AsRef<str>], most: usize) {
    warnings.iter().take(most).for_each(|text| say(text.as_ref()));
    let more = warnings.len().saturating_sub(most);
    if more > 0 {
        say(&format!("{more} more: `--verbose` shows all"));
    }
}

/// The form of the report: as requested, or that of the name of the file, which must agree.
fn format(args: &ReportArgs, file: Option<&Path>) -> Result<Format> {
    let Some(path) = file else { return Ok(args.format.unwrap_or_default()) };
    let named = Format::of_name(path).map_err(|suffix| {
        Failure::usage(format!("the form of a file `.{suffix}` is unknown"))
            .hint("write to a file `.html`, `.md`, `.csv`, `.txt` or `.jsonl`")
    })?;
    match (args.format, named) {
        (Some(chosen), Some(named)) if chosen != named => {
            let text = format!("`--format` does not fit the name `{}`", path.display());
            Err(Failure::usage(text).hint("omit `--format`, or name another file with `-o`"))
        }
        (chosen, named) => Ok(chosen.or(named).unwrap_or_default()),
    }
}

/// The names of files: without folders and suffixes if they are still unique.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let short = |path: &PathBuf| match path.file_stem() {
        _ if path == Path::new("-") => "stdin".to_owned(),
        stem => stem.unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
    };
    let shorts: Vec<String> = paths.iter().map(short).collect();
    if unique(&shorts).len() == shorts.len() {
        return shorts;
    }
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// The comparisons of several files, or of the values of an axis. Files that share no point are
/// shown in one table, and a warning says so.
fn comparisons(
    model: &mut Model,
    names: &[String],
    args: &ReportArgs,
    metric: Metric,
) -> Result<Vec<Comparison>> {
    let must_compare = args.by.is_some() || args.fail_if_worse.is_some() || args.metric.is_some();
    if args.by.is_none() && (names.len() < 2 || model.lines.is_empty()) {
        return match must_compare {
            true => Err(Failure::usage("there is nothing to compare with")
                .hint("give a second file, or compare within one by `--by`")),
            false => Ok(Vec::new()),
        };
    }
    let found = compare::compare(model, names, args.by, args.base.as_deref()).and_then(|found| {
        if found.iter().any(|one| one.of(metric).next().is_some()) {
            return Ok(found);
        }
        let text = match found.iter().map(|one| one.pairs.len()).sum() {
            0 => "no point is the same on both sides".to_owned(),
            count => format!("{} without {} on both sides", counted(count, "point"), metric.name()),
        };
        let notes = found.iter().flat_map(|one| one.notes(metric)).take(2);
        let failure = notes.fold(Failure::new(text), Failure::because);
        Err(failure.hint("measure the same block sizes, depths and directions"))
    });
    match found {
        Err(failure) if !must_compare => {
            model.warnings.push(format!("not compared: {}", failure.message));
            Ok(Vec::new())
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::report::made::{self, Sweep};

    fn args(results: &Path, output: Option<PathBuf>) -> ReportArgs {
        ReportArgs { files: vec![results.to_owned()], output, ..ReportArgs::default() }
    }

    #[test]
    fn a_report_is_written_once_and_replaced_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("results");
        fs::write(&results, made::file(&Sweep::default())).unwrap();
        let page = folder.path().join("report.html");
        let mut options = args(&results, Some(page.clone()));
        command(&options).unwrap();
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>"));
        let failure = command(&options).unwrap_err();
        assert!(failure.hint.unwrap().contains("--overwrite"));
        options.overwrite = true;
        command(&options).unwrap();
        options.format = Some(Format::Csv);
        assert!(command(&options).unwrap_err().message.contains("does not fit the name"));
        options.format = None;
        options.output = Some(results.clone());
        assert!(command(&options).unwrap_err().causes[0].contains("made from"));
        options.output = Some(folder.path().to_owned());
        assert!(command(&options).unwrap_err().hint.unwrap().contains("regular file"));
        options.output = Some(folder.path().join("none/report.html"));
        assert!(command(&options).unwrap_err().message.contains("none/report.html"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        command(&args(&results, Some("/dev/null".into()))).unwrap();
    }

    #[test]
    fn a_file_without_measurements_is_no_report() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("results");
        fs::write(&results, made::text(&[made::run(&Sweep::default())])).unwrap();
        let is_refused = || {
            let failure = command(&args(&results, None)).unwrap_err();
            assert!(failure.causes[0].contains("no sample"), "{failure:?}");
        };
        is_refused();
        let records = [made::run(&Sweep::default()), made::limit("storage", "/data", 1e9)];
        fs::write(&results, made::text(&records)).unwrap();
        is_refused();
    }

    #[test]
    fn the_suffix_decides_the_form() {
        let of = |name: &str| format(&ReportArgs::default(), Some(Path::new(name))).ok();
        let formats = ["a.html", "a.CSV", "a.md", "a.txt", "a.jsonl"].map(of);
        let expected = [Format::Html, Format::Csv, Format::Md, Format::Table, Format::Json];
        assert_eq!(formats, expected.map(Some));
        assert_eq!([of("a.pdf"), of("a")], [None, Some(Format::Table)]);
        let csv = ReportArgs { format: Some(Format::Csv), ..ReportArgs::default() };
        assert_eq!(format(&csv, Some(Path::new("a"))).unwrap(), Format::Csv);
        assert!(format(&csv, Some(Path::new("a.md"))).is_err());
    }

    #[test]
    fn files_are_named_without_folders_where_that_is_unique() {
        let of = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["a/b/c.jsonl", "d.json", "-"]), ["c", "d", "stdin"]);
        assert_eq!(of(&["a/c.json", "b/c.json"]), ["a/c.json", "b/c.json"]);
    }
}

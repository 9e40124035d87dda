//! `forebay report`: reads results, and shows or writes them.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::access::Old;
use super::digest::{Digest, gather};
use super::forms::{csv, markdown, prometheus, terminal};
use super::grid::{Grid, full, layers};
use super::layers::Layers;
use super::{html, input};
use crate::args::ReportArgs;
use crate::bench::memory::close;
use crate::bench::scratch::random;
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::output;
use crate::stdio::say;
use crate::steps::Step;

/// Most files of one report.
const FILES_MAX: usize = 64;

/// The name of each file that `python -m forebay.stream_bench --out` writes, without its ending.
const STREAMED: &str = "stream_bench";

/// Runs the verb.
///
/// # Errors
/// A file cannot be read or holds no results, or the report cannot be written.
pub fn command(args: &ReportArgs) -> Result<()> {
    if args.results.len() > FILES_MAX {
        let text = format!("{} files are too many for a report", args.results.len());
        return Err(Failure::usage(text).hint(format!("give at most {FILES_MAX}")));
    }
    let mut sources = Vec::new();
    for path in &args.results {
        let _step = Step::of_thread("read", path);
        sources.push((name_of(path), input::read(path)?));
    }
    let digest = gather::digest(&sources);
    refuse_nothing(&digest)?;
    if args.csv {
        refuse_two_tables(&digest)?;
    }
    let text = form(args, &digest);
    match &args.output {
        Some(path) => {
            refuse_input(path, &args.results)?;
            write(path, args.overwrite, text.as_bytes(), File::sync_all)
        }
        None => {
            let mut out = anstream::stdout();
            let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            shown.map_err(|error| Failure::stdout(&error))?;
            // The other formats include them, or are for programs.
            if !(args.markdown || args.csv || args.prometheus) {
                digest.warnings.iter().for_each(|warning| say(warning));
            }
            Ok(())
        }
    }
}

/// The name of a file's runs that have no label.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    // All output of `forebay.stream_bench` has this name; its folder was named by the user.
    let folder = path.parent().and_then(Path::file_name).filter(|_| stem == STREAMED);
    folder.unwrap_or(stem).to_string_lossy().into_owned()
}

fn refuse_nothing(digest: &Digest) -> Result<()> {
    let holds = |layers: &Layers| !layers.points.is_empty() || layers.failed.is_some();
    let says = digest.layers.iter().any(holds);
    if digest.lines.is_empty() && digest.ceilings.is_empty() && !says {
        return Err(Failure::new("there is nothing to report")
            .because("the results hold no sample, no limit and no pass")
            .hint("wait until the run has measured its first point"));
    }
    Ok(())
}

/// Refuses results together with layers: a table has one kind of rows.
fn refuse_two_tables(digest: &Digest) -> Result<()> {
    if digest.runs.is_empty() || digest.layers.is_empty() {
        return Ok(());
    }
    Err(Failure::usage("cannot write results and layers into one table")
        .because("results and layers behind compute have different columns")
        .hint("give files of one kind with `--csv`, or leave it out"))
}

fn form(args: &ReportArgs, digest: &Digest) -> String {
    match (args.markdown, args.csv, args.prometheus, &args.output) {
        (true, ..) => markdown::text(digest),
        (_, true, ..) => csv::text(&table(digest)),
        (_, _, true, _) => prometheus::text(digest),
        (.., None) => terminal::text(digest),
        (.., Some(_)) => html::page(digest),
    }
}

/// The table with every number, for `--csv`.
fn table(digest: &Digest) -> Grid {
    if digest.runs.is_empty() { layers::full(&digest.layers) } else { full::results(digest) }
}

/// A report must not overwrite its own input.
fn refuse_input(output: &Path, inputs: &[PathBuf]) -> Result<()> {
    let identity = |path: &Path| fs::metadata(path).map(|facts| (facts.dev(), facts.ino())).ok();
    let Some(there) = identity(output) else { return Ok(()) };
    if inputs.iter().any(|input| identity(input) == Some(there)) {
        let text = format!("cannot write the report to `{}`", output.display());
        return Err(Failure::usage(text)
            .because("it holds the results that the report is made from")
            .hint("name a new file with `-o`"));
    }
    Ok(())
}

/// Writes a whole file, or none. A replaced file stays as private as it was.
fn write(
    path: &Path,
    overwrite: bool,
    bytes: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> Result<()> {
    let _step = Step::of_thread("write", path);
    let failed = |error: &io::Error| {
        Failure::io(format!("cannot write the report to `{}`", path.display()), error)
    };
    let old = Old::find(path).map_err(|error| failed(&error))?;
    if let Some(old) = &old {
        if !overwrite {
            return Err(failed(&io::Error::from_raw_os_error(libc::EEXIST))
                .hint("name a new file, or give `--overwrite`"));
        }
        if !old.facts.is_file() {
            return Err(failed(&io::ErrorKind::InvalidInput.into())
                .because("only a regular file is replaced")
                .hint("name another file with `-o`"));
        }
    }
    // A concurrent reader gets the old report or the new one, complete.
    let new = if overwrite { new_name(path) } else { Ok(path.to_owned()) };
    let new = new.map_err(|error| failed(&error))?;
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let mut file = output::create(&new, mode).map_err(|error| failed(&error))?;
    let put = || {
        file.write_all(bytes)?;
        if let Some(old) = &old {
            old.give(&file)?;
        }
        // A network file system, or one that allocates late, reports a full disk only here.
        sync(&file)?;
        // Some file systems report a failed write only when a descriptor is closed.
        file.try_clone().and_then(close)?;
        if overwrite { fs::rename(&new, path) } else { Ok(()) }
    };
    let done = put();
    cleanup::end(&new, done.is_ok());
    done.map_err(|error| failed(&error))
}

/// A name in the folder of `path` that cannot be guessed.
fn new_name(path: &Path) -> io::Result<PathBuf> {
    Ok(path.with_file_name(format!(".forebay-report-{:016x}.new", random()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made::{self, Sweep};

    fn args(results: &Path, output: Option<PathBuf>) -> ReportArgs {
        let (markdown, csv, prometheus, overwrite) = (false, false, false, false);
        let results = vec![results.to_owned()];
        ReportArgs { results, output, overwrite, markdown, csv, prometheus }
    }

    #[test]
    fn a_report_is_written_once_and_replaced_only_when_told() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("results");
        fs::write(&results, made::file(&Sweep::default())).unwrap();
        let page = folder.path().join("report.html");
        let mut asked = args(&results, Some(page.clone()));
        command(&asked).unwrap();
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\n"));
        let failure = command(&asked).unwrap_err();
        assert!(failure.hint.unwrap().contains("--overwrite"));
        (asked.overwrite, asked.csv) = (true, true);
        command(&asked).unwrap();
        assert!(fs::read_to_string(&page).unwrap().starts_with("run,"));
        asked.output = Some(results.clone());
        assert!(command(&asked).unwrap_err().causes[0].contains("made from"));
        asked.output = Some(folder.path().to_owned());
        assert!(command(&asked).unwrap_err().causes.concat().contains("regular file"));
        asked.output = Some(folder.path().join("none/report.html"));
        assert!(command(&asked).unwrap_err().message.contains("none/report.html"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_does_not_come_to_the_disk_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("report.html");
        fs::write(&page, "before").unwrap();
        let full = |_: &File| Err(io::Error::from_raw_os_error(libc::ENOSPC));
        for overwrite in [true, false] {
            let failure = write(&page, overwrite, b"after", full).unwrap_err();
            assert!(failure.message.contains("report.html"), "{failure:?}");
            let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
            assert_eq!(left.len(), usize::from(overwrite), "{left:?}");
            if overwrite {
                assert_eq!(fs::read_to_string(&page).unwrap(), "before");
                fs::remove_file(&page).unwrap();
            }
        }
    }

    #[test]
    fn nothing_is_no_report() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("results");
        fs::write(&results, made::text(&[made::run(&Sweep::default())])).unwrap();
        let failure = command(&args(&results, None)).unwrap_err();
        assert!(failure.causes[0].contains("no sample"), "{failure:?}");
        let mut many = args(&results, None);
        many.results = vec![results; FILES_MAX + 1];
        assert!(command(&many).unwrap_err().usage);
    }

    #[test]
    fn layers_are_named_after_their_folders() {
        let names = ["a/b/c.jsonl", "a/b/stream_bench.json", "stream_bench.json", ".."];
        let names = names.map(|path| name_of(Path::new(path)));
        assert_eq!(names, ["c", "b", "stream_bench", ".."]);
    }
}

//! The results file of a run, and the results already there.

use std::path::Path;

use forebay_measure::failure::{Failure, Result};
use forebay_measure::results::Record;
use forebay_measure::results::file::Ledger;
use serde_json::Value;

/// Checks the name of the results file, which holds JSON.
///
/// # Errors
/// Its name is that of a CSV file.
pub(super) fn check_name(path: Option<&Path>) -> Result<()> {
    let is_csv = |path: &&Path| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"));
    path.filter(is_csv).map_or(Ok(()), |path| {
        let (path, jsonl) = (path.display(), path.with_extension("jsonl"));
        let jsonl = jsonl.display();
        Err(Failure::usage(format!("`-o {path}` would hold JSON, one record per line")).hint(
            format!("use `--csv >{path}`; or `-o {jsonl}`, and `forebay report {jsonl} -o {path}`"),
        ))
    })
}

/// Opens the results file, and returns the existing results of the run that `asked` describes.
///
/// # Errors
/// The file holds something else; or system errors.
pub(super) fn open(path: &Path, asked: &Value) -> Result<(Ledger, Vec<Record>)> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok((Ledger::create(path)?, Vec::new()));
    }
    let (ledger, records) = Ledger::reopen(path)?;
    let found = records.iter().find_map(|record| match record {
        Record::Run(run) if run.verb == "bench" => Some(&*run.asked),
        _ => None,
    });
    if found != Some(asked) {
        return Err(Failure::usage(format!("`{}` exists already", path.display()))
            .because("it holds the results of something else")
            .hint("name another file with `-o`"));
    }
    Ok((ledger, records))
}

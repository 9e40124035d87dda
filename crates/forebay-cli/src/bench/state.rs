//! The results file of a run, and the results already there.

use std::path::Path;

use forebay_measure::failure::{Failure, Result};
use forebay_measure::results::Record;
use forebay_measure::results::file::Ledger;
use serde_json::Value;

/// Checks the name of the results file, which holds JSON.
///
/// # Errors
/// Its name is that of a file with something else.
pub(super) fn check_name(path: Option<&Path>) -> Result<()> {
    const OTHERS: [&str; 6] = ["csv", "html", "htm", "md", "markdown", "txt"];
    let Some(path) = path else { return Ok(()) };
    let end = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if !OTHERS.contains(&end.as_str()) {
        return Ok(());
    }
    let (path, jsonl) = (path.display(), path.with_extension("jsonl"));
    let jsonl = jsonl.display();
    Err(Failure::usage(format!("`-o {path}` would hold JSON, one record per line"))
        .hint(format!("use `-o {jsonl}`, and `forebay report {jsonl} -o {path}`")))
}

/// Opens the results file, and returns the existing results of the run with this `request`.
///
/// # Errors
/// The file holds something else; or system errors.
pub(super) fn open(path: &Path, request: &Value) -> Result<(Ledger, Vec<Record>)> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok((Ledger::create(path)?, Vec::new()));
    }
    let (ledger, records) = Ledger::reopen(path)?;
    let found = records.iter().find_map(|record| match record {
        Record::Run(run) if run.verb == "bench" => Some(&*run.request),
        _ => None,
    });
    if found != Some(request) {
        return Err(Failure::usage(format!("`{}` exists already", path.display()))
            .because("it holds the results of something else")
            .hint("name another file with `-o`"));
    }
    Ok((ledger, records))
}

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

/// Opens the results file, and returns the existing results of a run with this request, and the
/// recorded request, whose points were not compared.
///
/// # Errors
/// The file holds something else; or system errors.
pub(super) fn open(path: &Path, given: &Value) -> Result<(Ledger, Vec<Record>, Option<Value>)> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok((Ledger::create(path)?, Vec::new(), None));
    }
    let (ledger, records) = Ledger::reopen(path)?;
    let recorded = records.iter().find_map(|record| match record {
        Record::Run(run) if run.verb == "bench" => Some(Value::clone(&run.request)),
        _ => None,
    });
    let recorded = recorded.unwrap_or_default();
    check(path, &recorded, given)?;
    Ok((ledger, records, Some(recorded)))
}

/// Checks that the recorded request of a file has these values.
///
/// # Errors
/// One differs.
pub(super) fn check(path: &Path, recorded: &Value, own: &Value) -> Result<()> {
    let own = own.as_object().into_iter().flatten();
    let differs = own.filter(|(key, value)| recorded.get(key) != Some(value));
    let names: Vec<String> = differs.map(|(key, _)| format!("`{key}`")).collect();
    if names.is_empty() {
        return Ok(());
    }
    let verb = if names.len() == 1 { "differs" } else { "differ" };
    let why = format!("it holds the results of something else: {} {verb}", names.join(", "));
    Err(Failure::usage(format!("`{}` exists already", path.display()))
        .because(why)
        .hint("name another file with `-o`"))
}

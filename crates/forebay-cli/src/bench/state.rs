//! The results file of a run, and the results already there.

use std::path::Path;
use std::sync::Arc;

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

/// The results file of a run.
pub(super) struct Opened {
    /// `None` of ranks other than 0.
    pub(super) ledger: Option<Ledger>,
    /// What the file holds already.
    pub(super) records: Vec<Record>,
    /// The request of these records.
    pub(super) request: Option<Arc<Value>>,
}

impl Opened {
    pub(super) fn with(ledger: Option<Ledger>, records: Vec<Record>) -> Self {
        let request = records.iter().find_map(|record| match record {
            Record::Run(run) if run.verb == "bench" => Some(Arc::clone(&run.request)),
            _ => None,
        });
        Self { ledger, records, request }
    }
}

/// Opens or makes a results file.
///
/// # Errors
/// The file holds something else; or system errors.
pub(super) fn open(path: &Path) -> Result<Opened> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(Opened::with(Some(Ledger::create(path)?), Vec::new()));
    }
    let (ledger, records) = Ledger::reopen(path)?;
    let opened = Opened::with(Some(ledger), records);
    Ok(Opened { request: Some(opened.request.unwrap_or_default()), ..opened })
}

/// Checks that the recorded request of a file is this one.
///
/// # Errors
/// They differ.
pub(super) fn check(path: &Path, recorded: &Value, own: &Value) -> Result<()> {
    let own = own.as_object().into_iter().flatten();
    let differs = own.filter(|(key, value)| recorded.get(key).unwrap_or(&Value::Null) != *value);
    let names: Vec<String> = differs.map(|(key, _)| format!("`{key}`")).collect();
    if names.is_empty() {
        return Ok(());
    }
    let why = format!("it holds the results of something else: other {}", names.join(", "));
    Err(Failure::usage(format!("`{}` exists already", path.display()))
        .because(why)
        .hint("name another file with `-o`"))
}

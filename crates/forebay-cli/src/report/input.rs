//! Reads the inputs of a report: results files, and the JSON printed by `forebay bench --json` and
//! written by `python -m forebay.stream_bench --out`.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use forebay::units::{KIB, MIB, format_size};
use serde_json::Value;

use super::json::{Report, SCHEMA};
use super::layers::Layers;
use super::layers::read as layers;
use crate::failure::{Failure, Result};
use crate::json_memory;
use crate::results::{Record, file};

/// Most bytes of a report as JSON: with the evidence of many drives it has some MiB.
const JSON_MAX: u64 = 256 * MIB;
/// Length of the start of a file from which its kind is detected.
const START: u64 = 64 * KIB;

/// The contents of a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// The records of a results file.
    Records(Vec<Record>),
    /// A verb's output as one object.
    Table(Box<Report>),
    /// The measurements of layers behind compute.
    Layers(Box<Layers>),
}

/// Reads a file of any kind.
///
/// # Errors
/// It is of no known kind, of another version, or too large; or system errors.
pub fn read(path: &Path) -> Result<Source> {
    let text = format!("cannot read the results in `{}`", path.display());
    let failed = |error| Failure::io(&text, &error);
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut opened = opened.map_err(failed)?;
    let facts = opened.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err(Failure::new(text).because("it is not a regular file").hint(MADE_BY));
    }
    let mut bytes = Vec::new();
    (&mut opened).take(START).read_to_end(&mut bytes).map_err(failed)?;
    if !begins_object(&bytes) {
        return file::read(path).map(Source::Records);
    }
    if facts.len() > JSON_MAX {
        let (len, most) = (format_size(facts.len()), format_size(JSON_MAX));
        let why = format!("it has {len}, and a report has at most {most}");
        return Err(Failure::new(text).because(why).hint(MADE_BY));
    }
    opened.take(JSON_MAX).read_to_end(&mut bytes).map_err(failed)?;
    object(crate::without_mark(&bytes)).map_err(|why| Failure::new(text).because(why).hint(MADE_BY))
}

const MADE_BY: &str = "give results files (`forebay sweep -o FILE`, `forebay import`), output of \
                       `forebay bench --json`, or files of `python -m forebay.stream_bench \
                       --out FOLDER`";

/// Whether a file is one JSON object, not a list of records.
fn begins_object(bytes: &[u8]) -> bool {
    let bytes = crate::without_mark(bytes);
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_record = || String::from_utf8_lossy(line).contains("\"record\"");
    bytes.trim_ascii_start().first() == Some(&b'{') && !is_record()
}

/// The contents of one object, or why no report can be made of it.
fn object(bytes: &[u8]) -> Result<Source, String> {
    if layers::is_layers(bytes)? {
        return Ok(Source::Layers(Box::new(layers::layers(bytes)?)));
    }
    table(bytes)
}

/// The printed report, or why it is none.
fn table(bytes: &[u8]) -> Result<Source, String> {
    json_memory::check(bytes, 0)?;
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let schema = value.get("schema").and_then(Value::as_u64);
    if value.get("results").is_none() {
        return Err("it holds JSON without `results`".into());
    }
    match schema {
        Some(schema) if schema == u64::from(SCHEMA) => {
            let report: Report = serde_json::from_value(value).map_err(|why| why.to_string())?;
            Ok(Source::Table(Box::new(report)))
        }
        Some(schema) => Err(format!("it has version {schema}, and this program reads {SCHEMA}")),
        None => Err("it has no version (`schema`)".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::tests::report;
    use crate::report::layers::tests::MAPPED;
    use crate::report::made;

    fn read_text(text: &str) -> Result<Source> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn the_kinds_are_told_apart() {
        let records = read_text(&made::file(&made::Sweep::default())).unwrap();
        assert!(matches!(records, Source::Records(records) if records.len() == 49));
        let mut report = report();
        let text = report.to_text().unwrap();
        report.results.iter_mut().for_each(|row| row.size = 0);
        assert_eq!(read_text(&text).unwrap(), Source::Table(Box::new(report)));
        let layers = read_text(MAPPED).unwrap();
        assert!(matches!(layers, Source::Layers(layers) if layers.points.len() == 3));
        // On one line as well.
        let value: Value = serde_json::from_str(MAPPED).unwrap();
        assert!(matches!(read_text(&value.to_string()).unwrap(), Source::Layers(_)));
    }

    #[test]
    fn what_is_none_is_refused_with_what_makes_one() {
        let why = |text: &str| {
            let failure = read_text(text).unwrap_err();
            assert!(failure.hint.is_some(), "{failure:?}");
            failure.causes.concat()
        };
        assert!(why("{}").contains("without `results`"));
        assert!(why(r#"{"results": []}"#).contains("no version"));
        assert!(why(r#"{"results": [], "schema": 9}"#).contains("version 9"));
        assert!(why(r#"{"results": [], "schema": 1}"#).contains("environment"));
        assert!(why(r#"{"layers_schema": 7}"#).contains("version 7"));
        assert!(why(&MAPPED.replace("\"pass_s\": 0", "\"pass_s\": -0")).contains("`pass_s`"));
        assert!(why("").contains("empty"));
        assert!(why("{\n").contains("EOF"));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap_err().causes, ["it is not a regular file"]);
        assert!(read(&folder.path().join("none")).unwrap_err().message.contains("none"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_end_the_command(bytes: Vec<u8>) {
            let _ = (begins_object(&bytes), table(&bytes), object(&bytes));
        }
    }
}

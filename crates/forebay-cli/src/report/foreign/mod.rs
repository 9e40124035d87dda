//! Other tools' results, as records of our results file.
//!
//! One module for each tool parses a text into points (`found`). Here they become a run and its
//! samples, which carry no verdict: no claim of a file counts as proven, and unknown values stay
//! null. `kind` finds the tool by the contents, `said` holds the values that the user adds, `near`
//! finds the name that was probably meant.

mod csv;
mod fio;
mod found;
mod gdsio;
mod near;
mod nixlbench;
mod said;

use std::path::Path;

use clap::ValueEnum;
use serde_json::json;

pub use self::csv::map::Map;
use self::found::{Contents, Repeats, short};
pub(crate) use self::near::near;
use self::said::Said;
use crate::bench::environment;
use crate::failure::{Failure, Result};
use crate::results::{Imported, Record, Run, SCHEMA, Sample};

/// Most bytes of a text that are searched for the marks of a tool.
const LOOK_MAX: usize = 1 << 20;

/// A tool whose results are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    /// Result lines of NVIDIA's gdsio, also within a log
    Gdsio,
    /// fio's `--output-format=json` or `json+`
    Fio,
    /// Table of NIXL's nixlbench
    Nixlbench,
    /// elbencho's `--csvfile`
    Elbencho,
    /// Any table with a heading
    Csv,
}

impl Tool {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gdsio => "gdsio",
            Self::Fio => "fio",
            Self::Nixlbench => "nixlbench",
            Self::Elbencho => "elbencho",
            Self::Csv => "csv",
        }
    }
}

/// What the user says about files of other tools.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// The tool that wrote the files.
    pub tool: Option<Tool>,
    /// The meaning of the columns of a table, and values that the files lack.
    pub map: Option<Map>,
}

/// The tool that wrote a text, if it has the marks of one.
fn kind(text: &str) -> Option<Tool> {
    let mut end = text.len().min(LOOK_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text[..end];
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if text.contains("\"fio version\"") {
        return Some(Tool::Fio);
    }
    if text.lines().any(|line| gdsio::begin_of(line).is_some()) {
        return Some(Tool::Gdsio);
    }
    let is_table = |line: &str| nixlbench::MARKS.iter().all(|mark| line.contains(mark));
    if text.contains("NIXLBench Configuration") || text.lines().any(is_table) {
        return Some(Tool::Nixlbench);
    }
    if ["operation", "MiB/s [last]"].iter().all(|mark| first.contains(mark)) {
        return Some(Tool::Elbencho);
    }
    let is_parted = |mark: char| first.contains(mark);
    let table = [',', ';', '\t'].into_iter().any(is_parted) && !first.starts_with(['{', '[']);
    table.then_some(Tool::Csv)
}

/// The records of a file that another tool wrote.
///
/// # Errors
/// Its tool is unknown, it has no result, or a hint contradicts it.
pub fn records(path: &Path, bytes: &[u8], hints: &Hints) -> Result<Vec<Record>> {
    let text = text_of(bytes);
    let map = hints.map.clone().unwrap_or_default();
    let failed = |why: String| {
        Failure::new(format!("cannot read the results in `{}`", path.display())).because(why)
    };
    let Some(tool) = hints.tool.or_else(|| kind(&text)) else {
        return Err(failed("its kind is unknown".into()).hint(
            "results of forebay, gdsio, fio (JSON), nixlbench, elbencho (CSV) and any CSV are \
             recognized; name another tool with `--as`",
        ));
    };
    let name = tool.name();
    let is_table = matches!(tool, Tool::Csv | Tool::Elbencho);
    if !is_table && map.has_columns() {
        let text = format!("cannot read the results in `{}`", path.display());
        return Err(Failure::usage(text)
            .because(format!("`--map` names columns, but {name} has its own"))
            .hint("for other values than columns write `--map NAME:=VALUE`"));
    }
    let reads = map.values.iter().find_map(Said::read_percent);
    let method = map.values.iter().find_map(Said::method).unwrap_or(name);
    let parsed = match tool {
        Tool::Gdsio => gdsio::parse(&text),
        Tool::Fio => fio::parse(&text),
        Tool::Nixlbench => nixlbench::parse(&text, reads),
        Tool::Elbencho | Tool::Csv => csv::parse(&text, &map, method),
    };
    let hint = match tool {
        Tool::Gdsio => "its result lines begin with `IoType:`",
        Tool::Fio => {
            "fio writes JSON with `--output-format=json`, after all of its jobs have ended"
        }
        Tool::Nixlbench => {
            "its table begins with `Block Size (B)`; if the options above it are missing, add \
             `--map direction:=read`"
        }
        Tool::Elbencho | Tool::Csv => {
            "name the columns, as in `--map 'throughput=BW:MiB/s,size=Block,direction:=read'`"
        }
    };
    let mut contents = parsed.map_err(|why| failed(why).hint(hint))?;
    contents.part();
    if contents.found.is_empty() {
        let mut why = vec![format!("it holds no result of {name}")];
        why.extend(contents.most_reasons());
        return Err(failed(why.join("; ")).hint(hint));
    }
    for found in &mut contents.found {
        for said in &map.values {
            said.add_to(&mut found.point).map_err(|why| {
                let why = format!("line {}: {why}", found.line);
                let text = format!("`--map` contradicts `{}`", path.display());
                Failure::usage(text).because(why).hint("leave that value out of `--map`")
            })?;
        }
    }
    contents.end();
    Ok(as_records(tool, path, contents))
}

/// The text of a file in the encoding of its byte order mark. It may be a log with any contents.
fn text_of(bytes: &[u8]) -> String {
    let utf_16 = |decode: fn([u8; 2]) -> u16| -> String {
        let units: Vec<u16> =
            bytes[2..].chunks_exact(2).map(|two| decode([two[0], two[1]])).collect();
        String::from_utf16_lossy(&units)
    };
    match bytes {
        [0xff, 0xfe, ..] => utf_16(u16::from_le_bytes),
        [0xfe, 0xff, ..] => utf_16(u16::from_be_bytes),
        _ => String::from_utf8_lossy(crate::without_mark(bytes)).into_owned(),
    }
}

fn as_records(tool: Tool, path: &Path, contents: Contents) -> Vec<Record> {
    let (tool, version) = (tool.name().to_owned(), contents.version);
    let mut records = vec![Record::Run(Box::new(Run {
        schema: SCHEMA,
        verb: tool.clone(),
        label: None,
        environment: environment::unknown("", contents.unix_time.unwrap_or_default()),
        gpus: Vec::new(),
        unmetered: Vec::new(),
        asked: json!({}).into(),
        imported: Some(Imported { tool, version }),
    }))];
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let warning = |text| Record::Warning { text: format!("{}: {text}", short(&name)) };
    records.extend(contents.warnings.into_iter().map(warning));
    let mut repeats = Repeats::default();
    records.extend(contents.found.into_iter().map(|found| {
        let repeat = repeats.next(&found.point);
        let (measured, error) = match found.measured {
            Ok(measured) => (Some(measured), None),
            Err(error) => (None, Some(error)),
        };
        Record::Sample(Box::new(Sample {
            point: found.point,
            repeat,
            unix_time: found.unix_time,
            queues_found: None,
            measured,
            error,
        }))
    }));
    records
}

#[cfg(test)]
mod tests;

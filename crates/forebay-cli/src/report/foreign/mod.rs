//! Other tools' results, as records of our results file.
//!
//! A module per tool parses a text into rows (`row`), by the names of `--columns` (`map`).
//! They become samples without a verdict: no claim of a file counts as proven, and unknown values
//! stay null. `kind` finds the tool by the contents, `near` the name that was probably meant.

mod fio;
mod gdsio;
mod map;
mod nixlbench;
mod row;
mod table;
mod units;

use std::path::Path;

use clap::ValueEnum;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::results::Record;

pub use self::map::Map;
use self::row::Contents;

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
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
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

/// The tool that wrote a text, by its marks.
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
    let has =
        |marks: [&str; 2]| text.lines().any(|line| marks.iter().all(|mark| line.contains(mark)));
    if has(gdsio::MARKS) {
        return Some(Tool::Gdsio);
    }
    if text.contains("NIXLBench Configuration") || has(nixlbench::MARKS) {
        return Some(Tool::Nixlbench);
    }
    if ["operation", "MiB/s [last]"].iter().all(|mark| first.contains(mark)) {
        return Some(Tool::Elbencho);
    }
    // A title may be above a table.
    let is_parted = |line: &str| [',', ';', '\t'].into_iter().any(|mark| line.contains(mark));
    let is_text = !first.starts_with(['{', '[', '<']) && !text.contains('\0');
    let table = is_text && text.lines().take(50).any(is_parted);
    table.then_some(Tool::Csv)
}

/// The tool and the reason, for a text of a tool in a form that is not read.
fn unread(text: &str) -> Option<(&'static str, &'static str)> {
    let mut lines = text.lines().take(200);
    let is_terse = |line: &str| {
        let mut fields = line.split(';');
        fields.next().is_some_and(|version| version.parse::<u8>().is_ok())
            && fields.next().is_some_and(|fio| fio.starts_with("fio-"))
    };
    if lines.any(|line| is_terse(line) || line.contains(": (g=") && line.contains("): rw=")) {
        return Some(("it is fio's text", "run fio with `--output-format=json`"));
    }
    let is_elbencho = text.starts_with("OPERATION") && text.contains("RESULT TYPE");
    is_elbencho.then_some(("it is elbencho's text", "run elbencho with `--csvfile FILE`"))
}

/// The records of a file of a foreign tool.
///
/// # Errors
/// Its tool is unknown, it holds no result, or a hint contradicts it.
pub fn records(path: &Path, bytes: &[u8], hints: &Hints) -> Result<Vec<Record>> {
    let text = text_of(bytes);
    let message = format!("cannot read the results in `{}`", path.display());
    let is_json = text.contains("\"fio version\"");
    if let Some((what, hint)) = unread(&text).filter(|_| !is_json && hints.tool != Some(Tool::Csv))
    {
        return Err(Failure::new(message).because(what).hint(hint));
    }
    let Some(tool) = hints.tool.or_else(|| kind(&text)) else {
        return Err(Failure::new(message).because("its kind is unknown").hint(
            "results of forebay, gdsio, fio (JSON), nixlbench, elbencho (CSV) and any CSV are \
             recognized; name another tool with `--as`",
        ));
    };
    let is_table = matches!(tool, Tool::Csv | Tool::Elbencho);
    let map = hints.map.clone().unwrap_or_default();
    if !is_table && !map.columns.is_empty() {
        return Err(Failure::usage(message)
            .because(format!("`--columns` names columns, but {} has its own", tool.name()))
            .hint("for other values than columns write `--columns NAME:=VALUE`"));
    }
    let mut contents = Contents::new(&tool.name(), &map.values);
    let (parsed, hint) = match tool {
        Tool::Gdsio => {
            (gdsio::parse(&text, &mut contents), "its result lines begin with `IoType:`")
        }
        Tool::Fio => (
            fio::parse(&text, &mut contents),
            "fio writes JSON with `--output-format=json`, after all of its jobs have ended",
        ),
        Tool::Nixlbench => {
            (nixlbench::parse(&text, &mut contents), "its table begins with `Block Size (B)`")
        }
        Tool::Elbencho | Tool::Csv => (
            table::parse(&text, &map, &mut contents),
            "name the columns, as in `--columns 'throughput=BW:MiB/s,block-size=Block'`",
        ),
    };
    match parsed {
        Ok(()) if contents.found.is_empty() => Err(contents.reasons()),
        parsed => parsed,
    }
    .map_err(|why| Failure::new(message).because(why).hint(hint))?;
    Ok(contents.records(path))
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
        _ => String::from_utf8_lossy(forebay_measure::plain::without_mark(bytes)).into_owned(),
    }
}

#[cfg(test)]
mod tests;

//! `forebay import`: other tools' measurements, as records of our results file.
//!
//! One module for each tool parses a text into points (`found`). Here they become a run and its
//! samples, which name their origin and carry no verdict: no claim of a file counts as proven, and
//! unknown values stay null. `kind` detects the tool of a file, `said` holds the values that the
//! user adds, `near` finds the name that was probably meant.

mod csv;
mod fio;
mod found;
mod gdsio;
mod kind;
pub(crate) mod near;
mod nixlbench;
mod said;

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use forebay::units::{MIB, format_size};
use serde_json::json;
use twox_hash::XxHash3_64;

pub use self::csv::map::Map;
pub(crate) use self::found::short;
use self::found::{Contents, Repeats};
use self::kind::Kind;
pub use self::said::Said;
use crate::args::{ImportArgs, ImportTool};
use crate::bench::environment;
use crate::failure::{Failure, Result};
use crate::report::plain;
use crate::results::file::Ledger;
use crate::results::{Imported, Record, Run, SCHEMA, Sample};
use crate::stdio::say;
use crate::steps::Step;

/// Most bytes of one file: the parsed form takes several times as much memory.
const FILE_MAX: u64 = 64 * MIB;
/// Files at once at most.
const FILES_MAX: usize = 1000;

/// Runs the verb; `command` is its command line for a shell.
///
/// # Errors
/// A file cannot be read, is not the tool's or has no measurement, or the records cannot be
/// written. Then nothing is written.
pub fn command(args: &ImportArgs, command: &str) -> Result<()> {
    let (records, warnings) = records(args, command)?;
    match &args.output {
        Some(path) => write(path, &records)?,
        None => print(&records)?,
    }
    warnings.iter().for_each(|text| say(text));
    if let Some(path) = &args.output {
        let samples = count(&records);
        let word = if samples == 1 { "measurement" } else { "measurements" };
        let text = format!("{samples} {word} of {}: `forebay report ", args.tool.name());
        let text = text + &plain::plain(&path.display().to_string());
        let _ = writeln!(anstream::stderr(), "{text}` shows them");
    }
    Ok(())
}

/// The records of the files, and notes on them.
///
/// # Errors
/// A file cannot be read, is not the tool's, or has no measurement.
pub fn records(args: &ImportArgs, command: &str) -> Result<(Vec<Record>, Vec<String>)> {
    check(args)?;
    let (mut records, mut warnings) = (Vec::new(), Vec::new());
    for path in &args.files {
        let (contents, hash) = contents(args, path)?;
        if count(&records) + contents.found.len() > found::FOUND_MAX {
            let text = format!("cannot import more than {} measurements at once", found::FOUND_MAX);
            return Err(
                Failure::new(text).hint("give fewer files, or run several commands with one `-o`")
            );
        }
        warnings.extend(contents.warnings.iter().map(|text| format!("{}: {text}", path.display())));
        add_records(&mut records, args, path, (contents, hash), command);
    }
    Ok((records, warnings))
}

/// How many of the records are measurements.
fn count(records: &[Record]) -> usize {
    records.iter().filter(|record| matches!(record, Record::Sample(_))).count()
}

/// Refuses contradictory arguments.
fn check(args: &ImportArgs) -> Result<()> {
    let is_csv = args.tool == ImportTool::Csv;
    if is_csv && args.map.is_none() {
        return Err(Failure::usage("`--map` is missing: it names the columns of a table")
            .hint("for example `--map 'size=Block,throughput=BW:MiB/s' --way NAME`"));
    }
    if !is_csv && args.map.is_some() {
        return Err(Failure::usage(format!("`--map` is not for {}", args.tool.name()))
            .hint("it names the columns of a table: `forebay import csv`"));
    }
    if !is_csv && args.way.is_some() {
        return Err(Failure::usage(format!("`--way` is not for {}", args.tool.name()))
            .hint("the method comes from the file; use `--label` to name the run"));
    }
    let twice = args
        .set
        .iter()
        .enumerate()
        .find(|(at, said)| args.set[..*at].iter().any(|earlier| earlier.axis() == said.axis()));
    if let Some((_, said)) = twice {
        let text = format!("`--set` names `{}` twice", said.axis());
        return Err(Failure::usage(text).hint("give each axis one value"));
    }
    if args.files.len() > FILES_MAX {
        let text = format!("{} files are too many at once", args.files.len());
        return Err(Failure::usage(text).hint(format!("give at most {FILES_MAX}")));
    }
    Ok(())
}

/// Reads a file of the tool; returns its contents and their hash.
fn contents(args: &ImportArgs, path: &Path) -> Result<(Contents, String)> {
    let text = read(path)?;
    let name = args.tool.name();
    let failed = |why: String| {
        let message = format!("cannot import `{}` as results of {name}", path.display());
        Failure::new(message).because(why).hint(hint(args.tool, &text))
    };
    let mut contents = parse(args, &text).map_err(failed)?;
    contents.part();
    if contents.found.is_empty() {
        let mut why = vec![format!("it holds no result of {name}")];
        why.extend(contents.most_reasons());
        return Err(failed(why.join("; ")));
    }
    for found in &mut contents.found {
        for said in &args.set {
            said.add_to(&mut found.point).map_err(|why| {
                let message = format!("cannot import `{}` with `--set`", path.display());
                let why = format!("line {}: {why}", found.line);
                Failure::usage(message).because(why).hint("remove that axis from `--set`")
            })?;
        }
    }
    contents.end();
    let hash = format!("{:016x}", XxHash3_64::oneshot(text.as_bytes()));
    Ok((contents, hash))
}

fn parse(args: &ImportArgs, text: &str) -> Result<Contents, String> {
    let read_percent = args.set.iter().find_map(Said::read_percent);
    match (args.tool, &args.map) {
        (ImportTool::Gdsio, _) => gdsio::parse(text),
        (ImportTool::Fio, _) => fio::parse(text),
        (ImportTool::Nixlbench, _) => nixlbench::parse(text, read_percent),
        (ImportTool::Csv, Some(map)) => {
            csv::parse(text, csv::Asked { map, way: args.way.as_deref(), read_percent })
        }
        (ImportTool::Csv, None) => Err("it has no map".into()),
    }
}

/// The hint for a file without results of the tool; it names the right tool if that is detected.
fn hint(tool: ImportTool, text: &str) -> String {
    match kind::of(text) {
        Some(Kind::Ours) => "it has results of forebay: `forebay report` reads it directly".into(),
        Some(Kind::Of(other)) if other != tool && (other != ImportTool::Csv) => {
            format!("it looks like {0}: `forebay import {0}`", other.name())
        }
        Some(Kind::Of(ImportTool::Csv)) if tool != ImportTool::Csv => {
            "it looks like a table: `forebay import csv --map …`".into()
        }
        _ => match tool {
            ImportTool::Gdsio => "its result lines begin with `IoType:`",
            ImportTool::Fio => {
                "fio writes JSON with `--output-format=json`, after all of its jobs have ended"
            }
            ImportTool::Nixlbench => {
                "its table begins with `Block Size (B)`; if the options above it are missing, add \
                 `--set direction=read`"
            }
            ImportTool::Csv => "docs/import.md describes how to name columns and units",
        }
        .into(),
    }
}

/// The text of a file, read up to its limit.
fn read(path: &Path) -> Result<String> {
    let _step = Step::of_thread("read", path);
    let message = format!("cannot read `{}`", path.display());
    let failed = |error| Failure::io(&message, &error);
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err(Failure::new(message)
            .because("it is not a regular file")
            .hint("save the output of the tool in a file, and give that"));
    }
    if facts.len() > FILE_MAX {
        let (len, most) = (format_size(facts.len()), format_size(FILE_MAX));
        return Err(Failure::new(message)
            .because(format!("it has {len}; the limit is {most}"))
            .hint("give only the lines of the results, or split the file"));
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(text_of(&bytes))
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

fn add_records(
    records: &mut Vec<Record>,
    args: &ImportArgs,
    path: &Path,
    (contents, hash): (Contents, String),
    command: &str,
) {
    let file = path.display().to_string();
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let environment = environment::unknown(command, contents.unix_time.unwrap_or_default());
    records.push(Record::Run(Box::new(Run {
        schema: SCHEMA,
        verb: args.tool.name().into(),
        // Without a label its name is the shortest unique end of its path.
        label: args.label.clone(),
        environment,
        gpus: Vec::new(),
        unmetered: Vec::new(),
        asked: json!({ "file": file }).into(),
        imported: Some(Imported {
            tool: args.tool.name().into(),
            version: contents.version,
            file,
            contents: Some(hash),
        }),
    })));
    records.extend(
        contents
            .warnings
            .into_iter()
            .map(|text| Record::Warning { text: format!("{}: {text}", short(&name)) }),
    );
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
            line: Some(found.line),
            measured,
            error,
        }))
    }));
}

/// Makes a results file, or adds to one.
fn write(path: &Path, records: &[Record]) -> Result<()> {
    let is_new = std::fs::symlink_metadata(path).is_err();
    let mut ledger = if is_new {
        Ledger::create(path)?
    } else {
        Ledger::reopen(path)
            .map_err(|failure| {
                let hint = "`-o` appends only to a results file: give another path";
                failure.hint(hint)
            })?
            .0
    };
    let mut rest = records.iter();
    if is_new && let Some(first) = rest.next() {
        ledger.begin(first)?;
    }
    rest.try_for_each(|record| ledger.append(record))?;
    ledger.finish()
}

fn print(records: &[Record]) -> Result<()> {
    let mut text = String::new();
    for record in records {
        let line = plain::json(record).map_err(|error| {
            Failure::new("cannot write a result as JSON").because(error.to_string())
        })?;
        text.push_str(&line);
        text.push('\n');
    }
    let mut out = std::io::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    shown.map_err(|error| Failure::stdout(&error))
}

#[cfg(test)]
mod tests;

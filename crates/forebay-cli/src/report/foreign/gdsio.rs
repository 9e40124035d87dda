//! The result lines of gdsio in its output or in a log, whatever text surrounds them.
//!
//! gdsio names the requested route, and proves nothing about the actual route: bytes that it calls
//! direct may have gone through cuFile's compat mode. So its types become names of calls, not of
//! routes.

use super::row::{Contents, Row, short};
use super::units::{Kind, number, scale};
use crate::gdsio::words::Transfer;

/// The text before a line that reads back written data.
const VERIFYING: &str = "verifying data";
/// The minimum keys of a result line.
const MARKS: [&str; 2] = ["IoType:", "XferType:"];
/// The last key of a result line.
const END: &str = "total_time";

/// Parses gdsio's output.
///
/// # Errors
/// It holds too much, or contradicts the user.
pub(super) fn parse(text: &str, contents: &mut Contents) -> Result<(), String> {
    let mut verifies = false;
    for (number, line) in whole_lines(text) {
        let line = line.as_str();
        let Some(begin) = begin_of(line) else {
            let lower = line.to_lowercase();
            if lower.contains(VERIFYING) {
                verifies = true;
            } else if lower.contains("error") || lower.contains("fail") {
                contents.warn(number, &format!("gdsio reported: {}", short(line)));
            }
            continue;
        };
        // Both may be in the same line.
        let verified = verifies || line[..begin].to_lowercase().contains(VERIFYING);
        verifies = false;
        contents.add(number, row(&line[begin..], verified))?;
    }
    Ok(())
}

/// The lines with their numbers, with a single result at most. A result that a log wrapped is
/// joined.
fn whole_lines(text: &str) -> Vec<(u64, String)> {
    let mut lines: Vec<(u64, String)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let is_open = |last: &String| begin_of(last).is_some() && !last.contains(END);
        match lines.last_mut() {
            Some((_, last)) if is_open(last) && begin_of(line).is_none() && is_rest(line) => {
                last.push(' ');
                last.push_str(line);
            }
            _ => {
                let begins = line.match_indices(MARKS[0]).map(|(at, _)| at).skip(1);
                let mut start = 0;
                for begin in begins {
                    lines.push((number, line[start..begin].to_owned()));
                    start = begin;
                }
                lines.push((number, line[start..].to_owned()));
            }
        }
    }
    lines
}

/// Whether a line may be the rest of a result.
fn is_rest(line: &str) -> bool {
    ["Throughput:", "Avg_Latency:", "ops:", END, "sec"].iter().any(|mark| line.contains(mark))
}

/// The start of a result in a line, after any log prefix.
pub(super) fn begin_of(line: &str) -> Option<usize> {
    MARKS.iter().all(|mark| line.contains(mark)).then(|| line.find(MARKS[0]))?
}

fn row(line: &str, verified: bool) -> Result<Row, String> {
    let mut row = Row::default();
    let (mut transfer, mut depth) = ("", None);
    let words: Vec<&str> = line.split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        let value = words.get(at + 1).copied().unwrap_or_default();
        let in_unit = |kind| {
            let unit = words.get(at + 2)?.trim_end_matches(',');
            Some(number(value)? * scale(kind, unit)?)
        };
        match *word {
            "IoType:" if ["READ", "WRITE", "RANDREAD", "RANDWRITE"].contains(&value) => {
                row.set("direction", value);
            }
            "IoType:" => return Err(format!("`{}` is not a known `IoType`", short(value))),
            "XferType:" => transfer = value,
            "Threads:" => row.count("threads", number(value)),
            "IoDepth:" => depth = number(value),
            "DataSetSize:" => row.number("bytes", sized(value)),
            // A range is not the size of any request.
            "IOSize:" => row.count("block-size", sized(value)),
            "ops:" => row.number("requests", number(value)),
            "total_time" | "total_time:" => row.number("seconds", number(value).map(|s| s * 1e9)),
            "Throughput:" => row.number("throughput", in_unit(Kind::Rate)),
            "Avg_Latency:" => row.number("mean", in_unit(Kind::Time)),
            _ => {}
        }
    }
    let known = Transfer::all().find(|known| known.label() == transfer);
    let known = known.or((transfer == "ASYNC").then_some(Transfer::DirectAsync));
    let is_batch = known.map_or(transfer.contains("BATCH"), Transfer::is_batch);
    if is_batch {
        // Its latency is the total time over the number of requests, which no request took.
        row.numbers.remove("mean");
    }
    row.axes.entry("pattern").or_insert_with(|| "sequential".to_owned());
    row.set("gpu", if known == Some(Transfer::CpuOnly) { "host" } else { "gpu" });
    row.count("batch", if is_batch { depth } else { Some(1.0) });
    row.count("depth", Some(1.0));
    // Comparing costs time, so that is not an ordinary read.
    let end = if verified { "-verify" } else { "" };
    let method = known.map_or(transfer, |known| known.call());
    row.set("method", &format!("{method}{end}"));
    Ok(row)
}

/// The bytes of a value such as `4156416/4194304(KiB)`, of which the first counts.
fn sized(value: &str) -> Option<f64> {
    let (value, unit) = value.split_once('(')?;
    Some(number(value.split('/').next()?)? * scale(Kind::Size, unit.strip_suffix(')')?)?)
}

#[cfg(test)]
mod tests;

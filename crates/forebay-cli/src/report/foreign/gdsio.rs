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
/// The first keys of a result, which stand in one line.
pub(super) const MARKS: [&str; 2] = ["IoType:", "XferType:"];
/// Keys of which a line with the rest of a wrapped result holds at least one.
const REST: [&str; 5] = ["Throughput:", "Avg_Latency:", "ops:", "total_time", "sec"];

/// Parses gdsio's output: a result reaches from its first key to its time, or to the next result.
///
/// # Errors
/// It holds too much, or contradicts the user.
pub(super) fn parse(text: &str, contents: &mut Contents) -> Result<(), String> {
    for (number, line) in (1..).zip(text.lines()) {
        let lower = line.to_lowercase();
        if !line.contains(MARKS[0]) && ["error", "fail"].iter().any(|word| lower.contains(word)) {
            contents.warn(number, &format!("gdsio reported: {}", short(line)));
        }
    }
    let (mut before, mut number) = ("", 1);
    for part in split_before(text, MARKS[0]) {
        if part.lines().next().is_some_and(|line| MARKS.iter().all(|mark| line.contains(mark))) {
            contents.add(number, row(part, before.to_lowercase().contains(VERIFYING)))?;
        }
        number += part.matches('\n').count() as u64;
        before = part;
    }
    Ok(())
}

/// The parts of a text that begin with `mark`, and the part before the first.
fn split_before<'a>(text: &'a str, mark: &str) -> impl Iterator<Item = &'a str> {
    let starts: Vec<usize> = text.match_indices(mark).map(|(at, _)| at).collect();
    let ends = starts.clone().into_iter().chain([text.len()]);
    [0].into_iter().chain(starts).zip(ends).map(|(start, end)| &text[start..end])
}

fn row(text: &str, verified: bool) -> Result<Row, String> {
    let mut row = Row::default();
    let (mut transfer, mut depth) = ("", None);
    // A log may have wrapped the result. Other lines end it, even if its last keys are missing.
    let is_rest = |line: &&str| REST.iter().any(|key| line.contains(key));
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let lines = std::iter::once(first).chain(rest.lines().take_while(is_rest));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
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
            "total_time" | "total_time:" => {
                row.number("seconds", number(value).map(|s| s * 1e9));
                break;
            }
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
    if row.axes.point.pattern.is_empty() {
        row.set("pattern", "sequential");
    }
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

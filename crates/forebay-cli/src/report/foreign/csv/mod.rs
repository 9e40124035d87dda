//! Any table of separated values with a heading, by columns that are known or that the user names
//! ([`map`]).
//!
//! [`units`] parses the numbers. A row with an ambiguous number, or without a throughput, is left
//! out with a warning.

pub(super) mod map;
mod units;

use std::collections::{HashMap, HashSet};

use self::map::{Column, Map};
use self::units::{Kind, doubtful, of_heading, scale, value};
use super::found::{self, Beside, Contents, Found, axis, count, nanoseconds, short};
use super::near::near;
use super::said::{Said, put};
use crate::results::{Latency, Measured, Point};

/// Most columns of a table that are named in an error.
const NAMED_MAX: usize = 30;

/// Possible separators, the likeliest first.
const DELIMITERS: [u8; 3] = [b',', b';', b'\t'];
/// Fields of a row at most.
const FIELDS_MAX: usize = 1000;

/// The rows of a text, each with its line, without empty ones. The separator is the one that splits
/// the first row into most fields.
fn rows(text: &str) -> Result<Vec<(u64, Vec<String>)>, String> {
    let reader = |delimiter: u8| {
        let mut builder = csv::ReaderBuilder::new();
        builder.has_headers(false).flexible(true).delimiter(delimiter).from_reader(text.as_bytes())
    };
    let fields = |delimiter: u8| {
        let first = reader(delimiter).into_records().next();
        first.and_then(Result::ok).map_or(0, |record| record.len())
    };
    let mut best = DELIMITERS[0];
    for other in DELIMITERS {
        if fields(other) > fields(best) {
            best = other;
        }
    }
    let (mut rows, mut line, mut at) = (Vec::new(), 1, 0);
    for record in reader(best).into_records() {
        let record = record.map_err(|error| error.to_string())?;
        // A record begins behind the line breaks before it.
        let start = record.position().map_or(0, csv::Position::byte);
        let start = usize::try_from(start).unwrap_or(usize::MAX).clamp(at, text.len());
        let rest = text.as_bytes()[start..].iter();
        let start = start + rest.take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        line += text.as_bytes()[at..start].iter().filter(|byte| **byte == b'\n').count() as u64;
        at = start;
        if record.len() > FIELDS_MAX {
            return Err(format!("line {line}: it has more than {FIELDS_MAX} fields"));
        }
        let fields: Vec<String> = record.iter().map(|field| field.trim().to_owned()).collect();
        if fields.iter().any(|field| !field.is_empty()) {
            rows.push((line, fields));
        }
    }
    Ok(rows)
}

/// A column that the table has.
struct Place<'a> {
    column: &'a Column,
    at: usize,
    scale: Option<f64>,
}

/// Parses a table; `method` moved its bytes if no column names another.
///
/// # Errors
/// A column is missing or lacks a required unit, or the table is damaged.
pub(super) fn parse(text: &str, map: &Map, method: &str) -> Result<Contents, String> {
    let mut contents = Contents::default();
    let mut rows = rows(text)?.into_iter();
    let (_, head) = rows.next().ok_or("it is empty")?;
    let map = map.for_headings(&head);
    let places = places(&map.columns, &head)?;
    if places.is_empty() {
        return Err(format!("none of its columns is known: {}", names(&head)));
    }
    let mut repeats = Repeats::default();
    for (line, fields) in rows {
        if fields.len() != head.len() {
            let (has, of) = (fields.len(), head.len());
            contents.warn(line, &format!("left out: {has} fields below {of} headings"));
            continue;
        }
        let (point, measured) = match row(&places, &fields, &map, method) {
            Ok(found) => found,
            Err(why) => {
                contents.warn(line, &format!("left out: {why}"));
                continue;
            }
        };
        let is_free = |at: usize| places.iter().all(|place| place.at != at);
        if let Some((before, columns)) = repeats.differs(&point, (line, &fields), is_free) {
            let named = |at: &usize| format!("`{}`", short(&head[*at]));
            let columns = columns.iter().map(named).collect::<Vec<_>>().join(", ");
            let text = format!(
                "it counts as a repeat of line {before}, but differs from it in {columns}: map the \
                 column that distinguishes them, or give these rows alone"
            );
            contents.warn(line, &text);
        }
        let (measured, beside) = (Ok(measured), Beside::default());
        contents.add(Found { line, point, unix_time: 0.0, measured, beside })?;
    }
    Ok(contents)
}

/// Rows that are the same point by the named columns, though another column may distinguish them.
#[derive(Default)]
struct Repeats {
    /// The first row of each point: its line and its words.
    first: HashMap<Point, (u64, Vec<String>)>,
    told: HashSet<usize>,
}

impl Repeats {
    /// The line of the first row of this point, and the columns, among those that `is_free` allows,
    /// whose words differ between the two rows. Numbers may differ between repeats.
    fn differs(
        &mut self,
        point: &Point,
        (line, fields): (u64, &[String]),
        is_free: impl Fn(usize) -> bool,
    ) -> Option<(u64, Vec<usize>)> {
        let Some((before, first)) = self.first.get(point) else {
            self.first.insert(point.clone(), (line, fields.to_vec()));
            return None;
        };
        let is_word = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_ascii_digit());
        let tells = |at: &usize| {
            let (one, two) = (fields[*at].trim(), first[*at].trim());
            is_free(*at) && one != two && is_word(one) && is_word(two)
        };
        let told = &mut self.told;
        let columns = (0..fields.len().min(first.len())).filter(tells);
        let columns: Vec<usize> = columns.filter(|at| told.insert(*at)).collect();
        (!columns.is_empty()).then_some((*before, columns))
    }
}

/// The positions of a map's columns, and their units.
fn places<'a>(columns: &'a [Column], heads: &[String]) -> Result<Vec<Place<'a>>, String> {
    let all = columns.iter().map(|column| {
        let heading = column.heading.as_str();
        let all = |same: &dyn Fn(&str) -> bool| -> Vec<usize> {
            (0..heads.len()).filter(|at| same(&heads[*at])).collect()
        };
        let exact = all(&|head| head == heading);
        let others = || all(&|head| head.eq_ignore_ascii_case(heading));
        let found = if exact.is_empty() { others() } else { exact };
        let at = match found.as_slice() {
            [at] => *at,
            [] => return Err(missing(heading, heads)),
            _ => return Err(format!("{} of its columns are called `{heading}`", found.len())),
        };
        if let Some(unit) = doubtful(column.kind, &heads[at]).filter(|_| column.unit.is_none()) {
            let (heading, unit) = (short(&heads[at]), short(unit));
            let next = match column.kind {
                Kind::Count => "write plain numbers under another heading",
                _ => "give the unit after the column, as in `size=COLUMN:KiB`",
            };
            return Err(format!("`{unit}` in `{heading}` is not a known unit: {next}"));
        }
        let told = column.unit.as_deref().map(|unit| scale(column.kind, unit));
        let scale = told.unwrap_or_else(|| of_heading(column.kind, &heads[at]));
        Ok(Place { column, at, scale })
    });
    all.collect()
}

fn missing(heading: &str, heads: &[String]) -> String {
    let near = near(heading, heads.iter().map(String::as_str));
    let near = near.map_or_else(String::new, |near| format!(": perhaps `{near}` was meant"));
    format!("it has no column `{heading}`{near}; it has {}", names(heads))
}

fn names(heads: &[String]) -> String {
    let names: Vec<String> =
        heads.iter().take(NAMED_MAX).map(|head| format!("`{}`", short(head))).collect();
    let more = heads.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

/// The measurement of a row.
fn row(
    places: &[Place<'_>],
    fields: &[String],
    map: &Map,
    method: &str,
) -> Result<(Point, Measured), String> {
    let mut point = found::point(method, 100);
    let mut reads = map.values.iter().find_map(Said::read_percent);
    let mut numbers: Vec<(&str, f64)> = Vec::new();
    for Place { column, at, scale } in places {
        let (name, cell) = (column.name.as_str(), fields[*at].as_str());
        if column.kind == Kind::Text {
            match name {
                _ if cell.is_empty() => {}
                "method" => point.way = short(cell),
                name => put(name, &short(cell), &mut point, &mut reads)?,
            }
            continue;
        }
        let number = value(column.kind, cell, *scale).map_err(|why| {
            let unit = if why.contains("unit") { map::units(column.kind) } else { "" };
            format!("`{}` is `{}`: {why}{unit}", column.heading, short(cell))
        })?;
        let Some(number) = number else { continue };
        match name {
            "size" => point.request_size = count(number).unwrap_or_default(),
            "depth" => point.depth = axis(Some(number)),
            "batch" => point.batch = axis(Some(number)),
            "threads" => point.threads = axis(Some(number)),
            "files" => point.files = axis(Some(number)),
            name => numbers.push((name, number)),
        }
    }
    point.read_percent = reads.ok_or(
        "the direction is unknown: map a column to `direction`, or add `--map direction:=read`",
    )?;
    let measured = measured(&numbers, point.request_size)?;
    Ok((point, measured))
}

/// The measurement of some numbers; a missing throughput is derived from the rest.
#[expect(clippy::cast_precision_loss, reason = "a size")]
fn measured(numbers: &[(&str, f64)], size: u64) -> Result<Measured, String> {
    let of = |name: &str| numbers.iter().find(|(known, _)| *known == name).map(|(_, n)| *n);
    let seconds = of("seconds").map(|ns| ns * 1e-9).filter(|seconds| *seconds > 0.0);
    let per_second = |amount: Option<f64>| Some(amount? / seconds?);
    let requests_per_second =
        of("iops").or_else(|| per_second(of("requests"))).and_then(found::rate);
    let sized = requests_per_second.filter(|_| size > 0).map(|rate| rate * size as f64);
    let rate = of("throughput").or_else(|| per_second(of("bytes"))).or(sized);
    let bytes_per_second = rate
        .and_then(found::rate)
        .ok_or("it has no throughput, no bytes with seconds, and no request rate with a size")?;
    let time = |name: &str| of(name).and_then(nanoseconds);
    let whole = |name: &str| time(name).and_then(count);
    let latency = Latency {
        mean_ns: time("mean"),
        p50_ns: whole("p50"),
        p90_ns: whole("p90"),
        p99_ns: whole("p99"),
        p99_9_ns: whole("p99.9"),
        max_ns: whole("max"),
        ..Latency::default()
    };
    Ok(Measured {
        bytes: of("bytes").and_then(count),
        requests: of("requests").and_then(count),
        seconds,
        bytes_per_second,
        requests_per_second,
        latency: Some(latency).filter(|latency| *latency != Latency::default()),
        ..Measured::default()
    })
}

#[cfg(test)]
mod tests;

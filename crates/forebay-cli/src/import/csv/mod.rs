//! Any table of separated values with a heading, by the columns that the user names ([`map`]).
//!
//! [`text`] splits it into fields, [`units`] parses the numbers. A row with an ambiguous number, or
//! without a throughput, is left out with a warning.

pub(super) mod map;
mod text;
mod units;

use std::collections::{HashMap, HashSet};

use self::map::{Column, Map};
use self::text::Records;
use self::units::{Kind, doubtful, of_heading, scale, value};
use super::found::{self, Beside, Contents, Found, axis, count, nanoseconds, short};
use super::near::near;
use super::said::put;
use crate::results::{Latency, Measured, Point};

/// Most columns of a table that are named in an error.
const NAMED_MAX: usize = 30;

/// The user's options for a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) map: &'a Map,
    /// The method that moved the bytes, if no column reports it.
    pub(super) way: Option<&'a str>,
    pub(super) read_percent: Option<u8>,
}

/// A column that the table has.
struct Place<'a> {
    column: &'a Column,
    at: usize,
    scale: Option<f64>,
}

/// Parses a table.
///
/// # Errors
/// A column is missing or lacks a required unit, or the table is damaged.
pub(super) fn parse(text: &str, asked: Asked<'_>) -> Result<Contents, String> {
    let mut contents = Contents::default();
    let mut records = Records::new(text, text::delimiter(text));
    let head = records.next().ok_or("it is empty")??;
    let places = places(asked.map, &head.fields)?;
    if asked.way.is_none() && !places.iter().any(|place| place.column.name == "way") {
        return Err("the method is unknown: name it with `--way`, or map a column to `way`".into());
    }
    let mut repeats = Repeats::default();
    for record in records {
        let record = record?;
        if record.fields.len() != head.fields.len() {
            let (has, of) = (record.fields.len(), head.fields.len());
            contents.warn(record.line, &format!("left out: {has} fields below {of} headings"));
            continue;
        }
        match row(&places, &record.fields, asked) {
            Ok((point, measured)) => {
                let line = record.line;
                let measured = Ok(measured);
                let beside = Beside::default();
                let is_free = |at: usize| places.iter().all(|place| place.at != at);
                if let Some((before, columns)) =
                    repeats.differs(&point, (line, &record.fields), is_free)
                {
                    let told = |at: &usize| format!("`{}`", short(&head.fields[*at]));
                    let columns = columns.iter().map(told).collect::<Vec<_>>().join(", ");
                    contents.warn(
                        line,
                        &format!(
                            "it counts as a repeat of line {before}, but differs from it in \
                             {columns}: map the column that distinguishes them, or import these \
                             rows alone"
                        ),
                    );
                }
                contents.add(Found { line, point, unix_time: 0.0, measured, beside })?;
            }
            Err(why) => contents.warn(record.line, &format!("left out: {why}")),
        }
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
fn places<'a>(map: &'a Map, heads: &[String]) -> Result<Vec<Place<'a>>, String> {
    let all = map.0.iter().map(|column| {
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
    let names: Vec<String> =
        heads.iter().take(NAMED_MAX).map(|head| format!("`{}`", short(head))).collect();
    let more = heads.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("it has no column `{heading}`{near}; it has {}{more}", names.join(", "))
}

/// The measurement of a row.
fn row(
    places: &[Place<'_>],
    fields: &[String],
    asked: Asked<'_>,
) -> Result<(Point, Measured), String> {
    let mut point = found::point(asked.way.unwrap_or_default(), 100);
    let mut reads = asked.read_percent;
    let mut numbers: Vec<(&str, f64)> = Vec::new();
    for Place { column, at, scale } in places {
        let (name, cell) = (column.name.as_str(), fields[*at].as_str());
        if column.kind == Kind::Text {
            match name {
                _ if cell.is_empty() => {}
                "way" => point.way = short(cell),
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
        "the direction is unknown: map a column to `direction`, or add `--set direction=read`",
    )?;
    if point.way.is_empty() {
        return Err("its `way` is empty".into());
    }
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

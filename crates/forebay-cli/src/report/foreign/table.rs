//! Any table of separated values with a heading, by columns that are known or that the user names.
//!
//! A row with an ambiguous number, or without a throughput, is left out with a warning. Words of
//! other columns are settings.

use super::map::{Column, Map, set};
use super::row::{Contents, Row, short};
use super::units::{Kind, of_heading, value};
use crate::near::near;

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
    // Of several with as many, the first.
    let best = DELIMITERS.into_iter().rev().max_by_key(|delimiter| fields(*delimiter));
    let mut rows = Vec::new();
    for record in reader(best.unwrap_or(b',')).into_records() {
        let record = record.map_err(|error| error.to_string())?;
        // A record begins behind the line breaks before it.
        let (start, line) = record.position().map_or((0, 1), |at| (at.byte(), at.line()));
        let breaks = text.bytes().skip(usize::try_from(start).unwrap_or(usize::MAX));
        let breaks = breaks.take_while(|byte| matches!(byte, b'\r' | b'\n'));
        let line = line + breaks.filter(|byte| *byte == b'\n').count() as u64;
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

/// Parses a table.
///
/// # Errors
/// A column is missing or lacks a required unit, or the table is damaged.
pub(super) fn parse(text: &str, map: &Map, contents: &mut Contents) -> Result<(), String> {
    let mut rows = rows(text)?.into_iter();
    let (_, head) = rows.next().ok_or("it is empty")?;
    let columns = map.columns_of(&head).into_iter();
    let places = columns.map(|column| place(column, &head)).collect::<Result<Vec<_>, String>>()?;
    if places.is_empty() {
        return Err(format!("none of its columns is known: {}", names(&head)));
    }
    for (line, fields) in rows {
        contents.add(line, row(&places, &head, &fields))?;
    }
    Ok(())
}

/// The place of a column in the table, and the column with the factor of its unit.
fn place(mut column: Column, heads: &[String]) -> Result<(usize, Column), String> {
    let heading = column.heading.as_str();
    let mut found: Vec<usize> =
        (0..heads.len()).filter(|at| heads[*at].eq_ignore_ascii_case(heading)).collect();
    if found.iter().any(|at| heads[*at] == heading) {
        found.retain(|at| heads[*at] == heading);
    }
    let at = match found.as_slice() {
        [at] => *at,
        [] => return Err(missing(heading, heads)),
        _ => return Err(format!("{} of its columns are called `{heading}`", found.len())),
    };
    if column.scale.is_none() {
        column.scale = of_heading(column.field.1, &heads[at]).map_err(|unit| {
            let (unit, heading) = (short(&unit), short(&heads[at]));
            format!(
                "`{unit}` in `{heading}` is not a known unit: give the unit after the column, as \
                 in `size=COLUMN:KiB`"
            )
        })?;
    }
    Ok((at, column))
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

fn row(places: &[(usize, Column)], heads: &[String], fields: &[String]) -> Result<Row, String> {
    if fields.len() != heads.len() {
        return Err(format!("{} fields below {} headings", fields.len(), heads.len()));
    }
    let mut row = Row::default();
    for (at, Column { field: (name, kind, is_axis, _), heading, scale }) in places {
        let (cell, kind) = (fields[*at].as_str(), *kind);
        if kind == Kind::Text {
            if !cell.is_empty() {
                set(&mut row.axes, name, &short(cell))?;
            }
            continue;
        }
        let number = value(kind, cell, *scale).map_err(|why| {
            let units = if why.contains("unit") { kind.units() } else { "" };
            format!("`{heading}` is `{}`: {why}{units}", short(cell))
        })?;
        match is_axis {
            true => row.count(name, number),
            false => row.number(name, number),
        }
    }
    // Numbers may differ between repeats.
    let is_word = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_ascii_digit());
    for (at, (head, cell)) in heads.iter().zip(fields).enumerate() {
        if is_word(cell) && places.iter().all(|(other, _)| *other != at) {
            row.settings.insert(short(head), short(cell));
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests;

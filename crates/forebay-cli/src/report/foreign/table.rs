//! Any table of separated values with a heading, by columns that are known or that the user names.
//!
//! A row with an ambiguous number, or without a throughput, is left out with a warning. Words and
//! whole numbers of other columns are settings, unless their heading is that of a result. Other
//! columns are named in a note. Lines before the heading, such as titles, are passed over.

use super::map::{Column, Map, unit_of};
use super::row::{Contents, Row, short};
use super::units::{Kind, value};
use crate::near::near;
use crate::report::model::differ;

/// Most columns of a table that are named in an error.
const NAMED_MAX: usize = 30;
/// Possible separators, the likeliest first.
const DELIMITERS: [u8; 3] = [b',', b';', b'\t'];
/// Fields of a row at most.
const FIELDS_MAX: usize = 1000;
/// Lines in which the heading is looked for.
const HEADING_MAX: usize = 50;
/// Words in headings of results, and of what differs in every run: they do not separate points.
const RESULTS: &str = "lat time iops bw rate cpu util err fail count moved total sec ms us ns watt \
                       temp date timestamp repeat iteration seed id p50 p90 p99 min max avg mean \
                       median std last first mib version command";

/// The records of a text with a separator.
fn reader(text: &str, delimiter: u8) -> csv::Reader<&[u8]> {
    let mut builder = csv::ReaderBuilder::new();
    builder.has_headers(false).flexible(true).delimiter(delimiter).from_reader(text.as_bytes())
}

/// Where the heading begins: the first line with a known column, or else with most fields.
fn heading(text: &str, map: &Map) -> usize {
    let (mut at, mut most) = (0, (0, 0));
    for line in text.split_inclusive('\n').take(HEADING_MAX) {
        let fields = DELIMITERS.into_iter().map(|delimiter| {
            let record = reader(line, delimiter).into_records().next().and_then(Result::ok);
            record.map_or_else(Vec::new, |record| record.iter().map(str::to_owned).collect())
        });
        let fields: Vec<String> = fields.max_by_key(Vec::len).unwrap_or_default();
        let is_given = |column: &Column| {
            fields.iter().any(|field| field.trim().eq_ignore_ascii_case(&column.heading))
        };
        let is_row = fields.len() > 1 && !line.starts_with('#');
        if is_row && map.columns_of(&fields).iter().any(is_given) {
            return at;
        }
        if fields.len() > most.0 {
            most = (fields.len(), at);
        }
        at += line.len();
    }
    most.1
}

/// The rows of a text that are not empty, with their lines. The separator is that which splits the
/// first row into most fields.
fn rows(text: &str) -> Result<Vec<(u64, Vec<String>)>, String> {
    let fields = |delimiter: u8| {
        let first = reader(text, delimiter).into_records().next();
        first.and_then(Result::ok).map_or(0, |record| record.len())
    };
    // Of several with as many, the first.
    let best = DELIMITERS.into_iter().rev().max_by_key(|delimiter| fields(*delimiter));
    let mut rows = Vec::new();
    for record in reader(text, best.unwrap_or(b',')).into_records() {
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
    let begin = heading(text, map);
    let before = text[..begin].matches('\n').count() as u64;
    let mut rows = rows(&text[begin..])?.into_iter();
    let (_, head) = rows.next().ok_or("it is empty")?;
    let places = places(map, &head)?;
    if places.is_empty() {
        return Err(format!("none of its columns is known: {}", names(&head)));
    }
    let gives_rate = |(_, column): &(usize, Column)| {
        ["throughput", "iops", "bytes", "requests"].contains(&column.field.0)
    };
    if !places.iter().any(gives_rate) {
        return Err(format!("none of its columns gives a throughput: {}", names(&head)));
    }
    let rows: Vec<_> = rows.collect();
    let others = Others::of(&places, &head, &rows);
    if !others.left_out.is_empty() {
        contents.note(&format!(
            "columns that are no axis and no known result are left out: {}",
            names(&others.left_out)
        ));
    }
    for (line, fields) in &rows {
        contents.add(before + line, row(&places, &head, fields, &others.settings))?;
    }
    Ok(())
}

/// The columns without a meaning of their own.
struct Others {
    /// Those that separate measurements.
    settings: Vec<usize>,
    /// The headings of those whose numbers differ and that are not used.
    left_out: Vec<String>,
}

impl Others {
    fn of(places: &[(usize, Column)], heads: &[String], rows: &[(u64, Vec<String>)]) -> Self {
        let mut others = Self { settings: Vec::new(), left_out: Vec::new() };
        for (at, head) in heads.iter().enumerate() {
            if places.iter().any(|(other, _)| *other == at) {
                continue;
            }
            let lower = head.to_lowercase();
            let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
            let is_result = words.any(|word| RESULTS.split(' ').any(|known| known == word))
                || lower.contains("/s");
            let cells = || rows.iter().filter_map(|(_, fields)| fields.get(at));
            // A number with a fraction is measured.
            let is_measured = |cell: &String| {
                cell.parse::<f64>().is_ok_and(|number| number.is_finite())
                    && cell.parse::<u64>().is_err()
            };
            let has_number = || cells().any(|cell| cell.contains(|c: char| c.is_ascii_digit()));
            if !has_number() || !is_result && !cells().any(is_measured) {
                others.settings.push(at);
            } else if !is_result && differ(cells()) {
                others.left_out.push(head.clone());
            }
        }
        others
    }
}

/// A column of elbencho's table whose values differ from those of the axis.
fn special(head: &str, cell: &str, row: &mut Row) -> bool {
    match (head, cell) {
        ("random", "0") => row.set("pattern", "sequential"),
        ("random", "1") => row.set("pattern", "random"),
        ("direct IO", "1") => row.set("cache", "cold"),
        ("direct IO", "0") => {}
        _ => return false,
    }
    true
}

/// The places of a table's columns with a meaning.
///
/// # Errors
/// A column is missing, or its unit is unknown.
pub(super) fn places(map: &Map, heads: &[String]) -> Result<Vec<(usize, Column)>, String> {
    map.columns_of(heads).into_iter().map(|column| place(column, heads)).collect()
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
        column.scale = unit_of(column.field, &heads[at]).map_err(|unit| {
            let (unit, heading) = (short(&unit), short(&heads[at]));
            format!(
                "`{unit}` in `{heading}` is not a known unit in brackets: give the unit after the \
                 column, as in `block-size=COLUMN:KiB`"
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

/// The measurement of a row; its fields at `settings` separate measurements.
///
/// # Errors
/// A field is no value of its column, or the number of fields is not that of the heading.
pub(super) fn row(
    places: &[(usize, Column)],
    heads: &[String],
    fields: &[String],
    settings: &[usize],
) -> Result<Row, String> {
    if fields.len() != heads.len() {
        return Err(format!("{} fields below {} headings", fields.len(), heads.len()));
    }
    let mut row = Row::default();
    for (at, Column { field: (name, kind, is_axis, _), heading, scale }) in places {
        let (cell, kind) = (fields[*at].as_str(), *kind);
        if kind == Kind::Text {
            if !cell.is_empty() {
                row.axes.set(name, &short(cell))?;
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
    for at in settings {
        let (head, cell) = (&heads[*at], &fields[*at]);
        if special(head, cell, &mut row) && head == "random" || cell.is_empty() {
            continue;
        }
        // elbencho counts threads per host.
        let hosts = cell.parse::<u32>().ok().filter(|hosts| *hosts > 1 && head == "hosts");
        let threads = row.axes.point.threads;
        if let Some(hosts) = hosts.filter(|_| threads > 0) {
            row.count("threads", Some(f64::from(hosts) * f64::from(threads)));
        }
        row.settings.insert(short(head), short(cell));
    }
    Ok(row)
}

#[cfg(test)]
mod tests;

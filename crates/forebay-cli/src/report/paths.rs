//! Results of several paths as tables for people: each path alone, then all together, with a
//! picture of each method's share of all drives.

use forebay::units::format_size;

use super::json::{Cache, Direction, MethodName, Report, Row};
use super::plain::plain;
use super::proof;
use super::table::{data, drawn, footnotes, note, rate, rates, route, sizes};

/// Most letters of a path.
const PATH_MAX: usize = 30;
/// Most letters of the names of its drives.
const DRIVES_MAX: usize = 10;
/// Columns of a bar for the full limit.
const BAR: usize = 20;

/// Whether a report is about several paths.
#[must_use]
pub fn are_several(report: &Report) -> bool {
    report.results.iter().any(is_of_all)
}

/// Everything below the head of the report.
#[must_use]
pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    for size in sizes(report) {
        let rows: Vec<&Row> = report.results.iter().filter(|row| row.size == size).collect();
        let Some(all) = rows.iter().find(|row| is_of_all(row)) else { continue };
        let paths = all.paths.as_ref().map_or(0, Vec::len);
        let amount = format_size(all.bytes);
        text.push_str(&format!("\n{paths} paths, {amount} in all{}\n", note(report)));
        let mut reasons = Vec::new();
        for (direction, cache) in kinds(&rows) {
            let ours = |row: &&&Row| (row.direction, row.cache) == (direction, Some(cache));
            let of_kind: Vec<&Row> = rows.iter().filter(ours).copied().collect();
            let ceilings = rows.iter().filter(|row| row.direction == direction);
            let ceilings: Vec<&Row> = ceilings.filter(|row| row.cache.is_none()).copied().collect();
            let kind = format!("{}, {}", direction.name(), cache.name());
            text.push_str(&format!("\n{kind}, each alone, GB/s\n"));
            text.push_str(&alone(report, &of_kind, &ceilings, &mut reasons));
            text.push_str(&format!("\n{kind}, all together\n"));
            text.push_str(&together(&of_kind, &ceilings, &mut reasons));
        }
        text.push_str(&footnotes(&reasons));
    }
    text
}

fn is_of_all(row: &Row) -> bool {
    row.paths.as_ref().is_some_and(|paths| paths.len() > 1)
}

/// The directions and caches of the rows, in their order.
fn kinds(rows: &[&Row]) -> Vec<(Direction, Cache)> {
    let mut kinds = Vec::new();
    for row in rows {
        if let Some(cache) = row.cache
            && !kinds.contains(&(row.direction, cache))
        {
            kinds.push((row.direction, cache));
        }
    }
    kinds
}

/// A line for each path.
fn alone<'a>(
    report: &Report,
    rows: &[&'a Row],
    ceilings: &[&Row],
    reasons: &mut Vec<&'a str>,
) -> String {
    let headings =
        ["path", "drive", "storage", "forebay (min–max)", "of limit", "data", "route", "verdict"];
    let mut table = Vec::new();
    let all = rows.iter().find(|row| is_of_all(row));
    let paths = all.and_then(|row| row.paths.as_ref()).into_iter().flatten();
    for path in paths {
        let is_its = |row: &&&Row| row.paths.as_deref() == Some(std::slice::from_ref(path));
        let storage = ceilings.iter().find(|row| is_its(row));
        let storage = storage.map_or_else(none, |row| rate(row.bytes_per_second.median));
        let Some(row) = rows.iter().find(is_its).copied() else {
            // Each row that is missing has its reason among the warnings.
            table.push([shown(path), none(), storage, none(), none(), none(), none(), none()]);
            continue;
        };
        table.push([
            shown(path),
            drives(report, row),
            storage,
            rates(row),
            share(row),
            data(row).into(),
            route(row, reasons),
            proof::cell(row, reasons),
        ]);
    }
    drawn(headings, table, |index| (2..5).contains(&index))
}

/// A line for each method.
fn together<'a>(rows: &[&'a Row], ceilings: &[&'a Row], reasons: &mut Vec<&'a str>) -> String {
    let headings =
        ["method", "GB/s (min–max)", "of limit", "", "CPU s/GB", "data", "route", "verdict"];
    let mut table = Vec::new();
    let cpu = |row: &Row| row.cpu_s_per_gb.map_or_else(none, |seconds| format!("{seconds:.3}"));
    for row in ceilings.iter().filter(|row| row.method == MethodName::Link) {
        let route = route(row, reasons);
        let name = "link".to_owned();
        table.push([name, rates(row), String::new(), none(), cpu(row), none(), route, none()]);
    }
    let all = || rows.iter().filter(|row| is_of_all(row));
    if let Some(limit) = all().find_map(|row| row.limit)
        && limit.name == MethodName::Storage
    {
        let sum = rate(limit.bytes_per_second);
        let name = "storage, the sum".to_owned();
        table.push([name, sum, bar(1.0), "100 %".into(), none(), none(), none(), none()]);
    }
    for row in all() {
        let picture = row.share_of_limit.map_or_else(String::new, bar);
        let (data, route) = (data(row).into(), route(row, reasons));
        let (cpu, verdict) = (cpu(row), proof::cell(row, reasons));
        table.push([method(row), rates(row), picture, share(row), cpu, data, route, verdict]);
    }
    drawn(headings, table, |index| [1, 3, 4].contains(&index))
}

fn none() -> String {
    "–".into()
}

fn share(row: &Row) -> String {
    row.share_of_limit.map_or_else(none, |share| format!("{:.0} %", share * 100.0))
}

/// A method, with the name of its settings if it has several.
fn method(row: &Row) -> String {
    let settings = row.settings.as_ref().filter(|_| row.method == MethodName::Kvikio);
    match (settings, &row.demanded) {
        (Some(settings), _) => format!("{}, {}", row.method.name(), settings.name),
        (None, Some(route)) => format!("{}, by {route}", row.method.name()),
        (None, None) => row.method.name().into(),
    }
}

/// The names of a row's drives, or how many there are.
fn drives(report: &Report, row: &Row) -> String {
    let ids = row.drives.iter().flatten();
    let name = |id: &String| {
        let drive = report.environment.drives.iter().find(|drive| drive.id == *id);
        drive.map_or_else(|| id.clone(), |drive| drive.name.clone())
    };
    let names = plain(&ids.clone().map(name).collect::<Vec<_>>().join("+"));
    match ids.count() {
        0 => none(),
        count if names.chars().count() > DRIVES_MAX && count > 1 => format!("{count} drives"),
        _ => shortened(&names, DRIVES_MAX),
    }
}

/// A path as given; a long one without its middle.
fn shown(path: &str) -> String {
    shortened(&plain(given(path)), PATH_MAX)
}

/// A path as given; for scratch, its folder.
pub(super) fn given(path: &str) -> &str {
    match path.find("/.forebay-scratch-") {
        Some(0) => "/",
        Some(end) => &path[..end],
        None => path,
    }
}

fn shortened(text: &str, max: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= max {
        return text.to_owned();
    }
    let end = max * 2 / 3;
    let start = max - 1 - end;
    let tail = letters[letters.len() - end..].iter();
    letters[..start].iter().chain([&'…']).chain(tail).collect()
}

/// A bar for a share, in eighths of a column; shares above the whole are cut.
fn bar(share: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (0..BAR * 8).filter(|step| fraction(*step) < share).count();
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

/// The middle of the eighth of a column of this number, as a share of the whole bar.
#[expect(clippy::cast_precision_loss, reason = "a handful of steps")]
fn fraction(step: usize) -> f64 {
    (step as f64 + 0.5) / (BAR * 8) as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::json::tests::report;
    use crate::report::json::{Limit, Settings};
    use crate::report::table;

    /// Two paths and all methods, from rows of fixed data.
    fn several(paths: &[&str]) -> Report {
        let mut report = report();
        let [link, standard, _] = &report.results[..] else { unreachable!() };
        let all: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        let mut results = vec![link.clone()];
        let row = |method, paths: &[String], share: f64| {
            let rate = 2e9 * paths.len() as f64 * share;
            let limit =
                Limit { name: MethodName::Storage, bytes_per_second: 2e9 * paths.len() as f64 };
            let mut row = standard.clone();
            row.method = method;
            row.paths = Some(paths.into());
            row.bytes = (paths.len() as u64) << 30;
            row.bytes_per_second.median = rate;
            (row.bytes_per_second.min, row.bytes_per_second.max) = (rate * 0.99, rate * 1.01);
            (row.limit, row.share_of_limit) = (Some(limit), Some(share));
            row
        };
        for path in &all {
            let one = std::slice::from_ref(path);
            let mut storage = row(MethodName::Storage, one, 1.0);
            (storage.cache, storage.limit, storage.share_of_limit) = (None, None, None);
            storage.verified = None;
            let mut ours = row(MethodName::Forebay, one, 0.99);
            ours.route = Some("staged".into());
            ours.reason = Some("not resident".into());
            results.extend([storage, ours]);
        }
        for (method, share, name) in [
            (MethodName::Forebay, 0.98, None),
            (MethodName::OneQueue, 0.51, None),
            (MethodName::Kvikio, 0.256, Some("defaults")),
            (MethodName::Kvikio, 0.9, Some("best")),
        ] {
            let mut row = row(method, &all, share);
            row.settings = name.map(|name| Settings { name: name.into(), values: BTreeMap::new() });
            row.reason = Some(format!("how {} does it", row.method.name()));
            results.push(row);
        }
        results.iter_mut().for_each(|row| row.size = 1 << 30);
        report.results = results;
        report
    }

    #[test]
    fn each_path_alone_and_all_together() {
        let report = several(&["/mnt/a/file", "/mnt/b/.forebay-scratch-0123456789abcdef/read"]);
        insta::assert_snapshot!(table::render(&report), @"
machine  16 × Some CPU, 128 GiB memory, Linux 6.18.0
drives   nvme0n1 (Fast One, x4 at 16 GT/s)
target   cuda:0, NVIDIA H200, GPU-1234, 0000:1b:00.0, driver 580.159

2 paths, 2 GiB in all

read, cold, each alone, GB/s
path         drive    storage  forebay (min–max)  of limit  data   route       verdict
/mnt/a/file  nvme0n1     2.00   1.98 (1.96–2.00)      99 %  right  staged [1]  staged [2]
/mnt/b       nvme0n1     2.00   1.98 (1.96–2.00)      99 %  right  staged [1]  staged [2]

read, cold, all together
method              GB/s (min–max)  of limit                     CPU s/GB  data   route  verdict
link              55.3 (55.1–55.6)                            –     0.125  –      –      –
storage, the sum              4.00  ████████████████████  100 %         –  –      –      –
forebay           3.92 (3.88–3.96)  ███████████████████▋   98 %     0.125  right  [3]    staged [2]
one-queue         2.04 (2.02–2.06)  ██████████▎            51 %     0.125  right  [4]    staged [2]
kvikio, defaults  1.02 (1.01–1.03)  █████▏                 26 %     0.125  right  [5]    staged [2]
kvikio, best      3.60 (3.56–3.64)  ██████████████████     90 %     0.125  right  [5]    staged [2]
[1] not resident
[2] others used it as well
[3] how forebay does it
[4] how one-queue does it
[5] how kvikio does it
");
    }

    #[test]
    fn any_number_of_paths_fits() {
        let long =
            |number| format!("/srv/{}/model-{number:05}-of-00016.safetensors", "x".repeat(80));
        let paths: Vec<String> = (0..16).map(long).collect();
        let mut report = several(&paths.iter().map(String::as_str).collect::<Vec<_>>());
        let text = table::render(&report);
        assert!(text.lines().skip(3).all(|line| line.chars().count() <= 112), "{text}");
        assert!(paths.iter().all(|path| text.contains(&path[path.len() - 20..])), "{text}");
        // A name cannot affect the terminal, and a missing row leaves a line.
        report.results.iter_mut().for_each(|row| {
            let paths = row.paths.iter_mut().flatten();
            paths.for_each(|path| path.push_str("\u{1b}[2J"));
        });
        let first = report.results.iter().position(|row| row.method == MethodName::Forebay);
        report.results.remove(first.unwrap());
        let text = table::render(&report);
        assert!(!text.contains('\u{1b}') && text.contains("u{1b}[2J"), "{text}");
        assert_eq!(text.matches("safetensors").count(), 16, "{text}");
    }

    #[test]
    fn a_bar_is_as_long_as_the_share() {
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(1.0), "█".repeat(BAR));
        assert_eq!(bar(1.3), "█".repeat(BAR));
        assert_eq!(bar(0.5), "█".repeat(BAR / 2));
        assert_eq!(bar(0.525), format!("{}▌", "█".repeat(BAR / 2)));
        assert_eq!(bar(f64::NAN), "");
    }

    #[test]
    fn the_middle_of_a_long_path_goes() {
        assert_eq!(shortened("/a/b", 10), "/a/b");
        assert_eq!(shortened("/0123456789/abcdef", 10), "/01…abcdef");
        assert_eq!(shown("/d/.forebay-scratch-01/read"), "/d");
        assert_eq!(shown("/.forebay-scratch-01/read"), "/");
    }
}

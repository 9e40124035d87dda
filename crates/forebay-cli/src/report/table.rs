//! Results as a table for people.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table};
use forebay::units::format_size;

use super::drives::DriveFacts;
use super::json::{Drive, Environment, Report, Row};
use super::paths;
use super::plain::plain;
use super::proof;

const HEADINGS: [&str; 11] = [
    "method",
    "direction",
    "cache",
    "GB/s (min–max)",
    "of limit",
    "speed-up",
    "CPU s/GB",
    "bound by",
    "data",
    "route",
    "verdict",
];

/// The whole report: the machine, then one table for each size.
#[must_use]
pub fn render(report: &Report) -> String {
    let several = paths::are_several(report);
    let path = report.results.iter().find_map(|row| row.paths.as_ref()?.first());
    let path = path.filter(|_| !several).map(String::as_str);
    let mut text = header(&report.environment, path, several);
    if several {
        text.push_str(&paths::render(report));
        return text;
    }
    for size in sizes(report) {
        let rows: Vec<&Row> = report.results.iter().filter(|row| row.size == size).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{}{}", format_size(size), note(report));
        text.push_str(&table(&rows));
    }
    text
}

/// The sizes in the order of the rows.
pub(super) fn sizes(report: &Report) -> Vec<u64> {
    let mut sizes = Vec::new();
    for row in &report.results {
        if !sizes.contains(&row.size) {
            sizes.push(row.size);
        }
    }
    sizes
}

pub(super) fn note(report: &Report) -> &'static str {
    if report.results.iter().any(|row| row.simulated) { ", simulated GPU" } else { "" }
}

/// The machine, the file if there is one, or the drives of `several` paths, and the target.
pub(crate) fn header(facts: &Environment, path: Option<&str>, several: bool) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "machine  {} × {}, {} memory, {}",
        facts.cpu.cores,
        plain(&facts.cpu.model),
        format_size(facts.memory.total),
        plain(&facts.kernel)
    );
    let mut file: Vec<String> = path.into_iter().map(str::to_owned).collect();
    file.extend(place(facts, several));
    if !file.is_empty() {
        let label = if several { "drives" } else { "file  " };
        let _ = writeln!(text, "{label}   {}", plain(&file.join(", ")));
    }
    let _ = writeln!(text, "target   {}", plain(&target(facts)));
    text
}

/// Drives that the head of a report names.
const DRIVES_MAX: usize = 4;

/// The file system and drives in words: `ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)`; with `several`
/// paths only the drives.
pub(crate) fn place(facts: &Environment, several: bool) -> Option<String> {
    let model = |drive: &Drive| match &drive.model {
        Some(model) => format!("{} ({model})", drive.name),
        None => drive.name.clone(),
    };
    // The file system is only the first path's.
    let file_system = facts.file_system.as_ref().filter(|_| !several);
    let kind = || file_system.map(|file_system| file_system.kind.as_str());
    if !facts.drives.is_empty() && kind().is_none_or(|kind| kind != facts.drives[0].transport) {
        let mut names: Vec<String> = facts.drives.iter().take(DRIVES_MAX).map(with_link).collect();
        match facts.drives.len().saturating_sub(DRIVES_MAX) {
            0 => {}
            more => names.push(format!("{more} more")),
        }
        let names = names.join(" + ");
        return Some(kind().map_or_else(|| names.clone(), |kind| format!("{kind} on {names}")));
    }
    let kind = file_system.map(|file_system| file_system.kind.clone());
    match (kind, facts.drive.as_ref().map(model)) {
        (Some(kind), Some(drive)) => Some(format!("{kind} on {drive}")),
        (kind, drive) => kind.or(drive),
    }
}

/// A drive with its link speed: `nvme0n1 (Fast One, x4 at 16 GT/s)`.
fn with_link(drive: &DriveFacts) -> String {
    let link = drive.link.map(|link| link.text(drive.link_max.as_ref()));
    let parts: Vec<String> = drive.model.clone().into_iter().chain(link).collect();
    match parts.as_slice() {
        [] => drive.name.clone(),
        parts => format!("{} ({})", drive.name, parts.join(", ")),
    }
}

fn target(facts: &Environment) -> String {
    let Some(gpu) = &facts.gpu else { return "host memory, no GPU".into() };
    let mut text = format!("{}, {}", gpu.id, gpu.name);
    if gpu.simulated && !gpu.name.contains("simulated") {
        text.push_str(" (simulated)");
    }
    for part in [&gpu.uuid, &gpu.pci_address].into_iter().flatten() {
        let _ = write!(text, ", {part}");
    }
    if let Some(driver) = &facts.driver {
        let _ = write!(text, ", driver {driver}");
    }
    text
}

fn table(rows: &[&Row]) -> String {
    let mut reasons = Vec::new();
    let rows: Vec<_> = rows.iter().map(|row| cells(row, &mut reasons)).collect();
    drawn(HEADINGS, rows, |index| (3..7).contains(&index)) + &footnotes(&reasons)
}

/// A table without lines between its cells, each of which is one line; columns for which
/// `is_number` are right-aligned.
pub(crate) fn drawn<Row>(
    headings: Row,
    rows: impl IntoIterator<Item = impl IntoIterator<Item = String>>,
    is_number: impl Fn(usize) -> bool,
) -> String
where
    Row: Into<comfy_table::Row>,
{
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(headings);
    for row in rows {
        table.add_row(row.into_iter().map(|cell| plain(&cell)));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if is_number(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // No blanks at the ends of lines.
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The meaning of the marks in a table.
pub(crate) fn footnotes(reasons: &[&str]) -> String {
    let notes = reasons.iter().enumerate();
    notes.map(|(index, reason)| format!("[{}] {}\n", index + 1, plain(reason))).collect()
}

/// A row's route, with the mark of its reason, which is listed once for all rows.
pub(crate) fn route<'a>(row: &'a Row, reasons: &mut Vec<&'a str>) -> String {
    let mut route: Vec<String> = row.route.iter().cloned().collect();
    if row.simulated {
        route.push("simulated".into());
    }
    if let Some(reason) = row.reason.as_deref() {
        route.push(format!("[{}]", mark(reason, reasons)));
    }
    if route.is_empty() { "–".into() } else { route.join(" ") }
}

/// The number of a footnote below a table, which is listed once.
pub(crate) fn mark<'a>(reason: &'a str, reasons: &mut Vec<&'a str>) -> usize {
    let found = reasons.iter().position(|other| *other == reason);
    found.map_or_else(
        || {
            reasons.push(reason);
            reasons.len()
        },
        |index| index + 1,
    )
}

/// The result of the data check of a row.
pub(crate) fn data(row: &Row) -> &'static str {
    match row.verified {
        None => "–",
        Some(true) => "right",
        Some(false) => "WRONG",
    }
}

/// A row's rates: the median and the range.
pub(crate) fn rates(row: &Row) -> String {
    let rates = row.bytes_per_second;
    format!("{} ({}–{})", rate(rates.median), rate(rates.min), rate(rates.max))
}

/// One line; its reason is below the table, once for all lines that share it.
fn cells<'a>(row: &'a Row, reasons: &mut Vec<&'a str>) -> [String; 11] {
    let none = || "–".to_owned();
    let limit = row.limit.map(|limit| limit.name.name());
    [
        row.method.name().to_owned(),
        row.direction.name().to_owned(),
        row.cache.map_or_else(none, |cache| cache.name().to_owned()),
        rates(row),
        row.share_of_limit.map_or_else(none, |share| format!("{:.0} %", share * 100.0)),
        row.speed_up.map_or_else(none, |ratio| format!("{ratio:.1}×")),
        row.cpu_s_per_gb.map_or_else(none, |seconds| format!("{seconds:.3}")),
        if row.method.is_ceiling() { "(limit)" } else { limit.unwrap_or("–") }.to_owned(),
        data(row).to_owned(),
        route(row, reasons),
        proof::cell(row, reasons),
    ]
}

/// A rate in GB/s (1e9) with three significant digits.
#[must_use]
pub fn rate(bytes_per_second: f64) -> String {
    let rate = bytes_per_second / 1e9;
    match rate {
        100.0.. => format!("{rate:.0}"),
        10.0.. => format!("{rate:.1}"),
        _ if rate >= 1.0 => format!("{rate:.2}"),
        _ => format!("{rate:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::tests::report;

    /// Rows of a table as lines that fit into this file: each is cut after its seventh column.
    fn folded(text: &str) -> String {
        let mut seventh = usize::MAX;
        let fold = |line: &str| {
            if let Some((before, _)) = line.split_once("  bound by") {
                seventh = before.chars().count();
            }
            match line.char_indices().nth(seventh) {
                Some((at, _)) if line.contains('–') => {
                    format!("{}\n  {}\n", line[..at].trim_end(), line[at..].trim())
                }
                _ => format!("{line}\n"),
            }
        };
        text.lines().map(fold).collect()
    }

    #[test]
    fn a_table_for_each_size() {
        let mut report = report();
        report.results[1].size = 5 << 30;
        report.results[1].verified = Some(false);
        insta::assert_snapshot!(folded(&render(&report)), @"
machine  16 × Some CPU, 128 GiB memory, Linux 6.18.0
file     model.safetensors, ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)
target   cuda:0, NVIDIA H200, GPU-1234, 0000:1b:00.0, driver 580.159

1 GiB
method   direction  cache       GB/s (min–max)  of limit  speed-up  CPU s/GB
  bound by  data   route       verdict
link     read       –         55.3 (55.1–55.6)         –         –     0.125
  (limit)   –      –           –
forebay  read       resident  54.5 (54.2–54.8)      98 %     12.2×     0.125
  link      right  cached [1]  cached
[1] resident in the page cache

5 GiB
method    direction  cache    GB/s (min–max)  of limit  speed-up  CPU s/GB
  bound by  data   route  verdict
standard  read       cold   2.15 (2.11–2.19)      65 %     12.2×     0.125
  storage   WRONG  –      staged [1]
[1] others used it as well
");
    }

    #[test]
    fn what_is_not_known_is_not_named() {
        let mut report = report();
        report.results.truncate(1);
        let place = |report: &Report| render(report).lines().nth(1).unwrap().to_owned();
        assert_eq!(place(&report), "file     ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)");
        report
            .environment
            .drives
            .resize_with(6, || DriveFacts { name: "d".into(), ..DriveFacts::default() });
        let several = "file     ext4 on nvme0n1 (Fast One, x4 at 16 GT/s) + d + d + d + 2 more";
        assert_eq!(place(&report), several);
        report.environment.drives.clear();
        assert_eq!(place(&report), "file     ext4 on nvme0n1 (Fast One)");
        report.environment.drive = None;
        assert_eq!(place(&report), "file     ext4");
        report.environment.file_system = None;
        assert!(place(&report).starts_with("target "), "{}", render(&report));
    }

    #[test]
    fn a_simulated_gpu_is_named_everywhere() {
        let mut report = report();
        let gpu = report.environment.gpu.as_mut().unwrap();
        (gpu.simulated, gpu.id, gpu.name) = (true, "sim:0".into(), "mock".into());
        report.results.iter_mut().for_each(|row| row.simulated = true);
        let text = render(&report);
        // The target, the table's head, and each row.
        assert_eq!(text.matches("simulated").count(), 2 + report.results.len(), "{text}");
    }

    #[test]
    fn rates_have_three_digits() {
        let rates = [54.62e9, 5.4e9, 0.1234e9, 123.4e9, 9.999e9].map(rate);
        assert_eq!(rates, ["54.6", "5.40", "0.123", "123", "10.00"]);
    }
}

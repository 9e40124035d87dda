//! nixlbench's table, by the names of its columns: versions order them differently.
//!
//! It counts neither requests nor bytes. Its average latency is the total time divided by the
//! number of requests, which is a request's duration only with one in flight. Unmeasured values
//! stay null.

use std::collections::HashMap;

use super::found::{
    self, Beside, Contents, Found, axis, count, mean_latency, nanoseconds, number, short,
};
use crate::report::json::Cache;
use crate::results::{Latency, Measured};

/// The columns that a table has in every version.
pub(super) const MARKS: [&str; 2] = ["Block Size (B)", "Batch Size"];
/// Options that have an axis, or that only set a table's points and duration.
const KNOWN: [&str; 16] = [
    "backend",
    "op_type",
    "initiator_seg_type",
    "num_threads",
    "num_files",
    "filepath",
    "filenames",
    "storage_enable_direct",
    "start_block_size",
    "max_block_size",
    "start_batch_size",
    "max_batch_size",
    "num_iter",
    "warmup_iter",
    "etcd_endpoints",
    "device_list",
];
/// Most options of one table that are read.
const OPTIONS_MAX: usize = 64;
/// Columns of one table at most.
const COLUMNS_MAX: usize = 64;

/// Reads nixlbench's output.
///
/// # Errors
/// It has too many results, or neither it nor the user gives the direction.
pub(super) fn parse(text: &str, read_percent: Option<u8>) -> Result<Contents, String> {
    let mut contents = Contents::default();
    let mut told: HashMap<&str, &str> = HashMap::new();
    let mut columns: Vec<&str> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if MARKS.iter().all(|mark| line.contains(mark)) {
            columns = headings(line);
            continue;
        }
        if let Some((name, value)) = option(line) {
            // A repeated option begins another run.
            told.insert(name, value);
            columns.clear();
            continue;
        }
        let lower = line.to_lowercase();
        // Counters of errors are printed too.
        if lower.contains("error:") || lower.contains("failed") {
            contents.warn(number, &format!("nixlbench reported: {}", short(line)));
            continue;
        }
        let values: Vec<&str> = line.split_whitespace().take(COLUMNS_MAX + 1).collect();
        if columns.is_empty() || values.first().is_none_or(|first| found::number(first).is_none()) {
            continue;
        }
        if values.len() != columns.len() {
            let (has, of) = (values.len(), columns.len());
            contents.warn(number, &format!("left out: {has} values below {of} headings"));
            continue;
        }
        let row = Row { columns: &columns, values: &values };
        let direction = direction(&told).or(read_percent).ok_or_else(|| {
            format!("line {number}: the direction is unknown: add `--map direction:=read`")
        })?;
        match measured(&row) {
            Ok(measured) => {
                let point = point(&row, &told, direction);
                contents.add(Found {
                    line: number,
                    point,
                    unix_time: 0.0,
                    measured: Ok(measured),
                    beside: beside(&told),
                })?;
            }
            Err(why) => contents.warn(number, &format!("left out: {why}")),
        }
    }
    if !contents.found.is_empty() {
        contents.note(
            "nixlbench moves the same offsets of a file repeatedly: a cache may have served them",
        );
    }
    Ok(contents)
}

/// The names of columns, which are at least two spaces apart.
fn headings(line: &str) -> Vec<&str> {
    let names = line.split("  ").flat_map(|part| part.split('\t')).map(str::trim);
    names.filter(|name| !name.is_empty()).take(COLUMNS_MAX).collect()
}

/// A printed option, such as `Op type (--op_type=[READ,WRITE])  : WRITE`, and its value.
fn option(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once("(--")?;
    let (name, rest) = rest.split_once('=')?;
    let (_, value) = rest.split_once(')')?;
    let value = value.trim_start().strip_prefix(':')?.trim();
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (is_name && !value.is_empty()).then_some((name, value))
}

fn direction(told: &HashMap<&str, &str>) -> Option<u8> {
    match told.get("op_type")?.to_uppercase().as_str() {
        "READ" => Some(100),
        "WRITE" => Some(0),
        _ => None,
    }
}

/// The options without an axis.
fn beside(told: &HashMap<&str, &str>) -> Beside {
    let others = told.iter().filter(|(name, _)| !KNOWN.contains(name)).take(OPTIONS_MAX);
    let own = others.map(|(name, value)| (short(name), short(value))).collect();
    Beside { own, shared: None }
}

struct Row<'a> {
    columns: &'a [&'a str],
    values: &'a [&'a str],
}

impl Row<'_> {
    fn number(&self, name: &str) -> Option<f64> {
        let at = self.columns.iter().position(|column| *column == name)?;
        number(self.values.get(at)?)
    }

    fn nanoseconds(&self, name: &str) -> Option<f64> {
        self.number(name).map(|us| us * 1e3).and_then(nanoseconds)
    }
}

fn point(row: &Row<'_>, told: &HashMap<&str, &str>, read_percent: u8) -> crate::results::Point {
    let of = |name: &str| told.get(name).copied();
    let way = of("backend").map_or("nixlbench".into(), |name| format!("nixlbench-{}", short(name)));
    let mut point = found::point(way, read_percent);
    let path = of("filepath").or(of("filenames")).unwrap_or_default();
    point.path = short(path);
    point.targets = match of("initiator_seg_type") {
        Some("VRAM") => vec!["gpu".into()],
        Some("DRAM") => vec!["host".into()],
        _ => Vec::new(),
    };
    point.request_size = row.number(MARKS[0]).and_then(count).unwrap_or_default();
    point.batch = axis(row.number(MARKS[1]));
    point.depth = 1;
    point.threads = axis(of("num_threads").and_then(number));
    point.files = axis(of("num_files").and_then(number));
    point.cache = of("storage_enable_direct").filter(|told| *told == "1").map(|_| Cache::Cold);
    point
}

fn measured(row: &Row<'_>) -> Result<Measured, String> {
    // The sum of all workers, if there are several.
    let rate = [
        ("Aggregate B/W (GB/Sec)", 1e9),
        ("B/W (GB/Sec)", 1e9),
        ("B/W (GiB/Sec)", 1024.0 * 1024.0 * 1024.0),
        ("B/W (MiB/Sec)", 1024.0 * 1024.0),
    ];
    let rate = rate.into_iter().find_map(|(name, scale)| Some(row.number(name)? * scale));
    let bytes_per_second = rate.and_then(found::rate).ok_or("it has no throughput")?;
    let reason =
        "nixlbench reports a backend, without proof; latencies begin when a call is posted";
    let reason = reason.to_owned();
    let latency = latency(row);
    Ok(Measured { bytes_per_second, latency, reason: Some(reason), ..Measured::default() })
}

/// The duration of a call, from its posting to its completion. If posting takes most of the time,
/// both are added; percentiles do not add up.
fn latency(row: &Row<'_>) -> Option<Latency> {
    let posting = row.nanoseconds("Avg Post (us)")?;
    let moving = row.nanoseconds("Avg Tx (us)")?;
    if posting > moving {
        return mean_latency(Some(posting + moving));
    }
    let p99_ns = row.nanoseconds("P99 Tx (us)").filter(|ns| *ns > 0.0).and_then(count);
    let latency = mean_latency(Some(moving).filter(|ns| *ns > 0.0));
    latency.map(|latency| Latency { p99_ns, ..latency })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as the versions from 2025 on print them, with made-up numbers.
    fn printed(options: &str, headings: &[(&str, usize)], rows: &[&[&str]]) -> String {
        let line = |cells: &[&str]| {
            let cells = cells.iter().zip(headings);
            cells.map(|(cell, (_, width))| format!("{cell:<width$}")).collect::<String>()
        };
        let names: Vec<&str> = headings.iter().map(|(name, _)| *name).collect();
        let rows: Vec<String> = rows.iter().map(|row| line(row)).collect();
        let rule = "-".repeat(80);
        format!("{options}{}\n{rule}\n{}\n", line(&names), rows.join("\n"))
    }

    const OPTIONS: &str = "\
**********************************************************************
NIXLBench Configuration
**********************************************************************
Backend (--backend=[UCX,GDS,GDS_MT,POSIX])                  : GDS
Initiator seg type (--initiator_seg_type=[DRAM,VRAM])       : VRAM
Op type (--op_type=[READ,WRITE])                            : READ
Num threads (--num_threads=N)                               : 2
filepath (--filepath=path)                                  : /data/nixl
filenames (--filenames=filename1,filename2,...)             :
Number of files (--num_files=N)                             : 1
Storage enable direct (--storage_enable_direct=[0,1])       : 1
";

    const NEW: [(&str, usize); 10] = [
        ("Block Size (B)", 20),
        ("Batch Size", 15),
        ("B/W (GB/Sec)", 15),
        ("Avg Lat. (us)", 15),
        ("Avg Prep (us)", 15),
        ("P99 Prep (us)", 15),
        ("Avg Post (us)", 15),
        ("P99 Post (us)", 15),
        ("Avg Tx (us)", 15),
        ("P99 Tx (us)", 15),
    ];

    #[test]
    fn a_row_is_a_point_with_what_was_measured() {
        let rows: [&[&str]; 2] = [
            &["4096", "1", "0.105000", "39.0", "5.0", "9.0", "38.0", "59.0", "1.0", "3.0"],
            &["65536", "4", "1.250000", "52.0", "5.0", "9.0", "2.0", "3.0", "207.0", "400.0"],
        ];
        let contents = parse(&printed(OPTIONS, &NEW, &rows), None).unwrap();
        assert_eq!(contents.found.len(), 2);
        let Found { line, point, measured, .. } = &contents.found[1];
        assert_eq!(
            (*line, point.way.as_str(), point.path.as_str()),
            (15, "nixlbench-GDS", "/data/nixl")
        );
        assert_eq!((point.request_size, point.batch, point.threads), (65536, 4, 2));
        assert_eq!((point.read_percent, point.targets.as_slice()), (100, &["gpu".to_owned()][..]));
        assert_eq!((point.pattern.as_str(), point.cache, point.files), ("", Some(Cache::Cold), 1));
        let measured = measured.as_ref().unwrap();
        assert!((measured.bytes_per_second - 1.25e9).abs() < 1.0);
        assert_eq!(
            (measured.bytes, measured.requests, measured.requests_per_second),
            (None, None, None)
        );
        assert_eq!((measured.seconds, measured.cpu, &measured.verdict), (None, None, &None));
        let latency = measured.latency.unwrap();
        assert_eq!((latency.mean_ns, latency.p99_ns), (Some(207_000.0), Some(400_000)));
        assert_eq!((latency.p50_ns, latency.max_ns, latency.count), (None, None, None));
        // Options without an axis are stored with the run.
        let more = format!("{OPTIONS}Recreate (--recreate_xfer=[0,1])   : 1\n");
        let contents_more = parse(&printed(&more, &NEW, &rows), None).unwrap();
        let own: Vec<_> = contents_more.found[0].beside.own.iter().collect();
        assert_eq!(own, [(&"recreate_xfer".to_owned(), &"1".to_owned())]);
        assert!(contents.found[0].beside.own.is_empty());
        // If posting takes most of the time, no percentile applies to the whole.
        let first = contents.found[0].measured.as_ref().unwrap().latency.unwrap();
        assert_eq!((first.mean_ns, first.p99_ns), (Some(39_000.0), None));
        assert!(contents.warnings[0].contains("same offsets"), "{:?}", contents.warnings);
    }

    #[test]
    fn older_tables_and_those_of_several_workers_are_read_by_their_names() {
        let old = [
            ("Block Size (B)", 20),
            ("Batch Size", 15),
            ("Avg Lat. (us)", 15),
            ("B/W (MiB/Sec)", 15),
            ("B/W (GiB/Sec)", 15),
            ("B/W (GB/Sec)", 15),
            ("Aggregate B/W (GB/Sec)", 25),
            ("Network Util (%)", 20),
        ];
        let rows: [&[&str]; 1] = [&["4096", "1", "10.2", "381.5", "0.3725", "0.4", "1.6", "3.2"]];
        let contents = parse(&printed("", &old, &rows), Some(0)).unwrap();
        let Found { point, measured, .. } = &contents.found[0];
        let measured = measured.as_ref().unwrap();
        assert!((measured.bytes_per_second - 1.6e9).abs() < 1.0);
        assert_eq!((measured.latency, point.read_percent, point.threads), (None, 0, 0));
        assert_eq!((point.way.as_str(), point.targets.len()), ("nixlbench", 0));
        let text = printed("", &old[..5], &[&["4096", "1", "10.2", "1024", "1"]]);
        let gib = parse(&text, Some(0)).unwrap().found.remove(0).measured.unwrap();
        assert!((gib.bytes_per_second - f64::from(1 << 30)).abs() < 1.0);
        let nobody = parse(&text, None).unwrap_err();
        assert!(nobody.contains("line 3: the direction is unknown"), "{nobody}");
    }

    #[test]
    fn what_is_no_row_is_told() {
        let rows: [&[&str]; 5] = [
            &["4096", "1", "nan", "39.0", "5.0", "9.0", "2.0", "3.0", "37.0", "61.0"],
            &["4096", "1", "0.1"],
            &["4096", "1", "1e300", "1", "1", "1", "1", "1", "1", "1"],
            &["Error: transfer failed"],
            &["Total Fastpath Write Errors: 0"],
        ];
        let contents = parse(&printed(OPTIONS, &NEW, &rows), None).unwrap();
        assert_eq!(contents.found, []);
        let told = contents.warnings.join("\n");
        insta::assert_snapshot!(told, @"
        line 14: left out: it has no throughput
        line 15: left out: 3 values below 10 headings
        line 16: left out: it has no throughput
        line 17: nixlbench reported: Error: transfer failed
        ");
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String, cells in "[0-9eE.+ -]{0,120}") {
            let _ = parse(&text, Some(100));
            let _ = parse(&format!("{}{cells}\n{text}", printed(OPTIONS, &NEW, &[])), None);
        }
    }
}

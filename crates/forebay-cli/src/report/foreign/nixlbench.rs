//! nixlbench's table, by the names of its columns: versions order them differently.
//!
//! It counts neither requests nor bytes. Its average latency is the total time divided by the
//! number of requests: a request's duration only with a single request in flight. Unmeasured values
//! stay null.

use std::collections::BTreeMap;

use super::map::Map;
use super::row::{Contents, Row, short};
use super::table;
use super::units::number;

/// Columns of the table in every version.
pub(super) const MARKS: [&str; 2] = ["Block Size (B)", "Batch Size"];
/// Options that have an axis, or that only set a table's points and duration.
const KNOWN: &str = "backend op_type initiator_seg_type num_threads num_files filepath filenames \
                     storage_enable_direct start_block_size max_block_size start_batch_size \
                     max_batch_size num_iter warmup_iter etcd_endpoints device_list";
/// Most options and columns of a table that are read.
const LISTED_MAX: usize = 64;

/// Reads nixlbench's output.
///
/// # Errors
/// It holds too many results, or contradicts the user.
pub(super) fn parse(text: &str, contents: &mut Contents) -> Result<(), String> {
    let mut options: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut columns, mut places): (Vec<String>, _) = (Vec::new(), Vec::new());
    // The length of a launcher's prefix of every line.
    let mut before = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let is_head = MARKS.iter().all(|mark| line.contains(mark));
        if is_head {
            before = line.find(MARKS[0]).unwrap_or(0);
        }
        let line =
            line.get(if columns.is_empty() && !is_head { 0 } else { before }..).unwrap_or("");
        if is_head {
            // Names are at least two spaces apart.
            let names = line.split("  ").flat_map(|part| part.split('\t')).map(str::trim);
            let names = names.filter(|name| !name.is_empty()).take(LISTED_MAX);
            columns = names.map(str::to_owned).collect();
            places = table::places(&Map::default(), &columns)?;
        } else if let Some((name, value)) = option(line) {
            // A repeated option begins a new run.
            options.insert(name, value);
            columns.clear();
        } else if ["error:", "failed"].iter().any(|word| line.to_lowercase().contains(word)) {
            // Counters of errors are printed too.
            contents.warn(number, &format!("nixlbench reported: {}", short(line)));
        } else {
            let values = line.split_whitespace().take(LISTED_MAX + 1).map(str::to_owned);
            let values: Vec<String> = values.collect();
            let begins_row = values.first().is_some_and(|first| self::number(first).is_some());
            if !columns.is_empty() && begins_row {
                let row = table::row(&places, &columns, &values, &[]);
                let row = row.map(|row| completed(row, &columns, &values, &options));
                contents.add(number, row)?;
            }
        }
    }
    if !contents.found.is_empty() {
        contents.note(
            "nixlbench moves the same offsets of a file repeatedly: a cache may have served them",
        );
    }
    Ok(())
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

/// A row of the table with what the options say.
fn completed(
    mut row: Row,
    columns: &[String],
    values: &[String],
    options: &BTreeMap<&str, &str>,
) -> Row {
    let option = |name: &str| options.get(name).copied();
    if let Some(backend) = option("backend") {
        row.set("method", &format!("nixlbench-{backend}"));
    }
    row.set("direction", option("op_type").unwrap_or_default());
    row.set("path", option("filepath").or(option("filenames")).unwrap_or_default());
    match option("initiator_seg_type") {
        Some("VRAM") => row.set("gpu", "gpu"),
        Some("DRAM") => row.set("gpu", "host"),
        _ => {}
    }
    row.count("depth", Some(1.0));
    row.count("threads", option("num_threads").and_then(number));
    row.count("files", option("num_files").and_then(number));
    if option("storage_enable_direct") == Some("1") {
        row.set("cache", "cold");
    }
    // Latencies begin when a call was posted, and include posting if they are longer.
    let posted = columns.iter().position(|column| column == "Avg Post (us)");
    let posting = posted.and_then(|at| Some(number(&values[at])? * 1e3));
    if posting.is_some_and(|posting| row.numbers.get("mean").is_none_or(|mean| *mean <= posting)) {
        row.numbers.retain(|name, _| !["mean", "p99"].contains(name));
    }
    let others = options.iter().filter(|(name, _)| KNOWN.split(' ').all(|known| known != **name));
    let others = others.take(LISTED_MAX).map(|(name, value)| (short(name), short(value)));
    row.settings.extend(others);
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_measure::results::Cache;
    use forebay_measure::results::Sample;

    fn read(text: &str, map: &str) -> Contents {
        let map: Map = if map.is_empty() { Map::default() } else { map.parse().unwrap() };
        let mut contents = Contents::new("nixlbench", &map.values);
        parse(text, &mut contents).unwrap();
        contents
    }

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
        let contents = read(&printed(OPTIONS, &NEW, &rows), "");
        assert_eq!(contents.found.len(), 2);
        let (Sample { point, measured, .. }, settings) = &contents.found[1];
        assert_eq!((point.method.as_str(), point.path.as_str()), ("nixlbench-GDS", "/data/nixl"));
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
        // Options without an axis separate results.
        assert!(settings.is_empty());
        let more = format!("{OPTIONS}Recreate (--recreate_xfer=[0,1])   : 1\n");
        let (_, settings) = read(&printed(&more, &NEW, &rows), "").found.remove(0);
        assert_eq!(settings["recreate_xfer"], "1");
        // If posting takes most of the time, no latency applies to the whole.
        assert_eq!(contents.found[0].0.measured.as_ref().unwrap().latency, None);
        assert!(contents.warnings()[0].contains("same offsets"), "{contents:?}");
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
        let contents = read(&printed("", &old, &rows), "direction:=write");
        let (Sample { point, measured, .. }, _) = &contents.found[0];
        let measured = measured.as_ref().unwrap();
        assert!((measured.bytes_per_second - 1.6e9).abs() < 1.0);
        assert_eq!((measured.latency, point.read_percent, point.threads), (None, 0, 0));
        assert_eq!((point.method.as_str(), point.targets.len()), ("nixlbench", 0));
        let text = printed("", &old[..5], &[&["4096", "1", "10.2", "1024", "1"]]);
        let gib = read(&text, "direction:=write").found.remove(0).0.measured.unwrap();
        assert!((gib.bytes_per_second - f64::from(1 << 30)).abs() < 1.0);
        let why = read(&text, "").reasons();
        assert!(why.contains("line 3: left out: the direction is unknown"), "{why}");
    }

    #[test]
    fn an_invalid_row_is_reported() {
        let rows: [&[&str]; 5] = [
            &["4096", "1", "nan", "39.0", "5.0", "9.0", "2.0", "3.0", "37.0", "61.0"],
            &["4096", "1", "0.1"],
            &["4096", "1", "1e300", "1", "1", "1", "1", "1", "1", "1"],
            &["Error: transfer failed"],
            &["Total Fastpath Write Errors: 0"],
        ];
        let contents = read(&printed(OPTIONS, &NEW, &rows), "");
        assert_eq!(contents.found, []);
        insta::assert_snapshot!(contents.warnings().join("\n"), @"
        line 14: left out: it has no throughput, and no numbers that give one (and 1 more like it)
        line 15: left out: 3 fields below 10 headings
        line 17: nixlbench reported: Error: transfer failed
        ");
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String, cells in "[0-9eE.+ -]{0,120}") {
            read(&text, "direction:=read");
            read(&format!("{}{cells}\n{text}", printed(OPTIONS, &NEW, &[])), "");
        }
    }
}

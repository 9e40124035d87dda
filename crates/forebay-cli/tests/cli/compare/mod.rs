//! `forebay compare`: what it prints, what it refuses, and that it leaves nothing behind.

mod devices;
mod ends;
mod help;
mod refused;
mod sockets;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use forebay_cli::compare::json::CompareReport;
use forebay_cli::report::json::{Cache, Direction, MethodName, Report};

use crate::program::program;
use crate::proof::stays_in_memory;

/// On a drive, where the system's folder for such files may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(".").unwrap()
}

fn compare(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).args(["compare", "-s", "2"]).args(arguments);
    command.output().unwrap()
}

fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = compare(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn report(folder: &Path, arguments: &[&str]) -> CompareReport {
    let text = good(folder, &[arguments, &["--json"]].concat());
    let report: CompareReport = serde_json::from_str(&text).unwrap();
    // What reads the rows of `forebay bench` reads these.
    let rows = serde_json::from_str::<Report>(&text).unwrap().results;
    assert_eq!(rows.len(), report.results.len());
    report
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The exit code and what stands on stderr, of a command that prints nothing and leaves nothing.
fn failure(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let before = names(folder);
    let output = compare(folder, arguments);
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(names(folder), before, "something was left");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn each_run_has_a_line_and_each_way_a_row() {
    let folder = folder();
    for gpu in ["none", "sim"] {
        let text = good(folder.path(), &["-m", "compare", "-r", "2", "--gpu", gpu]);
        for run in [1, 2] {
            for way in ["standard", "forebay"] {
                let line = format!("{way}, run {run}: write ");
                let line = text.lines().find(|found| found.starts_with(&line)).unwrap();
                assert!(line.contains(" GB/s, read ") && line.contains(" GB/s, verified"));
            }
        }
        let rows = text.lines().filter(|line| line.contains(" right "));
        assert_eq!(rows.count(), 4, "{text}");
        assert!(text.contains("% faster]") || text.contains("% slower]") || text.contains("[as"));
        let numbers = |line: &&str| line.contains("GB/s, ") || line.contains(" right ");
        for line in text.lines().filter(numbers) {
            assert_eq!(line.contains("simulated"), gpu == "sim", "{line}");
        }
        assert_eq!(names(folder.path()), [""; 0]);
    }
}

#[test]
fn rows_say_what_the_runs_say() {
    let folder = folder();
    let report = report(folder.path(), &["-m", "compare", "--gpu", "sim"]);
    assert_eq!((report.schema, report.compare.runs), (1, 3));
    assert_eq!(report.compare.mode, "compare");
    let named: Vec<_> =
        report.results.iter().map(|found| (found.row.method, found.row.direction)).collect();
    let ways = [MethodName::Standard, MethodName::Forebay];
    let both = [Direction::Write, Direction::Read].into_iter();
    let expected: Vec<_> = both.flat_map(|to| ways.map(|way| (way, to))).collect();
    assert_eq!(named, expected);
    for found in &report.results {
        let (row, runs) = (&found.row, &found.runs);
        assert_eq!((row.bytes, row.verified, row.simulated), (2 << 20, Some(true), true));
        assert_eq!((row.seconds.len(), row.evidence.as_ref().unwrap().len()), (3, 3));
        let rate = |seconds: f64| f64::from(2 << 20) / seconds;
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
        assert!(near(runs.first, rate(row.seconds[0])), "{found:?}");
        let others = [rate(row.seconds[1]), rate(row.seconds[2])];
        assert!(near(runs.mean, f64::midpoint(others[0], others[1])), "{found:?}");
        let apart = (others[0] - others[1]).abs() / runs.mean;
        assert!((runs.variation.unwrap() - apart).abs() < 1e-9, "{found:?}");
        assert!(near(row.bytes_per_second.min, others[0].min(others[1])), "{found:?}");
        let standard = report.results.iter().find(|other| {
            other.row.method == MethodName::Standard && other.row.direction == row.direction
        });
        let base = standard.unwrap().row.bytes_per_second.median;
        assert!(near(row.speed_up.unwrap(), row.bytes_per_second.median / base), "{found:?}");
    }
}

#[test]
fn the_direct_path_is_called_dma_by_what_others_counted() {
    let folder = folder();
    let probe = folder.path().join("probe");
    fs::write(&probe, vec![7; 1 << 20]).unwrap();
    if let Some(reason) = stays_in_memory(&probe) {
        return println!("skipped: a direct path: {reason}");
    }
    for mode in ["dma", "compare"] {
        let report = report(folder.path(), &["-m", mode, "--gpu", "sim:cufile", "-r", "1"]);
        let row = |direction| {
            let found = report.results.iter().find(|found| {
                found.row.demanded.as_deref() == Some("direct") && found.row.direction == direction
            });
            &found.unwrap().row
        };
        let ours = report.results.iter().filter(|found| found.row.demanded.is_none());
        assert_eq!(ours.count(), if mode == "dma" { 2 } else { 4 }, "the standard way is there");
        for direction in [Direction::Write, Direction::Read] {
            let verdict = row(direction).verdict.as_ref().unwrap();
            if verdict.word == "unproven" {
                println!("skipped: a proven path: {:?}", verdict.missing);
                continue;
            }
            assert_eq!(row(direction).route.as_deref(), Some("direct"));
            assert_eq!((verdict.word.as_str(), verdict.simulated), ("direct (p2pdma)", true));
        }
    }
}

/// The lines that say whether it was DMA, writing and reading.
fn dma(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("DMA      ")).collect()
}

#[test]
fn it_is_called_dma_where_the_verdict_says_so_and_nowhere_else() {
    let folder = folder();
    let text = good(folder.path(), &["-m", "compare", "-r", "1", "--gpu", "sim"]);
    let said = dma(&text);
    assert_eq!(said.len(), 2, "{text}");
    for (line, direction) in said.iter().zip(["write", "read"]) {
        let says = |word| line.starts_with(&format!("{direction}: {word}: forebay"));
        assert!(says("no") || says("not proven"), "{line}");
        assert!(line.ends_with(", simulated"), "{line}");
    }
    assert_eq!(text.matches("DMA").count(), 2, "{text}");

    // A library that says that bytes have gone, which have not.
    let output = compare(folder.path(), &["-m", "dma", "-r", "1", "--gpu", "sim:cufile=lie"]);
    let (text, told) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let (text, told) = (text.unwrap(), told.unwrap());
    if told.contains("by the route `direct`: ") {
        return println!("skipped: a path that lies: {told}");
    }
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("run 1: ") && text.contains("WRONG DATA"), "{text}");
    assert!(told.contains("error: wrong data were found"), "{told}");
    assert!(dma(&text).iter().all(|line| line.contains(": not proven: ")), "{text}");
    let wrong: Vec<&str> = text.lines().filter(|line| line.contains(" WRONG ")).collect();
    assert!(!wrong.is_empty());
    for line in wrong {
        assert!(!line.contains("faster") && !line.contains("slower"), "it says nothing: {line}");
    }
}

#[test]
fn a_kernel_works_alone_and_beside_a_read() {
    let folder = folder();
    let text = good(folder.path(), &["-r", "2", "--gpu", "sim"]);
    for run in [1, 2] {
        let line = format!("xor, run {run}: alone ");
        let line = text.lines().find(|found| found.starts_with(&line)).unwrap();
        assert!(line.contains("GB/s, during a read ") && line.ends_with("verified, simulated"));
    }
    for (name, says) in [("xor ", "data right, simulated"), ("during ", ", simulated")] {
        let line = text.lines().find(|line| line.starts_with(name) && !line.contains("run "));
        assert!(line.unwrap().ends_with(says), "{text}");
    }
    let report = report(folder.path(), &["-r", "2", "--gpu", "sim"]);
    let facts = report.compare.compute.as_ref().unwrap();
    assert_eq!((facts.kernel.as_str(), facts.bytes), ("xor", 2 << 20));
    assert_eq!((facts.limit_by.as_str(), facts.verified, facts.simulated), ("filling", true, true));
    for runs in [facts.alone, facts.beside, facts.read] {
        assert!(runs.first > 0.0 && runs.mean > 0.0, "{facts:?}");
    }
    assert!((facts.share_of_limit - facts.alone.median / facts.limit).abs() < 1e-9);
    let ours = report.results.iter().find(|found| {
        (found.row.method, found.row.direction) == (MethodName::Forebay, Direction::Read)
    });
    let share = facts.read.median / ours.unwrap().runs.median;
    assert!((facts.share_of_read.unwrap() - share).abs() < 1e-9);
    // Without a GPU the rest is measured all the same.
    let output = compare(folder.path(), &["-r", "1", "--gpu", "none"]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("own work during a read is not measured: no GPU is available"), "{told}");
    assert!(!String::from_utf8(output.stdout).unwrap().contains("xor"));
}

#[test]
fn a_file_system_in_memory_is_told() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return println!("skipped: a file system in memory: no `/dev/shm`");
    };
    let output = compare(folder.path(), &["-m", "compare", "-r", "1", "--gpu", "none", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: CompareReport = serde_json::from_slice(&output.stdout).unwrap();
    let kind = report.environment.file_system.map(|facts| facts.kind).unwrap_or_default();
    if kind != "tmpfs" {
        return println!("skipped: a file system in memory: `/dev/shm` is {kind}");
    }
    let resident = report.results.iter().all(|found| found.row.cache == Some(Cache::Resident));
    assert!(resident && report.results.len() == 4, "{:?}", report.results);
    let told = |text: &String| text.contains("stays in memory") && text.contains("tmpfs keeps");
    assert!(report.warnings.iter().any(told), "{:?}", report.warnings);
}

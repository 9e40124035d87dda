//! `forebay compare`: what it prints, what it refuses, and that it leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use forebay_cli::compare::json::CompareReport;
use forebay_cli::report::json::{Direction, MethodName, Report};

use crate::program::program;
use crate::proof::stays_in_memory;

/// On a drive, where the system's folder for such files may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(".").unwrap()
}

fn compare(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).args(["compare", "-s", "2"]).args(arguments);
    command.env("XDG_CACHE_HOME", folder.join("cache")).output().unwrap()
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

/// What is in a folder, but for what the engine remembers.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "cache").collect();
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

#[test]
fn a_direct_path_that_is_missing_is_named() {
    let folder = folder();
    let (code, text) = failure(folder.path(), &["-m", "dma", "--gpu", "sim"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("by the route `direct`") && text.contains("no `libcufile`"), "{text}");
    assert!(text.contains("hint: `forebay doctor` says what the route takes; `-m compare`"));
    let (code, text) = failure(folder.path(), &["-m", "dma", "--gpu", "none"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("by the route `direct` without a GPU"), "{text}");
    // Beside others it is only not there.
    let report = report(folder.path(), &["-m", "compare", "--gpu", "sim", "-r", "1"]);
    assert!(report.results.iter().all(|found| found.row.demanded.is_none()));
}

#[test]
fn a_file_that_is_there_is_not_touched_unless_the_user_says_so() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, "precious").unwrap();
    for mode in ["compare", "dma"] {
        let (code, text) = failure(folder.path(), &["-f", "file", "-m", mode, "--gpu", "sim"]);
        let expected = "error: `file` is there, and would be overwritten\n\
                        hint: give a new name or a folder; with `--overwrite` all that it holds is \
                        lost\n";
        assert_eq!((code, text.as_str()), (2, expected));
    }
    // What it holds is not lost for a path that is not there.
    let arguments = ["-f", "file", "--overwrite", "-m", "dma", "--gpu", "sim"];
    assert_eq!(failure(folder.path(), &arguments).0, 1);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let arguments = ["-f", "file", "--overwrite", "-m", "compare", "-r", "1", "--gpu", "none"];
    good(folder.path(), &arguments);
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 << 20, "it stays, with other bytes");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn a_file_that_is_new_goes_away_again() {
    let folder = folder();
    fs::create_dir(folder.path().join("there")).unwrap();
    for file in ["new", "there", "there/new"] {
        good(folder.path(), &["-f", file, "-m", "compare", "-r", "1", "--gpu", "none"]);
        assert_eq!(names(folder.path()), ["there"], "{file}");
        assert_eq!(names(&folder.path().join("there")), [""; 0], "{file}");
    }
    for (file, says) in
        [("missing/new", "cannot create `missing/new`"), ("/dev/null", "no regular")]
    {
        let (code, text) = failure(folder.path(), &["-f", file, "--gpu", "none"]);
        assert_eq!(code, if file == "/dev/null" { 2 } else { 1 }, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn words_that_make_no_sense_are_told() {
    let folder = folder();
    let texts: Vec<String> = [
        &["-m", "turbo"][..],
        &["-r", "0"],
        &["-f"],
        &["--overwrite"],
        &["--overwite", "-f", "x"],
        &["file"],
    ]
    .into_iter()
    .map(|arguments| {
        let (code, text) = failure(folder.path(), arguments);
        assert_eq!(code, 2, "{arguments:?}: {text}");
        text
    })
    .collect();
    insta::assert_snapshot!(texts.concat(), @"
    error: `--mode` cannot be `turbo`: it takes one of `compare`, `dma`, `all`
    hint: `forebay compare --help` tells what it takes
    error: `--runs` cannot be `0`: it takes a number from 1 to 1000
    hint: `forebay compare --help` tells what it takes
    error: `--file` needs a value
    hint: `forebay compare --help` tells what it takes
    error: `--file` is missing
    hint: `forebay compare --help` tells what it takes
    error: there is no flag `--overwite`
    hint: perhaps `--overwrite` was meant
    error: `file` is one word too many
    hint: `forebay compare --help` tells what it takes
    ");
    for size in ["0", "bananas", "1023K", "1MB", "-1", "99999999999T"] {
        let mut command = Command::new(program());
        command.current_dir(folder.path()).args(["compare", "--size", size]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("it takes a number of MiB, or a size such as `512M`"), "{text}");
    }
}

#[test]
fn a_size_without_room_is_refused() {
    let folder = folder();
    let mut command = Command::new(program());
    let arguments = ["compare", "--size", "1000000T", "--gpu", "none"];
    let output = command.current_dir(folder.path()).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("stay free"), "{text}");
    assert_eq!(names(folder.path()), [""; 0]);
    // The GPU's memory bounds it as well.
    let (code, text) = failure(folder.path(), &["--gpu", "sim:memory=1M"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("cannot allocate 2 MiB on sim:0"), "{text}");
}

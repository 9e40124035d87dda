//! `forebay report` of two files: the comparison in each form, the gate, and refused arguments.

use std::fs;

use serde_json::Value;

use super::made::{self, Sweep};
use super::{forebay, run};

/// A folder with a base, something faster in part, and something slower.
fn folder() -> tempfile::TempDir {
    let folder = crate::scratch();
    let sweep =
        Sweep { request_sizes: vec![65536, 1 << 20], depths: vec![1, 8], ..Sweep::default() };
    for (name, factor) in [("before", 1.0), ("after", 1.5), ("worse", 0.5)] {
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep));
        for record in &mut records {
            // Only small requests gain.
            let small = record["point"]["request_size"] == 65536;
            let measured = &mut record["measured"];
            if let Some(rate) = measured["bytes_per_second"].as_f64()
                && (small || factor < 1.0)
            {
                measured["bytes_per_second"] = (rate * factor).into();
            }
            if name == "after" && record["record"] == "run" {
                record["environment"]["kernel"] = "Linux 7.0.0".into();
            }
        }
        fs::write(folder.path().join(format!("{name}.jsonl")), made::text(&records)).unwrap();
    }
    folder
}

#[test]
fn two_files_are_compared_in_each_form() {
    let folder = folder();
    let report = |more: &[&str]| {
        let output = forebay(folder.path(), &[&["before.jsonl", "after.jsonl"], more].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = report(&[]);
    for word in [
        "after compared with before",
        "differs in: kernel Linux 7.0.0 vs Linux 6.18.0",
        "64 KiB, depth 1    0.218  0.327  1.50× (1.46–1.54)  faster",
        "2 of 4 points: no significant difference",
        "no significant change in 9 metrics: IOPS, mean latency",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let csv = report(&["--format=csv"]);
    assert!(csv.starts_with("base,other,metric,point,"), "{csv}");
    // Four points with ten quantities, and the heading.
    assert_eq!(csv.lines().count(), 1 + 4 * 10, "{csv}");
    let markdown = report(&["--format=md"]);
    assert!(markdown.contains("\n## after compared with before\n"), "{markdown}");
    assert!(markdown.contains("| 64 KiB, depth 1 | 0.218 | 0.327 | 1.50× ("), "{markdown}");
    let p50 = report(&["--metric", "p50"]);
    assert!(p50.contains("\n4 points: no significant difference\n"), "{p50}");
    report(&["-o", "both.html"]);
    let page = fs::read_to_string(folder.path().join("both.html")).unwrap();
    assert!(page.contains("2 faster, 0 slower"), "{page}");
}

#[test]
fn files_without_a_common_point_are_in_one_table() {
    let folder = folder();
    let other = Sweep { request_sizes: vec![4096], depths: vec![64, 128], ..Sweep::default() };
    fs::write(folder.path().join("other.jsonl"), made::file(&other)).unwrap();
    let output = forebay(folder.path(), &["before.jsonl", "other.jsonl"]);
    let (text, talk) = (output.stdout, String::from_utf8(output.stderr).unwrap());
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("\nother ") && text.contains("\nbefore "), "{text}");
    assert!(talk.contains("not compared: no point is the same"), "{talk}");
}

#[test]
fn a_regression_ends_with_1() {
    let folder = folder();
    let gate = |other: &str, limit: &str| {
        forebay(folder.path(), &["before.jsonl", other, "--fail-if-worse", limit])
    };
    let output = gate("after.jsonl", "5%");
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(talk.contains("no regression of throughput above 5.00 %: 4 points judged"), "{talk}");
    let output = gate("worse.jsonl", "5%");
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{talk}");
    assert!(talk.contains("throughput is worse than the base by more than 5.00 %"), "{talk}");
    assert!(talk.contains("64 KiB, depth 1: 0.50×"), "{talk}");
    assert!(!output.stdout.is_empty());
    assert_eq!(gate("worse.jsonl", "60").status.code(), Some(0));
}

#[test]
fn impossible_comparisons_are_refused() {
    let folder = folder();
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = forebay(folder.path(), arguments);
        let talk = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{talk}");
        assert!(words.iter().all(|word| talk.contains(word)), "{talk}");
        assert!(output.stdout.is_empty());
    };
    refused(&["before.jsonl", "--metric", "p50"], 2, &["nothing to compare with", "--by"]);
    refused(&["before.jsonl", "none"], 1, &["`none`"]);
    refused(&["before.jsonl", "--by", "colour"], 2, &["`colour` for `--by <AXIS>`", "`label`,"]);
    refused(&["before.jsonl", "--by", "method"], 2, &["all points are of `forebay`"]);
    refused(&["before.jsonl", "--base", "x"], 2, &["--by"]);
    refused(&["before.jsonl", "worse.jsonl", "--metric", "speed"], 2, &["`first-p99`, `iops`"]);
    refused(&["before.jsonl", "worse.jsonl", "--fail-if-worse=-1%"], 2, &["percent"]);
    refused(&["before.jsonl", "worse.jsonl", "--metric", "server-energy"], 1, &["server energy"]);
}

#[test]
fn a_second_path_is_compared_in_turn() {
    // On a drive, where the system's folder for such files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    for name in ["near", "far"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let bench = |more: &[&str]| {
        let usual = [
            "bench",
            "near",
            "--vs",
            "far",
            "--gpu=none",
            "--block-size=4K,64K",
            "--depth=1",
            "--time=500ms",
            "--warm-up=0s",
            "--repeats=2",
            "--size=1M",
            "--cache=warm",
            "-o",
            "results.jsonl",
        ];
        run(folder.path(), [&usual[..], more].concat())
    };
    let output = bench(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("\nfar compared with near\n"), "{text}");
    assert!(text.contains("too few for an interval"), "{text}");
    let records = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
    let records = records.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let order: Vec<(String, u64)> = records
        .filter(|record| record["record"] == "sample")
        .map(|record| {
            let point = &record["point"];
            (point["path"].as_str().unwrap().into(), point["request_size"].as_u64().unwrap())
        })
        .collect();
    let near_first = [("near", 4096), ("far", 4096), ("near", 65536), ("far", 65536)];
    let expected: Vec<(String, u64)> = near_first
        .iter()
        .chain(near_first.iter().rev())
        .map(|(path, size)| ((*path).to_owned(), *size))
        .collect();
    assert_eq!(order, expected);
    // Scratch is gone, and the file says the same again.
    assert_eq!(fs::read_dir(folder.path().join("near")).unwrap().count(), 0);
    let again = forebay(folder.path(), &["results.jsonl", "--by", "path"]);
    let again = String::from_utf8(again.stdout).unwrap();
    let compared = |text: &str| {
        let (_, found) = text.split_once("\nfar compared with near\n").unwrap();
        // The results above have more columns.
        found.split("more columns: ").next().unwrap().to_owned()
    };
    assert_eq!(compared(&again), compared(&text));
    let output = run(folder.path(), ["bench", "near", "--vs", "./near"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

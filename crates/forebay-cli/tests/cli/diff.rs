//! `forebay diff`: its forms, its gate, what it refuses, and two paths of one sweep.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

use crate::program::program;
use crate::report::made::{self, Sweep};

fn forebay(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).args(arguments).output().unwrap()
}

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
fn two_files_stand_side_by_side() {
    let folder = folder();
    let output = forebay(folder.path(), &["diff", "before.jsonl", "after.jsonl"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    insta::assert_snapshot!(text, @"
    before  forebay sweep /data/model.safetensors --depth 1,8,32
    after   forebay sweep /data/model.safetensors --depth 1,8,32

    differences in machine and settings
      kernel: Linux 6.18.0 | Linux 7.0.0

    after compared with before
    throughput, GB/s                                ‹ slower         faster ›
    64 KiB, depth 1 0.218 0.327 1.500 (1.459–1.543)             │         ─●─ faster
    64 KiB, depth 8  1.43  2.14 1.500 (1.459–1.543)             │         ─●─ faster
    1 MiB, depth 1   2.36  2.36 1.000 (0.972–1.028)            ─●─            –
    1 MiB, depth 8   5.55  5.55 1.000 (0.972–1.028)            ─●─            –
                                                    0.648       1        1.54

    throughput     1.225 (1.212–1.238) of 4: 2 faster, 2 not significant
    requests       1.000 (0.989–1.011) of 4: no significant difference
    mean latency   1.000 (0.989–1.011) of 4: no significant difference
    p50 latency    1.000 (0.989–1.011) of 4: no significant difference
    p90 latency    1.000 (0.989–1.011) of 4: no significant difference
    p99 latency    1.000 (0.989–1.011) of 4: no significant difference
    p99.9 latency  1.000 (0.989–1.011) of 4: no significant difference
    max latency    1.000 (0.989–1.011) of 4: no significant difference
    CPU cost       1.000 (0.989–1.011) of 4: no significant difference
    GPU energy     1.000 (1.000–1.000) of 4: no significant difference
    ");
}

#[test]
fn each_form_says_the_same() {
    let folder = folder();
    let diff = |more: &[&str]| {
        let arguments = [&["diff", "before.jsonl", "after.jsonl", "worse.jsonl"], more].concat();
        let output = forebay(folder.path(), &arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&diff(&["--json"])).unwrap();
    assert_eq!((&json["schema"], &json["by"]), (&1.into(), &"file".into()));
    let first = &json["comparisons"][0]["points"][0]["quantities"][0];
    assert_eq!(
        (&first["quantity"], &first["verdict"]),
        (&"bytes_per_second".into(), &"better".into())
    );
    let ratio = first["ratio"].as_f64().unwrap();
    assert!((ratio - 1.5).abs() < 1e-9);
    let csv = diff(&["--csv"]);
    assert!(csv.starts_with("base,other,name,batch,cache,"), "{csv}");
    // Two comparisons of four points with their quantities, and the heading.
    let quantities = json["comparisons"][0]["points"][0]["quantities"].as_array().unwrap().len();
    assert_eq!(csv.lines().count(), 1 + 2 * 4 * quantities);
    assert!(csv.contains(&ratio.to_string()), "{csv}");
    let markdown = diff(&["--markdown"]);
    assert!(markdown.contains("\n## after compared with before\n"), "{markdown}");
    assert!(markdown.contains("| 64 KiB, depth 1 | 0.218 | 0.327 | 1.500 ("), "{markdown}");
    let text = diff(&["--metric", "p50"]);
    assert!(text.contains("p50 latency, all sides"), "{text}");
    assert!(text.contains("of 4: no significant difference"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_regression_ends_with_1() {
    let folder = folder();
    let gate = |other: &str, limit: &str| {
        forebay(folder.path(), &["diff", "before.jsonl", other, "--fail-if-worse", limit])
    };
    let output = gate("after.jsonl", "5%");
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        told.contains("\njudged 4 of 4 points of the base: no significant regression"),
        "{told}"
    );
    let output = gate("worse.jsonl", "5%");
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{talk}");
    assert!(talk.contains("throughput is worse than the base by more than 5.00 %"), "{talk}");
    assert!(talk.contains("`worse`, 64 KiB, depth 1: 0.500"), "{talk}");
    assert!(!output.stdout.is_empty());
    assert_eq!(gate("worse.jsonl", "60").status.code(), Some(0));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = folder();
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = forebay(folder.path(), &[&["diff"], arguments].concat());
        let talk = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{talk}");
        assert!(words.iter().all(|word| talk.contains(word)), "{talk}");
        assert!(output.stdout.is_empty());
    };
    refused(&[], 2, &["`<RESULTS>...` is missing"]);
    refused(&["before.jsonl"], 2, &["only one file is given", "--by label"]);
    refused(&["before.jsonl", "none"], 1, &["`none`"]);
    refused(&["before.jsonl", "--by", "colour"], 2, &["`--by` cannot be `colour`", "`label`"]);
    refused(&["before.jsonl", "--by", "way"], 2, &["all points have `forebay`"]);
    refused(&["before.jsonl", "--base", "x"], 2, &["--by"]);
    refused(
        &["before.jsonl", "worse.jsonl", "--metric", "speed"],
        2,
        &["`throughput`, `requests`"],
    );
    refused(&["before.jsonl", "worse.jsonl", "--fail-if-worse=-1%"], 2, &["percent"]);
    refused(&["before.jsonl", "worse.jsonl", "--metric", "server-energy"], 1, &["--metric"]);
    fs::write(folder.path().join("map.json"), "{\"schema\": 1,\n \"maps\": []}").unwrap();
    refused(&["before.jsonl", "map.json"], 1, &["without `results`", "forebay sweep -o FILE"]);
}

#[test]
fn a_sweep_measures_a_second_path_turn_by_turn() {
    // On a drive, where the system's folder for such files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    for name in ["near", "far"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let sweep = |more: &[&str]| {
        let usual = [
            "sweep",
            "near",
            "--vs",
            "far",
            "--gpu=none",
            "--request-size=4K,64K",
            "--depth=1",
            "--bytes=1M",
            "--repeats=2",
            "--size=1M",
            "--cache=resident",
            "-o",
            "results.jsonl",
        ];
        forebay(folder.path(), &[&usual[..], more].concat())
    };
    let output = sweep(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("\nfar compared with near\n"), "{text}");
    assert!(text.contains("of 2: "), "{text}");
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
    let again = forebay(folder.path(), &["diff", "results.jsonl", "--by", "path"]);
    let again = String::from_utf8(again.stdout).unwrap();
    let told = |text: &str| text.split_once("\nfar compared with near\n").unwrap().1.to_owned();
    assert_eq!(told(&again), told(&text));
    let refused = sweep(&["--job", "none"]);
    assert!(!refused.status.success());
    let output = forebay(folder.path(), &["sweep", "near", "--vs", "./near"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn queues_are_what_the_kernel_tells_of_them() {
    let mut tree = crate::tree::Tree::new();
    tree.drive(1);
    tree.drive(2);
    let controller = |index: u32| {
        format!("sys/devices/pci0000:00/0000:{index:02x}:00.0/nvme/nvme{index}/queue_count")
    };
    // One of them is for administration.
    tree.write(&controller(1), "9\n");
    tree.write("proc/self/mountstats", "device s:/e mounted on /n with fstype nfs4\n\txprt: tcp\n");
    tree.mount(10, "259:1", "/a", "ext4 /dev/nvme1n1 rw");
    tree.mount(11, "259:2", "/b", "ext4 /dev/nvme2n1 rw");
    tree.mount(12, "0:42", "/n", "nfs4 s:/e rw,vers=4.2,nconnect=8");
    let told = |paths: &[&str]| {
        let maps: Vec<_> = paths.iter().map(|path| tree.map(path)).collect();
        forebay_cli::sweep::queues::told(&maps)
    };
    assert_eq!(told(&["/a/f"]), ["8 I/O queues"]);
    // Eight connections were asked for, and there is one.
    assert_eq!(told(&["/n/f", "/a/f", "/a/f"]), ["1 connection", "8 I/O queues"]);
    assert_eq!(told(&["/b/f"]), Vec::<String>::new());
    tree.write(&controller(2), "0\n");
    assert_eq!(told(&["/b/f"]), Vec::<String>::new());
    let found = |path: &str, asked: u32| forebay_cli::sweep::queues::found(&tree.map(path), asked);
    assert_eq!((found("/a/f", 8), found("/a/f", 16)), (Some(8), Some(8)));
    assert_eq!((found("/n/f", 8), found("/b/f", 8)), (Some(1), None));
}

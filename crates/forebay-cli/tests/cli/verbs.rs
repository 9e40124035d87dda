//! The verbs at work, on real files: what they print, and that they change nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Output;

use forebay_measure::results::Cache;

use crate::paths::{records, samples};
use crate::program::run as forebay;
use forebay_measure::results::{Record, Sample};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

/// The kinds of target that every machine has.
const TARGETS: [&str; 2] = ["none", "sim"];

fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = forebay(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Bytes that no two places have in common, without much of a pattern.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 12345_u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

fn folder_with(len: usize) -> tempfile::TempDir {
    // On a drive, where the system's folder for such files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), bytes(len)).unwrap();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn quiet_verbs_print_the_result_alone_and_verbose_ones_more() {
    let folder = folder_with(3_000_000);
    let sum = good(folder.path(), &["read", "file", "--gpu", "sim", "-q"]);
    let long = good(folder.path(), &["read", "file", "--gpu", "sim", "-v"]);
    assert!(sum.len() == 17 && long.contains(&format!("xxh3-64  {sum}")), "{sum} {long}");
    assert!(long.contains("\nstage    copy "), "{long}");
    let answer = forebay(folder.path(), ["doctor", "file", "-q"]);
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(text.starts_with("GPUDirect: ") && text.ends_with('\n'), "{text}");
    assert!(!text.contains("forebay doctor -v"), "{text}");
    let bench = ["bench", "file", "--gpu", "none", "--format", "html", "-q"];
    let output = forebay(folder.path(), [&bench[..], &SHORT].concat());
    assert!(output.stdout.starts_with(b"<!DOCTYPE html>") && output.stderr.is_empty());
}

#[test]
fn read_moves_any_range_and_says_how() {
    let folder = folder_with(2_500_001);
    let all = bytes(2_500_001);
    for gpu in TARGETS {
        for (offset, len) in [(0, all.len()), (1, 1), (4095, 100_000), (2_500_000, 1), (5, 0)] {
            let (from, count) = (offset.to_string(), len.to_string());
            let arguments = ["read", "file", "--gpu", gpu, "--offset", &from, "--len", &count];
            let text = good(folder.path(), &arguments);
            let hash = xxh3_64(&all[offset..offset + len]);
            assert!(text.contains(&format!("xxh3-64  {hash:016x}\n")), "{text}");
            let s = if len == 1 { "" } else { "s" };
            assert!(text.contains(&format!("moved    {len} byte{s}")), "{text}");
            assert_eq!(text.contains("simulated"), gpu == "sim", "{text}");
        }
    }
}

#[test]
fn read_copies_to_a_new_file_only() {
    let folder = folder_with(100_001);
    for gpu in TARGETS {
        let name = format!("new-{gpu}");
        good(folder.path(), &["read", "file", "--gpu", gpu, "--offset", "1", "--output", &name]);
        assert_eq!(fs::read(folder.path().join(&name)).unwrap(), bytes(100_001)[1..]);
        let output = forebay(folder.path(), ["read", "file", "--gpu", gpu, "--output", "file"]);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("cannot create `file`"), "{text}");
        let output = forebay(folder.path(), ["read", "file", "--gpu", gpu, "--output", "-"]);
        assert_eq!(output.stdout, bytes(100_001));
        assert!(String::from_utf8(output.stderr).unwrap().contains("moved    100001 bytes"));
    }
}

/// The events of a trace, by phase.
fn events(folder: &Path, trace: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(folder.join(trace)).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

/// The slices of the group of tracks whose name begins so, but for plans, which move nothing:
/// number of the track, start, end, and bytes.
fn slices(events: &[serde_json::Value], group: &str) -> Vec<(u64, f64, f64, u64)> {
    let is_group = |event: &&serde_json::Value| {
        let name = event["args"]["name"].as_str().unwrap_or_default();
        event["name"] == "process_name" && name.starts_with(group)
    };
    let groups: Vec<u64> =
        events.iter().filter(is_group).map(|event| event["pid"].as_u64().unwrap()).collect();
    let slice = |event: &serde_json::Value| {
        let is_one = event["ph"] == "X"
            && event["name"] != "plan"
            && groups.contains(&event["pid"].as_u64().unwrap());
        let start = event["ts"].as_f64()?;
        let len = event["args"]["len"].as_u64()?;
        is_one.then_some((event["tid"].as_u64()?, start, start + event["dur"].as_f64()?, len))
    };
    events.iter().filter_map(slice).collect()
}

#[test]
fn a_trace_shows_readers_slots_and_copies() {
    const LEN: usize = 40_000_001;
    let folder = folder_with(LEN);
    for (route, name) in [("cached", "one.json"), ("staged", "two.json")] {
        let arguments = ["read", "file", "--gpu", "sim", "--route", route, "--trace", name];
        let output = forebay(folder.path(), arguments);
        if route == "staged" && String::from_utf8_lossy(&output.stderr).contains("O_DIRECT") {
            // A trace of what failed is one as well.
            assert!(!events(folder.path(), name).is_empty());
            println!("skipped: staged reads: no O_DIRECT in this folder");
            continue;
        }
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(&format!("trace    {name}: open it in https://ui")), "{text}");
        let events = events(folder.path(), name);
        let sum = |group| slices(&events, group).iter().map(|slice| slice.3).sum::<u64>();
        assert_eq!([sum("links"), sum("slots"), sum("transfers")], [LEN as u64; 3]);
        let filled = match route {
            "staged" => sum("forebay-ring") + sum("threads"),
            _ => sum("threads"),
        };
        assert!(filled >= LEN as u64, "{filled} of {LEN} bytes were read");
        // No two slices of a track overlap.
        for group in ["links", "slots", "forebay-ring", "threads"] {
            let mut all = slices(&events, group);
            all.sort_by(|one, other| (one.0, one.1).partial_cmp(&(other.0, other.1)).unwrap());
            for pair in all.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
                assert!(pair[0].2 <= pair[1].1 + 0.002, "{group}: {pair:?}");
            }
        }
        let arrows = |phase| events.iter().filter(|event| event["ph"] == phase).count();
        assert!(arrows("s") > 0 && arrows("s") == arrows("f"));
    }
    // It is new, or nothing happens.
    let output = forebay(folder.path(), ["read", "file", "--gpu", "none", "--trace", "file"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot create `file`"));
    assert_eq!(fs::metadata(folder.path().join("file")).unwrap().len(), LEN as u64);
}

/// The bytes of all routes of a read, and the first route.
fn routes(report: &Value) -> (u64, &str) {
    let all = report["routes"].as_array().unwrap();
    let bytes = all.iter().map(|share| share["bytes"].as_u64().unwrap()).sum();
    (bytes, all[0]["route"].as_str().unwrap())
}

#[test]
fn stages_checksum_and_proof_are_part_of_the_json() {
    const LEN: usize = 40_000_001;
    let folder = folder_with(LEN);
    let read = ["read", "file", "--gpu", "sim", "--route", "cached"];
    let text = good(folder.path(), &read);
    assert_eq!(text.lines().filter(|line| line.starts_with("proof    ")).count(), 1, "{text}");
    assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2, "the known value of no bytes");
    let json = good(folder.path(), &[&read[..], &["--format=json"]].concat());
    let report: Value = serde_json::from_str(&json).unwrap();
    assert!(report["bytes"] == LEN && report["target"] == "sim:0", "{report:#}");
    assert_eq!(report["xxh3_64"], format!("{:016x}", xxh3_64(&bytes(LEN))));
    assert_eq!(report["verdict"]["simulated"], true);
    assert_eq!(routes(&report), (LEN as u64, "cached"));
    for stage in ["file", "copy"].map(|name| &report["stages"][name]) {
        let [p50, p99, max, sum] =
            ["p50_s", "p99_s", "max_s", "sum_s"].map(|key| stage[key].as_f64().unwrap());
        assert!(stage["count"].as_u64() > Some(0) && p50 <= p99 && p99 <= max, "{stage}");
        assert!(max <= sum, "{stage}");
    }
    let page = include_str!("../../../../docs/json-schema.md");
    let (_, page) = page.split_once("\n# The JSON of `forebay read --format json`\n").unwrap();
    let (page, _) = page.split_once("\n# ").unwrap();
    for part in [&report, &report["routes"][0], &report["stages"], &report["stages"]["file"]] {
        for key in part.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{key}`")), "the page lacks `{key}`");
        }
    }
}

#[test]
fn the_route_direct_is_simulated_on_request() {
    const LEN: usize = 3_000_001;
    let folder = folder_with(LEN);
    let read = ["read", "file", "--gpu", "sim:cufile", "--route", "direct", "--format=json"];
    let output = forebay(folder.path(), read);
    if String::from_utf8_lossy(&output.stderr).contains("O_DIRECT") {
        return println!("skipped: the route direct: this folder has no O_DIRECT");
    }
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(routes(&report), (LEN as u64, "direct"));
    assert_eq!(report["simulated"], true);
    assert_eq!(report["xxh3_64"], format!("{:016x}", xxh3_64(&bytes(LEN))));
    assert_eq!(report["not_direct"], Value::Null);
}

#[test]
fn a_read_says_why_it_was_not_direct() {
    let folder = folder_with(3_000_001);
    for (gpu, printed) in [("none", None), ("sim", None), ("sim:cufile=refuse", Some("5008"))] {
        let read = ["read", "file", "--gpu", gpu];
        let json = good(folder.path(), &[&read[..], &["--format=json"]].concat());
        let report: Value = serde_json::from_str(&json).unwrap();
        let why = report["not_direct"].as_str();
        assert_eq!(why.is_some(), printed.is_some(), "{gpu}: {json}");
        let text = good(folder.path(), &read);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = words.split_once(" direct no: ").map(|(_, line)| line);
        assert_eq!(shown.is_some(), why.is_some(), "{gpu}: {text}");
        assert!(shown.is_none_or(|shown| shown.starts_with(why.unwrap())), "{gpu}: {text}");
        assert!(printed.is_none_or(|printed| text.contains(printed)), "{text}");
    }
}

#[test]
fn a_failed_read_leaves_no_output() {
    let folder = folder_with(1000);
    let arguments = ["read", "file", "--route", "direct", "--gpu", "sim", "--output", "new"];
    assert_eq!(forebay(folder.path(), arguments).status.code(), Some(1));
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn no_verb_changes_a_file() {
    let folder = folder_with(3_000_001);
    let path = folder.path().join("file");
    let facts = || {
        let facts = fs::metadata(&path).unwrap();
        let times = (facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec());
        (times, facts.ino(), facts.len(), fs::read(&path).unwrap())
    };
    let before = facts();
    for gpu in TARGETS {
        for arguments in [
            &["read", "file", "--gpu", gpu][..],
            &["read", "file", "--gpu", gpu, "--len", "1000001"],
            &["bench", "file", "--gpu", gpu, "--time", "100ms", "--repeats", "1"],
            &["bench", "file", "--gpu", gpu, "--block-size", "64K", "--time", "500ms"],
        ] {
            good(folder.path(), arguments);
            assert!(facts() == before, "{arguments:?} changed the file");
            assert_eq!(names(folder.path()), ["file"], "{arguments:?} left something");
        }
    }
}

/// Short samples, for tests that measure nothing.
const SHORT: [&str; 4] = ["--time", "100ms", "--repeats", "2"];

fn bench(folder: &Path, arguments: &[&str]) -> (Output, Vec<Record>) {
    let output = forebay(folder, [&["bench", "--format", "json"], arguments, &SHORT].concat());
    let all = records(&output);
    (output, all)
}

#[test]
fn bench_compares_the_usual_methods() {
    let folder = folder_with(0);
    for gpu in TARGETS {
        let (output, all) = bench(folder.path(), &["--size", "2000001", "--gpu", gpu]);
        assert!(output.status.success(), "{output:?}");
        let Record::Run(run) = &all[0] else { panic!("{all:?}") };
        assert_eq!((run.schema, run.verb.as_str()), (1, "bench"));
        assert!(run.environment.command.starts_with("forebay bench --format json "));
        let limits = all.iter().filter_map(|record| match record {
            Record::Limit(limit) => Some(limit.name.as_str()),
            _ => None,
        });
        assert!(limits.collect::<Vec<_>>().contains(&"link"));
        let of = |percent: u8, cache: Cache, way: &str| -> Vec<&Sample> {
            let is = |sample: &&Sample| {
                let point = &sample.point;
                (point.read_percent, point.cache, point.method.as_str())
                    == (percent, Some(cache), way)
            };
            samples(&all).into_iter().filter(is).collect()
        };
        for (percent, cache) in [(100, Cache::Warm), (100, Cache::Cold), (0, Cache::Cold)] {
            for way in ["standard", "mmap", "forebay"] {
                let own = of(percent, cache, way);
                let stays = |sample: &&Sample| {
                    sample.error.as_ref().is_some_and(|why| why.contains("page cache"))
                };
                if own.iter().any(stays) || own.is_empty() && cache == Cache::Cold {
                    println!("skipped: cold rows: this folder's files cannot be cold");
                    continue;
                }
                assert_eq!(own.len(), 2, "{percent} {cache:?} {way}");
                for sample in own {
                    let measured = sample.measured.as_ref().expect("a measurement");
                    assert_eq!(sample.point.request_size, 2_000_001);
                    assert_eq!(measured.verified, Some(true), "{sample:?}");
                    assert_eq!(measured.verified_bytes, Some(2_000_001), "{sample:?}");
                    assert!(measured.seconds.unwrap() >= 0.005, "{sample:?}");
                    assert_eq!(measured.simulated, gpu == "sim");
                    assert_eq!(measured.route.is_some(), way == "forebay", "{sample:?}");
                    assert!(measured.verdict.is_some());
                }
            }
        }
        assert_eq!(names(folder.path()), ["file"]);
    }
}

#[test]
fn a_required_route_is_taken() {
    let folder = folder_with(1_000_000);
    let (output, all) = bench(folder.path(), &["file", "--gpu", "sim", "--route", "cached"]);
    assert!(output.status.success(), "{output:?}");
    let all = samples(&all);
    let ours = all.iter().filter(|sample| sample.point.method == "forebay");
    let routes = ours.map(|sample| sample.measured.as_ref().unwrap().route.as_deref());
    let routes: Vec<_> = routes.collect();
    assert!(!routes.is_empty() && routes.iter().all(|route| *route == Some("cached")));
}

#[test]
fn a_table_is_for_people_and_goes_to_stdout() {
    let folder = folder_with(1_000_000);
    // Samples that are long enough to be shown.
    let words = ["bench", "file", "--gpu", "none", "--repeats", "3"];
    let output = forebay(folder.path(), words);
    let (table, talk) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(table.starts_with("forebay bench · file ("), "{table}");
    assert!(table.contains("→ host memory"), "{table}");
    assert!(table.contains("READ, warm (page cache)"), "{table}");
    let row = table.lines().find(|line| line.starts_with("  forebay ")).expect("a row of ours");
    let has_error = row.contains(" %") || row.contains("too noisy");
    assert!(has_error && table.contains('█'), "{table}");
    assert!(table.contains("\nForebay: warm "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let text = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("All data verified. Path: "), "{table}");
    let mut shares: Vec<&str> = text.split(" % of ").collect();
    assert!(shares.pop().is_some() && !shares.is_empty(), "{table}");
    for share in shares {
        let share: f64 = share.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(share <= 100.0, "{table}");
    }
    assert!(!talk.contains("host memory"), "it was chosen: {talk}");
    // Without a terminal there are no codes for one, and progress now and then if it takes long.
    let is_progress =
        |line: &str| line.split_once(" of ").is_some_and(|(done, _)| done.parse::<u32>().is_ok());
    let is_known = |line: &str| line.starts_with("warning: ") || is_progress(line);
    assert!(talk.lines().all(is_known), "{talk}");
    assert!(!table.contains('\u{1b}') && !talk.contains('\u{1b}'));
    let quiet = ["bench", "file", "--gpu", "none", "--time", "100ms", "--quiet"];
    let quiet = forebay(folder.path(), quiet);
    assert!(quiet.stderr.is_empty() && !quiet.stdout.is_empty(), "{quiet:?}");
}

#[test]
fn values_are_printed_as_csv() {
    let folder = folder_with(1_000_000);
    let words = ["bench", "file", "--gpu", "none", "--format=csv"];
    let text = good(folder.path(), &[&words[..], &SHORT].concat());
    let lines: Vec<&str> = text.lines().collect();
    // A warm and a cold row of each method, below the keys.
    assert!(lines.len() == 7 && lines[0].contains(','), "{text}");
}

#[test]
fn files_in_memory_are_never_called_cold() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: files in memory: there is no tmpfs at /dev/shm");
        return;
    };
    fs::write(folder.path().join("file"), bytes(1_000_000)).unwrap();
    let (output, all) = bench(folder.path(), &["file", "--gpu", "none"]);
    let Record::Run(run) = &all[0] else { panic!("{output:?}") };
    if run.environment.file_system.as_ref().is_none_or(|found| found.kind != "tmpfs") {
        println!("skipped: files in memory: /dev/shm is no tmpfs");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    assert!(samples(&all).iter().all(|sample| sample.point.cache == Some(Cache::Warm)));
    let output = forebay(folder.path(), ["bench", "file", "--cache", "cold", "--gpu", "none"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    insta::assert_snapshot!(String::from_utf8(output.stderr).unwrap(), @"
    error: cannot measure `file` while it is cold
      caused by: tmpfs keeps its files in memory
    hint: name a path on a drive, or give `--cache warm`
    ");
}

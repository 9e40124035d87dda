//! `forebay bench`: every result says which way its bytes took, and what was counted.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay::{Engine, Options, Residency};
use forebay_cli::report::json::{Cache, Direction, MethodName, Report, Row};

use crate::program::program;

const LEN: usize = 8 << 20;

fn report(folder: &Path, arguments: &[&str]) -> Report {
    let mut command = Command::new(program());
    command.current_dir(folder).arg("bench").args(arguments).arg("--json");
    // No `fio`, which counts in seconds.
    let output = command.env("XDG_CACHE_HOME", folder).env("PATH", folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// One during which what is to be in the page cache was there whenever that was looked at: the
/// kernel may take pages back at any time.
fn undisturbed(folder: &Path, arguments: &[&str]) -> Report {
    let mut reports = (0..5).map(|_| report(folder, arguments));
    reports.find(keeps_pages).expect("a run whose pages the kernel leaves where they are")
}

fn keeps_pages(report: &Report) -> bool {
    let keeps = |row: &&Row, seen: &serde_json::Value| {
        let cache = &seen["page_cache"];
        let is_whole = |when: &str| cache[when] == cache["len"];
        match (row.cache, row.demanded.as_deref()) {
            (Some(Cache::Resident), _) => is_whole("before") && is_whole("after"),
            (_, Some("cached")) => is_whole("after"),
            _ => true,
        }
    };
    let mut rows = ways(report).into_iter();
    rows.all(|row| row.evidence.iter().flatten().all(|seen| keeps(&row, seen)))
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![7; LEN]).unwrap();
    folder
}

fn ways(report: &Report) -> Vec<&Row> {
    let all: Vec<&Row> = report.results.iter().filter(|row| !row.method.is_ceiling()).collect();
    assert!(!all.is_empty());
    all
}

/// Every way has a verdict and evidence, no ceiling has, and no counter refutes anybody.
fn check(report: &Report) {
    for row in &report.results {
        let is_ceiling = row.method.is_ceiling();
        assert_eq!((row.verdict.is_none(), row.evidence.is_none()), (is_ceiling, is_ceiling));
    }
    for row in ways(report) {
        let verdict = row.verdict.as_ref().unwrap();
        assert!(verdict.contradictions.is_empty(), "{row:?}");
        assert_eq!(verdict.word == "unproven", !verdict.missing.is_empty(), "{row:?}");
        let evidence = row.evidence.as_ref().unwrap();
        assert_eq!(evidence.len(), row.seconds.len());
        assert!(evidence.iter().all(|seen| seen["elapsed_seconds"].as_f64().unwrap() > 0.0));
    }
}

#[test]
fn the_engines_account_is_confirmed_by_what_others_counted() {
    let folder = folder();
    let report = undisturbed(folder.path(), &["file", "--gpu", "sim", "--size", "8MiB"]);
    check(&report);
    for row in ways(&report) {
        let verdict = row.verdict.as_ref().unwrap();
        assert!(verdict.simulated, "{row:?}");
        let seen = &row.evidence.as_ref().unwrap()[0];
        let gpu = seen["gpu"]["nothing"].as_str().unwrap();
        assert!(gpu.starts_with("simulated"), "{gpu}");
        // Where the kernel counts what a process fetches, nothing is left open.
        let counts = seen["storage"] == "memory"
            || (seen["storage"] == "block" && seen["process"]["read"].is_u64());
        if !counts {
            println!("skipped: verdicts: the kernel counts nothing of this file system");
        } else if row.method == MethodName::Forebay {
            assert_eq!(Some(&verdict.word), row.route.as_ref(), "{row:?}");
        } else if row.cache == Some(Cache::Resident) {
            assert_eq!(verdict.word, "cached", "{row:?}");
        }
    }
}

/// Why a file's bytes cannot be had from its drive, past the page cache.
pub(crate) fn stays_in_memory(file: &Path) -> Option<String> {
    let engine = Engine::new(Options::default()).unwrap();
    let file = engine.open(file).unwrap();
    match file.evict().unwrap() {
        Residency::Known { resident: 0, .. } => file.no_direct_io().map(str::to_owned),
        left => Some(format!("this folder keeps its files in memory: {left:?}")),
    }
}

#[test]
fn where_there_is_a_direct_path_it_stands_beside_the_other_ways() {
    let folder = folder();
    let report = undisturbed(folder.path(), &["file", "--gpu", "sim:cufile", "--size", "8MiB"]);
    check(&report);
    let ours: Vec<_> =
        ways(&report).into_iter().filter(|row| row.method == MethodName::Forebay).collect();
    let beside = |cache: Cache| {
        let rows = ours.iter().filter(|row| row.cache == Some(cache));
        rows.map(|row| row.demanded.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    if let Some(reason) = stays_in_memory(&folder.path().join("file")) {
        return println!("skipped: a direct path beside others: {reason}");
    }
    assert_eq!(beside(Cache::Cold), ["", "staged", "cached"]);
    assert_eq!(beside(Cache::Resident), ["", "direct", "staged"]);
    let chosen = ours.iter().find(|row| row.cache == Some(Cache::Cold)).unwrap();
    assert_eq!(chosen.route.as_deref(), Some("direct"), "{chosen:?}");
    for row in ours {
        assert!(row.speed_up.is_some() && row.cpu_s_per_gb.is_some(), "{row:?}");
        assert_eq!(row.verified, Some(true));
        let is_direct = row.route.as_deref() == Some("direct");
        let word = &row.verdict.as_ref().unwrap().word;
        assert_eq!(word == "direct (p2pdma)", is_direct, "{row:?}");
        assert!(row.demanded.is_none() || row.demanded == row.route, "{row:?}");
    }
}

#[test]
fn host_memory_writes_and_several_paths_have_verdicts_too() {
    let folder = folder();
    let written = report(folder.path(), &[".", "--write", "--gpu", "none", "--size", "8MiB"]);
    check(&written);
    assert!(ways(&written).iter().all(|row| row.direction == Direction::Write));
    fs::write(folder.path().join("second"), vec![8; LEN]).unwrap();
    let arguments = ["file", "second", "--resident", "--gpu", "none", "--size", "8MiB"];
    let several = undisturbed(folder.path(), &arguments);
    check(&several);
    for row in ways(&several).into_iter().filter(|row| row.method == MethodName::Forebay) {
        let verdict = row.verdict.as_ref().unwrap();
        assert!(verdict.word.starts_with("host (") || verdict.word == "unproven", "{row:?}");
    }
}

//! `forebay bench`: every result says which path its bytes took, and what was counted.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay::{Engine, Options, Residency};
use forebay_measure::results::Cache;
use forebay_measure::results::{Measured, Point, Record};

use crate::paths::{records, samples};
use crate::program::program;

const LEN: usize = 8 << 20;

/// The points of a run, with their first measurement.
fn measured(folder: &Path, arguments: &[&str]) -> Vec<(Point, Measured)> {
    let mut command = Command::new(program());
    command.current_dir(folder).args([
        "bench",
        "--format=json",
        "--repeats",
        "1",
        "--time",
        "100ms",
    ]);
    command.args(arguments).env("XDG_CACHE_HOME", folder);
    let all: Vec<Record> = records(&command.output().unwrap());
    let all = samples(&all).into_iter();
    all.filter_map(|sample| Some((sample.point.clone(), sample.measured.clone()?))).collect()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![7; LEN]).unwrap();
    folder
}

/// Every method has a verdict and evidence, and no counter refutes it.
fn check(all: &[(Point, Measured)]) {
    assert!(!all.is_empty());
    for (point, measured) in all {
        let verdict = measured.verdict.as_ref().expect("a verdict");
        assert!(verdict.contradictions.is_empty(), "{point:?}: {verdict:?}");
        assert!(measured.evidence.is_some(), "{point:?}");
        assert_eq!(measured.verified, Some(true), "{point:?}");
    }
}

/// Whether the kernel left pages in the page cache that were to be there: it may take them back at
/// any time.
fn keeps_pages(all: &[(Point, Measured)]) -> bool {
    let warm = all.iter().filter(|(point, _)| point.cache == Some(Cache::Warm));
    let shares = warm.filter_map(|(_, measured)| measured.page_cache);
    shares.into_iter().all(|share| share.before == Some(1.0) && share.after == Some(1.0))
}

/// Why a file's bytes cannot be read from its drive with O_DIRECT.
pub(crate) fn stays_in_memory(file: &Path) -> Option<String> {
    let engine = Engine::new(Options::default()).unwrap();
    let file = engine.open(file).unwrap();
    match file.evict().unwrap() {
        Residency::Known { resident: 0, .. } => file.no_direct_io().map(str::to_owned),
        left => Some(format!("this folder keeps its files in memory: {left:?}")),
    }
}

#[test]
fn warm_files_come_from_the_page_cache_and_cold_ones_do_not() {
    let folder = folder();
    for gpu in ["none", "sim"] {
        let mut runs = (0..5).map(|_| measured(folder.path(), &["file", "--gpu", gpu]));
        let all = runs.find(|all| keeps_pages(all)).expect("a run whose pages stay");
        check(&all);
        for (point, measured) in all.iter().filter(|(point, _)| point.method == "forebay") {
            let word = &measured.verdict.as_ref().unwrap().word;
            let warm = point.cache == Some(Cache::Warm);
            let expected = if gpu == "sim" { "cached" } else { "host (page cache)" };
            assert_eq!(warm, word == expected, "{point:?}: {word}");
        }
    }
}

#[test]
fn an_available_direct_path_is_proven() {
    let folder = folder();
    if let Some(reason) = stays_in_memory(&folder.path().join("file")) {
        return println!("skipped: a direct path: {reason}");
    }
    let words = ["file", "--gpu", "sim:cufile", "--method", "forebay", "--route", "any,staged"];
    let all = measured(folder.path(), &[&words[..], &["--cache", "cold"]].concat());
    check(&all);
    let words: Vec<&str> =
        all.iter().map(|(_, measured)| measured.verdict.as_ref().unwrap().word.as_str()).collect();
    assert_eq!(words, ["direct (p2pdma)", "staged"]);
}

#[test]
fn writes_have_verdicts_too() {
    let folder = folder();
    let words = [".", "--direction", "write", "--gpu", "none", "--size", "8MiB"];
    let written = measured(folder.path(), &words);
    check(&written);
    assert!(written.iter().all(|(point, _)| point.read_percent == 0));
}

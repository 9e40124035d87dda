//! `forebay bench` as several ranks, as launchers start them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_measure::results::Record;
use forebay_measure::results::file::{read, samples};

use crate::program::program;

/// A port whose neighbour above is free now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port() - 1
}

fn start(folder: &Path, (rank, size, port): (u32, u32, u16), arguments: &[&str]) -> Child {
    let mut command = Command::new(program());
    command.current_dir(folder).args(["bench", ".", "--gpu", "none", "--size", "8M"]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.spawn().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn ranks_measure_together_and_the_first_has_the_results_of_all() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let port = port();
    let arguments = ["--block-size=64K", "--depth=4", "--time=500ms", "-o", "results"];
    let ranks = (0..3).map(|rank| start(folder.path(), (rank, 3, port), &arguments));
    let ranks: Vec<Child> = ranks.collect();
    let outputs: Vec<Output> =
        ranks.into_iter().map(|one| one.wait_with_output().unwrap()).collect();
    for output in &outputs {
        assert!(output.status.success(), "{}", said(output));
    }
    assert!(outputs[1..].iter().all(|one| one.stdout.is_empty()));
    let table = String::from_utf8(outputs[0].stdout.clone()).unwrap();
    assert!(table.contains("3 ranks at once") && table.contains("median: rank"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let records = read(&folder.path().join("results")).unwrap();
    let labels = records.iter().filter_map(|record| match record {
        Record::Run(run) => run.label.clone(),
        _ => None,
    });
    let labels: Vec<String> = labels.collect();
    assert!(labels.len() == 3 && labels[2].starts_with("rank 2 on "), "{labels:?}");
    let rates = samples(&records).map(|(_, one)| one.measured.as_ref().unwrap().bytes_per_second);
    let rates: Vec<f64> = rates.collect();
    assert_eq!(rates.len(), 9, "each rank made each sample");
    // The total is that of what each did at once.
    let sums = (0..3).map(|repeat| rates[repeat] + rates[3 + repeat] + rates[6 + repeat]);
    let mut sums: Vec<f64> = sums.collect();
    sums.sort_by(f64::total_cmp);
    let line = table.lines().find(|line| line.starts_with("3 ranks")).unwrap();
    let total: f64 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
    assert!((total * 1e9 / sums[1] - 1.0).abs() < 0.02, "{line}: {sums:?}");
}

#[test]
fn a_lost_rank_ends_the_run_of_all_with_its_name() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let port = port();
    let arguments = ["--block-size=64K", "--time=2s", "--repeats=20", "-o", "results"];
    let start = |rank| start(folder.path(), (rank, 3, port), &arguments);
    let (first, mut second, third) = (start(0), start(1), start(2));
    let file = folder.path().join("results");
    let has_sample = || fs::read_to_string(&file).is_ok_and(|text| text.contains("\"measured\":{"));
    let begun = Instant::now();
    while !has_sample() {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is no sample");
        sleep(Duration::from_millis(20));
    }
    second.kill().unwrap();
    second.wait().unwrap();
    let killed = Instant::now();
    for output in [first, third].map(|rank| rank.wait_with_output().unwrap()) {
        assert!(killed.elapsed() < Duration::from_secs(10));
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains("rank 1 on "), "{}", said(&output));
    }
    assert!(samples(&read(&file).unwrap()).count() >= 1, "what was measured stays");
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    // The killed rank's own scratch is left for the next run to remove.
    let left = left.filter(|name| name.to_string_lossy().contains("scratch")).count();
    assert!(left <= 1, "{left}");
}

#[test]
fn ranks_that_do_not_fit_together_are_named() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let port = port();
    let first = start(folder.path(), (0, 2, port), &["--block-size=64K"]);
    let second = start(folder.path(), (1, 2, port), &["--block-size=4K"]);
    for output in [first, second].map(|rank| rank.wait_with_output().unwrap()) {
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains("other arguments than rank 0"), "{}", said(&output));
    }
    let alone = start(folder.path(), (2, 2, port), &[]).wait_with_output().unwrap();
    assert_eq!(alone.status.code(), Some(2), "{}", said(&alone));
    assert!(said(&alone).contains("unset `RANK`"), "{}", said(&alone));
}

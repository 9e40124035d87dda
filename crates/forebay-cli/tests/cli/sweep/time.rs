//! How long a sweep says that it takes, and how long it takes.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use forebay_cli::results::file::{read, samples};

use super::{command, folder, stderr};

/// Beyond a tenth, what other work on the machine may take.
const SLACK: Duration = Duration::from_secs(10);

/// Runs a sweep: what it announced, and what it took from then on.
fn announced(arguments: &[&str]) -> (Duration, Duration) {
    let folder = folder();
    let mut command = command(folder.path(), arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = Vec::new();
    let mut announced = None;
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let words = line.split_once(" × 3: about ").and_then(|(_, rest)| rest.split_once(';'));
        if let Some((words, _)) = words {
            announced = Some((seconds(words), Instant::now()));
        }
        told.push(line);
    }
    // A sample that failed has taken its time as well.
    child.wait().unwrap();
    let (announced, at) = announced.unwrap_or_else(|| panic!("it announced nothing: {told:#?}"));
    let taken = at.elapsed();
    println!("announced {announced:.1?}, took {taken:.1?}: {told:#?}");
    let records = read(&folder.path().join("results")).unwrap();
    assert_eq!(samples(&records).count(), 75);
    (announced, taken)
}

/// A time as it is announced.
fn seconds(words: &str) -> Duration {
    let words: Vec<&str> = words.split(' ').collect();
    let of = |pair: &[&str]| {
        let unit = match pair[1] {
            "h" => 3600.0,
            "min" => 60.0,
            "s" => 1.0,
            other => panic!("{other}"),
        };
        Duration::from_secs_f64(pair[0].parse::<f64>().unwrap() * unit)
    };
    words.chunks(2).map(of).sum()
}

#[test]
fn what_is_over_before_its_time_is_not_announced_with_all_of_it() {
    // Each of 75 samples may take a second, and has gone over its files long before.
    let arguments = ["--gpu=none", "--way=cpu-cached-gpu", "--time=1s", "-o", "results"];
    let axes = ["--request-size=64K,128K,256K,512K,1M", "--threads=1,2,4,6,8", "--size=8M"];
    let mut seen = Vec::new();
    // Whatever else a busy machine does meanwhile, and before.
    let is_true = (0..3).any(|_| {
        let (announced, taken) = announced(&[&arguments[..], &axes].concat());
        seen.push((announced, taken));
        assert!(announced < (taken + SLACK).max(Duration::from_secs(40)), "{seen:?}");
        announced.abs_diff(taken) < taken / 10 + SLACK
    });
    assert!(is_true, "announced and taken: {seen:?}");
}

#[test]
#[ignore = "some minutes: it is what a sweep of usual length announces"]
fn a_sweep_takes_what_it_announced() {
    let arguments = ["--gpu=none", "--time=2s", "-o", "results"];
    let axes = ["--request-size=4K,16K,64K,256K,1M", "--depth=1,2,4,8,16"];
    let (announced, taken) = announced(&[&arguments[..], &axes].concat());
    assert!(announced.abs_diff(taken) < taken / 10 + SLACK, "{announced:?} and {taken:?}");
}

/// The offsets of the reads that a sweep by the engine makes, those of its three repeats last.
fn offsets(folder: &Path, more: &[&str]) -> Vec<String> {
    let arguments = ["--gpu=none", "--way=forebay", "--pattern=random", "--request-size=4K"];
    let end = ["--depth=1", "--size=8M", "--bytes=64K", "--repeats=3", "--warm-up=0s"];
    let mut command = command(folder, &[&arguments[..], &end, more].concat());
    let output = command.env("FOREBAY_LOG", "debug").output().unwrap();
    let told = stderr(&output);
    assert!(output.status.success(), "{told}");
    let reads = told.lines().filter(|line| line.contains("transfer begins direction=read"));
    let reads = reads.filter(|line| line.contains(" len=4096"));
    reads.map(|line| line.split_once(" offset=").unwrap().1.to_owned()).collect()
}

#[test]
fn each_repeat_reads_other_places_and_the_same_sweep_the_same() {
    let folder = folder();
    let [one, again, other] = [("1", "one"), ("1", "again"), ("2", "other")].map(|(seed, name)| {
        let all = offsets(folder.path(), &["--seed", seed, "-o", name]);
        all[all.len() - 48..].to_vec()
    });
    assert!(one[..16] != one[16..32] && one[16..32] != one[32..], "{one:?}");
    assert_eq!(one, again);
    assert_ne!(one, other);
}

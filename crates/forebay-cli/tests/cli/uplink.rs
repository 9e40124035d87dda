//! Which limit takes over as GPUs are added.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use forebay_measure::results::file::{read, samples};
use forebay_measure::results::{Limit, Measured, Record};

use crate::program::program;

fn sweep(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).arg("bench").args(arguments);
    command.args(["--repeats=1", "--warm-up=0s", "-o", "results"]);
    command.stdin(Stdio::null()).output().unwrap()
}

/// A sweep over more and more GPUs: its limits, what was measured of each point, what it
/// showed. None where this machine was too busy for one of its samples.
fn added(arguments: &[&str]) -> Option<(Vec<Limit>, Vec<Measured>, String)> {
    let folder = tempfile::tempdir_in(".").unwrap();
    let output = sweep(folder.path(), arguments);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    if printed.contains("use a longer `--time`, or a smaller block size") {
        return None;
    }
    assert!(output.status.success(), "{printed}");
    let records = read(&folder.path().join("results")).unwrap();
    let limits = records.iter().filter_map(|record| match record {
        Record::Limit(limit) => Some(limit.clone()),
        _ => None,
    });
    let measured = samples(&records).map(|(_, sample)| sample.measured.clone().unwrap());
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    Some((limits.collect(), measured.collect(), shown))
}

/// What a sweep over up to four GPUs behind one uplink should have shown and did not, perhaps since
/// this machine was too busy. That links and uplink let no more through than they should is so in
/// each; none where a sample failed.
fn lacking_of_an_uplink() -> Option<BTreeSet<String>> {
    // So slow that this machine keeps up.
    let gpus = "--together=sim:4,bandwidth=50MB/s,uplink=100MB/s";
    let arguments = ["--block-size=64K", "--depth=16", "--cache=warm", "--size=8M"];
    let (limits, measured, shown) = added(&[&arguments[..], &[gpus, "--time=500ms"]].concat())?;
    let found = |name: &str, of: &str| {
        let found = limits.iter().find(|limit| limit.name == name && limit.of == of);
        found.unwrap_or_else(|| panic!("{name} of {of}: {limits:#?}"))
    };
    let all = ["sim:0", "sim:1", "sim:2", "sim:3"];
    let four = found("uplink", &all.join("+"));
    assert!(four.how.ends_with("they share the uplink sim:port"), "{four:?}");
    assert!(four.bytes_per_second < 1.1 * 100e6, "{four:?}");
    assert_eq!(four.predicted, Some(100e6), "the uplink binds");
    assert_eq!(measured.len(), 4);
    let mut lacking = BTreeSet::new();
    let mut wanted = |is_so: bool, what: String, seen: &dyn std::fmt::Debug| {
        if !is_so {
            println!("{what}: {seen:?}");
            lacking.insert(what);
        }
    };
    wanted(four.bytes_per_second > 0.5 * 100e6, "the limit of four".into(), four);
    for (count, measured) in (1..).zip(&measured) {
        // No more passes than the links and the uplink let through, but for what was in flight.
        let most = f64::from(count).min(2.0) * 50e6;
        assert!(measured.bytes_per_second < 1.15 * most, "{count}: {measured:?}");
        wanted(measured.bytes_per_second > 0.25 * most, format!("a rate of {count}"), measured);
        let verdict = measured.verdict.as_ref().expect("each is judged");
        // The kernel may take pages back meanwhile, but not many.
        let cached = verdict.shares.iter().find(|share| share.route == "cached");
        let is_cached = cached.is_some_and(|share| share.share > 0.9);
        wanted(is_cached, format!("pages that stay, of {count}"), verdict);
        assert!(verdict.simulated, "{verdict:?}");
        let doubted = verdict.doubts.iter().any(|doubt| doubt.contains("all targets together"));
        assert_eq!(doubted, count > 1, "{verdict:?}");
    }
    for (measured, name) in [(&measured[0], "link"), (&measured[3], "uplink")] {
        let bound = measured.bound.as_ref().unwrap();
        // What is in flight binds where this machine is too busy for it.
        assert!([name, "in-flight", "processors"].contains(&bound.name.as_str()), "{bound:?}");
        wanted(bound.name == name, format!("a bound by the {name}"), bound);
    }
    assert!(shown.contains("4 simulated GPUs (0-3)"), "{shown}");
    // Where four GPUs are bound by what they share, each has a part of it.
    let shares = &measured[3].shares;
    assert!(shares.iter().all(|share| share.bytes_per_second < 50e6), "{shares:?}");
    Some(lacking)
}

#[test]
fn an_uplink_takes_over_as_gpus_are_added() {
    let mut never: Option<BTreeSet<String>> = None;
    for lacking in (0..12).filter_map(|_| lacking_of_an_uplink()) {
        let still = match never {
            Some(never) => &never & &lacking,
            None => lacking,
        };
        if still.is_empty() {
            return;
        }
        never = Some(still);
    }
    panic!("in no sweep: {never:?}");
}

/// Two real GPUs begin together, and together are no faster than their links.
#[test]
#[ignore = "takes two GPUs, and some seconds"]
fn two_real_gpus_begin_together() {
    let count = forebay::gpu::visible().map_or(0, |gpus| gpus.len());
    if count < 2 {
        let required = std::env::var_os("FOREBAY_REQUIRE_GPUS").is_some_and(|set| set == "1");
        assert!(!required, "FOREBAY_REQUIRE_GPUS is 1, but this machine has {count}");
        println!("skipped: two GPUs at once: this machine has {count}");
        return;
    }
    let arguments = ["--together=0-1", "--block-size=1M", "--depth=16", "--cache=warm"];
    let swept = added(&[&arguments[..], &["--time=2s", "--size=2G"]].concat());
    let (limits, measured, _) = swept.expect("GPUs that are not busy");
    let links: Vec<f64> = limits
        .iter()
        .filter(|limit| limit.name == "link")
        .map(|limit| limit.bytes_per_second)
        .collect();
    assert_eq!((links.len(), measured.len()), (2, 2), "{limits:?}");
    let both = limits.iter().find(|limit| limit.of == "cuda:0+cuda:1").unwrap();
    assert!(both.bytes_per_second < 1.1 * links.iter().sum::<f64>(), "{both:?}");
    let [first, second] = measured[1].shares.as_slice() else { panic!("{:?}", measured[1]) };
    assert_eq!((first.target.as_str(), second.target.as_str()), ("cuda:0", "cuda:1"));
    assert_eq!(first.bytes + second.bytes, measured[1].bytes.unwrap());
    assert!(first.bytes > 0 && second.bytes > 0 && measured[1].verified != Some(false));
    assert!(measured[1].verdict.is_some());
}

#[test]
fn settings_of_simulated_gpus_that_make_no_sense_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (gpus, named) in [
        ("sim:0", "it takes GPUs such as"),
        ("sim:2,uplink=0GB/s", "a rate above zero"),
        ("sim:2,uplinks=1GB/s", "`uplink=`"),
        ("sim:2,", "settings that start with"),
    ] {
        let output = sweep(folder.path(), &[&format!("--together={gpus}")]);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{gpus}: {printed}");
        assert!(printed.contains(named), "{gpus}: {printed}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was begun");
    }
}

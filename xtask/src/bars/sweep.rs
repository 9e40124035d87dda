//! `forebay sweep` compared with `fio`: the same reads with O_DIRECT by both, interleaved, with the
//! rate and the latencies that each reports.
//!
//! A sweep's accuracy is judged by its method `io-uring`, which makes requests as `fio` does. The
//! engine, which has its own threads for them, is measured in the same turns: on the machine's own
//! disk it is judged, on a capped drive it is reported.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay::units::format_size;
use serde_json::Value;

use crate::bar::{Bound, Check, Measured, Stop};
use crate::fio::{Fio, Load};
use crate::lab::{Lab, Place};
use crate::sample::{Sample, Series, float, median};

/// Runs of each side for one point.
const RUNS: usize = 3;
/// Runs where latencies are compared: a virtual machine wakes its threads late for seconds at a
/// time. `fio`'s own rates in three consecutive runs then differed by a half.
const RUNS_OF_LATENCIES: usize = 9;

/// How far the rates may be apart, and the latencies, as shares.
const RATE_OFF: f64 = 0.05;
const LATENCY_OFF: f64 = 0.10;

/// Differences of latencies up to this share are no error of either side, since both use buckets.
/// `fio`'s are 1/64 of a power of two wide (its manual, "json+").
const BUCKET: f64 = 1.0 / 64.0;

/// The result of one run of one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) sample: Sample,
    /// The 50th, 90th and 99th percentile in nanoseconds.
    pub(crate) quantiles: [f64; 3],
}

/// The criterion for a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// The same rate.
    Rate,
    /// The same rate, and the same latencies.
    Latencies,
    /// A rate whose range overlaps the other's, or is above it.
    Overlap,
}

/// The `forebay` that was built with this program.
fn program() -> Result<PathBuf, Stop> {
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("forebay");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(Stop::Skip(format!("no `{}`: build it with `cargo build`", beside.display())))
}

/// One run of `forebay sweep`.
fn sweep(path: &Path, way: &str, load: &Load) -> Result<Told, Stop> {
    let results = path.with_extension("results");
    let _ = fs::remove_file(&results);
    let order = if load.random { "random" } else { "sequential" };
    let output = Command::new(program()?)
        .arg("sweep")
        .arg(path)
        .args([
            "--way",
            way,
            "--gpu",
            "none",
            "--cache",
            "cold",
            "--repeats",
            "1",
            "--pattern",
            order,
        ])
        .args(["--request-size", &load.size.to_string(), "--depth", &load.depth.to_string()])
        .args(["--time", &format!("{}ms", load.time.as_millis())])
        .arg("-o")
        .arg(&results)
        .output()?;
    if !output.status.success() {
        let cause = String::from_utf8_lossy(&output.stderr);
        return Err(Stop::Fail(format!("`forebay sweep` failed: {}", cause.trim())));
    }
    let text = fs::read_to_string(&results)?;
    fs::remove_file(&results)?;
    parse(&text).ok_or_else(|| Stop::Fail(format!("`forebay sweep` reported nothing: {text}")))
}

/// The one sample of a results file.
fn parse(text: &str) -> Option<Told> {
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let sample = records.into_iter().find(|record| record["record"] == "sample")?;
    let measured = &sample["measured"];
    let quantile = |name: &str| measured["latency"][name].as_f64();
    let cpu = &measured["cpu"];
    let sample = Sample {
        seconds: measured["seconds"].as_f64()?,
        bytes: measured["bytes"].as_u64()?,
        cpu_s: cpu["user_s"].as_f64().unwrap_or(0.0) + cpu["system_s"].as_f64().unwrap_or(0.0),
    };
    let quantiles = [quantile("p50_ns")?, quantile("p90_ns")?, quantile("p99_ns")?];
    Some(Told { sample, quantiles })
}

/// Both sides of one point, interleaved.
pub(crate) fn compare(
    fio: &Fio,
    path: &Path,
    (load, asks): (&Load, Asks),
    rounds: usize,
    measured: &mut Measured,
) -> Result<(), Stop> {
    let ways: &[&str] = match asks {
        Asks::Latencies => &["io-uring"],
        Asks::Rate | Asks::Overlap => &["io-uring", "forebay"],
    };
    let mut theirs = Vec::new();
    let mut ours = vec![Vec::new(); ways.len()];
    // An extra first round is discarded, unless only one is wanted, which is not judged.
    let first = usize::from(rounds > 1);
    for round in 0..rounds + first {
        let fio = fio.timed(path, load)?;
        let told = ways.iter().map(|way| sweep(path, way, load)).collect::<Result<Vec<_>, _>>()?;
        if round >= first {
            theirs.push(fio);
            ours.iter_mut().zip(told).for_each(|(side, told)| side.push(told));
        }
    }
    let order = if load.random { "random" } else { "in order" };
    let point = format!("{} by {}, {order}", format_size(load.size), load.depth);
    let judged = if asks == Asks::Overlap { ours.last() } else { ours.first() };
    measured.checks.extend(judged.into_iter().flat_map(|ours| judge(&point, asks, &theirs, ours)));
    let sides = std::iter::once(("fio", &theirs)).chain(ways.iter().copied().zip(&ours));
    for (name, side) in sides {
        let samples: Vec<Sample> = side.iter().map(|told| told.sample).collect();
        let series = Series { name: format!("{name}, {point}"), samples };
        let mb = series.rate() / 1e6;
        let [p50, p90, p99] = [0, 1, 2].map(|place| {
            let all: Vec<String> =
                side.iter().map(|told| format!("{:.1}", told.quantiles[place] / 1e3)).collect();
            all.join(" ")
        });
        let what = format!("{mb:.0} MB/s, µs p50 {p50}, p90 {p90}, p99 {p99}");
        measured.notes.push(format!("{}: {what}", series.name));
        measured.series.push(series);
    }
    Ok(())
}

fn judge(point: &str, asks: Asks, theirs: &[Told], ours: &[Told]) -> Vec<Check> {
    let rate = |told: &Told| float(told.sample.bytes) / told.sample.seconds;
    let middle = |side: &[Told], of: &dyn Fn(&Told) -> f64| median(side.iter().map(of));
    if asks == Asks::Overlap {
        let most = ours.iter().map(rate).fold(0.0, f64::max);
        let least = theirs.iter().map(rate).fold(f64::INFINITY, f64::min);
        let what = format!("{point}: our best rate to their least");
        return vec![Check::new(what, most / least, Bound::AtLeast(1.0))];
    }
    let off = |of: &dyn Fn(&Told) -> f64| (middle(ours, of) / middle(theirs, of) - 1.0).abs();
    let mut checks =
        vec![Check::new(format!("{point}: rates apart"), off(&rate), Bound::AtMost(RATE_OFF))];
    if asks == Asks::Latencies {
        for (place, name) in [(0, "p50"), (1, "p90")] {
            let what = format!("{point}: {name} apart");
            let value = off(&|told: &Told| told.quantiles[place]);
            checks.push(Check::new(what, value, Bound::AtMost(LATENCY_OFF)));
        }
        let p99 = |told: &Told| told.quantiles[2];
        let apart = median(theirs.windows(RUNS.min(theirs.len())).map(|runs| {
            let all = runs.iter().map(p99);
            let (least, most) = all.fold((f64::INFINITY, 0.0_f64), |(least, most), p99| {
                (least.min(p99), most.max(p99))
            });
            most - least
        }));
        let apart = apart.max(middle(theirs, &p99) * BUCKET);
        let value = (middle(ours, &p99) - middle(theirs, &p99)).abs() / apart;
        let what = format!("{point}: p99 apart, by what three runs of fio are apart");
        checks.push(Check::new(what, value, Bound::AtMost(1.0)));
    }
    checks
}

/// How often each side runs.
pub(crate) fn rounds(tiny: bool, asks: Asks) -> usize {
    match asks {
        _ if tiny => 1,
        Asks::Latencies => RUNS_OF_LATENCIES,
        Asks::Rate | Asks::Overlap => RUNS,
    }
}

/// On the scratch folder's own disk.
pub(crate) fn own_disk(lab: &Lab) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let path = lab.file(Place::Disk, lab.len(4 << 30))?;
    let mut measured = Measured::default();
    let points = [(1 << 20, 4, false), (64 << 10, 8, true), (4 << 10, 32, true)];
    let most = if lab.is_tiny() { 1 } else { points.len() };
    for (size, depth, random) in points.into_iter().take(most) {
        let load = Load { size, depth, random, time: Load::time(lab.is_tiny()) };
        let asks = Asks::Overlap;
        compare(&fio, &path, (&load, asks), rounds(lab.is_tiny(), asks), &mut measured)?;
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rate: u64, quantiles: [f64; 3]) -> Told {
        Told { sample: Sample { seconds: 1.0, bytes: rate, cpu_s: 0.0 }, quantiles }
    }

    #[test]
    fn a_sample_is_found_among_records() {
        let text = r#"{"record":"run"}
            {"record":"sample","measured":{"seconds":2.0,"bytes":100,"cpu":{"user_s":0.5},
            "latency":{"p50_ns":1,"p90_ns":2,"p99_ns":3}}}"#;
        let text = text.replace("\n            \"", "\"");
        let told = parse(&text).unwrap();
        assert_eq!((told.sample.bytes, told.quantiles), (100, [1.0, 2.0, 3.0]));
        assert!(parse("{}").is_none());
    }

    #[test]
    fn what_is_too_far_apart_is_missed() {
        let theirs = [told(100, [10.0, 20.0, 30.0]), told(101, [10.0, 20.0, 33.0])];
        let held = |asks, ours: Told| -> Vec<bool> {
            judge("", asks, &theirs, &[ours]).iter().map(Check::holds).collect()
        };
        assert_eq!(held(Asks::Latencies, told(104, [10.9, 19.0, 34.0])), [true; 4]);
        assert_eq!(held(Asks::Rate, told(110, [0.0; 3])), [false]);
        assert_eq!(held(Asks::Latencies, told(90, [12.0, 16.0, 36.0])), [false; 4]);
        assert_eq!(held(Asks::Overlap, told(100, [0.0; 3])), [true]);
        assert_eq!(held(Asks::Overlap, told(99, [0.0; 3])), [false]);
    }
}

//! The command's own load compared with `fio`: the same reads with O_DIRECT by both, interleaved,
//! with the rate and the latencies that each reports.
//!
//! The accuracy is judged by the method `io-uring`, which makes requests as `fio` does. The engine,
//! which has its own threads for them, is measured in the same turns and reported.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay::units::format_size;
use forebay_measure::results::Measured as Sampled;
use forebay_measure::results::file::{self, samples};

use crate::bar::{Measured, Stop};
use crate::fio::{Fio, Load, Outcome};
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

/// The criterion for a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Criterion {
    /// The same rate.
    Rate,
    /// The same rate, and the same latencies.
    Latencies,
}

/// One run of the command that was built with this program.
fn sweep(path: &Path, method: &str, load: &Load) -> Result<Outcome, Stop> {
    let program = std::env::current_exe()?.with_file_name("forebay");
    if !program.is_file() {
        let program = program.display();
        return Err(Stop::Skip(format!("no `{program}`: build it with `cargo build`")));
    }
    let results = path.with_extension("results");
    let _ = fs::remove_file(&results);
    let order = if load.random { "random" } else { "sequential" };
    let output = Command::new(program)
        .arg("bench")
        .arg(path)
        .args(["--gpu", "none", "--cache", "cold", "--repeats", "1", "--method", method])
        .args(["--pattern", order, "--block-size", &load.size.to_string()])
        .args(["--depth", &load.depth.to_string()])
        .args(["--time", &format!("{}ms", load.time.as_millis()), "-o"])
        .arg(&results)
        .output()?;
    if !output.status.success() {
        let cause = String::from_utf8_lossy(&output.stderr);
        return Err(Stop::Fail(format!("`forebay bench` failed: {}", cause.trim())));
    }
    let records = file::read(&results).map_err(|failure| Stop::Fail(failure.in_one_line()))?;
    fs::remove_file(&results)?;
    let measured = samples(&records).find_map(|(_, sample)| sample.measured.as_ref());
    let outcome = measured.and_then(outcome);
    outcome.ok_or_else(|| Stop::Fail(format!("`forebay bench` reported no sample: {records:?}")))
}

fn outcome(measured: &Sampled) -> Option<Outcome> {
    let (latency, cpu) = (measured.latency.as_ref()?, measured.cpu.as_ref());
    let cpu_s = cpu.map_or(0.0, |cpu| cpu.user_s + cpu.system_s);
    let sample = Sample { seconds: measured.seconds?, bytes: measured.bytes?, cpu_s };
    let quantiles = [latency.p50_ns?, latency.p90_ns?, latency.p99_ns?].map(float);
    Some(Outcome { sample, quantiles })
}

/// Both sides of one point, interleaved.
pub(crate) fn compare(
    fio: &Fio,
    path: &Path,
    (load, criterion): (&Load, Criterion),
    tiny: bool,
    mut measured: Measured,
) -> Result<Measured, Stop> {
    let (sides, rounds): (&[&str], _) = match criterion {
        Criterion::Latencies => (&["fio", "io-uring"], RUNS_OF_LATENCIES),
        Criterion::Rate => (&["fio", "io-uring", "forebay"], RUNS),
    };
    // The first round is discarded, unless nothing is judged.
    let (first, rounds) = if tiny { (0, 1) } else { (1, rounds + 1) };
    let mut outcomes = vec![Vec::new(); sides.len()];
    for round in 0..rounds {
        for (side, outcomes) in sides.iter().zip(&mut outcomes) {
            let outcome = match *side {
                "fio" => fio.timed(path, load)?,
                method => sweep(path, method, load)?,
            };
            if round >= first {
                outcomes.push(outcome);
            }
        }
    }
    let order = if load.random { "random" } else { "in order" };
    let point = format!("{} by {}, {order}", format_size(load.size), load.depth);
    measured = judge(measured, &point, criterion, &outcomes[0], &outcomes[1]);
    for (name, side) in sides.iter().zip(outcomes) {
        let samples = side.iter().map(|outcome| outcome.sample).collect();
        let series = Series::new(format!("{name}, {point}"), samples);
        let mb = series.rate() / 1e6;
        let [p50, p90, p99] = [0, 1, 2].map(|place| {
            let all = side.iter().map(|outcome| format!("{:.1}", outcome.quantiles[place] / 1e3));
            all.collect::<Vec<_>>().join(" ")
        });
        let what = format!("{mb:.0} MB/s, µs p50 {p50}, p90 {p90}, p99 {p99}");
        measured = measured.note(format!("{}: {what}", series.name));
        measured.series.push(series);
    }
    Ok(measured)
}

fn judge(
    mut measured: Measured,
    point: &str,
    criterion: Criterion,
    theirs: &[Outcome],
    ours: &[Outcome],
) -> Measured {
    let rate = |outcome: &Outcome| float(outcome.sample.bytes) / outcome.sample.seconds;
    let middle = |side: &[Outcome], of: &dyn Fn(&Outcome) -> f64| median(side.iter().map(of));
    let off = |of: &dyn Fn(&Outcome) -> f64| (middle(ours, of) / middle(theirs, of) - 1.0).abs();
    measured = measured.at_most(format!("{point}: rates apart"), off(&rate), RATE_OFF);
    if criterion == Criterion::Rate {
        return measured;
    }
    for (place, name) in [(0, "p50"), (1, "p90")] {
        let value = off(&|outcome: &Outcome| outcome.quantiles[place]);
        measured = measured.at_most(format!("{point}: {name} apart"), value, LATENCY_OFF);
    }
    let p99 = |outcome: &Outcome| outcome.quantiles[2];
    let apart = median(theirs.windows(RUNS.min(theirs.len())).map(|runs| {
        let most = runs.iter().map(p99).fold(0.0, f64::max);
        most - runs.iter().map(p99).fold(f64::INFINITY, f64::min)
    }));
    let apart = apart.max(middle(theirs, &p99) * BUCKET);
    let value = (middle(ours, &p99) - middle(theirs, &p99)).abs() / apart;
    measured.at_most(format!("{point}: p99 apart, by what three runs of fio are apart"), value, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bar::Check;

    #[test]
    fn differences_beyond_the_bounds_are_missed() {
        let outcome = |rate, quantiles| Outcome {
            sample: Sample { seconds: 1.0, bytes: rate, cpu_s: 0.0 },
            quantiles,
        };
        let theirs = [outcome(100, [10.0, 20.0, 30.0]), outcome(101, [10.0, 20.0, 33.0])];
        let held = |criterion, ours| -> Vec<bool> {
            let judged = judge(Measured::default(), "", criterion, &theirs, &[ours]);
            judged.checks.iter().map(Check::holds).collect()
        };
        assert_eq!(held(Criterion::Latencies, outcome(104, [10.9, 19.0, 34.0])), [true; 4]);
        assert_eq!(held(Criterion::Rate, outcome(110, [0.0; 3])), [false]);
        assert_eq!(held(Criterion::Latencies, outcome(90, [12.0, 16.0, 36.0])), [false; 4]);
    }
}

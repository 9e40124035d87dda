//! `cargo xtask soak`: the whole engine under seeded faults, for any length of time.
//!
//! Every core runs the simulation (`queue/sim`) in a process, seed after seed: a single thread
//! steps all state machines on a simulated clock, so a seed replays exactly. Tests with real
//! threads run at the same time; their seeds replay the faults only.

mod child;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use child::{Counts, Kind, Soaking};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::process::{Result, say};
use crate::{bundle, test};

/// Longest interval between progress reports; short soaks report three times.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// Longer than any useful run, and short enough to be added to a time.
const HOURS_MAX: f64 = 24.0 * 366.0;

const ENGINE: &str = "forebay";
const COMMAND: &str = "forebay-cli";

/// The tests that it runs. The first one has no threads, so each core runs one.
const KINDS: [Kind; 8] = [
    Kind(ENGINE, "lib", "queue::sim::every_seed_moves_every_byte"),
    Kind(ENGINE, "stress", "random_threads_lose_nothing"),
    Kind(ENGINE, "served", "every_byte_of_a_failing_file_system_is_accounted_for"),
    Kind(ENGINE, "differential", "random_requests_agree_with_a_model"),
    Kind(ENGINE, "differential", "acknowledged_bytes_survive_a_kill_and_a_power_cut"),
    Kind(COMMAND, "cli", "signals::signals_at_random_moments_leave_nothing"),
    Kind(COMMAND, "cli", "mutated::files_with_changed_bytes_end_no_command"),
    Kind(COMMAND, "cli", "mutated::results::changed_results_are_read_or_refused"),
];

/// The first seed, and the duration.
#[derive(Debug, Clone, Copy, PartialEq, clap::Args)]
pub(crate) struct SoakArguments {
    /// First seed (default: from the clock; it is printed).
    #[arg(long)]
    seed: Option<u64>,
    /// Duration, also parts of an hour such as 0.1.
    #[arg(long, value_name = "H", default_value = "1", value_parser = hours)]
    hours: Duration,
}

fn hours(text: &str) -> Result<Duration> {
    let hours = text.parse::<f64>().ok().filter(|hours| *hours > 0.0 && *hours <= HOURS_MAX);
    let hours = hours.ok_or("hours are a number above 0, such as 0.5")?;
    Ok(Duration::from_secs_f64(hours * 3600.0))
}

/// The short soak that belongs to the tests.
pub(crate) fn for_tests(root: &Path) -> Result<bool> {
    run(root, SoakArguments { seed: None, hours: Duration::from_secs(30) })
}

/// The chore; `Ok(false)` if a seed failed.
pub(crate) fn run(root: &Path, SoakArguments { seed, hours: time }: SoakArguments) -> Result<bool> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seed = seed.unwrap_or_else(now);
    say!("soak: seed {seed}, for {} s", time.as_secs());
    let programs = programs(root)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(|error| format!("cannot take signals: {error}"))?;
    }
    let (mut all, lines) = start(root, &programs, seed)?;
    let begun = Instant::now();
    follow(&mut all, &lines, time, &interrupted)?;
    say!("{}", progress(&all, begun.elapsed()));
    let failures = all.iter().flat_map(|process| &process.failures);
    let failed = failures.inspect(|command| say!("failed: {command}")).count();
    Ok(failed == 0 && simulated(&all).get("seeds") > 0)
}

/// The executables of the tests, built in release mode.
fn programs(root: &Path) -> Result<Vec<PathBuf>> {
    let engine = ["--lib", "--test=stress", "--test=served", "--test=differential"];
    let packages = [["-p", ENGINE].as_slice(), &engine, &["-p", COMMAND, "--test=cli"]].concat();
    let built = bundle::executables(root, &[&["--release"], &packages[..]].concat())?;
    let find = |Kind(package, target, _): &Kind| {
        let name = match *target {
            "lib" => format!("{package} lib {package}"),
            target => format!("{package} test {target}"),
        };
        let found = built.iter().find(|built| built.name == name);
        found.map(|built| built.file.clone()).ok_or_else(|| format!("cargo built no {name}"))
    };
    KINDS.iter().map(find).collect()
}

type Lines = Receiver<(usize, Option<String>)>;

/// Starts all processes; lines arrive with the process's number.
fn start(root: &Path, programs: &[PathBuf], seed: u64) -> Result<(Vec<Soaking>, Lines)> {
    let folder = test::target(root)?;
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let (sender, lines) = channel();
    let mut processes = Vec::new();
    for (kind, program) in KINDS.into_iter().zip(programs) {
        let count = if kind.is_simulated() { cores } else { 1 };
        for number in 0..count {
            let seeds = (seed.wrapping_add(number), count);
            let (place, sender) = (processes.len(), sender.clone());
            processes.push(Soaking::start((kind, program), seeds, &folder, place, sender)?);
        }
    }
    Ok((processes, lines))
}

/// Runs until the time is over or the user interrupts, and then to the end of all seeds.
fn follow(
    all: &mut [Soaking],
    lines: &Lines,
    time: Duration,
    interrupted: &AtomicBool,
) -> Result<()> {
    let start = Instant::now();
    let every = REPORT_EVERY.min(time / 3).max(Duration::from_secs(1));
    let (mut next, mut stopped) = (start + every, false);
    while all.iter().any(|process| !process.ended) {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok((number, line)) => all[number].take(line.as_deref()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("no process is left".into()),
        }
        all.iter_mut().for_each(Soaking::end_if_stuck);
        let over = start.elapsed() >= time || interrupted.load(Ordering::Relaxed);
        if over && !std::mem::replace(&mut stopped, true) {
            all.iter_mut().for_each(Soaking::stop);
        }
        if Instant::now() >= next && !stopped {
            next += every;
            say!("{}", progress(all, start.elapsed()));
        }
    }
    Ok(())
}

/// The counts of all simulations.
fn simulated(all: &[Soaking]) -> Counts {
    let simulated = all.iter().filter(|process| process.kind.is_simulated());
    Counts::sum(simulated.map(|process| &process.counts))
}

fn progress(all: &[Soaking], time: Duration) -> String {
    let sum = simulated(all);
    let others = all.iter().filter(|process| !process.kind.is_simulated());
    let others: u64 = others.map(|process| process.counts.get("seeds")).sum();
    let failures: usize = all.iter().map(|process| process.failures.len()).sum();
    let [seeds, steps, mib] = [sum.get("seeds"), sum.get("steps"), sum.get("bytes") >> 20];
    format!(
        "soak: {} s: {seeds} seeds, {steps} steps, {mib} MiB; {others} seeds with real threads; \
         {failures} failed; {}",
        time.as_secs(),
        sum.faults()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_positive_and_bounded() {
        assert_eq!(hours("0.025"), Ok(Duration::from_secs(90)));
        for wrong in ["0", "-1", "nan", "inf", "1h", "1e9"] {
            assert!(hours(wrong).is_err(), "{wrong}");
        }
    }
}

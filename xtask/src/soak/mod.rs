//! `cargo xtask soak`: the whole engine under seeded faults, for any length of time.
//!
//! Each core has a process that runs the simulation (`queue/sim`), seed after seed: one thread
//! steps all state machines on a simulated clock, so a seed replays exactly. Tests with real
//! threads run at the same time; their seeds replay the faults only.

mod arguments;
mod child;
mod told;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use arguments::{Chore, Wishes};
use child::{Kind, Soaking};
use signal_hook::consts::{SIGINT, SIGTERM};
use told::Told;

use crate::process::{Result, say};
use crate::{bundle, test};

/// Longest interval between progress reports; short soaks report three times.
const TELLS_EVERY: Duration = Duration::from_secs(30);

/// The tests that it runs.
const KINDS: [Kind; 8] = [
    Kind {
        target: "forebay lib forebay",
        test: "queue::sim::every_seed_moves_every_byte",
        replay: "cargo test --release -p forebay --lib every_seed_moves_every_byte",
        is_simulated: true,
    },
    Kind {
        target: "forebay test stress",
        test: "random_threads_lose_nothing",
        replay: "FOREBAY_STRESS=1 cargo test --release -p forebay --test stress",
        is_simulated: false,
    },
    Kind {
        target: "forebay test served",
        test: "every_byte_of_a_failing_file_system_is_accounted_for",
        replay: "FOREBAY_STRESS=1 cargo test --release -p forebay --test served",
        is_simulated: false,
    },
    Kind {
        target: "forebay test differential",
        test: "random_requests_agree_with_a_model",
        replay: "FOREBAY_STRESS=1 cargo test --release -p forebay --test differential \
                 random_requests",
        is_simulated: false,
    },
    Kind {
        target: "forebay test differential",
        test: "what_was_acknowledged_outlives_a_kill_and_a_power_cut",
        replay: "FOREBAY_STRESS=1 cargo test --release -p forebay --test differential \
                 what_was_acknowledged",
        is_simulated: false,
    },
    Kind {
        target: "forebay-cli test cli",
        test: "signals::signals_at_random_moments_leave_nothing",
        replay: "FOREBAY_STRESS=1 cargo test --release -p forebay-cli --test cli signals_at_random",
        is_simulated: false,
    },
    Kind {
        target: "forebay-cli test cli",
        test: "mutated::files_with_changed_bytes_end_no_command",
        replay: "FOREBAY_STRESS=1 cargo test --release -p forebay-cli --test cli \
                 with_changed_bytes",
        is_simulated: false,
    },
    Kind {
        target: "forebay-cli test cli",
        test: "mutated::results::changed_results_are_read_or_refused",
        replay: "FOREBAY_STRESS=1 cargo test --release -p forebay-cli --test cli changed_results",
        is_simulated: false,
    },
];

/// The chore; `Ok(false)` if a seed failed.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    match arguments::parse(arguments)? {
        Chore::Help => {
            say!("{}", arguments::HELP);
            Ok(true)
        }
        Chore::Soak(wishes) => soak(root, wishes),
    }
}

/// The short soak that belongs to the tests.
pub(crate) fn for_tests(root: &Path) -> Result<bool> {
    soak(root, Wishes::lasting(Duration::from_secs(30)))
}

fn soak(root: &Path, wishes: Wishes) -> Result<bool> {
    let Wishes { seed, time } = wishes;
    say!("soak: seed {seed}, for {} s", time.as_secs());
    let programs = programs(root)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(|error| format!("cannot take signals: {error}"))?;
    }
    let all = soaking(root, &programs, seed)?;
    let start = Instant::now();
    let all = Soak { all, start, time }.run(&interrupted)?;
    Ok(finish(&all, start.elapsed()))
}

/// The executables of the tests, built in release mode.
fn programs(root: &Path) -> Result<Vec<PathBuf>> {
    let engine = ["--lib", "--test=stress", "--test=served", "--test=differential"];
    let packages = [["-p", "forebay"].as_slice(), &engine, &["-p", "forebay-cli", "--test=cli"]];
    let built = bundle::executables(root, &packages.concat())?;
    let find = |kind: &Kind| {
        let found = built.iter().find(|(name, _)| name == kind.target);
        found.map(|(_, file)| file.clone()).ok_or_else(|| format!("cargo built no {}", kind.target))
    };
    KINDS.iter().map(find).collect()
}

struct Soak {
    all: Soakings,
    start: Instant,
    time: Duration,
}

struct Soakings {
    processes: Vec<Soaking>,
    lines: std::sync::mpsc::Receiver<(usize, Option<String>)>,
}

/// Starts all processes.
fn soaking(root: &Path, programs: &[PathBuf], seed: u64) -> Result<Soakings> {
    let folder = test::target(root)?;
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let (sender, lines) = channel();
    let mut processes = Vec::new();
    for (kind, program) in KINDS.into_iter().zip(programs) {
        let count = if kind.is_simulated { cores } else { 1 };
        for number in 0..count {
            let seeds = (seed.wrapping_add(number), count);
            let place = processes.len();
            let of = (kind, program.as_path());
            processes.push(Soaking::start(of, seeds, &folder, place, sender.clone())?);
        }
    }
    Ok(Soakings { processes, lines })
}

impl Soak {
    /// Runs until the time is over or the user interrupts, and then to the end of all seeds.
    fn run(mut self, interrupted: &AtomicBool) -> Result<Vec<Soaking>> {
        let every = TELLS_EVERY.min(self.time / 3).max(Duration::from_secs(1));
        let mut tells = self.start + every;
        let mut stopped = false;
        while self.all.processes.iter().any(|process| !process.ended) {
            match self.all.lines.recv_timeout(Duration::from_millis(200)) {
                Ok((number, line)) => self.all.processes[number].take(line.as_deref()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("no process is left".into()),
            }
            self.all.processes.iter_mut().for_each(Soaking::look);
            let over = self.start.elapsed() >= self.time || interrupted.load(Ordering::Relaxed);
            if over && !std::mem::replace(&mut stopped, true) {
                self.all.processes.iter_mut().for_each(Soaking::stop);
            }
            if Instant::now() >= tells && !stopped {
                tells += every;
                say!("{}", progress(&self.all.processes, self.start.elapsed()));
            }
        }
        Ok(self.all.processes)
    }
}

/// The simulations' counts, and the seeds of the real-thread tests.
fn sums(all: &[Soaking]) -> (Told, u64) {
    let simulated = all.iter().filter(|process| process.kind.is_simulated);
    let others = all.iter().filter(|process| !process.kind.is_simulated);
    let sum = Told::sum(simulated.map(|process| &process.told));
    (sum, others.map(|process| process.told.of("seeds")).sum())
}

fn progress(all: &[Soaking], time: Duration) -> String {
    let (sum, others) = sums(all);
    let failures: usize = all.iter().map(|process| process.failures.len()).sum();
    let [seeds, steps, mib] = [sum.of("seeds"), sum.of("steps"), sum.of("bytes") >> 20];
    format!(
        "soak: {} s: {seeds} seeds, {steps} steps, {mib} MiB; {others} seeds with real threads; \
         {failures} failed; {}",
        time.as_secs(),
        sum.faults()
    )
}

/// Prints the summary; returns true if nothing failed and every kind of process ran at least one
/// seed.
fn finish(all: &[Soaking], time: Duration) -> bool {
    say!("{}", progress(all, time));
    let failures: Vec<&String> = all.iter().flat_map(|process| &process.failures).collect();
    failures.iter().for_each(|command| say!("failed: {command}"));
    failures.is_empty() && sums(all).0.of("seeds") > 0
}

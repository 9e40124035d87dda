//! One process of a soak: a test that runs seed after seed until its standard input ends, and
//! reports its counts in lines `soak: NAME=COUNT ...`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{self, Result};

/// A seed runs for milliseconds, with real threads for seconds: a longer run hangs.
const SEED_MAX: Duration = Duration::from_secs(300);

/// Counts that are no faults.
const WORK: [&str; 5] = ["at", "seeds", "failed", "steps", "bytes"];

/// A test that runs seeds: package, integration test or `lib`, name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind(pub(super) &'static str, pub(super) &'static str, pub(super) &'static str);

impl Kind {
    /// Whether it is single-threaded: every core runs a copy.
    pub(super) fn is_simulated(&self) -> bool {
        self.1 == "lib"
    }

    /// The command that runs a single seed.
    fn replay(&self, seed: u64) -> String {
        let Self(package, target, test) = self;
        let (stress, target) = match self.is_simulated() {
            true => ("", "--lib".to_owned()),
            false => ("FOREBAY_STRESS=1 ", format!("--test {target}")),
        };
        format!("FOREBAY_SEED={seed} {stress}cargo test --release -p {package} {target} {test}")
    }
}

/// A running process.
pub(super) struct Soaking {
    pub(super) kind: Kind,
    process: Child,
    /// Closing it ends the process.
    input: Option<ChildStdin>,
    pub(super) counts: Counts,
    changed: Instant,
    /// Commands that reproduce the failures.
    pub(super) failures: Vec<String>,
    pub(super) ended: bool,
}

impl Soaking {
    /// Starts `program`, which runs every seed at distance `stride`; its lines go to `lines` with
    /// `number`.
    pub(super) fn start(
        (kind, program): (Kind, &Path),
        (seed, stride): (u64, u64),
        folder: &Path,
        number: usize,
        lines: Sender<(usize, Option<String>)>,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args([kind.2, "--exact", "--nocapture", "--test-threads=1"]);
        command.current_dir(folder).env("PATH", process::full_path());
        command.env("FOREBAY_SEED", seed.to_string()).env("FOREBAY_SOAK", stride.to_string());
        command.env_remove("FOREBAY_SEEDS").env_remove("FOREBAY_STRESS");
        command.env("XDG_CACHE_HOME", folder.join("test-cache"));
        // Ctrl-C is for the chore, which ends them in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |error| format!("cannot run `{}`: {error}", program.display());
        let mut process = command.spawn().map_err(failed)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        thread::spawn(move || {
            let read = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            for line in read.map_while(std::result::Result::ok) {
                let _ = lines.send((number, Some(line)));
            }
            let _ = lines.send((number, None));
        });
        let (counts, changed) = (Counts::default(), Instant::now());
        Ok(Self { kind, process, input, counts, changed, failures: Vec::new(), ended: false })
    }

    /// Processes a line; `None`: the output has ended.
    pub(super) fn take(&mut self, line: Option<&str>) {
        let Some(line) = line else { return self.reap() };
        if let Some(command) = line.strip_prefix("soak-failed: ") {
            self.failures.push(command.to_owned());
        }
        if let Some(counts) = Counts::read(line) {
            // For a process without progress only the time changes.
            if counts != self.counts {
                self.changed = Instant::now();
            }
            self.counts = counts;
        }
    }

    /// Records how it ended. A failure without a message belongs to the current seed.
    fn reap(&mut self) {
        self.ended = true;
        let Ok(status) = self.process.wait() else { return };
        if !status.success() && self.failures.is_empty() {
            let how = status.signal().map_or(String::new(), |n| format!(" # ended by signal {n}"));
            self.failures.push(self.kind.replay(self.counts.get("at")) + &how);
        }
    }

    /// Makes it end after its current seed.
    pub(super) fn stop(&mut self) {
        self.input = None;
    }

    /// Ends the process if its seed hangs.
    pub(super) fn end_if_stuck(&mut self) {
        if !self.ended && self.changed.elapsed() > SEED_MAX {
            self.failures.push(self.kind.replay(self.counts.get("at")) + " # hangs");
            let _ = self.process.kill();
        }
    }
}

impl Drop for Soaking {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// The counts in the latest line of a process.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// Parses a line; `None` if it is of another kind.
    fn read(line: &str) -> Option<Self> {
        let words = line.strip_prefix("soak: ")?.split_whitespace();
        let counts = words.map(|word| {
            let (name, count) = word.split_once('=')?;
            Some((name.to_owned(), count.parse().ok()?))
        });
        counts.collect::<Option<_>>().map(Self)
    }

    pub(super) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The sum of several.
    pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for (name, count) in all.flat_map(|counts| &counts.0) {
            *sum.0.entry(name.clone()).or_default() += count;
        }
        sum
    }

    /// How often each fault was met, for a person.
    pub(super) fn faults(&self) -> String {
        let faults = self.0.iter().filter(|(name, _)| !WORK.contains(&name.as_str()));
        let faults: Vec<String> = faults.map(|(name, n)| format!("{name} {n}")).collect();
        faults.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_added_up() {
        let one = Counts::read("soak: at=5 seeds=3 steps=70 bytes=4096 eio=2 late=1").unwrap();
        let two = Counts::read("soak: at=6 seeds=4 steps=30 bytes=0 eio=1").unwrap();
        let sum = Counts::sum([&one, &two].into_iter());
        assert_eq!((sum.get("seeds"), sum.get("steps"), sum.get("bytes")), (7, 100, 4096));
        assert_eq!(sum.faults(), "eio 3, late 1");
        assert_eq!(sum.get("lost"), 0);
        for line in
            ["running 1 test", "soak-failed: FOREBAY_SEED=1 cargo", "soak: at=x", "soak: at"]
        {
            assert_eq!(Counts::read(line), None, "{line}");
        }
    }
}

//! One process of a soak: a test that runs seed after seed until its standard input ends, and
//! reports every second on its standard output.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use super::told::Told;
use crate::process::{self, Result};

/// A seed takes milliseconds, and with real threads seconds: a longer one hangs.
const SEED_MAX: Duration = Duration::from_secs(300);

/// A test that runs seeds, and how a person runs one of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// The test executable, as cargo names its target.
    pub(super) target: &'static str,
    pub(super) test: &'static str,
    /// The command after the seed to run it alone.
    pub(super) replay: &'static str,
    /// Whether it has no threads, so that each core runs one.
    pub(super) is_simulated: bool,
}

/// See the module's own text.
pub(super) struct Soaking {
    pub(super) kind: Kind,
    process: Child,
    /// Closing it ends the process.
    input: Option<ChildStdin>,
    pub(super) told: Told,
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
        command.args([kind.test, "--exact", "--nocapture", "--test-threads=1"]);
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
        let (told, changed) = (Told::default(), Instant::now());
        Ok(Self { kind, process, input, told, changed, failures: Vec::new(), ended: false })
    }

    /// Processes a line; `None`: the output has ended.
    pub(super) fn take(&mut self, line: Option<&str>) {
        let Some(line) = line else { return self.reap() };
        if let Some(command) = line.strip_prefix("soak-failed: ") {
            self.failures.push(command.to_owned());
        }
        if let Some(told) = Told::read(line) {
            // For a process without progress only the time changes.
            if told != self.told {
                self.changed = Instant::now();
            }
            self.told = told;
        }
    }

    /// Records how it ended. A failure without a message belongs to the current seed.
    fn reap(&mut self) {
        self.ended = true;
        let Ok(status) = self.process.wait() else { return };
        if status.success() || !self.failures.is_empty() {
            return;
        }
        let how = status.signal().map_or(String::new(), |n| format!(" # ended by signal {n}"));
        self.failures.push(self.replay() + &how);
    }

    fn replay(&self) -> String {
        format!("FOREBAY_SEED={} {}", self.told.of("at"), self.kind.replay)
    }

    /// Lets it end after its current seed.
    pub(super) fn stop(&mut self) {
        self.input = None;
    }

    /// Ends the process if its seed hangs.
    pub(super) fn look(&mut self) {
        if !self.ended && self.changed.elapsed() > SEED_MAX {
            self.failures.push(self.replay() + " # hangs");
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

//! Chooses a test's seeds by environment variables, and prints progress.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `FOREBAY_SEED=N` | starts with this seed; alone it runs no other |
//! | `FOREBAY_SEEDS=N` | runs this many |
//! | `FOREBAY_SOAK=N` | runs every Nth seed until standard input ends; other processes run the rest
//! |
//!
//! During a soak it prints a line starting with `soak:` each second, and one starting with
//! `soak-failed:` for each seed that fails. The task that adds up several processes reads these.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_base::lock::Lock;

use super::run::Summary;
use super::tally::Tally;

/// The seeds of a test run.
pub(super) struct Seeds {
    next: u64,
    left: u64,
    stride: u64,
    soaks: bool,
    /// Set when standard input ends.
    ended: Arc<AtomicBool>,
}

impl Seeds {
    /// The seeds that the variables select; by default the first `most`.
    pub(super) fn from_env(most: u64) -> Self {
        let number = |name: &str| {
            std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a variable's number"))
        };
        let (first, stride) = (number("FOREBAY_SEED"), number("FOREBAY_SOAK"));
        let most = match (first, stride) {
            (_, Some(_)) => u64::MAX,
            (Some(_), None) => 1,
            (None, None) => most,
        };
        let ended = Arc::new(AtomicBool::new(false));
        if stride.is_some() {
            let report = Arc::clone(&ended);
            thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                report.store(true, Ordering::Relaxed);
            });
        }
        Self {
            next: first.unwrap_or(0),
            left: number("FOREBAY_SEEDS").unwrap_or(most),
            stride: stride.unwrap_or(1),
            soaks: stride.is_some(),
            ended,
        }
    }

    pub(super) fn soaks(&self) -> bool {
        self.soaks
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.left == 0 || self.ended.load(Ordering::Relaxed) {
            return None;
        }
        let seed = self.next;
        self.left -= 1;
        self.next = seed.wrapping_add(self.stride);
        Some(seed)
    }
}

#[derive(Default)]
struct Totals {
    at: u64,
    seeds: u64,
    failed: u64,
    all: Summary,
}

/// Totals so far, and the thread that prints them.
#[derive(Default)]
pub(super) struct Progress {
    totals: Arc<Lock<Totals>>,
    reporter: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts a thread that prints the totals each second, even while a seed hangs.
    pub(super) fn printed() -> Self {
        let totals = Arc::new(Lock::<Totals>::default());
        let (ends, ended) = channel::<()>();
        let reported = Arc::clone(&totals);
        let report = move || {
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                println!("{}", reported.lock().line());
            }
            println!("{}", reported.lock().line());
        };
        Self { totals, reporter: Some((ends, thread::spawn(report))) }
    }

    pub(super) fn begin(&self, seed: u64) {
        self.totals.lock().at = seed;
    }

    /// Adds a seed's summary; `None` if it failed.
    pub(super) fn end(&self, summary: Option<Summary>) {
        let totals = &mut *self.totals.lock();
        totals.seeds += 1;
        match summary {
            Some(Summary { steps, bytes, met }) => {
                totals.all.steps += steps;
                totals.all.bytes += bytes;
                totals.all.met.add(&met);
            }
            None => totals.failed += 1,
        }
    }

    /// All faults triggered so far.
    pub(super) fn met(&self) -> Tally {
        self.totals.lock().all.met.clone()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((ends, reporter)) = self.reporter.take() {
            drop(ends);
            let _ = reporter.join();
        }
    }
}

impl Totals {
    fn line(&self) -> String {
        let Self { at, seeds, failed, all: Summary { steps, bytes, met } } = self;
        format!("soak: at={at} seeds={seeds} failed={failed} steps={steps} bytes={bytes} {met}")
    }
}

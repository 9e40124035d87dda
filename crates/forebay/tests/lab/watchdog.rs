//! Ends the test program when a test hangs: a hung thread cannot be ended from outside, and a
//! program that never ends does not show where it hangs.

use std::fs;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// Guards a test until it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    // Its end is the sign that the test ended.
    _test: Sender<()>,
}

impl Watchdog {
    /// For the test that runs on this thread. The bound is far above what the slowest machine
    /// needs: only a hang exceeds it.
    pub(crate) fn new(bound: Duration) -> Self {
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let (sender, ended) = channel::<()>();
        thread::spawn(move || {
            if ended.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
                let report = format!("\n`{test}` hangs for {bound:?}; threads:\n{}", threads());
                let _ = std::io::stderr().write_all(report.as_bytes());
                // Not `abort`: a process that dumps its core waits for its threads first.
                let _ = kill_process(getpid(), Signal::KILL);
            }
        });
        Self { _test: sender }
    }

    /// With the bound of most tests.
    pub(crate) fn start() -> Self {
        Self::new(Duration::from_secs(300))
    }
}

/// Name, state and place in the kernel of every thread of this process.
fn threads() -> String {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return String::new() };
    let mut lines = String::new();
    for task in tasks.flatten() {
        let part = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let status = part("status");
        let state = status.lines().find(|line| line.starts_with("State")).unwrap_or_default();
        let line = format!("  {} {state} {}\n", part("comm").trim(), part("wchan").trim());
        lines.push_str(&line);
    }
    lines
}

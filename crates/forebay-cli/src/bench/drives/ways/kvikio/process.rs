//! A Python that has KvikIO, as a process that takes orders: one line each way at a time.
//!
//! Whatever it does, it cannot hold us up or mislead us: each answer has a bound in time and in
//! length, has exactly the keys that are expected, and its times are compared with our own clock.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::interrupt;
use crate::report::plain::plain;

/// What the process runs. It comes with the command line, so no file can be put in its place.
const PROGRAM: &str = include_str!("program.py");
/// Bytes of one order at most: what a pipe takes, so that writing it never waits.
const ORDER_MAX: usize = 60 * 1024;
/// Bytes of one answer at most.
const ANSWER_MAX: u64 = 16 * 1024;
/// Letters of a reason that are shown.
const REASON_MAX: usize = 200;
/// How long a process that was killed may take to end: one that waits for a drive may never.
const END_MAX: Duration = Duration::from_secs(2);

/// What is asked of it.
#[derive(Debug, Serialize)]
#[serde(tag = "order", rename_all = "lowercase")]
pub(super) enum Order {
    /// Load KvikIO, and get memory: `window` bytes of the file `memory` are shared with us, and
    /// `size` bytes are the targets, in the window or on the GPU.
    Start { memory: String, window: u64, size: u64, gpu: bool },
    /// Open files; each is the hexadecimal digits of its path, its place in memory, its bytes.
    Open { files: Vec<(String, u64, u64)> },
    /// Read all files whole.
    Read {},
    /// Close all files.
    Close {},
    /// Set every byte of the GPU's memory.
    Fill { byte: u8 },
    /// Copy bytes of the GPU's memory to the start of the window.
    Fetch { at: u64, size: u64 },
}

/// What it answers.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Answer {
    /// To `Start`.
    Started { version: String, settings: BTreeMap<String, String> },
    /// To `Read`.
    Read { bytes: u64, seconds: f64, cpu_seconds: f64 },
    /// To all others.
    Done {},
    /// It could not be done.
    Failed { reason: String },
}

/// The process; it ends with this.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Result<String, String>>,
}

impl Process {
    /// Starts the Python that is found, with these variables and no others of KvikIO's.
    pub(super) fn start(variables: &[(String, String)]) -> Result<Self, String> {
        let mut command = Command::new("python3");
        // It must leave nothing behind, not even what it compiled.
        command.args(["-B", "-c", PROGRAM]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KVIKIO_") {
                command.env_remove(name);
            }
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut child = interrupt::spawn(&mut command)
            .map_err(|error| format!("`python3` cannot be started: {error}"))?;
        let (orders, output) = (child.stdin.take(), child.stdout.take());
        let (sender, answers) = channel();
        let mut output = BufReader::new(output.ok_or("no answers")?);
        // It ends with the process, whose other end of the pipe it is.
        thread::spawn(move || {
            let mut line = Vec::new();
            while output.by_ref().take(ANSWER_MAX).read_until(b'\n', &mut line).is_ok() {
                let whole = line.ends_with(b"\n");
                if line.is_empty() {
                    break;
                }
                let text = String::from_utf8_lossy(&line).into_owned();
                let answer = if whole { Ok(text) } else { Err("an answer without an end".into()) };
                if sender.send(answer).is_err() || !whole {
                    break;
                }
                line.clear();
            }
        });
        Ok(Self { child, orders: orders.ok_or("no orders")?, answers })
    }

    /// Gives an order and waits for its answer, at most for `bound`.
    pub(super) fn ask(&mut self, order: &Order, bound: Duration) -> Result<Answer, String> {
        let mut line = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        line.push(b'\n');
        if line.len() > ORDER_MAX {
            return Err("there are too many files for one order".into());
        }
        let asked = Instant::now();
        if self.orders.write_all(&line).and_then(|()| self.orders.flush()).is_err() {
            return Err(self.ended());
        }
        let text = match self.answers.recv_timeout(bound) {
            Ok(answer) => answer?,
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("no answer within {} s", bound.as_secs()));
            }
        };
        let passed = asked.elapsed().as_secs_f64();
        match serde_json::from_str(&text) {
            Ok(Answer::Failed { reason }) => Err(shown(&reason)),
            Ok(answer @ Answer::Read { seconds, cpu_seconds, .. }) => {
                // Its clock starts later and ends earlier than ours.
                let sound = seconds > 0.0 && seconds <= passed && cpu_seconds >= 0.0;
                let sound = sound && cpu_seconds.is_finite();
                if sound { Ok(answer) } else { Err("it told times that cannot be".into()) }
            }
            Ok(answer) => Ok(answer),
            Err(_) => Err(format!("a strange answer: {}", shown(text.trim_end()))),
        }
    }

    /// Says how a process ended that does not answer any more.
    fn ended(&mut self) -> String {
        match wait(&mut self.child, END_MAX) {
            Some(status) => format!("`python3` ended with {status}"),
            None => "`python3` closed its end without an answer".into(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let id = self.child.id();
        let _ = self.child.kill();
        wait(&mut self.child, END_MAX);
        interrupt::ended(id);
    }
}

fn wait(child: &mut Child, bound: Duration) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < bound => thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

/// Somebody else's text, fit for one line of ours.
fn shown(text: &str) -> String {
    let text = plain(text.lines().next().unwrap_or_default());
    match text.char_indices().nth(REASON_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

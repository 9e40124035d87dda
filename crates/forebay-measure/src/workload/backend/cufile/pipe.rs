//! A process that serves requests: one line of JSON for each request and each answer.
//!
//! Each answer is limited in time and in length, and its text is shown in one short line.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cleanup::{self, Entry};
use crate::plain::{cut, plain};

/// Maximum bytes of one request: less than a pipe's buffer, so that writing it never blocks.
const ORDER_MAX: usize = 60 * 1024;
/// Maximum bytes of one line.
const LINE_MAX: u64 = 64 * 1024;
/// Maximum letters of a reason.
const REASON_MAX: usize = 300;
/// Time limit for a killed process to end: one that waits for a drive may never end.
const END_MAX: Duration = Duration::from_secs(2);

/// The process, which is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Pipe {
    name: String,
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    _entry: Entry,
}

impl Pipe {
    /// Starts it; `name` identifies it in reasons.
    pub(super) fn start(command: &mut Command, name: &str) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let (mut child, entry) = cleanup::spawn(command)
            .map_err(|error| format!("`{name}` cannot be started: {error}"))?;
        let (orders, output) = (child.stdin.take(), child.stdout.take());
        // Its end ends with the process, which holds the other end of the pipe.
        let answers = lines(output.ok_or("no answers")?, || ());
        let orders = orders.ok_or("no orders")?;
        Ok(Self { name: name.into(), child, orders, answers, _entry: entry })
    }

    /// Sends a request and waits for its answer for at most `bound`.
    pub(super) fn exchange<A: DeserializeOwned>(
        &mut self,
        order: &impl Serialize,
        bound: Duration,
    ) -> Result<A, String> {
        let mut line = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        line.push(b'\n');
        if line.len() > ORDER_MAX {
            return Err("the request is too long".into());
        }
        if self.orders.write_all(&line).and_then(|()| self.orders.flush()).is_err() {
            return Err(self.ended());
        }
        let text = match self.answers.recv_timeout(bound) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("no answer within {} s", bound.as_secs()));
            }
        };
        serde_json::from_str(&text).map_err(|_| format!("unexpected answer: {}", shown(&text)))
    }

    /// Describes how a process ended that no longer answers.
    fn ended(&mut self) -> String {
        match wait(&mut self.child, END_MAX) {
            Some(status) => format!("`{}` ended with {status}", self.name),
            None => format!("`{}` closed its pipe without an answer", self.name),
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        wait(&mut self.child, END_MAX);
    }
}

/// Reads lines on a thread, up to the end or to one that is too long. Calls `end` then.
pub(super) fn lines(
    input: impl Read + Send + 'static,
    end: impl FnOnce() + Send + 'static,
) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        while input.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).is_ok() {
            let text = String::from_utf8_lossy(&line).into_owned();
            // A line that was cut fits no request either, and is shown.
            if line.is_empty() || sender.send(text).is_err() || !line.ends_with(b"\n") {
                break;
            }
            line.clear();
        }
        drop(sender);
        end();
    });
    lines
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

/// External text, cleaned for one line of output.
pub(super) fn shown(text: &str) -> String {
    cut(&plain(text.lines().next().unwrap_or_default()), REASON_MAX)
}

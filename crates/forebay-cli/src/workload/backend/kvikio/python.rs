//! A Python process with `KvikIO` that serves requests: one line for each request and each answer.
//!
//! It is not trusted: each answer is limited in time and in length, must have exactly the expected
//! keys, and its times are checked against this process's clock.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::workload::backend::process::{Process, shown, sound};

/// The program that the process runs. It is embedded in the executable, so no file can replace it.
const PROGRAM: &str = include_str!("program.py");

/// A request to the process.
#[derive(Debug, Serialize)]
#[serde(tag = "order", rename_all = "lowercase")]
pub(super) enum Order {
    /// Load KvikIO and allocate memory. `window` bytes of the file `memory` are shared with this
    /// process. `size` bytes are the targets, in the window or on the GPU.
    Start { memory: String, window: u64, size: u64, gpu: bool },
    /// Open a file, whose path is given in hexadecimal digits, instead of the previous one.
    Open { path: String },
    /// Read bytes at `offset` of the file to byte `at` of the memory.
    Read { offset: u64, at: u64, size: u64 },
    /// Set every byte of the GPU's memory.
    Fill { byte: u8 },
    /// Copy bytes of the GPU's memory to the start of the window.
    Fetch { at: u64, size: u64 },
}

/// An answer.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Answer {
    /// To `Start`.
    Started { version: String },
    /// To `Read`.
    Read { bytes: u64, seconds: f64, cpu_seconds: f64 },
    /// To all other requests.
    Done {},
    /// The request failed.
    Failed { reason: String },
}

/// The process, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Python(Process);

impl Python {
    /// Starts the detected Python, with these variables and no other variables of KvikIO.
    pub(super) fn start(variables: &[(String, String)]) -> Result<Self, String> {
        let mut command = Command::new("python3");
        // It must leave no files, not even compiled ones.
        command.args(["-B", "-c", PROGRAM]).current_dir("/");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KVIKIO_") {
                command.env_remove(name);
            }
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Process::start(&mut command, "python3").map(Self)
    }

    /// Sends a request and waits for its answer for at most `bound`; returns the processor time
    /// with it.
    pub(super) fn ask(
        &mut self,
        order: &Order,
        bound: Duration,
    ) -> Result<(Answer, Duration), String> {
        match self.0.ask(order, bound)? {
            (Answer::Failed { reason }, _) => Err(shown(&reason)),
            (answer @ Answer::Read { seconds, cpu_seconds, .. }, passed) => {
                Ok((answer, sound(seconds, cpu_seconds, passed)?))
            }
            (answer, _) => Ok((answer, Duration::ZERO)),
        }
    }
}

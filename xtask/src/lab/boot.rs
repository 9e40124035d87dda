//! Runs the virtual machine: its output is shown live, and it is ended whatever it does.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::folders::failed;
use crate::process::{Result, find, say};

/// How the guest begins the lines that are meant for a person.
const SPOKEN: &str = "lab: ";

/// Longest time without output of the guest.
const SILENCE: Duration = Duration::from_secs(150);

/// Lines of the console that are shown when the guest did not end as it should.
const TAIL: usize = 30;

/// Runs `emulator` until it ends by itself, for `limit` at most; its console is also written to
/// `log`.
pub(crate) fn run(emulator: Command, log: &Path, limit: Duration) -> Result<()> {
    let mut console = File::create(log).map_err(failed(log))?;
    let mut child = spawn(emulator)?;
    let lines = follow(&mut child);
    let start = Instant::now();
    let mut tail: Vec<String> = Vec::new();
    let reason = loop {
        let left = limit.saturating_sub(start.elapsed());
        match lines.recv_timeout(left.min(SILENCE)) {
            Ok(line) => {
                let _ = writeln!(console, "{line}");
                if line.starts_with(SPOKEN) {
                    say!("{line}");
                }
                tail.push(line);
                if tail.len() > TAIL {
                    tail.remove(0);
                }
            }
            // Both ends of its console are closed: it has ended.
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) if start.elapsed() >= limit => {
                break Some(format!("did not end within {} s", limit.as_secs()));
            }
            Err(RecvTimeoutError::Timeout) => {
                break Some(format!("said nothing for {} s", SILENCE.as_secs()));
            }
        }
    };
    if reason.is_some() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("cannot wait for the emulator: {error}"))?;
    let reason = match reason {
        Some(reason) => reason,
        None if status.success() => return Ok(()),
        None => format!("ended with {status}"),
    };
    say!(err, "lab: the last that the virtual machine said:");
    for line in tail {
        say!(err, "  {line}");
    }
    Err(format!("the virtual machine {reason}; its console is in `{}`", log.display()))
}

/// Starts the emulator so that it ends with this process, where possible; the guest ends by itself
/// in any case.
fn spawn(emulator: Command) -> Result<Child> {
    let mut command = match find("setpriv") {
        Some(program) => {
            let mut command = Command::new(program);
            command.args(["--pdeathsig", "KILL", "--"]).arg(emulator.get_program());
            command.args(emulator.get_args());
            for (name, value) in emulator.get_envs() {
                command.env(name, value.unwrap_or_default());
            }
            command
        }
        None => emulator,
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("cannot start the emulator: {error}"))
}

/// The lines of the console and of the emulator's own complaints.
fn follow(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    let read = |pipe: Box<dyn std::io::Read + Send>| {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { return };
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    };
    if let Some(pipe) = child.stdout.take() {
        read(Box::new(pipe));
    }
    if let Some(pipe) = child.stderr.take() {
        read(Box::new(pipe));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_hangs_is_ended_and_what_it_said_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("console.txt");
        // On a busy machine it may have printed nothing yet.
        let is_kept = [1, 5, 20].into_iter().any(|seconds| {
            let hangs = shell("echo lab: one; echo two >&2; exec sleep 1000");
            let ended = run(hangs, &log, Duration::from_secs(seconds));
            assert!(ended.unwrap_err().contains(&format!("did not end within {seconds} s")));
            let said = std::fs::read_to_string(&log).unwrap();
            said.contains("lab: one") && said.contains("two")
        });
        assert!(is_kept);
        assert!(run(shell("exit 3"), &log, Duration::from_secs(60)).unwrap_err().contains('3'));
        assert_eq!(run(shell("true"), &log, Duration::from_secs(60)), Ok(()));
    }
}

//! Running other programs, finding them, and printing to the user.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// A chore's error is a message for the user; no code matches on the cause.
pub(crate) type Result<T, E = String> = std::result::Result<T, E>;

/// Writes a line to stdout, or to stderr after `err,`. A closed pipe is no reason to fail.
macro_rules! say {
    (err, $($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($text)*);
    }};
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout().lock(), $($text)*);
    }};
}
pub(crate) use say;

/// Folders of system programs, which an ordinary user's `PATH` may lack.
const SYSTEM_FOLDERS: &str = ":/usr/local/sbin:/usr/sbin:/sbin";

/// How long the output of an ended command must be silent before it counts as complete.
const SILENCE: Duration = Duration::from_secs(2);

/// Bits of the signals that tests send: SIGHUP, SIGINT and SIGQUIT.
const SENT: u64 = 0b111;

/// Starts this chore again if it was started with such signals ignored, as a shell does for
/// background jobs: child programs would inherit that, and never end.
pub(crate) fn heed_signals() -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    if ignored.unwrap_or(0) & SENT == 0 {
        return Ok(());
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find itself: {error}"))?;
    let mut again = Command::new("env");
    again.arg("--default-signal=HUP,INT,QUIT").arg(own).args(std::env::args_os().skip(1));
    Err(format!("cannot start again with signals as they are by default: {}", again.exec()))
}

/// The cargo that runs this chore.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A command as a person would type it.
pub(crate) fn typed(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    command.get_args().fold(name, |line, argument| line + " " + &argument.to_string_lossy())
}

/// Runs a command with visible output; returns whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let ended = command.status().map(|status| status.success());
    ended.map_err(|error| format!("cannot run `{}`: {error}", typed(command)))
}

/// Runs a command with visible output; its failure is an error.
pub(crate) fn must_succeed(command: &mut Command) -> Result<()> {
    if succeeds(command)? { Ok(()) } else { Err(format!("`{}` failed", typed(command))) }
}

/// Runs a command and returns its stdout; its failure is an error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot run `{}`: {error}", typed(command)))?;
    if !output.status.success() {
        return Err(format!("`{}` failed ({})", typed(command), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The origin of an output line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// Runs a command and forwards every line of its output immediately; returns whether it succeeded.
pub(crate) fn each_line(command: &mut Command, mut take: impl FnMut(Stream, &str)) -> Result<bool> {
    let name = typed(command);
    let failed = |error| format!("cannot run `{name}`: {error}");
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let (sender, lines) = mpsc::channel();
    if let Some(pipe) = child.stdout.take() {
        forward(pipe, Stream::Stdout, sender.clone());
    }
    if let Some(pipe) = child.stderr.take() {
        forward(pipe, Stream::Stderr, sender);
    }
    // A test's surviving server may keep the pipes open: after the command's end, silence
    // counts as the end.
    loop {
        match lines.recv_timeout(SILENCE) {
            Ok((stream, line)) => take(stream, &line),
            Err(RecvTimeoutError::Timeout) if child.try_wait().is_ok_and(|end| end.is_none()) => {}
            Err(_) => break,
        }
    }
    child.wait().map(|status| status.success()).map_err(failed)
}

/// Reads lines on a separate thread, so that neither pipe fills while the other is read.
fn forward(
    pipe: impl Read + Send + 'static,
    stream: Stream,
    sender: mpsc::Sender<(Stream, String)>,
) {
    thread::spawn(move || {
        // A test may print bytes that are not UTF-8; reading must continue.
        for line in BufReader::new(pipe).split(b'\n').map_while(std::result::Result::ok) {
            let text = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            let _ = sender.send((stream, text));
        }
    });
}

/// Finds a program in `PATH` and the folders of system programs.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = full_path();
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.is_file())
}

/// `PATH` with the folders of system programs, so that tests find `mkfs` and `losetup`.
pub(crate) fn full_path() -> String {
    std::env::var("PATH").unwrap_or_default() + SYSTEM_FOLDERS
}

/// Whether this process may mount, attach loop devices and install packages.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_left_behind_is_not_waited_for() {
        let script = "sleep 1000 & echo $!";
        let mut server = String::new();
        let succeeded = each_line(Command::new("sh").args(["-c", script]), |_, line| {
            server = line.to_owned();
        });
        assert_eq!(succeeded, Ok(true));
        must_succeed(Command::new("kill").arg(&server)).unwrap();
    }

    #[test]
    fn both_streams_are_read_to_their_end() {
        let mut lines = Vec::new();
        let script = "echo one; echo two >&2; printf 'three'; exit 3";
        let succeeded = each_line(Command::new("sh").args(["-c", script]), |stream, line| {
            lines.push((stream, line.to_owned()));
        });
        assert_eq!(succeeded, Ok(false));
        lines.sort_by_key(|(stream, _)| *stream == Stream::Stderr);
        let expected =
            [(Stream::Stdout, "one"), (Stream::Stdout, "three"), (Stream::Stderr, "two")];
        assert_eq!(lines, expected.map(|(stream, line)| (stream, line.to_owned())));
    }
}

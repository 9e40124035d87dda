//! Runs a child process that may hang or be killed, and collects its output up to that point.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Interval for checking whether a child that closed its output has ended.
const LOOKS_EVERY: Duration = Duration::from_millis(1);
/// How long to wait for a killed child: the kernel may hold it in a system call.
const KILLED_MAX: Duration = Duration::from_secs(1);

/// Environment variable with the file that cuFile writes its log to.
pub(super) const CUFILE_LOG: &str = "CUFILE_LOGFILE_PATH";

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Path of the program.
    pub file: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// The `forebay` found in `PATH`, whose subcommand `probe` runs the probe.
    #[must_use]
    pub fn found() -> Option<Self> {
        let folders = std::env::var_os("PATH")?;
        let named = |folder: PathBuf| folder.join("forebay");
        let file = std::env::split_paths(&folders).map(named).find(|file| file.is_file())?;
        Some(Self { file, arguments: vec!["probe".into()] })
    }
}

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// It exceeded its time limit and was killed.
    TimedOut(Duration),
    /// It could not be started.
    NotRun(String),
}

/// Runs a program for at most `limit` and returns up to `most` bytes of its output, and how it
/// ended.
#[must_use]
pub fn run(program: &Program, limit: Duration, most: usize) -> (String, End) {
    let mut command = Command::new(&program.file);
    command.args(&program.arguments).stdin(Stdio::null()).stderr(Stdio::null());
    if std::env::var_os(CUFILE_LOG).is_none() {
        command.env(CUFILE_LOG, "/dev/null"); // else it lies in the user's folder
    }
    let program = program.file.display();
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return (String::new(), End::NotRun(format!("`{program}`: {error}"))),
    };
    let deadline = Instant::now() + limit;
    let mut text = Vec::new();
    let read = listen(&mut child, deadline, most, &mut text);
    let end = match read.and_then(|()| ended(&mut child, deadline)) {
        Ok(Some(status)) => of_status(status),
        Ok(None) => {
            stop(child);
            End::TimedOut(limit)
        }
        Err(error) => {
            stop(child);
            End::NotRun(format!("`{program}`: {error}"))
        }
    };
    (String::from_utf8_lossy(&text).into_owned(), end)
}

/// Reads until the child closes its output, has written enough, or runs out of time.
fn listen(child: &mut Child, deadline: Instant, most: usize, text: &mut Vec<u8>) -> io::Result<()> {
    let Some(output) = child.stdout.as_mut() else { return Ok(()) };
    let mut part = [0; 1024];
    while text.len() < most {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)];
        match poll(&mut polled, Some(&left)) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match output.read(&mut part)? {
            0 => return Ok(()),
            count => text.extend_from_slice(&part[..count.min(most - text.len())]),
        }
    }
    Ok(())
}

fn ended(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(LOOKS_EVERY);
    }
}

/// Kills a child. One that the kernel still holds ends later, and its status is lost.
fn stop(mut child: Child) {
    let _ = child.kill();
    let _ = ended(&mut child, Instant::now() + KILLED_MAX);
}

fn of_status(status: ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, signal) => End::Killed(signal.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration, most: usize) -> (String, End) {
        let arguments = vec!["-c".into(), script.into()];
        run(&Program { file: "/bin/sh".into(), arguments }, limit, most)
    }

    const LONG: Duration = Duration::from_secs(20);

    /// Runs a script that never ends; returns its output, how it ended, and its time limit. On a
    /// busy machine it may not have written anything yet, so the limit is raised and it runs again.
    fn endless(script: &str, most: usize) -> (String, End, Duration) {
        let run = |limit| {
            let start = Instant::now();
            let (text, end) = shell(script, limit, most);
            assert!(start.elapsed() < limit + LONG);
            (text, end, limit)
        };
        let mut tries = [300, 1000, 5000, 20_000].map(Duration::from_millis).into_iter().map(run);
        tries.find(|(text, ..)| !text.is_empty()).expect("a shell that says something")
    }

    #[test]
    fn output_is_kept_however_the_child_ends() {
        assert_eq!(shell("echo a; exit 3", LONG, 99), ("a\n".into(), End::Exited(3)));
        assert_eq!(shell("echo a; kill -11 $$", LONG, 99), ("a\n".into(), End::Killed(11)));
        let (text, end, limit) = endless("echo a; exec sleep 60", 99);
        assert_eq!((text.as_str(), end), ("a\n", End::TimedOut(limit)));
    }

    #[test]
    fn a_child_that_closes_its_output_has_the_same_time() {
        let (text, end, limit) = endless("echo a; exec >&-; exec sleep 60", 99);
        assert_eq!((text.as_str(), end), ("a\n", End::TimedOut(limit)));
    }

    #[test]
    fn long_output_is_cut() {
        let (text, end, limit) = endless("exec yes", 10);
        assert_eq!((text.as_str(), end), ("y\ny\ny\ny\ny\n", End::TimedOut(limit)));
    }

    #[test]
    fn a_missing_program_is_reported() {
        let none = Program { file: "/nowhere/forebay".into(), arguments: vec![] };
        let (text, end) = run(&none, LONG, 99);
        assert!(text.is_empty() && matches!(&end, End::NotRun(why) if why.contains("/nowhere")));
    }
}

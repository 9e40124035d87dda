//! Runs a line of the user's in a shell, with a time limit.
//!
//! Such a command may hang, print garbage, or never stop printing. It runs in its own process
//! group, which is killed as a whole beyond the limit or when this process is stopped. Its output
//! goes to memory of a fixed size: a pipe would be closed too early for a mount's server that
//! writes to it later.

use std::fs::File;
use std::io::Seek as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::cleanup::{self, Entry};
use crate::plain::plain;

/// The interval of checks whether it has ended.
const LOOK: Duration = Duration::from_millis(10);
/// Most bytes of the command's output: further writes fail.
const OUTPUT_MAX: u64 = 1 << 20;
/// The end of the output that is returned or searched for its last line.
const TAIL: usize = 4 << 10;
/// How long to wait for a killed command: a process that waits for a server may not end.
const END_MAX: Duration = Duration::from_secs(2);

/// The prefix of the reason if there is no shell.
pub const NO_SHELL: &str = "`sh` cannot be started";

/// The fate of processes that a successful command leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// They are killed.
    Killed,
    /// A mount's server may continue to run.
    Kept,
}

/// Runs `line` in a shell, for `limit` at most, or until `stop` is set; returns what it printed.
///
/// # Errors
/// It cannot be started, fails, or takes longer; it is then ended with all processes that it
/// started.
pub fn run(line: &str, limit: Duration, stop: &AtomicBool, rest: Rest) -> Result<String, String> {
    let memory = || memory().map_err(|errno| format!("no memory for its output: {errno}"));
    let (output, errors) = (memory()?, memory()?);
    let stdio = |file: &File| file.try_clone().map_or_else(|_| Stdio::null(), Stdio::from);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line).process_group(0);
    shell.stdin(Stdio::null()).stdout(stdio(&output)).stderr(stdio(&errors));
    let (mut child, entry) =
        cleanup::spawn_group(&mut shell).map_err(|error| format!("{NO_SHELL}: {error}"))?;
    let begun = Instant::now();
    let is_well = loop {
        match ended(&child) {
            Ok(Some(is_well)) => break is_well,
            Err(why) => return Err(kill(child, entry, why)),
            Ok(None) if begun.elapsed() >= limit => {
                let why = format!("it takes more than {} s", limit.as_secs_f64());
                return Err(kill(child, entry, why));
            }
            Ok(None) if stop.load(Ordering::Relaxed) => {
                return Err(kill(child, entry, "it was stopped".into()));
            }
            Ok(None) => std::thread::sleep(LOOK),
        }
    };
    if !is_well {
        let last = last_line(&errors).or_else(|| last_line(&output));
        let why = format!("it failed: {}", last.as_deref().unwrap_or("no output"));
        return Err(kill(child, entry, why));
    }
    if rest == Rest::Killed {
        kill_all(&child);
    }
    entry.keep();
    let _ = child.wait();
    Ok(tail(&output))
}

/// Kills the rest of it; adds to `why` what cannot be ended.
fn kill(mut child: Child, entry: Entry, why: String) -> String {
    kill_all(&child);
    let begun = Instant::now();
    while ended(&child) == Ok(None) {
        if begun.elapsed() >= END_MAX {
            entry.keep();
            return format!("{why}, and cannot be ended");
        }
        std::thread::sleep(LOOK);
    }
    entry.keep();
    let _ = child.wait();
    why
}

/// Whether the command has succeeded; `None` if it still runs. It is not reaped.
fn ended(child: &Child) -> Result<Option<bool>, String> {
    let Some(pid) = pid(child) else { return Ok(Some(false)) };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(pid), options).map_err(|errno| errno.to_string())?;
    Ok(status.map(|status| status.exit_status() == Some(0)))
}

/// Kills the command and all processes that it started. Its number is not reused until it was
/// waited for, so the group is still its own.
fn kill_all(child: &Child) {
    // If nothing waits for children (SIGCHLD is ignored), the number may already belong to another
    // process.
    if let Some(pid) = pid(child).filter(|_| ended(child).is_ok()) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

fn memory() -> rustix::io::Result<File> {
    let memory = memfd_create("output", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, OUTPUT_MAX)?;
    fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(memory.into())
}

/// The end of the output.
fn tail(mut output: &File) -> String {
    // The position is shared with the writers.
    let end = output.stream_position().unwrap_or(0);
    let mut bytes = [0; TAIL];
    let from = end.saturating_sub(TAIL as u64);
    let len = usize::try_from(end - from).unwrap_or(0);
    let len = output.read_at(&mut bytes[..len], from).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// The last line of the output.
fn last_line(output: &File) -> Option<String> {
    let text = tail(output);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(shortened(&plain(last)))
}

/// The start of a text, short enough for a message.
pub fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    const LONG: Duration = Duration::from_secs(60);
    static NEVER: AtomicBool = AtomicBool::new(false);

    fn run(line: &str, limit: Duration) -> Result<(), String> {
        super::run(line, limit, &NEVER, Rest::Kept).map(drop)
    }

    /// Whether a process runs; an ended one may remain until its parent waits for it.
    fn is_alive(process: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.trim()));
        stat.is_ok_and(|stat| {
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            state.is_some_and(|state| !"ZX".contains(state))
        })
    }

    #[test]
    fn the_reason_is_the_last_line_of_a_failed_command() {
        assert_eq!(run("echo much; echo more >&2", LONG), Ok(()));
        let why = |line: &str| run(line, LONG).unwrap_err();
        assert_eq!(why("exit 3"), "it failed: no output");
        assert_eq!(why("echo first >&2; echo target is busy >&2; false"), {
            "it failed: target is busy"
        });
        assert_eq!(why("printf 'no end\\n\\n' >&2; kill $$"), "it failed: no end");
        let many = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done >&2; false";
        assert_eq!(why(many), "it failed: line 2999");
        assert!(!why("printf '\\033[2Jgone\\377' >&2; false").contains('\u{1b}'));
    }

    #[test]
    fn output_is_bounded_and_processes_left_behind_are_killed() {
        let run = |line: &str| super::run(line, LONG, &NEVER, Rest::Killed);
        assert_eq!(run("echo 5; sleep 1000 &"), Ok("5\n".into()));
        let why = run("yes").unwrap_err();
        assert!(why.starts_with("it failed: yes:"), "{why}");
        let why = super::run("sleep 1000", LONG, &AtomicBool::new(true), Rest::Kept);
        assert_eq!(why, Err("it was stopped".into()));
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let inner = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", path.display());
        let line = format!("sh -c '{inner}' & sleep 1000");
        // On a busy machine it may not have set its name at first.
        let mut limits = [100, 1000, 5000, 20_000].map(Duration::from_millis).into_iter();
        let begins = limits.any(|limit| {
            let why = run(&line, limit).unwrap_err();
            assert_eq!(why, format!("it takes more than {} s", limit.as_secs_f64()));
            path.exists()
        });
        assert!(begins);
        let (process, begun) = (std::fs::read_to_string(path).unwrap(), Instant::now());
        while is_alive(&process) {
            assert!(begun.elapsed() < LONG);
            std::thread::sleep(LOOK);
        }
    }

    proptest::proptest! {
        #[test]
        fn the_last_line_is_short_and_plain(bytes: Vec<u8>, long in 0_usize..8192) {
            let mut file = memory().unwrap();
            file.write_all(&b"x".repeat(long)).unwrap();
            file.write_all(&bytes).unwrap();
            let words = last_line(&file).unwrap_or_default();
            proptest::prop_assert!(words.chars().count() <= 80, "{}", words);
            proptest::prop_assert!(words.chars().all(|letter| !letter.is_control()), "{}", words);
        }
    }

    #[test]
    fn the_server_of_a_mount_keeps_running() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alive");
        let line = format!("(sleep 0.3; echo late >&2; touch {}) &", path.display());
        assert_eq!(run(&line, LONG), Ok(()));
        let begun = Instant::now();
        while !path.exists() {
            assert!(begun.elapsed() < LONG);
            std::thread::sleep(LOOK);
        }
    }
}

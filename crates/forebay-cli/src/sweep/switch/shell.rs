//! The user's command that sets a number of queues. It has a time limit, and errors quote the last
//! line of its output.

use std::fs::File;
use std::io::Seek as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::interrupt;
use crate::power::command::{ended, kill_all};
use crate::power::hwmon::shortened;
use crate::report::plain::plain;

/// The interval of checks whether it has ended.
const LOOK: Duration = Duration::from_millis(10);
/// Most bytes of the command's output: further writes fail.
const SAID_MAX: u64 = 1 << 20;
/// The end of the output that is searched for its last line.
const TAIL: usize = 4 << 10;
/// How long to wait for a killed command: a process that waits for a server may not end.
const END_MAX: Duration = Duration::from_secs(2);

/// The prefix of the reason if there is no shell.
pub(super) const NO_SHELL: &str = "`sh` cannot be started";

/// Runs `line` in a shell, for `limit` at most.
///
/// # Errors
/// It cannot be started, fails, or takes longer; it is then ended with all processes that it
/// started.
pub(super) fn run(line: &str, limit: Duration) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line).stdin(Stdio::null()).stdout(Stdio::null());
    let said = said().ok();
    let stderr = said.as_ref().and_then(|said| said.try_clone().ok());
    shell.stderr(stderr.map_or_else(Stdio::null, Stdio::from));
    shell.process_group(0);
    let mut child =
        interrupt::spawn_group(&mut shell).map_err(|error| format!("{NO_SHELL}: {error}"))?;
    let begun = Instant::now();
    let is_well = loop {
        match ended(&child) {
            Ok(Some(is_well)) => break is_well,
            Err(why) => return Err(kill(child, why)),
            Ok(None) if begun.elapsed() >= limit => {
                let why = format!("it takes more than {} s", limit.as_secs_f64());
                return Err(kill(child, why));
            }
            Ok(None) => std::thread::sleep(LOOK),
        }
    };
    if is_well {
        // A mount's server may continue to run: the command decides that.
        interrupt::ended(child.id());
        let _ = child.wait();
        return Ok(());
    }
    let words = said.as_ref().map_or_else(String::new, last_line);
    Err(kill(child, format!("it failed: {words}")))
}

/// Kills the rest of it; adds to `why` what cannot be ended.
fn kill(mut child: Child, why: String) -> String {
    kill_all(&child);
    let begun = Instant::now();
    while ended(&child) == Ok(None) {
        if begun.elapsed() >= END_MAX {
            interrupt::ended(child.id());
            return format!("{why}, and cannot be ended");
        }
        std::thread::sleep(LOOK);
    }
    interrupt::ended(child.id());
    let _ = child.wait();
    why
}

/// The output: memory of a fixed size. A pipe would be closed too early: a mount's server that
/// writes to it later would be killed.
fn said() -> rustix::io::Result<File> {
    let memory = memfd_create("said", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, SAID_MAX)?;
    fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(memory.into())
}

/// The last line of the output.
fn last_line(mut said: &File) -> String {
    // The position is shared with the writers.
    let end = said.stream_position().unwrap_or(0);
    let mut bytes = [0; TAIL];
    let from = end.saturating_sub(TAIL as u64);
    let len = usize::try_from(end - from).unwrap_or(0);
    let len = said.read_at(&mut bytes[..len], from).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..len]);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    shortened(&plain(last.unwrap_or("no output")))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::power::command::tests::is_alive;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_is_told_by_its_last_words() {
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
    fn one_that_hangs_is_ended_with_all_that_it_has_started() {
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
        fn last_words_are_short_and_do_nothing(bytes: Vec<u8>, long in 0_usize..8192) {
            let mut file = said().unwrap();
            file.write_all(&b"x".repeat(long)).unwrap();
            file.write_all(&bytes).unwrap();
            let words = last_line(&file);
            proptest::prop_assert!(!words.is_empty() && words.chars().count() <= 80, "{}", words);
            proptest::prop_assert!(words.chars().all(|letter| !letter.is_control()), "{}", words);
        }
    }

    #[test]
    fn what_serves_a_mount_is_left_running() {
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

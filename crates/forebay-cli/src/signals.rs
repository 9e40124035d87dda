//! The signals that end a command: it cleans up first.
//!
//! A thread receives them, undoes everything in `cleanup`, and lets the signal take its default
//! action, so that the shell sees how the command ended. A kernel call may keep the process all the
//! same; a child then says which one.

#![expect(unsafe_code, reason = "forks a process")]

use std::fs;
use std::io::{self, IsTerminal as _};
use std::sync::Once;
use std::thread;
use std::time::Duration;

use forebay_measure::cleanup;
use forebay_measure::failure::Failure;
use forebay_measure::plain::plain;
use forebay_measure::ranks;
use forebay_measure::steps;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, signal_name};

/// Time limit of the cleanup.
const CLEANUP_MAX: Duration = Duration::from_secs(5);
/// Seconds from a signal to the message that the process still exists.
const SILENCE_MAX: i64 = 2;

/// Starts to handle signals, once per process.
pub(crate) fn install() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let ignored = ignored();
        let all = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGXCPU];
        let wanted = all.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        // Without signals or threads, the next run removes what this one leaves.
        let Ok(mut signals) = Signals::new(wanted) else { return };
        let _ = thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if signal == SIGXCPU {
                    Failure::new("stopped: the limit on CPU time is used up (signal 24)")
                        .hint("move less, or raise the limit on CPU time (`ulimit -t`)")
                        .print();
                }
                announce_if_alive(SILENCE_MAX);
                ranks::interrupted(signal_name(signal).unwrap_or("a signal"));
                cleanup::run(CLEANUP_MAX);
                // It does not return for these signals.
                let _ = emulate_default_handler(signal);
            }
        });
    });
}

/// Prints what this process waits for, if it still exists after `seconds`. Only another process can
/// do that: a call that no signal ends keeps this one, but none of its other threads.
fn announce_if_alive(seconds: i64) {
    let text = match steps::oldest() {
        Some((operation, path)) => format!(
            "waiting to {operation} `{}`, which no signal ends: check the drive or file server; \
             `umount -f MOUNT` releases waiting processes",
            path.display()
        ),
        None => "waiting for the cleanup, or for a call to a drive or GPU".into(),
    };
    // A progress bar may be in the last line of the terminal.
    let start = if io::stderr().is_terminal() { "\n" } else { "" };
    let text = format!("{start}warning: {}\n", plain(&text));
    let Ok(own) = pidfd_open(getpid(), PidfdFlags::empty()) else { return };
    // SAFETY: the child of a process with threads only makes system calls, and ends at once.
    if unsafe { libc::fork() } == 0 {
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        // The handle is readable once all threads have ended.
        if poll(&mut [PollFd::new(&own, PollFlags::IN)], Some(&limit)) == Ok(0) {
            let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
        }
        // SAFETY: it has no preconditions.
        unsafe { libc::_exit(0) }
    }
}

/// The signals that our parent set to be ignored, as `nohup` does: a bit for each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use rustix::process::Signal;

    use super::*;

    /// Set in the process that announces; holds how long it continues.
    const ANNOUNCES: &str = "FOREBAY_ANNOUNCES_TEST";

    #[test]
    fn a_process_that_does_not_end_says_what_it_waits_for() {
        if let Some(time) = std::env::var_os(ANNOUNCES) {
            let _step = steps::Step::begin("read", Path::new("/a\nb"));
            let seconds = time.to_str().unwrap().parse().unwrap();
            announce_if_alive(if seconds > 0 { 0 } else { 60 });
            return thread::sleep(Duration::from_secs(seconds));
        }
        let printed = |seconds: &str| {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args([
                "--exact",
                "signals::tests::a_process_that_does_not_end_says_what_it_waits_for",
            ]);
            let output = again.env(ANNOUNCES, seconds).output().unwrap();
            String::from_utf8(output.stderr).unwrap()
        };
        assert_eq!(printed("0"), "");
        assert!(
            printed("1").starts_with("warning: waiting to read `/a\\nb`, which no signal ends")
        );
    }

    /// Set in the process that is stopped; names the file into which the grandchild writes its
    /// process number.
    const STOPPED: &str = "FOREBAY_STOPPED_TEST";
    const LONG: Duration = Duration::from_secs(60);

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LONG, "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a child that starts another, and is stopped.
    fn stopped(path: &Path) {
        install();
        // Longer than the test waits for their end.
        let asleep = 4 * LONG.as_secs();
        let line = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep {1}", path.display(), asleep);
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("sh -c '{line}' & sleep {asleep}")).process_group(0);
        // A reader of this process's output must not wait for them.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (mut child, _entry) = cleanup::spawn_group(&mut command).unwrap();
        until("the child's child", || path.exists());
        rustix::process::kill_process(rustix::process::getpid(), Signal::TERM).unwrap();
        child.wait().unwrap();
        thread::sleep(LONG);
    }

    #[test]
    fn a_signal_ends_a_whole_group() {
        if let Some(path) = std::env::var_os(STOPPED) {
            return stopped(Path::new(&path));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "signals::tests::a_signal_ends_a_whole_group"]);
        let output = again.env(STOPPED, &path).output().unwrap();
        assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
        let stat =
            PathBuf::from(format!("/proc/{}/stat", fs::read_to_string(&path).unwrap().trim()));
        // An ended process remains visible until its parent waits for it.
        let is_there = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        until("its end", || !is_there());
    }
}

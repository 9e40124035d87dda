//! The signals that end a command: it cleans up first.
//!
//! A thread receives them, undoes everything in `cleanup`, and lets the signal take its default
//! action, so that the shell sees how the command ended.

use std::fs;
use std::sync::Once;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::cleanup;
use crate::failure::Failure;

/// Time limit of the cleanup.
const CLEANUP_MAX: Duration = Duration::from_secs(5);

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
                cleanup::run(CLEANUP_MAX);
                // It does not return for these signals.
                let _ = emulate_default_handler(signal);
            }
        });
    });
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
        let mut child = cleanup::spawn_group(&mut command).unwrap();
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

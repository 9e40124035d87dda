//! A test in a process of its own, for what concerns a whole process: limits, peak memory, a second
//! writer.
//!
//! The child is this test program, started for one test; the test gets from [`role`] which of the
//! two it is.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::watchdog::Watchdog;

const ROLE: &str = "FOREBAY_TEST_ROLE";

/// What this process was started for; `None` in the test program itself.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Whether this thread's user can start this program: it may lie where others may not look.
pub(crate) fn may_start() -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let program = std::env::current_exe().expect("this program has a path");
    accessat(CWD, &program, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Starts the running test again, in a process with this role.
pub(crate) fn start(role: &str) -> Child {
    start_with(role, &[])
}

/// The same, with these variables.
pub(crate) fn start_with(role: &str, variables: &[(&str, &OsStr)]) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    spawn(Command::new(program), role, variables)
}

/// Starts the running test again, in a process with this role and, for root, a mount namespace of
/// its own: its mounts and its files in memory go with it, even where it is killed.
pub(crate) fn start_apart(role: &str) -> Child {
    let inside = "mount -t tmpfs none /dev/shm && exec \"$0\" \"$@\"";
    let apart = |program: &OsStr| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", inside]).arg(program);
        command
    };
    let works = apart("true".as_ref()).output().is_ok_and(|done| done.status.success());
    let program = std::env::current_exe().expect("this program has a path");
    spawn(if works { apart(program.as_os_str()) } else { Command::new(program) }, role, &[])
}

fn spawn(mut command: Command, role: &str, variables: &[(&str, &OsStr)]) -> Child {
    let thread = std::thread::current();
    let test = thread.name().expect("the harness names a test's thread after it");
    command
        .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program can be started again")
}

/// Waits for a child.
///
/// # Panics
/// Where its test failed, with what it printed.
pub(crate) fn finish(child: Child) -> String {
    let _watchdog = Watchdog::new(Duration::from_secs(600));
    let output = child.wait_with_output().expect("a child can be waited for");
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "the child ended with {}:\n{printed}", output.status);
    assert!(printed.contains("1 passed"), "the child ran no test:\n{printed}");
    for line in printed.lines() {
        if let Some(reason) = line.strip_prefix("skipped: ") {
            super::skip(reason);
        }
    }
    printed
}

/// Runs the running test again, in a process with this role, to its end.
pub(crate) fn run(role: &str) -> String {
    finish(start(role))
}

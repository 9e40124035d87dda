//! Forks, as a program may that uses the library: the child runs a part of a test, under a bound,
//! and ends without the harness.

#![allow(unsafe_code, reason = "a fork cannot be had otherwise")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic;
use std::sync::Once;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// Which of the two processes this is.
pub(crate) enum Side {
    Parent(Parent),
    Child(Child),
}

/// What the parent has of a child.
pub(crate) struct Parent {
    child: Pid,
    printed: OwnedFd,
}

/// What the child has of its parent.
pub(crate) struct Child {
    says: OwnedFd,
}

/// Forks. The child has the caller's thread alone, and locks as they were.
pub(crate) fn fork() -> Side {
    QUIET.call_once(keep_children_quiet);
    let (printed, says) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    // SAFETY: the C library makes its own locks usable in the child, memory included. The child
    // runs what the test is about, and never returns to the harness.
    match unsafe { libc::fork() } {
        0 => {
            drop(printed);
            Side::Child(Child { says })
        }
        child => {
            let child = Pid::from_raw(child).expect("a fork");
            Side::Parent(Parent { child, printed })
        }
    }
}

static QUIET: Once = Once::new();

/// Has panics of children print nothing: the locks for that may be those of a thread that fails at
/// that moment, and is not there in the child. Done before there are any, for the same reason.
fn keep_children_quiet() {
    let (print, parent) = (panic::take_hook(), getpid());
    panic::set_hook(Box::new(move |panic| {
        if getpid() == parent {
            print(panic);
        }
    }));
}

impl Child {
    /// Runs `part`, which says where it stands by its argument, and ends the process.
    pub(crate) fn run(self, part: impl FnOnce(&dyn Fn(&str))) -> ! {
        let say = |text: &str| {
            let mut says = std::fs::File::from(self.says.try_clone().expect("a descriptor"));
            let _ = writeln!(says, "{text}");
        };
        let ended = panic::catch_unwind(panic::AssertUnwindSafe(|| part(&say)));
        if let Err(panic) = &ended {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            say(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic"));
        }
        // SAFETY: ends the process at once, as a child should that has not called `exec`.
        unsafe { libc::_exit(i32::from(ended.is_err())) }
    }
}

impl Parent {
    /// Waits for the child to end well.
    ///
    /// # Panics
    /// If it did not, with its last output.
    pub(crate) fn finish(self) {
        // Far above what the slowest machine needs: only a hang exceeds it.
        const BOUND: Duration = Duration::from_secs(100);
        let start = Instant::now();
        let status = loop {
            let ended = waitpid(Some(self.child), WaitOptions::NOHANG).expect("our child");
            if let Some((_, status)) = ended {
                break status;
            }
            if start.elapsed() > BOUND {
                let _ = kill_process(self.child, Signal::KILL);
                let _ = waitpid(Some(self.child), WaitOptions::empty());
                panic!("the child hangs:\n{}", self.printed());
            }
            sleep(Duration::from_millis(1));
        };
        assert_eq!(
            status.exit_status(),
            Some(0),
            "{status:?}, after it printed:\n{}",
            self.printed()
        );
    }

    fn printed(self) -> String {
        let mut text = String::new();
        let _ = std::fs::File::from(self.printed).read_to_string(&mut text);
        text
    }
}

//! The standard streams of this process, some of which may be closed when it starts.

use std::io::Write as _;
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
use rustix::io::{Errno, fcntl_getfd};
use rustix::stdio::{stderr, stdin, stdout};

use crate::failure::{Failure, Result};
use crate::plain::plain;

/// Whether stdout was closed when the process started.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether warnings are left out.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out all warnings from now on.
pub fn leave_out_warnings() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Shows a warning on stderr.
pub fn say(warning: &str) {
    if IS_QUIET.load(Ordering::Relaxed) {
        return;
    }
    let yellow = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
    // Stderr may be closed.
    let _ = writeln!(anstream::stderr(), "{yellow}warning:{yellow:#} {}", plain(warning));
}

/// Shows a message on stderr that is no warning.
pub fn message(text: &str) {
    // Stderr may be closed.
    let _ = writeln!(anstream::stderr(), "{}", plain(text));
}

/// Writes `text` to stdout, without its colours unless stdout is a terminal.
pub fn print(text: &str) -> Result<()> {
    let mut out = anstream::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    shown.map_err(|error| Failure::stdout(&error))
}

/// Opens `/dev/null` for each closed standard stream, so that no file opened later gets its number.
/// Call it first: Rust's `main` does the same, after which the streams no longer look closed.
pub fn hold() {
    for (number, stream) in [stdin(), stdout(), stderr()].into_iter().enumerate() {
        if fcntl_getfd(stream) != Err(Errno::BADF) {
            continue;
        }
        if number == 1 {
            IS_CLOSED.store(true, Ordering::Relaxed);
        }
        // It gets the lowest free number, which is the stream's.
        if let Ok(null) = open("/dev/null", OFlags::RDWR, Mode::empty()) {
            let _ = null.into_raw_fd();
        }
    }
}

/// Checks that stdout can be written to. The standard library reports success for a write to a
/// stream that is closed or open for reading only.
///
/// # Errors
/// It cannot; the cause says why.
pub fn check() -> Result<()> {
    let failed = |cause: &str| {
        let failure = Failure::new("cannot write to stdout").because(cause);
        Err(failure.hint("open stdout, or send it to `/dev/null` (`>/dev/null`)"))
    };
    if IS_CLOSED.load(Ordering::Relaxed) {
        return failed("it was closed when the command started");
    }
    match fcntl_getfl(stdout()) {
        Ok(how) if how & OFlags::RWMODE == OFlags::RDONLY => failed("it is open for reading only"),
        _ => Ok(()),
    }
}

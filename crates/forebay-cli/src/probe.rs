//! `forebay probe`: opens cuFile's driver in a child process, on behalf of an engine.
//!
//! The driver may spin without end. The engine then ends this process. If the engine was killed, or
//! no limit was set, this process ends itself.

use std::io::Write as _;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use forebay_measure::failure::{Failure, Result};
use rustix::process::{Signal, getpid, getppid, kill_process};

use crate::args::ProbeArgs;

/// Time limit of the library. Engines have a shorter one, and end this process themselves.
const BOUND: Duration = Duration::from_secs(30);
/// How often to check whether the requesting process still runs.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// Runs the verb. Each observation is written immediately: the next step may be the last.
pub(crate) fn command(args: &ProbeArgs) -> Result<()> {
    guard();
    let mut written = Ok(());
    forebay_cufile::look(args.library.as_deref(), &args.packages, &mut |word, rest| {
        let line = format!("{word} {rest}").replace(['\n', '\r'], " ");
        let line = line.trim_end();
        let mut out = std::io::stdout();
        let now = writeln!(out, "{line}").and_then(|()| out.flush());
        if written.is_ok() {
            written = now;
        }
    });
    written.map_err(|error| Failure::stdout(&error))
}

/// Makes this process end if nothing else ends it. The thread starts before the library is loaded:
/// initialisers that hang hold the loader's lock, which the start of a thread needs.
fn guard() {
    let (asker, (begun, begins)) = (getppid(), sync_channel(1));
    let ends = move || {
        drop((begun.send(thread::current().id()), begun));
        if outlives(BOUND, || getppid() == asker) {
            let late = format!("no response within {} s", BOUND.as_secs());
            let failure = Failure::new("cannot query cuFile").because(late);
            failure.hint("`forebay doctor` looks for the cause").print();
        }
        // An orderly exit may need a lock that the library holds.
        let _ = kill_process(getpid(), Signal::KILL);
    };
    // Without threads there is no time limit, as for any other program.
    let _ = thread::Builder::new().name("forebay-guard".into()).spawn(ends);
    let _ = begins.recv();
}

/// Waits for `bound`, or until the requesting process is gone; returns whether it is still there.
fn outlives(bound: Duration, is_there: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while is_there() {
        if start.elapsed() >= bound {
            return true;
        }
        thread::sleep(LOOKS_EVERY.min(bound));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_probe_continues_within_its_limit_while_a_caller_waits() {
        let short = Duration::from_millis(20);
        assert!(outlives(short, || true));
        let looks = Cell::new(0);
        let leaves = || {
            looks.set(looks.get() + 1);
            looks.get() < 3
        };
        let start = Instant::now();
        assert!(!outlives(BOUND, leaves));
        assert!(looks.get() == 3 && start.elapsed() >= 2 * LOOKS_EVERY);
    }
}

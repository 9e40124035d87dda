//! `forebay probe`: opens cuFile's driver in a child process, on behalf of an engine.
//!
//! The driver may spin without end. The engine then ends this process. If the engine was killed, or
//! no limit was set, this process ends itself.

use std::io::Write as _;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, getppid, kill_process};

use crate::args::ProbeArgs;
use crate::failure::{Failure, Result};

/// Time limit of the library. Engines have a shorter one, and end this process themselves.
const BOUND: Duration = Duration::from_secs(30);
/// How often to check whether the requesting process still runs.
const LOOKS_EVERY: Duration = Duration::from_millis(100);
/// Time limit of an orderly exit: the hanging library may hold a lock that the exit needs.
const END_MAX: Duration = Duration::from_secs(1);

/// Runs the verb. Each observation is written immediately: the next step may be the last.
pub(crate) fn command(args: &ProbeArgs) -> Result<()> {
    guard();
    let mut written = Ok(());
    forebay::direct::look(args.library.as_deref(), &args.packages, &mut |word, rest| {
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

/// Why the process is to end in the middle.
#[derive(Debug, PartialEq, Eq)]
enum Lost {
    /// The requesting process is gone.
    Alone,
    /// The library took too long.
    TooLong,
}

/// Makes this process end if nothing else ends it. Both threads start before the library is loaded:
/// hanging initialisers hold the loader's lock, which both an orderly exit and a thread start need.
fn guard() {
    let asker = getppid();
    let is_asker_there = move || getppid() == asker;
    let (begun, begins) = sync_channel(2);
    let tell = begun.clone();
    let ends = move || {
        drop((tell.send(thread::current().id()), tell));
        match lost(BOUND, is_asker_there) {
            Lost::Alone => end(),
            Lost::TooLong => too_long(),
        }
    };
    let ends_anyhow = move || {
        drop((begun.send(thread::current().id()), begun));
        lost(BOUND + END_MAX, is_asker_there);
        end();
    };
    // Without threads there is no time limit, as for any other program.
    let _ = thread::Builder::new().name("forebay-guard".into()).spawn(ends);
    let _ = thread::Builder::new().name("forebay-end".into()).spawn(ends_anyhow);
    while begins.recv().is_ok() {}
}

fn too_long() {
    let late = format!("no response within {} s", BOUND.as_secs());
    let failure = Failure::new("cannot query cuFile").because(late);
    failure.hint("`forebay doctor` looks for the cause").print();
    #[expect(clippy::exit, reason = "the thread that would return hangs in the library")]
    std::process::exit(1);
}

/// Waits until this process has no reason to continue.
fn lost(bound: Duration, is_asker_there: impl Fn() -> bool) -> Lost {
    let start = Instant::now();
    while start.elapsed() < bound {
        if !is_asker_there() {
            return Lost::Alone;
        }
        thread::sleep(LOOKS_EVERY.min(bound));
    }
    Lost::TooLong
}

fn end() {
    let _ = kill_process(getpid(), Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn it_goes_on_as_long_as_somebody_waits_and_no_longer_than_it_may() {
        let short = Duration::from_millis(20);
        assert_eq!(lost(short, || true), Lost::TooLong);
        let looks = Cell::new(0);
        let leaves = || {
            looks.set(looks.get() + 1);
            looks.get() < 3
        };
        let start = Instant::now();
        assert_eq!(lost(BOUND, leaves), Lost::Alone);
        assert!(looks.get() == 3 && start.elapsed() >= 2 * LOOKS_EVERY);
    }
}

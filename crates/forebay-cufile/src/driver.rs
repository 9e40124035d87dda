//! The driver of this process, once it is known to open. A child process opens it first, because
//! opening may hang.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Lock, MutexGuard, woken};
use forebay_base::per_process::PerProcess;

use super::{
    CuFileFailure, OPENS_WITHIN, Program, Session, configured_compat, probe_cufile, unreachable,
    usable,
};

/// Timeout for callers that require the direct route. It covers the probe in a child process and
/// the open in this one.
const ANSWERS_WITHIN: Duration = Duration::from_secs(45);

/// The driver as one user of it sees it. All users in a process share the probe.
#[derive(Debug)]
pub struct Driver {
    found: Shared,
    /// The program that probes, looked up once.
    program: OnceLock<Option<Program>>,
    /// Set once the driver is known to be absent: then no call takes a lock.
    absent: AtomicBool,
    opens: Opens,
    missing: fn() -> Option<String>,
    finds: fn() -> Option<Program>,
    notes: fn(&str),
    answers_within: Duration,
}

/// The state of the driver, and the condition variable for threads that wait for it.
type Shared = Arc<(Lock<Found>, Condvar)>;

/// The state for this process. All users share it, so the driver is probed once. A forked child
/// starts anew: a thread of its parent may hold the lock.
static PROCESS: PerProcess<Shared> = PerProcess::new();

/// Opens the driver in this process.
type Opens = fn(Option<&Path>) -> Result<Arc<Session>, CuFileFailure>;

/// The state of the driver.
#[derive(Debug, Default)]
enum Found {
    #[default]
    NotProbed,
    /// Not probed yet, but the configuration does not rule it out.
    Possible,
    /// Being probed, since this time.
    Probing(Instant),
    Here(Arc<Session>),
    /// Unavailable, with the reason.
    Absent(String),
}

impl Driver {
    /// The driver of this process; `notes` gets the reason if it turns out to be unavailable.
    #[must_use]
    pub fn of_process(notes: fn(&str)) -> Self {
        Self { notes, ..Self::sharing(Arc::clone(PROCESS.get_or_init(Shared::default))) }
    }

    fn sharing(found: Shared) -> Self {
        Self {
            found,
            program: OnceLock::new(),
            absent: AtomicBool::new(false),
            opens: |library| Session::open_direct_only(library, configured_compat()),
            missing: unreachable,
            finds: Program::found,
            notes: |_| {},
            answers_within: ANSWERS_WITHIN,
        }
    }

    /// Whether the driver may be available; configuration files are read once.
    pub fn may_be_there(&self) -> bool {
        if self.absent.load(Ordering::Relaxed) {
            return false;
        }
        let absent = matches!(*self.looked(), Found::Absent(_));
        self.absent.store(absent, Ordering::Relaxed);
        !absent
    }

    /// Returns the state, after a check of the configuration files if that was not done yet. They
    /// are not read under the lock, because they may be on a server that does not respond.
    fn looked(&self) -> MutexGuard<'_, Found> {
        let found = self.lock();
        if !matches!(*found, Found::NotProbed) {
            return found;
        }
        drop(found);
        let missing = (self.missing)();
        let mut found = self.lock();
        if matches!(*found, Found::NotProbed) {
            *found = missing.map_or(Found::Possible, Found::Absent);
        }
        found
    }

    /// The driver, if it is open.
    pub fn in_use(&self) -> Option<Arc<Session>> {
        match &*self.lock() {
            Found::Here(session) => Some(Arc::clone(session)),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.0.lock()
    }

    /// The driver, or why it is not available. With `waits` it is probed, by `program` or else the
    /// one found in `PATH`, and the call waits for the result or the timeout.
    ///
    /// # Errors
    /// The reason, as text for users.
    pub fn session(&self, program: Option<&Program>, waits: bool) -> Result<Arc<Session>, String> {
        let program = self.program.get_or_init(|| program.cloned().or_else(self.finds));
        let mut found = self.looked();
        if matches!(*found, Found::Possible) {
            // A user that has a program may still probe.
            let program = program.clone().ok_or_else(no_program)?;
            let started = self.probe(program);
            *found = started.map_or_else(Found::Absent, |()| Found::Probing(Instant::now()));
        }
        // A hanging open in this process cannot be cancelled; if it returns later, the driver is
        // used. Until then not every caller waits for the full time again.
        let left = |found: &Found| match found {
            Found::Probing(since) => self.answers_within.saturating_sub(since.elapsed()),
            _ => Duration::ZERO,
        };
        if waits {
            let probing = |found: &mut Found| matches!(found, Found::Probing(_));
            let left = left(&found);
            let waited = self.found.1.wait_timeout_while(found, left, probing);
            found = woken(waited).0;
        }
        match &*found {
            Found::Here(session) => Ok(Arc::clone(session)),
            Found::Absent(why) => Err(why.clone()),
            Found::Probing(_) if left(&found).is_zero() => Err(self.too_late()),
            Found::NotProbed | Found::Possible | Found::Probing(_) => {
                Err("cuFile's driver is still being probed".into())
            }
        }
    }

    fn too_late(&self) -> String {
        format!(
            "cuFile's driver has not answered within {:?}, and is waited for no longer (`forebay \
             doctor` looks for what makes it hang)",
            self.answers_within
        )
    }

    /// Probes the driver on another thread, because it may take long.
    fn probe(&self, program: Program) -> Result<(), String> {
        let found = Arc::clone(&self.found);
        let (opens, notes) = (self.opens, self.notes);
        let probe = move || {
            let answer = probe(&program, opens);
            if let Found::Absent(why) = &answer {
                notes(&format!("cuFile offers no direct path to a GPU: {why}"));
            }
            *found.0.lock() = answer;
            found.1.notify_all();
        };
        let thread = thread::Builder::new().name("forebay-probe".into()).spawn(probe);
        thread.map(drop).map_err(|error| format!("no thread to probe cuFile's driver: {error}"))
    }
}

/// Probes the driver in a child process, and opens it here if it opened there.
fn probe(program: &Program, opens: Opens) -> Found {
    let answer = probe_cufile(program, OPENS_WITHIN);
    match usable(&answer) {
        Ok(()) => found(opens(answer.0.library.as_deref())),
        Err(why) => Found::Absent(why),
    }
}

fn found(opened: Result<Arc<Session>, CuFileFailure>) -> Found {
    opened.map_or_else(|failure| Found::Absent(failure.in_words()), Found::Here)
}

fn no_program() -> String {
    "`PATH` has no program `forebay`, in whose process cuFile's driver could be opened first".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that shares no state with others.
    fn driver() -> Driver {
        Driver::sharing(Shared::default())
    }

    /// The result for a program with this output.
    fn found(driver: Driver, script: &str) -> Result<Arc<Session>, String> {
        let arguments = ["-c", script, "sh", "--library", "/opt/cufile/libcufile.so.0"];
        let arguments = arguments.map(Into::into).to_vec();
        *driver.lock() = Found::Probing(Instant::now());
        driver.probe(Program { file: "/bin/sh".into(), arguments }).unwrap();
        driver.session(None, true)
    }

    #[test]
    fn waiting_callers_get_the_result() {
        let found = |script| found(driver(), script).unwrap_err();
        assert!(found("echo failed no driver").contains("no driver"));
        assert!(found("kill -9 $$").contains("signal 9"));
        // The other process has the library, and this one does not.
        let gone = "echo library /nowhere/libcufile.so.0; echo opened; echo storage nvme p2pdma";
        assert!(found(gone).contains("there is no `libcufile.so.0`"), "{}", found(gone));
    }

    /// The result of a first probe, and whether it has started the program.
    fn first_probe(missing: fn() -> Option<String>, waits: bool) -> (String, bool) {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("touch {}; echo failed no driver", folder.path().join("x").display());
        let arguments = ["-c", &script].map(Into::into).to_vec();
        let program = Program { file: "/bin/sh".into(), arguments };
        let driver = Driver { missing, ..driver() };
        let why = driver.session(Some(&program), waits).unwrap_err();
        // A later caller gets the same result, and starts nothing either.
        assert_eq!(driver.session(Some(&program), waits).unwrap_err(), why);
        (why, folder.path().join("x").exists())
    }

    #[test]
    fn where_no_bytes_can_go_straight_no_program_is_started() {
        let missing = || Some("there is no nvidia-fs".to_owned());
        for waits in [false, true] {
            assert_eq!(first_probe(missing, waits), ("there is no nvidia-fs".into(), false));
        }
        assert_eq!(first_probe(|| None, true), ("no driver".into(), true));
    }

    #[test]
    fn a_missing_probe_program_is_the_reason() {
        let driver = Driver { missing: || None, finds: || None, ..driver() };
        let why = driver.session(None, true).unwrap_err();
        assert!(why.contains("no program `forebay`"), "{why}");
        let program = Program { file: "/bin/sh".into(), arguments: vec![] };
        let other = Driver { found: driver.found, missing: || None, ..self::driver() };
        assert!(other.session(Some(&program), false).unwrap_err().contains("being probed"));
    }

    #[test]
    fn without_cufile_no_caller_takes_a_lock() {
        let driver = driver();
        assert_eq!(driver.may_be_there(), unreachable().is_none());
        assert!(!matches!(*driver.lock(), Found::NotProbed), "files are read once");
        *driver.lock() = Found::Possible;
        driver.absent.store(false, Ordering::Relaxed);
        assert!(driver.may_be_there());
        *driver.lock() = Found::Absent("it is gone".into());
        assert!(!driver.may_be_there());
        let held = driver.lock();
        assert!(!driver.may_be_there());
        drop(held);
    }

    #[test]
    fn a_caller_that_does_not_wait_returns_at_once() {
        let driver = driver();
        *driver.lock() = Found::Probing(Instant::now());
        assert!(driver.session(None, false).unwrap_err().contains("being probed"));
    }

    #[test]
    fn a_driver_that_hangs_here_is_waited_for_once_and_used_when_it_answers() {
        static GATE: (Lock<bool>, Condvar) = (Lock::new(false), Condvar::new());
        let opens: Opens = |_| {
            let mut is_open = GATE.0.lock();
            while !*is_open {
                is_open = GATE.1.wait(is_open).unwrap();
            }
            drop(is_open);
            opens_simulated(None)
        };
        let long = Duration::from_secs(30);
        let mut driver = Driver { opens, answers_within: long, ..driver() };
        let arguments = ["-c", OPENED].map(Into::into).to_vec();
        *driver.lock() = Found::Probing(Instant::now());
        driver.probe(Program { file: "/bin/sh".into(), arguments }).unwrap();
        assert!(driver.session(None, false).unwrap_err().contains("being probed"));
        driver.answers_within = Duration::from_millis(100);
        let late = driver.session(None, true).unwrap_err();
        assert!(late.contains("not answered within 100ms") && late.contains("no longer"), "{late}");
        driver.answers_within = long;
        let long_ago = Instant::now().checked_sub(long).expect("a time may be before the start");
        *driver.lock() = Found::Probing(long_ago);
        let start = Instant::now();
        for waits in [true, false] {
            let late = driver.session(None, waits).unwrap_err();
            assert!(late.contains("is waited for no longer"), "{late}");
        }
        assert!(start.elapsed() < long, "no thread waits anew");
        *GATE.0.lock() = true;
        GATE.1.notify_all();
        let probing = |found: &mut Found| matches!(found, Found::Probing(_));
        let bound = Duration::from_secs(60);
        let found = driver.found.1.wait_timeout_while(driver.lock(), bound, probing);
        assert!(matches!(*found.unwrap().0, Found::Here(_)));
        assert!(driver.session(None, true).is_ok());
    }

    const OPENED: &str = "echo library /opt/cufile/libcufile.so.0; echo opened; echo storage nvme";

    fn opens_simulated(_: Option<&Path>) -> Result<Arc<Session>, CuFileFailure> {
        Session::simulated()
    }

    #[test]
    fn users_in_a_process_share_one_probe() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("echo >>{}; {OPENED}", folder.path().join("starts").display());
        let arguments = ["-c", &script].map(Into::into).to_vec();
        let program = Program { file: "/bin/sh".into(), arguments };
        let shared = Shared::default();
        let user = || Driver {
            opens: opens_simulated,
            missing: || None,
            ..Driver::sharing(shared.clone())
        };
        for _ in 0..3 {
            assert!(user().session(Some(&program), true).is_ok());
        }
        assert_eq!(std::fs::read(folder.path().join("starts")).unwrap().len(), 1);
    }
}

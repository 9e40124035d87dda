//! The providers of an engine: cuFile's driver, once it is known to open.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::ask_cufile;
use super::child::{End, Program};
use super::cufile::{CuFilePort, Seen, Session, forbids_compat, unreachable};
use crate::events;
use crate::file::{FoundPort, Handle, Port};
use crate::gpu::{Device, DeviceKind};

/// How long the driver may take to open: 0.4 s on an H200 (`benches/runs/2026-11-21-h200-i`).
const OPENS_WITHIN: Duration = Duration::from_secs(20);

/// How long somebody waits for whom nothing else will do: it is opened twice.
const ANSWERS_WITHIN: Duration = Duration::from_secs(45);

/// See the module's own text.
#[derive(Debug, Default)]
pub(crate) struct Providers {
    found: Arc<(Mutex<Found>, Condvar)>,
    played: Mutex<Option<Arc<Session>>>,
}

/// What is known of the driver.
#[derive(Debug, Default)]
enum Found {
    #[default]
    NotAsked,
    Asking,
    Here(Arc<Session>),
    /// Not to be had, and why.
    Absent(String),
}

impl Providers {
    /// Whether a GPU may have a way, as far as is known without asking anybody.
    pub(crate) fn may_serve(&self, device: &dyn Device) -> bool {
        match device.id().kind {
            DeviceKind::Sim => device.played_cufile().is_some(),
            DeviceKind::Cuda => !matches!(*self.lock(), Found::Absent(_)),
        }
    }

    /// A file's way to a GPU, else why there is none. Whoever `waits` has the driver asked, and
    /// waits until the answer is there.
    pub(crate) fn port(
        &self,
        file: &Handle,
        device: &Arc<dyn Device>,
        program: Option<&Program>,
        waits: bool,
    ) -> FoundPort {
        let session = match device.id().kind {
            DeviceKind::Sim => self.played(&**device)?,
            DeviceKind::Cuda => self.session(program, waits)?,
        };
        file.ports().to(device.id(), || {
            let port = CuFilePort::open(&session, file, device);
            if let Err(why) = &port {
                let (path, gpu) = (file.path().display(), device.id());
                events::note(&format!("`{path}` has no way straight to {gpu} by cuFile: {why}"));
            }
            port.map(|port| Arc::new(port) as Arc<dyn Port>)
        })
    }

    /// The driver, where it is in use.
    pub(crate) fn in_use(&self) -> Option<Arc<Session>> {
        if let Found::Here(session) = &*self.lock() {
            return Some(Arc::clone(session));
        }
        self.played.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The driver that is played with a simulated GPU.
    fn played(&self, device: &dyn Device) -> Result<Arc<Session>, String> {
        if device.played_cufile().is_none() {
            return Err("a simulated GPU has no `libcufile`, but with `--gpu sim:cufile` one is \
                        played"
                .into());
        }
        let mut played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = &*played {
            return Ok(Arc::clone(session));
        }
        let session = Session::played().map_err(|failure| failure.in_words())?;
        Ok(Arc::clone(played.insert(session)))
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, program: Option<&Program>, waits: bool) -> Result<Arc<Session>, String> {
        let mut found = self.lock();
        if matches!(*found, Found::NotAsked) {
            let program = || program.cloned().or_else(Program::found);
            *found = match unreachable().map_or_else(|| program().ok_or_else(no_program), Err) {
                Ok(program) => self.ask(program).map_or_else(Found::Absent, |()| Found::Asking),
                Err(missing) => Found::Absent(missing),
            };
        }
        if waits {
            let asking = |found: &mut Found| matches!(found, Found::Asking);
            let waited = self.found.1.wait_timeout_while(found, ANSWERS_WITHIN, asking);
            found = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match &*found {
            Found::Here(session) => Ok(Arc::clone(session)),
            Found::Absent(why) => Err(why.clone()),
            Found::NotAsked | Found::Asking => Err("cuFile's driver is being asked".into()),
        }
    }

    /// Asks the driver, aside: it may take its time.
    fn ask(&self, program: Program) -> Result<(), String> {
        let found = Arc::clone(&self.found);
        let asks = move || {
            let (seen, end) = ask_cufile(&program, OPENS_WITHIN);
            let answer = match usable(&seen, &end) {
                Ok(()) => Session::open_direct_only(seen.library.as_deref(), forbids_compat())
                    .map_or_else(|failure| Found::Absent(failure.in_words()), Found::Here),
                Err(why) => Found::Absent(why),
            };
            if let Found::Absent(why) = &answer {
                events::note(&format!("no bytes go straight to a GPU by cuFile: {why}"));
            }
            *found.0.lock().unwrap_or_else(PoisonError::into_inner) = answer;
            found.1.notify_all();
        };
        let thread = thread::Builder::new().name("forebay-probe".into()).spawn(asks);
        thread.map(drop).map_err(|error| format!("no thread to ask cuFile's driver: {error}"))
    }
}

fn no_program() -> String {
    "`PATH` has no program `forebay`, in whose process cuFile's driver could be opened first".into()
}

/// Whether the driver opened for another process, and serves anything without a copy.
fn usable(seen: &Seen, end: &End) -> Result<(), String> {
    let version = seen.version.as_deref().unwrap_or("of an unknown version");
    match (end, &seen.failed) {
        (End::TimedOut(limit), _) => {
            Err(format!("the driver of cuFile {version} did not open within {} s", limit.as_secs()))
        }
        (End::Killed(signal), _) => {
            Err(format!("cuFile {version} ended its process by signal {signal} as it opened"))
        }
        (End::NotRun(why), _) => Err(format!("nothing could ask cuFile: {why}")),
        (_, Some(failed)) => Err(match &seen.hint {
            Some(hint) => format!("{failed}: {hint}"),
            None => failed.clone(),
        }),
        _ if !seen.opened => Err(format!("the driver of cuFile {version} did not open")),
        _ if seen.storage.is_empty() => Err(format!(
            "cuFile {version} opens, but serves no kind of storage without a copy on the host: \
             `forebay doctor` says what is missing"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found when a program says so.
    fn found(script: &str) -> String {
        let providers = Providers::default();
        let arguments = vec!["-c".into(), script.into()];
        *providers.lock() = Found::Asking;
        providers.ask(Program { file: "/bin/sh".into(), arguments }).unwrap();
        providers.session(None, true).unwrap_err()
    }

    #[test]
    fn who_waits_is_told_what_was_found() {
        assert!(found("echo failed no driver").contains("no driver"));
        assert!(found("kill -9 $$").contains("signal 9"));
        // It is there for the other process, and not for this one.
        let gone = "echo library /nowhere/libcufile.so.0; echo opened; echo storage nvme p2pdma";
        assert!(found(gone).contains("there is no `libcufile.so.0`"), "{}", found(gone));
    }

    #[test]
    fn who_does_not_wait_is_not_held_up() {
        let providers = Providers::default();
        *providers.lock() = Found::Asking;
        assert!(providers.session(None, false).unwrap_err().contains("is being asked"));
    }

    #[test]
    fn each_end_has_its_reason() {
        let opened = "library /x\nversion 1.15\nopened\n";
        let why = |answer: &str, end| usable(&Seen::parse(answer), &end).unwrap_err();
        let served = Seen::parse(&format!("{opened}storage nvme p2pdma\n"));
        assert_eq!(usable(&served, &End::Exited(0)), Ok(()));
        assert!(why(opened, End::Exited(0)).contains("1.15 opens, but serves no kind"));
        let bound = Duration::from_secs(3);
        assert!(why("version 1.16\n", End::TimedOut(bound)).contains("1.16 did not open within 3"));
        assert!(why("", End::Killed(11)).contains("signal 11"));
        assert!(why("failed no file\nhint install it\n", End::Exited(0)).ends_with("install it"));
        assert!(why("", End::NotRun("`x`: not found".into())).contains("`x`: not found"));
        assert!(why("", End::Exited(1)).contains("did not open"));
    }
}

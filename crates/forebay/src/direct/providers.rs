//! The providers of an engine: cuFile's driver, once it is known to open.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::answer::usable;
use super::child::Program;
use super::cufile::{CuFileFailure, CuFilePort, Session, configured_compat, unreachable};
use super::remembered::Answers;
use super::{OPENS_WITHIN, ask_cufile};
use crate::events;
use crate::file::{FoundPort, Handle, Port};
use crate::gpu::{Device, DeviceKind};
use crate::lock::{Lock, woken};

/// How long somebody waits for whom nothing else will do: it is opened twice.
const ANSWERS_WITHIN: Duration = Duration::from_secs(45);

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Providers {
    found: Arc<(Lock<Found>, Condvar)>,
    /// Whether it is known to be absent: most machines ask at every transfer.
    absent: AtomicBool,
    played: Lock<Option<Arc<Session>>>,
    answers: Answers,
    opens: Opens,
    missing: fn() -> Option<String>,
    finds: fn() -> Option<Program>,
    answers_within: Duration,
}

/// Opens the driver in this process.
type Opens = fn(Option<&Path>) -> Result<Arc<Session>, CuFileFailure>;

/// What is known of the driver.
#[derive(Debug, Default)]
enum Found {
    #[default]
    NotAsked,
    /// Neither, but files have been read, and do not say that there can be none.
    Possible,
    /// Since then.
    Asking(Instant),
    Here(Arc<Session>),
    /// Not to be had, and why.
    Absent(String),
}

impl Providers {
    /// `remembers`: whether what the driver says is kept for other processes, and taken from them.
    pub(crate) fn new(remembers: bool) -> Self {
        Self {
            found: Arc::default(),
            absent: AtomicBool::new(false),
            played: Lock::default(),
            answers: Answers::of_user(remembers),
            opens: |library| Session::open_direct_only(library, configured_compat()),
            missing: unreachable,
            finds: Program::found,
            answers_within: ANSWERS_WITHIN,
        }
    }

    /// Whether a GPU may have a way, as far as is known without asking anybody.
    pub(crate) fn may_serve(&self, device: &dyn Device) -> bool {
        match device.id().kind {
            DeviceKind::Sim => device.played_cufile().is_some(),
            DeviceKind::Cuda => self.may_be_there(),
        }
    }

    /// The same of the driver; what files tell is read once.
    fn may_be_there(&self) -> bool {
        if self.absent.load(Ordering::Relaxed) {
            return false;
        }
        let absent = matches!(*self.looked(), Found::Absent(_));
        self.absent.store(absent, Ordering::Relaxed);
        !absent
    }

    /// What is known, after a look whether files say that there can be none, if nobody has yet.
    /// They are not read under the lock: they may lie where nobody answers soon.
    fn looked(&self) -> MutexGuard<'_, Found> {
        let found = self.lock();
        if !matches!(*found, Found::NotAsked) {
            return found;
        }
        drop(found);
        let missing = (self.missing)();
        let mut found = self.lock();
        if matches!(*found, Found::NotAsked) {
            *found = missing.map_or(Found::Possible, Found::Absent);
        }
        found
    }

    /// A file's way to a GPU, else why there is none. Whoever `waits` has the driver asked, and
    /// waits until the answer is there, or has had its time.
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
            if let Err(no) = &port {
                let (path, gpu, why) = (file.path().display(), device.id(), &no.why);
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
        self.played.lock().clone()
    }

    /// The driver that is played with a simulated GPU.
    fn played(&self, device: &dyn Device) -> Result<Arc<Session>, String> {
        if device.played_cufile().is_none() {
            return Err("a simulated GPU has no `libcufile`, but with `--gpu sim:cufile` one is \
                        played"
                .into());
        }
        let mut played = self.played.lock();
        if let Some(session) = &*played {
            return Ok(Arc::clone(session));
        }
        let session = Session::played().map_err(|failure| failure.in_words())?;
        Ok(Arc::clone(played.insert(session)))
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.0.lock()
    }

    fn session(&self, program: Option<&Program>, waits: bool) -> Result<Arc<Session>, String> {
        let mut found = self.looked();
        if matches!(*found, Found::Possible) {
            *found = match program.cloned().or_else(self.finds) {
                Some(program) => {
                    self.ask(program).map_or_else(Found::Absent, |()| Found::Asking(Instant::now()))
                }
                None => Found::Absent(no_program()),
            };
        }
        // A driver that hangs in this process cannot be given up, and should it answer yet, it is
        // used. Meanwhile not every caller waits for as long anew.
        let left = |found: &Found| match found {
            Found::Asking(since) => self.answers_within.saturating_sub(since.elapsed()),
            _ => Duration::ZERO,
        };
        if waits {
            let asking = |found: &mut Found| matches!(found, Found::Asking(_));
            let left = left(&found);
            let waited = self.found.1.wait_timeout_while(found, left, asking);
            found = woken(waited).0;
        }
        match &*found {
            Found::Here(session) => Ok(Arc::clone(session)),
            Found::Absent(why) => Err(why.clone()),
            Found::Asking(_) if left(&found).is_zero() => Err(self.too_late()),
            Found::NotAsked | Found::Possible | Found::Asking(_) => {
                Err("cuFile's driver is being asked".into())
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

    /// Asks the driver, aside: it may take its time.
    fn ask(&self, program: Program) -> Result<(), String> {
        let found = Arc::clone(&self.found);
        let (answers, opens) = (self.answers.clone(), self.opens);
        let asks = move || {
            let answer = answer(&answers, &program, opens);
            if let Found::Absent(why) = &answer {
                events::note(&format!("no bytes go straight to a GPU by cuFile: {why}"));
            }
            *found.0.lock() = answer;
            found.1.notify_all();
        };
        let thread = thread::Builder::new().name("forebay-probe".into()).spawn(asks);
        thread.map(drop).map_err(|error| format!("no thread to ask cuFile's driver: {error}"))
    }
}

/// What is known of the driver, from before or by asking, and what comes of opening it.
fn answer(answers: &Answers, program: &Program, opens: Opens) -> Found {
    let inquiry = answers.inquire(program);
    let mut turn = None;
    let known = inquiry.known().or_else(|| {
        turn = inquiry.turn();
        inquiry.known()
    });
    if let Some(known) = known {
        drop(turn.take()); // others need not wait for what comes now
        match usable(&known.answer) {
            Err(why) => return Found::Absent(known.said_before(&why)),
            // What opened for others and not here is asked for again.
            Ok(()) => {
                let library = known.answer.0.library.as_deref();
                let opened = inquiry.trusting(|| opens(library));
                if !matches!(&opened, Err(failure) if may_open_elsewhere(failure)) {
                    return found(opened);
                }
            }
        }
    }
    let answer = ask_cufile(program, OPENS_WITHIN);
    inquiry.keep(&answer);
    drop(turn);
    match usable(&answer) {
        Ok(()) => found(opens(answer.0.library.as_deref())),
        Err(why) => Found::Absent(why),
    }
}

/// Whether a failure to open the driver here leaves something to be asked in another process.
fn may_open_elsewhere(failure: &CuFileFailure) -> bool {
    let is_of_here = matches!(
        failure,
        CuFileFailure::CompatAllowed { .. } | CuFileFailure::Forked | CuFileFailure::Opening
    );
    !is_of_here
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
    use crate::direct::remembered::Rig;

    /// Has a program asked, and nothing remembered.
    fn providers() -> Providers {
        Providers::new(false)
    }

    /// What is found when a program says so.
    fn found(providers: Providers, script: &str) -> Result<Arc<Session>, String> {
        let arguments = ["-c", script, "sh", "--library", "/opt/cufile/libcufile.so.0"];
        let arguments = arguments.map(Into::into).to_vec();
        *providers.lock() = Found::Asking(Instant::now());
        providers.ask(Program { file: "/bin/sh".into(), arguments }).unwrap();
        providers.session(None, true)
    }

    #[test]
    fn who_waits_is_told_what_was_found() {
        let found = |script| found(providers(), script).unwrap_err();
        assert!(found("echo failed no driver").contains("no driver"));
        assert!(found("kill -9 $$").contains("signal 9"));
        // It is there for the other process, and not for this one.
        let gone = "echo library /nowhere/libcufile.so.0; echo opened; echo storage nvme p2pdma";
        assert!(found(gone).contains("there is no `libcufile.so.0`"), "{}", found(gone));
    }

    /// What an engine finds that was not asked before, and whether it has started the program.
    fn asked(missing: fn() -> Option<String>, waits: bool) -> (String, bool) {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("touch {}; echo failed no driver", folder.path().join("x").display());
        let arguments = ["-c", &script].map(Into::into).to_vec();
        let program = Program { file: "/bin/sh".into(), arguments };
        let providers = Providers { missing, ..providers() };
        let why = providers.session(Some(&program), waits).unwrap_err();
        // Whoever comes later is told the same, and starts nothing either.
        assert_eq!(providers.session(Some(&program), waits).unwrap_err(), why);
        (why, folder.path().join("x").exists())
    }

    #[test]
    fn where_no_bytes_can_go_straight_no_program_is_started() {
        let missing = || Some("there is no nvidia-fs".to_owned());
        for waits in [false, true] {
            assert_eq!(asked(missing, waits), ("there is no nvidia-fs".into(), false));
        }
        assert_eq!(asked(|| None, true), ("no driver".into(), true));
    }

    #[test]
    fn without_a_program_to_ask_the_reason_is_that() {
        let providers = Providers { missing: || None, finds: || None, ..providers() };
        let why = providers.session(None, true).unwrap_err();
        assert!(why.contains("no program `forebay`"), "{why}");
        assert!(matches!(*providers.lock(), Found::Absent(_)), "it is not looked for again");
    }

    #[test]
    fn where_it_is_absent_nobody_locks_anything_to_know_that() {
        let providers = providers();
        assert_eq!(providers.may_be_there(), unreachable().is_none());
        assert!(!matches!(*providers.lock(), Found::NotAsked), "files are read once");
        *providers.lock() = Found::Possible;
        providers.absent.store(false, Ordering::Relaxed);
        assert!(providers.may_be_there());
        *providers.lock() = Found::Absent("it is gone".into());
        assert!(!providers.may_be_there());
        let held = providers.lock();
        assert!(!providers.may_be_there());
        drop(held);
    }

    #[test]
    fn who_does_not_wait_is_not_held_up() {
        let providers = providers();
        *providers.lock() = Found::Asking(Instant::now());
        assert!(providers.session(None, false).unwrap_err().contains("is being asked"));
    }

    #[test]
    fn a_driver_that_hangs_here_is_waited_for_once_and_used_when_it_answers() {
        static GATE: (Lock<bool>, Condvar) = (Lock::new(false), Condvar::new());
        let opens: Opens = |_| {
            let open = GATE.1.wait_while(GATE.0.lock(), |is_open| !*is_open);
            drop(open.unwrap());
            plays(None)
        };
        let long = Duration::from_secs(30);
        let mut providers = Providers { opens, answers_within: long, ..providers() };
        let arguments = ["-c", OPENED].map(Into::into).to_vec();
        *providers.lock() = Found::Asking(Instant::now());
        providers.ask(Program { file: "/bin/sh".into(), arguments }).unwrap();
        assert!(providers.session(None, false).unwrap_err().contains("is being asked"));
        providers.answers_within = Duration::from_millis(100);
        let late = providers.session(None, true).unwrap_err();
        assert!(late.contains("not answered within 100ms") && late.contains("no longer"), "{late}");
        providers.answers_within = long;
        let long_ago = Instant::now().checked_sub(long).expect("a time may be before the start");
        *providers.lock() = Found::Asking(long_ago);
        let start = Instant::now();
        for waits in [true, false] {
            let late = providers.session(None, waits).unwrap_err();
            assert!(late.contains("is waited for no longer"), "{late}");
        }
        assert!(start.elapsed() < long, "nobody waits anew");
        *GATE.0.lock() = true;
        GATE.1.notify_all();
        let asking = |found: &mut Found| matches!(found, Found::Asking(_));
        let bound = Duration::from_secs(60);
        let found = providers.found.1.wait_timeout_while(providers.lock(), bound, asking);
        assert!(matches!(*found.unwrap().0, Found::Here(_)));
        assert!(providers.session(None, true).is_ok());
    }

    /// A machine whose program counts how often it is started.
    struct Counted {
        rig: Rig,
    }

    impl Counted {
        fn new() -> Self {
            Self { rig: Rig::new() }
        }

        /// What another engine finds, and how often the program was started until then.
        fn found(&self, opens: Opens, says: &str) -> (Result<(), String>, usize) {
            let answers = self.rig.answers.clone();
            let providers = Providers { answers, opens, ..providers() };
            let starts = self.rig.folder.join("starts");
            let found = found(providers, &format!("echo >>{}; {says}", starts.display()));
            (found.map(drop), std::fs::read(starts).unwrap().len())
        }
    }

    const OPENED: &str = "echo library /opt/cufile/libcufile.so.0; echo opened; echo storage nvme";

    fn plays(_: Option<&Path>) -> Result<Arc<Session>, CuFileFailure> {
        Session::played()
    }

    fn refuses(_: Option<&Path>) -> Result<Arc<Session>, CuFileFailure> {
        Err(CuFileFailure::Library("it is gone".into()))
    }

    #[test]
    fn one_process_is_asked_for_all() {
        let all = Counted::new();
        for _ in 0..3 {
            assert_eq!(all.found(plays, OPENED), (Ok(()), 1));
        }
        all.rig.age(100 * 24 * 3600);
        assert_eq!(all.found(plays, OPENED), (Ok(()), 1));
        all.rig.write("etc/cufile.json", "{ \"properties\": {} }");
        assert_eq!((all.found(plays, OPENED).1, all.found(plays, OPENED).1), (2, 2));
        all.rig.write("proc/sys/kernel/random/boot_id", "another");
        assert_eq!((all.found(plays, OPENED).1, all.found(plays, OPENED).1), (3, 3));
        // What was remembered before is still there.
        all.rig.write("proc/sys/kernel/random/boot_id", "1-2-3\n");
        assert_eq!(all.found(plays, OPENED), (Ok(()), 3));
    }

    #[test]
    fn what_opened_for_others_and_not_here_is_asked_for_again() {
        let all = Counted::new();
        assert_eq!(all.found(plays, OPENED), (Ok(()), 1));
        let (refused, starts) = all.found(refuses, OPENED);
        assert!(refused.unwrap_err().contains("it is gone") && starts == 2);
    }

    #[test]
    fn with_nothing_remembered_every_engine_asks() {
        let mut all = Counted::new();
        assert_eq!(all.found(plays, OPENED), (Ok(()), 1));
        let remembered = std::mem::replace(&mut all.rig.answers, Answers::of_user(false));
        assert_eq!((all.found(plays, OPENED).1, all.found(plays, OPENED).1), (2, 3));
        all.rig.answers = remembered;
        assert_eq!(all.found(plays, OPENED), (Ok(()), 3));
    }

    #[test]
    fn what_does_not_work_is_told_as_it_was_found() {
        for (says, why) in [("kill -11 $$", "signal 11"), ("echo failed no driver", "no driver")] {
            let all = Counted::new();
            let (first, starts) = all.found(plays, says);
            let first = first.unwrap_err();
            assert!(first.contains(why) && !first.contains("as was found") && starts == 1);
            let (again, starts) = all.found(plays, says);
            let again = again.unwrap_err();
            assert!(again.starts_with(&first) && starts == 1, "{again}");
            assert!(again.contains(" UTC; `forebay probe` asks anew)"), "{again}");
            all.rig.age(24 * 3600);
            assert_eq!(all.found(plays, says), (Err(first), 2));
        }
    }

    /// Opens for all who come once three are there.
    fn gathers(_: Option<&Path>) -> Result<Arc<Session>, CuFileFailure> {
        static HERE: (Lock<usize>, Condvar) = (Lock::new(0), Condvar::new());
        let mut here = HERE.0.lock();
        *here += 1;
        HERE.1.notify_all();
        let long = std::time::Duration::from_secs(15);
        let waited = HERE.1.wait_timeout_while(here, long, |here| *here < 3).unwrap();
        if waited.1.timed_out() { refuses(None) } else { plays(None) }
    }

    #[test]
    fn who_come_at_once_have_it_asked_once_and_open_it_side_by_side() {
        let all = Counted::new();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let ask = || all.found(gathers, &format!("sleep 0.3; {OPENED}"));
                scope.spawn(move || assert_eq!(ask(), (Ok(()), 1)));
            }
        });
    }
    /// Set in each of several processes.
    const INSIDE: &str = "FOREBAY_TEST_REMEMBERED";

    #[test]
    fn processes_share_what_is_remembered() {
        let all = Counted::new();
        let test = "direct::providers::tests::one_of_several_processes";
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        own.args(["--exact", "--nocapture", test]).env(INSIDE, &all.rig.folder);
        own.stdout(std::process::Stdio::piped());
        let started: Vec<_> = (0..3).map(|_| own.spawn().unwrap()).collect();
        for one in started {
            let output = one.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
    }

    #[test]
    fn one_of_several_processes() {
        if let Some(folder) = std::env::var_os(INSIDE) {
            let one = Counted { rig: Rig::at(Path::new(&folder)) };
            assert_eq!(one.found(plays, &format!("sleep 0.3; {OPENED}")), (Ok(()), 1));
        }
    }
}

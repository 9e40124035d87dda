//! Scratch goes away however the command ends.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::program::program;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

/// The signals that end a command, which removes what it made.
pub(crate) const ENDS: [Signal; 5] =
    [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP, Signal::XCPU];

/// A long run in a folder of its own; it is ended whatever becomes of the test.
pub(crate) struct Running {
    pub(crate) folder: tempfile::TempDir,
    child: Child,
    /// What it wrote to stderr.
    messages: File,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts a run and waits for its scratch.
    fn start(wrap: impl FnOnce(Command) -> Command) -> Self {
        let folder = tempfile::tempdir_in(".").unwrap();
        let mut command = wrap(Command::new(program()));
        command.args(["bench", "--size", "4M", "--repeats", "1000", "--gpu", "none"]);
        let running = Self::spawn(folder, &mut command);
        running.wait_for(|| {
            // A file for a test of syncs, which is gone by then, has another length.
            let is_made =
                |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.len() == 4 << 20);
            let scratch = running.scratch();
            scratch.len() == 2 && scratch.iter().all(is_made)
        });
        running
    }

    pub(crate) fn spawn(folder: tempfile::TempDir, command: &mut Command) -> Self {
        let messages = tempfile::tempfile().unwrap();
        command.current_dir(folder.path()).stdout(Stdio::null());
        command.stderr(messages.try_clone().unwrap());
        // A core file would count as something left.
        let maximum = getrlimit(Resource::Core).maximum;
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }).unwrap();
        // Signals for this run must not reach the tests.
        command.process_group(0);
        Self { child: command.spawn().unwrap(), folder, messages }
    }

    pub(crate) fn scratch(&self) -> Vec<PathBuf> {
        scratch_in(self.folder.path())
    }

    pub(crate) fn wait_for(&self, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            // Only a bound on a hang: nothing is measured.
            assert!(start.elapsed() < Duration::from_secs(120), "it never came that far");
            sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(self.child.id())
    }

    /// Whether it has ended, though nothing has waited for it.
    pub(crate) fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn messages(&self) -> String {
        let mut bytes = Vec::new();
        (&self.messages).rewind().unwrap();
        (&self.messages).read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn scratch_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().contains(".forebay-scratch-")).collect()
}

#[test]
fn signals_leave_nothing() {
    for signal in ENDS {
        let mut running = Running::start(|command| command);
        running.send(signal);
        // The shell sees which signal it was.
        assert_eq!(running.end().signal(), Some(signal.as_raw()));
        assert!(running.scratch().is_empty(), "{signal:?} left scratch");
    }
}

#[test]
fn a_part_of_an_output_does_not_stay() {
    for signal in ENDS {
        let folder = tempfile::tempdir_in(".").unwrap();
        fs::write(folder.path().join("file"), vec![7; 16 << 20]).unwrap();
        let mut command = Command::new(program());
        // A link so slow that the signal comes in the middle.
        command.args(["read", "file", "--gpu", "sim:bandwidth=100kB/s", "--output", "new"]);
        let mut running = Running::spawn(folder, &mut command);
        let output = running.folder.path().join("new");
        running.wait_for(|| output.exists());
        running.send(signal);
        assert_eq!(running.end().signal(), Some(signal.as_raw()));
        assert!(!output.exists(), "{signal:?} left a part");
        assert!(running.folder.path().join("file").exists());
    }
}

/// The number of a process, for a signal.
fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

#[test]
fn a_hang_up_that_is_ignored_stays_so() {
    let mut running = Running::start(|command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(command.get_program());
        shell
    });
    running.send(Signal::HUP);
    sleep(Duration::from_millis(100));
    assert!(running.child.try_wait().unwrap().is_none(), "it ended");
    assert_eq!(running.scratch().len(), 2);
    running.send(Signal::TERM);
    assert_eq!(running.end().signal(), Some(Signal::TERM.as_raw()));
    assert!(running.scratch().is_empty());
}

#[test]
fn the_next_run_removes_what_a_crash_left_and_nothing_else() {
    let mut crashed = Running::start(|command| command);
    crashed.send(Signal::KILL);
    crashed.end();
    assert_eq!(crashed.scratch().len(), 2);
    let folder = crashed.folder.path();
    let other = folder.join(".forebay-scratch-mine");
    fs::write(&other, "precious").unwrap();
    short_run(folder);
    assert_eq!(scratch_in(folder), std::slice::from_ref(&other));
    assert_eq!(fs::read(other).unwrap(), b"precious");
}

/// A run that makes scratch in the same folder.
pub(crate) fn short_run(folder: &Path) {
    let mut command = Command::new(program());
    let line = "bench --gpu none --size 1M --cache warm --time 100ms --repeats 1";
    let output = command.current_dir(folder).args(line.split(' ')).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_run_in_progress_keeps_its_scratch() {
    let running = Running::start(|command| command);
    short_run(running.folder.path());
    assert_eq!(running.scratch().len(), 2);
}

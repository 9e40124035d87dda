//! The cleanup of a command that ends early: scratch and half-written output are removed, and child
//! processes are ended.
//!
//! For each file, folder or child process, the registry has a closure that removes or ends it, and
//! an [`Entry`] is its handle. Each is made under the lock of the registry, so that a signal finds
//! it whole or not at all. `signals` and `steps` run the closures.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::plain::plain;

/// Time limit for printing a last message: long enough for a thread to start on a busy machine.
const SAY_MAX: Duration = Duration::from_secs(1);

/// Removes or ends what it was registered for.
pub(crate) type Undo = Box<dyn FnOnce() + Send>;

/// Something that is undone when this is dropped or the command ends early, unless it is kept.
#[derive(Debug)]
#[must_use]
pub struct Entry(u64);

impl Entry {
    /// Forgets what it stands for, so that it is never undone.
    pub fn keep(self) {
        let _ = self.take(&mut entries());
    }

    fn take(&self, entries: &mut Vec<(u64, Undo)>) -> Option<Undo> {
        let index = entries.iter().position(|(number, _)| *number == self.0)?;
        Some(entries.remove(index).1)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // An early end waits for the lock, and so for this.
        let mut entries = entries();
        if let Some(undo) = self.take(&mut entries) {
            undo();
        }
    }
}

/// What an early end undoes, and the numbers of the entries.
static ENTRIES: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());

/// The results of a verb so far, for stdout, and how far it came, for stderr.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The results as the verb prints them.
    pub results: String,
    /// A line on how far it came.
    pub message: String,
}

/// What an early end prints.
static PROGRESS: Mutex<Option<Progress>> = Mutex::new(None);

/// Set once the process ends by other means than the verb's return.
static ENDING: AtomicBool = AtomicBool::new(false);

fn entries() -> MutexGuard<'static, Vec<(u64, Undo)>> {
    // The registered entries stay valid even if a thread panicked with the lock.
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn progress() -> MutexGuard<'static, Option<Progress>> {
    PROGRESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes something by `make`, which also returns what undoes it.
pub(crate) fn with<T>(make: impl FnOnce() -> io::Result<(T, Undo)>) -> io::Result<(T, Entry)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut entries = entries();
    let (made, undo) = make()?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    entries.push((number, undo));
    Ok((made, Entry(number)))
}

/// Starts `command`; its entry kills it.
pub fn spawn(command: &mut Command) -> io::Result<(Child, Entry)> {
    with(|| {
        let child = command.spawn()?;
        // Before Linux 5.3 there is no handle that remains valid after the child's end; such a
        // child is left to end by itself.
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        let kill = || {
            let _ = handle.map(|handle| pidfd_send_signal(handle, Signal::KILL));
        };
        Ok((child, Box::new(kill) as Undo))
    })
}

/// Starts `command`, which must lead its own process group; its entry kills the whole group. Keep
/// or drop the entry before you wait for the child: afterwards its process ID may be reused.
pub fn spawn_group(command: &mut Command) -> io::Result<(Child, Entry)> {
    with(|| {
        let child = command.spawn()?;
        let group = Pid::from_child(&child);
        let kill = move || {
            let _ = kill_process_group(group, Signal::KILL);
        };
        Ok((child, Box::new(kill) as Undo))
    })
}

/// Sets what an early end prints.
pub fn set_progress(made: Option<Progress>) {
    *progress() = made;
}

/// Cleans up before this process ends by other means than the verb's return, for `limit` at most,
/// since files may be on a mount that does not respond. Nothing more can be registered or printed
/// afterwards.
pub fn run(limit: Duration) {
    say_progress();
    ENDING.store(true, Ordering::SeqCst);
    close_streams();
    let (done, is_done) = channel();
    let undo = move || {
        let mut entries = entries();
        // The last one first: it may use those that were made before it.
        entries.drain(..).rev().for_each(|(_, undo)| undo());
        let _ = done.send(());
        loop {
            thread::park();
        }
    };
    let _ = thread::Builder::new().name("cleanup".into()).spawn(undo);
    let _ = is_done.recv_timeout(limit);
}

/// Prints the results so far. It does not wait for streams that may not be read.
pub fn say_progress() {
    let Some(Progress { results, message }) = progress().take() else { return };
    let (done, is_done) = channel();
    let says = thread::Builder::new().name("progress".into()).spawn(move || {
        // A progress bar may be in the last line of the terminal. Either stream may be closed.
        let start = if io::stderr().is_terminal() { "\n" } else { "" };
        let _ = writeln!(anstream::stderr(), "{start}{}", plain(&message));
        let _ = crate::stdio::print(&results);
        let _ = done.send(());
    });
    if says.is_ok() {
        let _ = is_done.recv_timeout(SAY_MAX);
    }
}

/// Closes the command's streams after the last message: readers wait until all writers have closed
/// them, and a process with a blocked thread would keep them open.
pub fn close_streams() {
    let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&nothing);
    let _ = rustix::stdio::dup2_stdout(&nothing);
    let _ = rustix::stdio::dup2_stderr(&nothing);
}

/// Never returns if another thread ends this process.
pub fn wait_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        thread::park();
    }
}

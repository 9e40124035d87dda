//! The cleanup when the user stops the command: scratch and half-written output are removed, and
//! child processes are ended.
//!
//! A thread receives the signals of [`wanted`] and undoes everything registered here. Then the
//! signal takes its default action, so that the shell sees how the command ended. If the cleanup
//! hangs, `watched` abandons it; it holds no lock that another thread waits for. During the cleanup
//! the thread holds the lock that registering needs, so nothing new can be registered in between.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::bench::held::Made;
use crate::bench::scratch::Folder;
use crate::report::plain::plain;
use crate::report::warnings::say;
use crate::watched;

/// Time limit for printing a last message: long enough for a thread to start on a busy machine.
const SAY_MAX: Duration = Duration::from_secs(1);

/// Everything that a signal must undo.
#[derive(Debug, Default)]
struct Undo {
    scratch: Vec<Arc<Folder>>,
    outputs: Vec<Output>,
    /// Folders of ours, with all their contents.
    folders: Vec<PathBuf>,
    /// By process id.
    children: Vec<(u32, OwnedFd)>,
    /// Children that lead their own process group.
    groups: Vec<u32>,
}

/// The messages of a signal.
#[derive(Debug)]
struct Words {
    /// How far the command came.
    kept: Option<String>,
    /// The text on changes that cannot be undone.
    left: Option<String>,
}

/// An unfinished file of ours.
#[derive(Debug)]
struct Output {
    path: PathBuf,
    made: Made,
}

static UNDO: Mutex<Undo> = Mutex::new(Undo {
    scratch: Vec::new(),
    outputs: Vec::new(),
    folders: Vec::new(),
    children: Vec::new(),
    groups: Vec::new(),
});

/// Separate from `UNDO`, whose lock is held while a file is created, which may hang.
static WORDS: Mutex<Words> = Mutex::new(Words { kept: None, left: None });

fn undo() -> MutexGuard<'static, Undo> {
    // The registered entries stay valid even if a thread panicked with the lock.
    UNDO.lock().unwrap_or_else(PoisonError::into_inner)
}

fn words() -> MutexGuard<'static, Words> {
    WORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The signals that end a command, without those that the parent process set to be ignored.
pub(crate) fn wanted() -> Vec<i32> {
    let all = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, libc::SIGXCPU];
    all.into_iter().filter(|signal| !is_ignored(*signal)).collect()
}

/// Starts to handle signals, once per process.
pub(crate) fn install() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without signals or threads, the next run removes what this one leaves.
        let Ok(mut signals) = Signals::new(wanted()) else { return };
        let _ = std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                say_left();
                watched::let_go();
                let _held = undo_all();
                watched::tell(watched::End::Stopped(signal));
                // It does not return for these signals; the lock is held to the end.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
    });
}

/// Undoes everything that is registered. While the return value is held, nothing more can be
/// registered.
pub(crate) fn undo_all() -> impl Sized {
    let undo = undo();
    for (_, child) in &undo.children {
        let _ = pidfd_send_signal(child, Signal::KILL);
    }
    for group in undo.groups.iter().filter_map(|id| pid(*id)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    for folder in &undo.scratch {
        folder.remove();
    }
    undo.outputs.iter().for_each(|output| output.made.remove());
    undo.folders.iter().for_each(|path| drop(fs::remove_dir_all(path)));
    undo
}

/// Prints how far the command came and what remains changed. It does not wait for the output, which
/// may not be read.
pub(crate) fn say_left() {
    let Words { kept, left } = {
        let mut words = words();
        Words { kept: words.kept.take(), left: words.left.take() }
    };
    if kept.is_none() && left.is_none() {
        return;
    }
    let (done, is_done) = channel();
    let says = std::thread::Builder::new().name("left".into()).spawn(move || {
        kept.iter().for_each(|text| say_kept(text));
        left.iter().for_each(|text| say(text));
        let _ = done.send(());
    });
    if says.is_ok() {
        let _ = is_done.recv_timeout(SAY_MAX);
    }
}

fn say_kept(text: &str) {
    // A progress bar may be in the last line of the terminal.
    let start = if io::stderr().is_terminal() { "\n" } else { "" };
    // stderr may be closed.
    let _ = writeln!(anstream::stderr(), "{start}{}", plain(text));
}

/// Sets the text that a signal prints about how far the command came.
pub(crate) fn keeps(text: Option<String>) {
    words().kept = text;
}

/// Sets the text that a signal prints about what remains changed.
pub(crate) fn leaves(text: Option<String>) {
    words().left = text;
}

/// Whether our parent set `signal` to be ignored, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Makes scratch by `create`; from then on a signal removes it.
pub(crate) fn with_scratch<E>(
    create: impl FnOnce() -> Result<Folder, E>,
) -> Result<Arc<Folder>, E> {
    let mut undo = undo();
    let folder = Arc::new(create()?);
    undo.scratch.push(Arc::clone(&folder));
    Ok(folder)
}

/// Removes scratch at its regular end.
pub(crate) fn remove_scratch(folder: &Arc<Folder>) {
    let mut undo = undo();
    folder.remove();
    undo.scratch.retain(|other| !Arc::ptr_eq(other, folder));
}

/// Makes the new file `path`; until [`end_output`] a signal removes it.
pub(crate) fn create_output(path: &Path) -> io::Result<File> {
    create_output_with(path, 0o666)
}

/// Like `create_output`, with this `mode`.
pub(crate) fn create_output_with(path: &Path, mode: u32) -> io::Result<File> {
    let mut undo = undo();
    let (made, file) =
        Made::create(path, OFlags::RDWR, mode, undo.outputs.last().map(|last| &last.made))?;
    undo.outputs.push(Output { path: path.to_owned(), made });
    Ok(file)
}

/// Keeps a file of [`create_output`] if it is complete, or else removes it.
pub(crate) fn end_output(path: &Path, whole: bool) {
    let mut undo = undo();
    let Some(index) = undo.outputs.iter().position(|output| output.path == path) else { return };
    let output = undo.outputs.remove(index);
    if !whole {
        output.made.remove();
    }
}

/// Makes the folder `path` by `create`, which fails if it exists; from then on a signal removes it.
pub(crate) fn with_folder(path: &Path, create: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let mut undo = undo();
    create()?;
    undo.folders.push(path.to_owned());
    Ok(())
}

/// Removes a folder of [`with_folder`] at its regular end.
pub(crate) fn remove_folder(path: &Path) {
    let mut undo = undo();
    let _ = fs::remove_dir_all(path);
    undo.folders.retain(|other| other != path);
}

/// Starts `command`; a signal ends it. The caller must pass the child to [`ended`].
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let mut undo = undo();
    let child = command.spawn()?;
    let pid = pid(child.id());
    // Before Linux 5.3 there is no handle that remains valid after the child's end; such a child is
    // left to end by itself.
    if let Some(Ok(handle)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        undo.children.push((child.id(), handle));
    }
    Ok(child)
}

/// Starts `command`, which must lead its own process group; a signal ends the whole group. The
/// child must be passed to [`ended`] before it is waited for, as its number may be reused from then
/// on.
pub(crate) fn spawn_group(command: &mut Command) -> io::Result<Child> {
    let mut undo = undo();
    let child = command.spawn()?;
    undo.groups.push(child.id());
    Ok(child)
}

/// Forgets the child with this number, which has ended, or was ended with its group.
pub(crate) fn ended(child: u32) {
    let mut undo = undo();
    undo.children.retain(|(id, _)| *id != child);
    undo.groups.retain(|id| *id != child);
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::Stdio;
    use std::time::Instant;

    use super::*;

    /// Set in the process that is stopped; names the file into which the grandchild writes its
    /// process number.
    const STOPPED: &str = "FOREBAY_STOPPED_TEST";
    const LONG: Duration = Duration::from_secs(60);

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LONG, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a child that starts another, and is stopped.
    fn stopped(path: &Path) {
        install();
        // Longer than the test waits for their end.
        let asleep = 4 * LONG.as_secs();
        let line = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep {1}", path.display(), asleep);
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("sh -c '{line}' & sleep {asleep}")).process_group(0);
        // A reader of this process's output must not wait for them.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = spawn_group(&mut command).unwrap();
        until("the child's child", || path.exists());
        rustix::process::kill_process(rustix::process::getpid(), Signal::TERM).unwrap();
        child.wait().unwrap();
        std::thread::sleep(LONG);
    }

    #[test]
    fn a_signal_ends_a_whole_group() {
        if let Some(path) = std::env::var_os(STOPPED) {
            return stopped(Path::new(&path));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "interrupt::tests::a_signal_ends_a_whole_group"]);
        let output = again.env(STOPPED, &path).output().unwrap();
        assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
        let stat =
            PathBuf::from(format!("/proc/{}/stat", fs::read_to_string(&path).unwrap().trim()));
        // An ended process remains visible until its parent waits for it.
        let is_there = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        until("its end", || !is_there());
    }
}

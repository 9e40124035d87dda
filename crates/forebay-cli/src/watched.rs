//! `forebay watched`: runs a verb in a process that can be abandoned.
//!
//! A call that a server never answers may not be interruptible by any signal, and a process ends
//! only when all its threads have. So a verb that touches files runs in a child of the started
//! process. The parent touches no file: it forwards signals and ends as the child ended. It
//! abandons a child that should end and cannot. The child reports through a pipe how it is about to
//! end; `steps` detects calls that never return.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, pidfd_open,
    pidfd_send_signal,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::bench::cpu;
use crate::failure::Failure;
use crate::interrupt;
use crate::program::Program;
use crate::steps;

/// The verb that starts a child.
pub(crate) const VERB: &str = "watched";
/// Time limit of a child's cleanup after a signal.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Time limit from its last report to its end: pinned memory is freed, and GPU drivers close.
const END_MAX: Duration = Duration::from_secs(5);
/// Like the limit above, when a signal ends it, since the user waits for that.
const STOPPED_MAX: Duration = Duration::from_secs(2);
/// The limit for a child that waits for something that does not answer.
const SILENT_MAX: Duration = Duration::from_millis(300);
/// The stack of a process's first thread, as Linux has it.
const STACK_LEN: usize = 8 << 20;
/// The stack of a thread that only waits.
const SMALL_STACK_LEN: usize = 1 << 20;
/// The exit code of Rust programs that panic.
const PANICKED: u8 = 101;
/// A bit in the byte that a child reports, next to its exit code: it waits for something that does
/// not answer.
const IS_SILENT: u8 = 0x80;
/// The rest is the number of the signal that ends it.
const BY_SIGNAL: u8 = 0x40;
/// The path of a folder follows, and a zero: the child makes scratch there.
const SCRATCH: u8 = IS_SILENT | BY_SIGNAL;

/// Events of the child process.
enum News {
    Signal(i32),
    /// The byte that the child reported.
    Word(u8),
    Ended(io::Result<ExitStatus>),
}

/// The folders in which the child made scratch.
type Scratch = Arc<Mutex<BTreeSet<PathBuf>>>;

/// Why a child is to end soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Signal(i32),
    Code(u8),
    /// The system does not report how it ended.
    Lost,
}

/// Runs the verb of `arguments`, the program's name first, in a child; none if no child can be
/// started, and the verb must run here.
pub(crate) fn run(program: &Program, arguments: &[OsString]) -> Option<ExitCode> {
    // The path through which the child finds the pipe.
    std::fs::metadata("/proc/self/fd").ok()?;
    let (hear, tell) = io::pipe().ok()?;
    fcntl_setfd(&tell, FdFlags::empty()).ok()?;
    let mut command = program.command(VERB);
    command.arg(tell.as_raw_fd().to_string()).args(arguments.get(1..).unwrap_or_default());
    // Before there is anything to undo, which a child may have immediately. If signals cannot be
    // handled, they end this process, and the kernel ends the child.
    let signals = Signals::new(interrupt::wanted()).ok();
    match command.spawn() {
        Ok(child) => Some(watch(child, hear, tell, signals)),
        Err(_) => {
            drop(signals);
            // From now on signals no longer end the process by themselves.
            interrupt::install();
            None
        }
    }
}

/// Waits for `child`, within its time limits.
fn watch(
    mut child: Child,
    hear: PipeReader,
    tell: PipeWriter,
    signals: Option<Signals>,
) -> ExitCode {
    drop(tell);
    let id = child.id();
    let child_of_ours = Handle::of(id);
    let (news, came) = channel();
    if let Some(signals) = signals {
        pass_signals(signals, news.clone());
    }
    let scratch = Scratch::default();
    pass_words(hear, news.clone(), Arc::clone(&scratch));
    let waits = thread::Builder::new().name("child".into()).stack_size(SMALL_STACK_LEN);
    if let Err(error) = waits.spawn(move || drop(news.send(News::Ended(child.wait())))) {
        child_of_ours.send(Signal::KILL);
        Failure::thread(&error, SMALL_STACK_LEN as u64).print();
        return ExitCode::FAILURE;
    }
    match ended(&came, &child_of_ours) {
        Ok(status) => as_ended(status, &scratch),
        // It may never end.
        Err(why) => {
            child_of_ours.send(Signal::KILL);
            match why {
                Why::Code(code) => ExitCode::from(code),
                Why::Lost => {
                    Failure::new("cannot get the exit status of the worker process").print();
                    ExitCode::FAILURE
                }
                Why::Signal(signal) => {
                    left_behind(id).print();
                    end_by(signal)
                }
            }
        }
    }
}

/// How the child has ended, or why it should have by now.
fn ended(came: &Receiver<News>, child: &Handle) -> Result<ExitStatus, Why> {
    let mut end: Option<(Instant, Why)> = None;
    loop {
        let news = match end {
            None => came.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some((at, _)) => came.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        let (most, why) = match (news, end) {
            (Ok(News::Ended(Ok(status))), _) => return Ok(status),
            (Ok(News::Signal(signal)), _) => {
                // Ctrl-C has reached it already, another signal perhaps not.
                if let Some(signal) = Signal::from_named_raw(signal) {
                    child.send(signal);
                }
                (STOP_MAX, Why::Signal(signal))
            }
            (Ok(News::Word(word)), _) => meaning(word),
            (_, Some((_, why))) => return Err(why),
            (_, None) => return Err(Why::Lost),
        };
        let at = Instant::now() + most;
        end = match end {
            // The first reason decides how it ends; the earlier time decides when.
            Some((before, first)) => Some((before.min(at), first)),
            None => Some((at, why)),
        };
    }
}

/// The remaining time of a child that has reported `word`, and its exit.
fn meaning(word: u8) -> (Duration, Why) {
    let rest = word & !(IS_SILENT | BY_SIGNAL);
    match (word & IS_SILENT != 0, word & BY_SIGNAL != 0) {
        (true, _) => (SILENT_MAX, Why::Code(rest)),
        (false, true) => (STOPPED_MAX, Why::Signal(rest.into())),
        (false, false) => (END_MAX, Why::Code(rest)),
    }
}

/// A handle of the child that remains valid if its number is reused.
struct Handle {
    id: u32,
    /// None before Linux 5.3.
    itself: Option<OwnedFd>,
}

impl Handle {
    fn of(id: u32) -> Self {
        let itself = pid(id).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { id, itself }
    }

    fn send(&self, signal: Signal) {
        let _ = match (&self.itself, pid(self.id)) {
            (Some(itself), _) => pidfd_send_signal(itself, signal),
            (None, Some(pid)) => kill_process(pid, signal),
            (None, None) => Ok(()),
        };
    }
}

fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// Forwards the signals that end a command.
fn pass_signals(mut signals: Signals, news: Sender<News>) {
    let pass = move || {
        let mut signals = signals.forever();
        while signals.next().is_some_and(|signal| news.send(News::Signal(signal)).is_ok()) {}
    };
    let _ = thread::Builder::new().name("signals".into()).spawn(pass);
}

/// Forwards the child's last report, and records the scratch folders that it named before.
fn pass_words(hear: PipeReader, news: Sender<News>, scratch: Scratch) {
    let pass = move || {
        let mut hear = BufReader::new(hear);
        let mut word = [0];
        while hear.read_exact(&mut word).is_ok() {
            if word[0] != SCRATCH {
                let _ = news.send(News::Word(word[0]));
                return;
            }
            let mut folder = Vec::new();
            if hear.read_until(0, &mut folder).is_ok_and(|_| folder.pop() == Some(0)) {
                let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
                scratch.insert(OsString::from_vec(folder).into());
            }
        }
    };
    let _ = thread::Builder::new().name("word".into()).spawn(pass);
}

/// Ends this process as the child ended.
fn as_ended(status: ExitStatus, scratch: &Scratch) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        (None, Some(signal)) => {
            let limit = getrlimit(Resource::Cpu);
            match Signal::from_named_raw(signal) {
                Some(Signal::XCPU) if is_used_up(limit.current) => out_of_time(signal).print(),
                Some(Signal::KILL) => {
                    let is_time = is_used_up(limit.maximum);
                    let why = if is_time { out_of_time(signal) } else { killed() };
                    leaves(why, scratch).print();
                }
                _ => {}
            }
            // One core is enough.
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            let _ = rustix::process::setrlimit(Resource::Core, none);
            end_by(signal)
        }
        (None, None) => ExitCode::FAILURE,
    }
}

/// Ends this process by a signal, so that its parent sees which.
fn end_by(signal: i32) -> ExitCode {
    let _ = emulate_default_handler(signal);
    // The exit code that shells use for such an end, if the signal did not end us.
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
}

fn killed() -> Failure {
    Failure::new("the worker process was killed (signal 9)")
        .because("the kernel kills processes if memory runs out: see its log (`dmesg`)")
        .hint("move less at a time, or raise the memory limit")
}

/// Whether the child used up its CPU time.
fn is_used_up(limit: Option<u64>) -> bool {
    limit.is_some_and(|seconds| cpu::used() >= Duration::from_secs(seconds))
}

fn out_of_time(signal: i32) -> Failure {
    Failure::new(format!("the worker process was stopped (signal {signal})"))
        .because("its limit on CPU time is used up")
        .hint("move less, or raise the limit on CPU time (`ulimit -t`)")
}

/// Adds where scratch may remain, if it could not be removed.
fn leaves(mut failure: Failure, scratch: &Scratch) -> Failure {
    let folders = scratch.lock().unwrap_or_else(PoisonError::into_inner);
    let names: Vec<_> = folders.iter().map(|path| format!("`{}`", path.display())).collect();
    if let (Some(hint), false) = (&mut failure.hint, names.is_empty()) {
        let _ = write!(hint, "; the next run in {} removes its scratch", names.join(" or "));
    }
    failure
}

fn left_behind(id: u32) -> Failure {
    Failure::new(format!("stopped, but process {id} has not ended"))
        .because("it may wait for a file that does not respond; such a process cannot be killed")
        .hint(steps::REMEDY)
}

/// Where this process, if it is a child, reports how it is about to end.
static TELL: Mutex<Option<File>> = Mutex::new(None);

/// Makes this process a child: it reports to its parent through the descriptor `word`, and ends
/// with it.
pub(crate) fn begin(word: &OsStr) -> Result<(), Failure> {
    let failed = |error: &io::Error| {
        Failure::io(format!("cannot report through `{}`", word.display()), error)
            .hint("this verb is internal: omit it and the number")
    };
    let number = word.to_str().and_then(|word| word.parse::<u16>().ok());
    let number = number.ok_or_else(|| failed(&io::ErrorKind::InvalidInput.into()))?;
    let tell = File::options().write(true).open(format!("/proc/self/fd/{number}"));
    let tell = tell.map_err(|error| failed(&error))?;
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // If the parent was already gone, the other end is closed.
    let mut heard = [PollFd::new(&tell, PollFlags::empty())];
    if poll(&mut heard, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
        return Err(failed(&io::ErrorKind::BrokenPipe.into()));
    }
    // Needed even without anything to undo: a signal by itself cannot end a blocked process.
    interrupt::install();
    *TELL.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
    Ok(())
}

/// Runs `work` on a new thread. The kernel delivers signals to the first thread of a process, even
/// if that thread is blocked without end, and then to no other. Also, the first thread's stack is
/// as small as `ulimit -s` says, and overflows without an error.
pub(crate) fn aside(work: impl FnOnce() -> ExitCode + Send) -> ExitCode {
    thread::scope(|scope| {
        let first = thread::Builder::new().name("verb".into()).stack_size(STACK_LEN);
        match first.spawn_scoped(scope, work) {
            // It has already reported its panic.
            Ok(running) => running.join().unwrap_or(ExitCode::from(PANICKED)),
            Err(error) => {
                Failure::thread(&error, STACK_LEN as u64).print();
                ExitCode::FAILURE
            }
        }
    })
}

/// Set once another thread ends this process, with another exit than the verb's.
static ENDING: AtomicBool = AtomicBool::new(false);

/// See [`let_go`].
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Blocks while another thread ends this process.
pub(crate) fn wait_for_the_end() -> ! {
    loop {
        thread::park();
    }
}

/// Closes the command's output streams after the last message: readers wait until all writers have
/// closed them, and a process that cannot end would keep them open. Further output of the verb is
/// lost, so the verb no longer ends the process either.
pub(crate) fn let_go() {
    ENDING.store(true, Ordering::SeqCst);
    let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&nothing);
    let _ = rustix::stdio::dup2_stdout(&nothing);
    let _ = rustix::stdio::dup2_stderr(&nothing);
}

/// How this process ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// With this code.
    Regular(u8),
    /// With this code, once something answers that has not so far.
    Silent(u8),
    /// Stopped by a signal, so the user no longer waits.
    Stopped(i32),
}

/// Reports the folder in which this process, a child, makes scratch.
pub(crate) fn tell_scratch(folder: &Path) {
    let mut tell = TELL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(tell) = tell.as_mut() {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let _ = tell.write_all(&[&[SCRATCH], folder.as_os_str().as_bytes(), &[0]].concat());
    }
}

/// Reports how this process is about to end; returns true if the parent received it.
pub(crate) fn tell(end: End) -> bool {
    let mut tell = TELL.lock().unwrap_or_else(PoisonError::into_inner);
    let word = match end {
        End::Regular(code) => code,
        End::Silent(code) => code | IS_SILENT,
        End::Stopped(signal) => u8::try_from(signal).unwrap_or(0) | BY_SIGNAL,
    };
    tell.take().is_some_and(|mut tell| tell.write_all(&[word]).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_started_runs_here() {
        let none = Program::new(vec!["/no/such/program".into()]);
        assert!(run(&none, &["forebay".into(), "read".into()]).is_none());
    }

    #[test]
    fn a_child_that_has_said_its_last_word_has_some_time_to_end() {
        let (wait, told) = channel();
        let id = std::process::id();
        let nobody = Handle { id, itself: None };
        let end = |word| {
            wait.send(News::Word(word)).unwrap();
            ended(&told, &nobody).unwrap_err()
        };
        assert_eq!(end(IS_SILENT | 1), Why::Code(1));
        assert_eq!(meaning(0), (END_MAX, Why::Code(0)));
        assert_eq!(meaning(BY_SIGNAL | 15), (STOPPED_MAX, Why::Signal(15)));
        wait.send(News::Word(0)).unwrap();
        wait.send(News::Ended(Ok(ExitStatus::from_raw(0x300)))).unwrap();
        assert_eq!(ended(&told, &nobody).unwrap().code(), Some(3), "sooner than that");
        drop(wait);
        assert_eq!(ended(&told, &nobody).unwrap_err(), Why::Lost, "all senders are gone");
    }

    #[test]
    fn a_child_whose_parent_is_gone_does_not_begin() {
        let (hear, tell) = io::pipe().unwrap();
        drop(hear);
        let failure = begin(OsStr::new(&tell.as_raw_fd().to_string())).unwrap_err();
        assert!(failure.causes[0].contains("broken pipe"), "{failure:?}");
        assert!(!super::tell(End::Regular(0)), "the pipe is closed");
    }

    #[test]
    fn what_is_no_number_of_a_pipe_is_refused() {
        for word in ["", "-1", "x", "70000", "60000"] {
            let failure = begin(OsStr::new(word)).unwrap_err();
            assert!(failure.message.contains("cannot report through"), "{failure:?}");
            assert!(failure.hint.unwrap().contains("is internal"));
        }
    }
}

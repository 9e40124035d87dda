//! Forwards the engine's events to Python's `logging`.
//!
//! An engine thread never waits for the interpreter: events go to a thread that forwards them to
//! the logger `forebay`. If that thread falls far behind, events are dropped, and their count is
//! logged once it has caught up. The logger's level is read when an engine is made.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use forebay_base::per_process::PerProcess;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::hanging;

/// Most events that may be pending.
const WAITING_MAX: usize = 1024;

/// How long the interpreter's exit waits for pending events, and the pause between two checks.
const FLUSH_MAX: Duration = Duration::from_secs(1);
const FLUSH_NAP: Duration = Duration::from_millis(1);

/// The levels that are forwarded: 0 is none, 1 errors, 4 and more everything.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// Lines dropped since the last report of dropped lines.
static DROPPED: AtomicU64 = AtomicU64::new(0);

static CHANNEL: PerProcess<LogChannel> = PerProcess::new();

/// The channel to the forwarding thread.
struct LogChannel {
    sender: SyncSender<LogItem>,
    /// Present until the thread starts.
    receiver: Mutex<Option<Receiver<LogItem>>>,
}

enum LogItem {
    Line {
        level: u8,
        target: String,
        text: String,
    },
    /// A request to forward everything before it.
    Flush(SyncSender<()>),
}

/// Forwards further events of engines according to the level of the logger `forebay`.
pub(crate) fn follow(py: Python<'_>) -> PyResult<()> {
    static ONCE: Once = Once::new();
    LEVEL.store(level(py)?, Ordering::Relaxed);
    log_function(py)?; // import it here, not on the forwarding thread
    CHANNEL.get_or_init(|| {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        DROPPED.store(0, Ordering::Relaxed);
        LogChannel { sender, receiver: Mutex::new(Some(receiver)) }
    });
    let mut is_new = false;
    ONCE.call_once(|| {
        // A program that embeds Python may have its own subscriber, which then gets the events.
        is_new = tracing::subscriber::set_global_default(Logs).is_ok();
    });
    if is_new {
        let flush = wrap_pyfunction!(flush_logs, py)?;
        hanging::call_in(py, "atexit", "register", (flush,))?;
    }
    Ok(())
}

/// The logger's level as a number of `LEVEL`: warnings if `logging` was not imported yet.
fn level(py: Python<'_>) -> PyResult<u8> {
    let modules = hanging::import(py, "sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(logging) = modules.get_item("logging")? else { return Ok(2) };
    let logger = hanging::call(&logging.getattr("getLogger")?, ("forebay",))?;
    let level: i64 = hanging::call(&logger.getattr("getEffectiveLevel")?, ())?.extract()?;
    Ok(match level {
        ..=10 => 4,
        11..=20 => 3,
        21..=30 => 2,
        31..=40 => 1,
        _ => 0,
    })
}

impl LogChannel {
    /// Sends an event; the first one starts the thread.
    fn send(&self, seen: LogItem) -> Result<(), TrySendError<LogItem>> {
        if let Some(receiver) = self.receiver().take() {
            let thread = std::thread::Builder::new().name("forebay-log".into());
            // If it cannot be spawned, events are dropped.
            drop(thread.spawn(move || hand_on(receiver)));
        }
        self.sender.try_send(seen)
    }

    fn receiver(&self) -> MutexGuard<'_, Option<Receiver<LogItem>>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forwards events until the process ends. The thread keeps its Python thread state while it waits:
/// making one for each line takes a lock of CPython's (3.11), which a fork at that moment would
/// leave held in the child.
fn hand_on(seen: Receiver<LogItem>) {
    Python::try_attach(|py| {
        let mut seen = seen;
        while let Some((next, rest)) = next(py, seen) {
            seen = rest;
            match next {
                LogItem::Line { level, target, text } => say(py, level, &target, &text),
                LogItem::Flush(done) => {
                    say_dropped(py);
                    let _ = done.send(()); // `flush_logs` may have timed out
                }
            }
        }
    });
}

/// The next event. Before waiting for it, dropped events are reported.
fn next(py: Python<'_>, seen: Receiver<LogItem>) -> Option<(LogItem, Receiver<LogItem>)> {
    match seen.try_recv() {
        Ok(next) => return Some((next, seen)),
        Err(TryRecvError::Disconnected) => return None,
        Err(TryRecvError::Empty) => say_dropped(py),
    }
    py.detach(move || seen.recv().ok().map(|next| (next, seen)))
}

/// Reports how many lines were dropped, if any, after those before them were forwarded.
fn say_dropped(py: Python<'_>) {
    let dropped = DROPPED.swap(0, Ordering::Relaxed);
    if dropped == 0 || LEVEL.load(Ordering::Relaxed) < number(Level::WARN) {
        return;
    }
    let text = format!(
        "dropped {dropped} lines: {WAITING_MAX} were pending; use a faster handler of `logging`, \
         or a higher level"
    );
    say(py, number(Level::WARN), "forebay::logs", &text);
}

fn say(py: Python<'_>, level: u8, target: &str, text: &str) {
    if let Err(error) = log(py, level, target, text) {
        error.write_unraisable(py, None);
    }
}

fn log(py: Python<'_>, level: u8, target: &str, text: &str) -> PyResult<()> {
    let number = [50, 40, 30, 20, 10][usize::from(level.min(4))];
    let arguments = (number, target.replace("::", "."), text).into_pyobject(py)?;
    hanging::notify(log_function(py)?, &arguments);
    Ok(())
}

/// The Python function that logs a line.
fn log_function(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    hanging::once(&FUNCTION, py, "forebay._threads", "log")
}

/// Waits briefly until all events are forwarded.
#[pyfunction]
fn flush_logs(py: Python<'_>) {
    py.detach(|| {
        let ((done, ended), start) = (sync_channel(1), Instant::now());
        let running = CHANNEL.get().filter(|channel| channel.receiver().is_none());
        // If the queue is full, the thread makes room in a moment.
        let sent = running.is_some_and(|channel| {
            loop {
                match channel.send(LogItem::Flush(done.clone())) {
                    Err(TrySendError::Full(_)) if start.elapsed() < FLUSH_MAX => {
                        std::thread::sleep(FLUSH_NAP);
                    }
                    sent => break sent.is_ok(),
                }
            }
        });
        if sent {
            let _ = ended.recv_timeout(FLUSH_MAX.saturating_sub(start.elapsed()));
        }
    });
}

/// The subscriber of the engine's events.
struct Logs;

impl Subscriber for Logs {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        number(*metadata.level()) <= LEVEL.load(Ordering::Relaxed)
            && metadata.target().starts_with("forebay")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1) // spans are not used: each line names its subject
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let metadata = event.metadata();
        let (level, target) = (number(*metadata.level()), metadata.target().to_owned());
        let text = line.message + &line.fields;
        // A forked child has no channel before it makes an engine.
        if let Some(channel) = CHANNEL.get()
            && channel.send(LogItem::Line { level, target, text }).is_err()
        {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        _ => 4,
    }
}

/// An event as one line.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a `String` never fails.
        let _ = match field.name() {
            "message" => write!(Escaped(&mut self.message), "{value:?}"),
            name => write!(Escaped(&mut self.fields), " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Escapes characters that break a line, act on a terminal, or reverse the text direction: file
/// names may contain them.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter {
                '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' => write!(self.0, "{}", letter.escape_unicode())?,
                _ if letter.is_control() => write!(self.0, "{}", letter.escape_debug())?,
                _ => self.0.push(letter),
            }
        }
        Ok(())
    }
}

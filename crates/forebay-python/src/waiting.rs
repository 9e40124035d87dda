//! Waiting without the interpreter, with signals handled during the wait.

use std::cell::RefCell;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use forebay_base::process::Home;
use pyo3::prelude::*;

use crate::hanging;

/// A value whose drop may wait for a drive or a GPU. When Python drops it, it is dropped without
/// the interpreter.
pub(crate) struct Apart<T: Send>(Option<T>);

impl<T: Send> Apart<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// The value, to be dropped by the caller.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T: Send> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("present until it is dropped")
    }
}

impl<T: Send> Drop for Apart<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        // If the interpreter is ending, the value is dropped without attaching.
        Python::try_attach(|py| py.detach(move || drop(value)));
    }
}

/// A file during a call. If it is closed meanwhile, the end of the call closes it, without the
/// interpreter.
pub(crate) struct InUse(Option<forebay::File>);

impl InUse {
    pub(crate) fn new(file: forebay::File) -> Self {
        Self(Some(file))
    }

    /// The file, to be dropped by the caller.
    pub(crate) fn into_inner(mut self) -> forebay::File {
        self.0.take().expect("present until it is dropped")
    }
}

impl Deref for InUse {
    type Target = forebay::File;

    fn deref(&self) -> &forebay::File {
        self.0.as_ref().expect("present until it is dropped")
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        drop(self.0.take().and_then(forebay::File::dispose).map(Apart::new));
    }
}

thread_local! {
    /// The process in which this was determined for the thread, and the answer.
    static HANDLES_SIGNALS: RefCell<Option<(Home, bool)>> = const { RefCell::new(None) };
}

/// Whether signal handlers run on this thread. Python runs them only on its main thread, which
/// after a fork is the one that forked.
fn handles_signals(py: Python<'_>) -> bool {
    let here = |(home, handles): &(Home, bool)| home.is_here().then_some(*handles);
    if let Some(known) = HANDLES_SIGNALS.with_borrow(|known| known.as_ref().and_then(here)) {
        return known;
    }
    let is_first = rustix::thread::gettid() == rustix::process::getpid();
    let is_main = || -> PyResult<bool> {
        let main = hanging::call_in(py, "threading", "main_thread", ())?.getattr("ident")?;
        main.eq(hanging::call_in(py, "threading", "get_ident", ())?)
    };
    // If it is unknown, check for signals, as the main thread does.
    let handles = is_first || is_main().unwrap_or(true);
    HANDLES_SIGNALS.set(Some((Home::here(), handles)));
    handles
}

/// Runs `step` without the interpreter. The step gets a function to call from time to time, which
/// returns false after a signal. The exception of the signal's handler is then raised here,
/// whatever the step returned. On threads without handlers the interpreter is not involved, since
/// it may be ending: CPython 3.11 crashes if a thread attaches then.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    step: impl FnOnce(&mut dyn FnMut() -> bool) -> T + Send,
) -> PyResult<T> {
    let checks = handles_signals(py);
    let (done, raised) = py.detach(|| {
        let mut raised = None;
        let done = step(&mut || {
            if !checks {
                return true;
            }
            raised = Python::attach(|py| py.check_signals().err());
            raised.is_none()
        });
        (done, raised)
    });
    match raised {
        Some(raised) => Err(raised),
        None => Ok(done),
    }
}

/// Bytes of text from which a parser has a thread of its own. Fewer take some milliseconds.
const LONG: usize = 1 << 20;

/// Time between two checks for signals.
const CHECKS_EVERY: Duration = Duration::from_millis(50);

/// Runs a parser of `len` bytes without the interpreter. After a signal, that of a long text is
/// left to end by itself.
pub(crate) fn parsed<T: Send + 'static>(
    py: Python<'_>,
    len: usize,
    parse: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    if len < LONG {
        return Ok(py.detach(parse));
    }
    let (sender, receiver) = sync_channel(1);
    let run = move || drop(sender.send(parse()));
    let thread = std::thread::Builder::new().name("forebay-parse".into()).spawn(run)?;
    let found = interruptible(py, move |go_on| {
        loop {
            match receiver.recv_timeout(CHECKS_EVERY) {
                Err(RecvTimeoutError::Timeout) if go_on() => {}
                ended => return ended.ok(),
            }
        }
    })?;
    Ok(found.unwrap_or_else(|| resume_unwind(thread.join().expect_err("it panicked"))))
}

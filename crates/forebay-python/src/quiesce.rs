//! The engine behind Python's object: running, or ended until the next call.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay::internal::DetachedFile;
use forebay::{File, Operation, Options, Quiesced};
use forebay_base::process::Home;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::failure::raised;

/// Pause between two attempts to end the engine.
const NAP: Duration = Duration::from_millis(5);

enum State {
    Running(forebay::Engine),
    /// A thread of this process ends it or makes another one.
    Changing(Home),
    /// The next call makes another one.
    Ended,
}

/// A file of Python.
pub(crate) enum Opened {
    File(File),
    /// The next call moves it to the running engine.
    Detached(DetachedFile),
    Closed,
}

/// An engine that can end and resume.
pub(crate) struct Resumable {
    pub(crate) options: Options,
    state: Mutex<State>,
    files: Mutex<Vec<Weak<Mutex<Opened>>>>,
}

/// The locks are held with the interpreter's lock only, for some instructions.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Resumable {
    pub(crate) fn new(engine: forebay::Engine) -> Self {
        let options = engine.options().clone();
        Self { options, state: Mutex::new(State::Running(engine)), files: Mutex::default() }
    }

    /// A handle of the running engine. If a thread ends it, waits for that and resumes it.
    pub(crate) fn live(&self, py: Python<'_>) -> PyResult<forebay::Engine> {
        loop {
            let mut state = lock(&self.state);
            match &*state {
                State::Running(engine) => return Ok(engine.clone()),
                State::Changing(home) if home.is_here() => {
                    drop(state);
                    py.detach(|| sleep(NAP));
                }
                State::Changing(_) | State::Ended => {
                    *state = State::Changing(Home::here());
                    drop(state);
                    let made = forebay::Engine::new(self.options.clone());
                    *lock(&self.state) =
                        made.as_ref().map_or(State::Ended, |engine| State::Running(engine.clone()));
                    return raised(py, made);
                }
            }
        }
    }

    /// A new file, which is detached while the engine has ended.
    pub(crate) fn keep(&self, file: File) -> Arc<Mutex<Opened>> {
        let file = Arc::new(Mutex::new(Opened::File(file)));
        let mut files = lock(&self.files);
        if files.len() == files.capacity() {
            files.retain(|file| file.strong_count() > 0);
        }
        files.push(Arc::downgrade(&file));
        file
    }

    /// Ends the engine once nothing uses it, at most after `bound`.
    pub(crate) fn quiesce(&self, py: Python<'_>, bound: Option<Duration>) -> PyResult<()> {
        let start = Instant::now();
        loop {
            let mut state = lock(&self.state);
            match mem::replace(&mut *state, State::Changing(Home::here())) {
                State::Running(engine) => {
                    drop(state);
                    let (next, end) = self.end(py, engine);
                    *lock(&self.state) = next;
                    if let Some(end) = end {
                        return end;
                    }
                }
                State::Changing(home) if home.is_here() => drop(state),
                State::Changing(_) | State::Ended => {
                    *state = State::Ended;
                    return Ok(());
                }
            }
            if bound.is_some_and(|bound| start.elapsed() >= bound) {
                return Err(PyTimeoutError::new_err(
                    "cannot quiesce the engine: it is in use; wait for transfers and drop them, \
                     close block stores and streams",
                ));
            }
            py.detach(|| sleep(NAP));
            py.check_signals()?;
        }
    }

    /// Ends the engine if nothing uses it. Returns the result unless something does.
    fn end(&self, py: Python<'_>, engine: forebay::Engine) -> (State, Option<PyResult<()>>) {
        if let Err(error) = raised(py, engine.check_process(Operation::Wait)) {
            return (State::Running(engine), Some(Err(error)));
        }
        let files = lock(&self.files);
        files.iter().filter_map(Weak::upgrade).for_each(|file| lock(&file).detach());
        drop(files);
        match py.detach(|| engine.quiesce(Duration::ZERO)) {
            Ok(Quiesced::InUse(engine)) => (State::Running(engine), None),
            Ok(Quiesced::Ended) => (State::Ended, Some(Ok(()))),
            Ok(Quiesced::Hangs) => {
                let why =
                    "cannot quiesce the engine: a thread waits for a drive, a server or a GPU";
                (State::Ended, Some(Err(PyTimeoutError::new_err(why))))
            }
            Err(error) => (State::Ended, Some(raised(py, Err(error)))),
        }
    }
}

impl Opened {
    /// Detaches it unless a call uses it.
    fn detach(&mut self) {
        *self = match mem::replace(self, Self::Closed) {
            Self::File(file) => file.detach().map_or_else(Self::File, Self::Detached),
            other => other,
        };
    }

    /// Attaches a detached file.
    pub(crate) fn attach(&mut self, engine: &forebay::Engine) {
        *self = match mem::replace(self, Self::Closed) {
            Self::Detached(file) => Self::File(engine.attach(file)),
            other => other,
        };
    }

    /// Closes it, and returns the last error of the file system.
    pub(crate) fn close(self) -> forebay::Result<()> {
        match self {
            Self::File(file) => file.close(),
            Self::Detached(file) => file.close(),
            Self::Closed => Ok(()),
        }
    }
}

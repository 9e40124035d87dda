//! Files that are registered within a time limit, and deregistered on another thread. The library
//! may take long for either, or hang.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::timeout::within;
use forebay_gpu::sim::SimulatedCuFile;
use rustix::io::Errno;

use super::{CuFileFailure, RegisteredFile, Session};

/// Maximum time for the driver to register a file.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Interval for checking whether it has deregistered files.
const LOOKS_EVERY: Duration = Duration::from_millis(1);

const NO_ANSWER: &str = "cuFile does not answer when it registers a file: its log may say why \
                         (`cufile.log`)";

/// A registered file; dropping it waits for nothing.
#[derive(Debug)]
pub struct BoundedFile {
    /// Present until it is dropped.
    file: Option<RegisteredFile>,
}

/// Why a file is not registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRegistered {
    /// The reason, as text for users.
    pub why: String,
    /// True if trying again is pointless.
    pub lasts: bool,
}

impl BoundedFile {
    /// Registers a file. `enters` runs its argument with the GPU's context current. With
    /// `simulated` the driver has this behavior, and this seed.
    ///
    /// # Errors
    /// The library refuses the file, or does not answer in time.
    pub fn register(
        session: &Arc<Session>,
        file: File,
        simulated: Option<(SimulatedCuFile, u64)>,
        enters: impl FnOnce(&mut dyn FnMut()) -> Result<(), String> + Send + 'static,
    ) -> Result<Self, NotRegistered> {
        let passes = |why: String| NotRegistered { why, lasts: false };
        let no_thread = |what, error: io::Error| {
            passes(format!("no thread can be started to {what}: {error}")) //
        };
        start_forgetter().map_err(|error| no_thread("deregister files", error))?;
        if session.is_silent() {
            return Err(passes(NO_ANSWER.into()));
        }
        let own = Arc::clone(session);
        let question = move || {
            wait_for_forgotten().inspect_err(|_| own.fall_silent())?;
            let mut file = Some(file);
            let mut registered = Err(CuFileFailure::Io(Errno::NODEV));
            let entered = enters(&mut || {
                let Some(file) = file.take() else { return };
                registered = match simulated {
                    Some(play) => own.register_simulated(file, play),
                    None => own.register(file),
                };
            });
            entered.and(registered.map_err(|failure| failure.in_words()))
        };
        let answer = within(ANSWERS_WITHIN, "forebay-cufile", question);
        let answer = answer.map_err(|error| no_thread("query cuFile", error))?;
        let answer = answer.ok_or_else(|| {
            session.fall_silent();
            passes(NO_ANSWER.into())
        })?;
        let file = Some(answer.map_err(|why| NotRegistered { why, lasts: true })?);
        Ok(Self { file })
    }
}

impl Deref for BoundedFile {
    type Target = RegisteredFile;

    fn deref(&self) -> &RegisteredFile {
        self.file.as_ref().expect("it is there until the drop")
    }
}

impl Drop for BoundedFile {
    fn drop(&mut self) {
        // A forked child has no such thread and must not call the library.
        let Some(file) = self.file.take().filter(|file| file.session.is_here()) else { return };
        let forgetter = FORGETTER.get().expect("started before a file was registered");
        WAITING.fetch_add(1, Ordering::Release);
        // If the thread has ended, the file stays registered: the library must not be called here.
        if let Err(SendError(file)) = forgetter.send(file) {
            std::mem::forget(file);
        }
    }
}

/// Sender to the thread that deregisters dropped files. They may be dropped under any lock.
static FORGETTER: OnceLock<Sender<RegisteredFile>> = OnceLock::new();

/// Number of files not deregistered yet. Each holds a descriptor.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Maximum number of them; beyond it no further file is registered.
const WAITING_MAX: usize = 256;

/// Starts the thread that deregisters files, once.
fn start_forgetter() -> io::Result<()> {
    if FORGETTER.get().is_none() {
        let (sender, files) = channel::<RegisteredFile>();
        let forgets = move || {
            for file in files {
                drop(file);
                WAITING.fetch_sub(1, Ordering::Release);
            }
        };
        thread::Builder::new().name("forebay-forget".into()).spawn(forgets)?;
        let _ = FORGETTER.set(sender); // if another thread was faster, this one's ends
    }
    Ok(())
}

/// Waits until enough files are deregistered to register another one, for at most the answer time.
fn wait_for_forgotten() -> Result<(), String> {
    let until = Instant::now() + ANSWERS_WITHIN;
    while WAITING.load(Ordering::Acquire) >= WAITING_MAX {
        if Instant::now() > until {
            return Err(NO_ANSWER.into());
        }
        thread::sleep(LOOKS_EVERY);
    }
    Ok(())
}

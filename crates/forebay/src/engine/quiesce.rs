//! Ending an engine before a snapshot, and files that move to the next engine.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::process::ProcessLocal;

use super::Engine;
use super::file::File;
use crate::error::{Operation, Result};
use crate::file::Handle;

/// Pause between two checks for other handles.
const NAP: Duration = Duration::from_millis(1);

/// The state of an engine after [`Engine::quiesce`].
#[derive(Debug)]
pub enum Quiesced {
    /// All rings are closed, all threads have ended, and its pinned memory is freed.
    Ended,
    /// Clones, files or transfers keep the engine running.
    InUse(Engine),
    /// The engine ended, but a thread still waits for a drive, a server or a GPU.
    Hangs,
}

/// An open file without an engine.
#[derive(Debug)]
pub struct DetachedFile(Arc<Handle>);

impl Engine {
    /// Ends the engine once this is its last handle, so that the process can be snapshotted. Waits
    /// at most `bound` for clones, files and transfers. [`Engine::new`] with the same
    /// [`options`](Self::options) resumes. Memory that the caller allocated stays.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn quiesce(mut self, bound: Duration) -> Result<Quiesced> {
        self.check_process(Operation::Wait)?;
        let start = Instant::now();
        loop {
            self.inner = match ProcessLocal::into_inner(self.inner) {
                Ok(inner) => {
                    let threads = inner.threads.clone();
                    drop(inner);
                    let ended = threads.have_ended();
                    return Ok(if ended { Quiesced::Ended } else { Quiesced::Hangs });
                }
                Err(shared) => shared,
            };
            if start.elapsed() >= bound {
                return Ok(Quiesced::InUse(self));
            }
            thread::sleep(NAP);
        }
    }

    /// Makes a detached file a file of this engine.
    #[must_use]
    pub fn attach(&self, file: DetachedFile) -> File {
        File::new(file.0, self.clone())
    }
}

impl DetachedFile {
    /// As [`File::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(self) -> Result<()> {
        if self.0.writable() { self.0.flush() } else { Ok(()) }
    }
}

impl File {
    /// Detaches the open file from its engine.
    ///
    /// # Errors
    /// The file itself while clones or transfers use it, and in a forked child.
    pub fn detach(mut self) -> std::result::Result<DetachedFile, Self> {
        if !self.engine.home().is_here() {
            return Err(self);
        }
        match Arc::try_unwrap(self.handle) {
            Ok(handle) => Ok(DetachedFile(Arc::new(handle.detached()))),
            Err(shared) => {
                self.handle = shared;
                Err(self)
            }
        }
    }

    /// Its engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

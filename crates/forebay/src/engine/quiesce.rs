//! Ending an engine before a snapshot, and files that move to the next engine.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::process::ProcessLocal;

use super::Engine;
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
pub struct DetachedFile(pub(crate) Arc<Handle>);

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

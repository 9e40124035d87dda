//! Closing a file so that its last error is reported.

use super::File;
use crate::error::Result;

impl File {
    /// Closes this handle of the file. If the file was opened for writing, errors that the file
    /// system reports at close are returned; a drop ignores them. Running transfers continue, and
    /// clones stay open.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): bytes written before may be lost, for example because of an
    /// NFS quota. The handle is closed in any case.
    pub fn close(self) -> Result<()> {
        let is_ours = self.engine.home().is_here();
        if is_ours && self.handle.writable() { self.handle.flush() } else { Ok(()) }
    }
}

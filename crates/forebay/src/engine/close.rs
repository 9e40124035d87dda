//! Closing a file so that its last error is seen.

use super::File;
use crate::error::Result;

impl File {
    /// Closes this handle of the file. Where the file was opened for writing, the file system is
    /// asked to report what it would at the end; a drop reports nothing. Transfers that are under
    /// way go on, and clones stay open.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): bytes written before may be lost, such as for a quota of
    /// NFS. The handle is closed all the same.
    pub fn close(self) -> Result<()> {
        let is_ours = self.engine.home().is_here();
        if is_ours && self.handle.writable() { self.handle.flush() } else { Ok(()) }
    }
}

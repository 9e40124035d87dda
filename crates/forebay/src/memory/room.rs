//! Whether the control groups of this process leave room for pinned memory.
//!
//! Its pages are touched when it is made, and beyond a group's limit the kernel ends the process
//! instead of refusing. So the limits are asked before, each time anew, since they change and
//! others use of them what they like.

use std::sync::MutexGuard;

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::topology::{MemoryLimit, System};
use crate::units::MIB;

/// What memory costs beside itself at most: tables of pages are a 512th of it where they are small,
/// and each processor takes a little from the group in advance.
const fn beside(len: u64) -> u64 {
    4 * MIB + len / 256
}

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Room {
    system: System,
    turn: Lock<()>,
}

impl Room {
    pub(crate) fn new(system: System) -> Self {
        Self { system, turn: Lock::default() }
    }

    /// Finds out whether there is room for `len` bytes, and for `spare` more that are left to
    /// others. Where there is a limit nobody else is told so until what comes back is dropped:
    /// after the bytes were touched.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`].
    pub(crate) fn enter(&self, len: u64, spare: u64) -> Result<Option<MutexGuard<'_, ()>>> {
        let turn = self.turn.lock();
        let Some(MemoryLimit { limit, available, file }) = self.system.memory_limit() else {
            return Ok(None);
        };
        let needed = len.saturating_add(spare).saturating_add(beside(len));
        if needed > available {
            return Err(Error::MemoryLimit { len, available, limit, file });
        }
        Ok(Some(turn))
    }
}

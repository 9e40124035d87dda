//! Checks that the process's control groups leave room for pinned memory.
//!
//! Pinned pages are touched when they are allocated, and beyond a group's limit the kernel kills
//! the process instead of refusing. So the limits are read before each allocation; they may change,
//! and other processes use memory too.

use forebay_base::lock::{Lock, MutexGuard};
use forebay_base::units::MIB;
use forebay_topology::{MemoryLimit, System};

use crate::error::{Error, Result};

/// Upper bound of the overhead for `len` bytes: page tables take 1/512 with small pages, and each
/// processor reserves a little from the group in advance.
const fn page_tables_of(len: u64) -> u64 {
    4 * MIB + len / 256
}

/// The turn of one allocation.
#[derive(Debug, Default)]
pub(crate) struct RoomTurn;

/// Checks for room, one allocation at a time.
#[derive(Debug)]
pub(crate) struct Room {
    system: System,
    turn: Lock<RoomTurn>,
}

impl Room {
    pub(crate) fn new(system: System) -> Self {
        Self { system, turn: Lock::default() }
    }

    /// Checks the room for `len` bytes plus `spare` bytes for other users. If there is a
    /// limit, no other thread gets an answer until the returned guard is dropped, which the caller
    /// does after touching the bytes.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if there is not enough room.
    pub(crate) fn enter(&self, len: u64, spare: u64) -> Result<Option<MutexGuard<'_, RoomTurn>>> {
        let turn = self.turn.lock();
        let Some(MemoryLimit { limit, available, file }) = self.system.memory_limit() else {
            return Ok(None);
        };
        let needed = len.saturating_add(spare).saturating_add(page_tables_of(len));
        if needed > available {
            return Err(Error::MemoryLimit { len, available, limit, file });
        }
        Ok(Some(turn))
    }
}

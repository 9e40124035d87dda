//! Allocates pinned memory where the control groups of the process leave room.
//!
//! Pinned pages are touched when they are allocated, and beyond a group's limit the kernel kills
//! the process instead of refusing. So the limits are read before each allocation; they may change,
//! and other processes use memory too.

use std::sync::Arc;

use forebay_base::lock::{Lock, MutexGuard};
use forebay_base::per_process::PerProcess;
use forebay_base::units::MIB;
use forebay_topology::{MemoryLimit, System};
use rustix::io::Errno;

use super::account::{Account, Purpose};
use super::host::HostMemory;
use super::node::Node;
use crate::error::{Error, Result};
use crate::gpu::Device;

/// Upper bound of the overhead for `len` bytes: page tables take 1/512 with small pages, and each
/// processor reserves a little from the group in advance.
const fn page_tables_of(len: u64) -> u64 {
    4 * MIB + len / 256
}

/// The turn of one allocation.
struct RoomTurn;

/// The turns of all engines of the process, whose limit is the same.
static TURN: PerProcess<Lock<RoomTurn>> = PerProcess::new();

/// Allocates memory, one piece at a time, and counts what it pins.
#[derive(Debug)]
pub(crate) struct Room {
    system: System,
    account: Arc<Account>,
}

impl Room {
    pub(crate) fn new(system: System, account: Arc<Account>) -> Self {
        Self { system, account }
    }

    /// The account of pinned memory.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Allocates `len` bytes if there is room for them and for `spare` bytes for other users, on a
    /// NUMA node if it has room. Also returns the kernel's error if placement was refused.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] and [`Error::HostMemory`].
    pub(crate) fn map(
        &self,
        len: u64,
        spare: u64,
        node: Option<&Node>,
    ) -> Result<(HostMemory, Option<Errno>)> {
        let bytes = usize::try_from(len);
        let bytes = bytes.map_err(|_| Error::HostMemory { len, source: Errno::NOMEM })?;
        let _turn = self.enter(len, spare)?;
        HostMemory::map_near(bytes, node)
    }

    /// Allocates `len` bytes as [`map`](Self::map) does, and pins them for `device`.
    ///
    /// # Errors
    /// As for `map` and [`Account::lease`], and those of the GPU.
    pub(crate) fn pin(
        &self,
        len: u64,
        purpose: Purpose,
        device: &Arc<dyn Device>,
    ) -> Result<HostMemory> {
        let lease = self.account.lease(len, purpose)?;
        let (mut memory, _) = self.map(len, 0, None)?;
        memory.register(device)?;
        Ok(memory.counted(lease))
    }

    /// Checks the room for `len` bytes plus `spare` bytes for other users. If there is a
    /// limit, no other thread gets an answer until the returned guard is dropped, which the caller
    /// does after touching the bytes.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if there is not enough room.
    fn enter(&self, len: u64, spare: u64) -> Result<Option<MutexGuard<'static, RoomTurn>>> {
        let turn = TURN.get_or_init(|| Lock::new(RoomTurn)).lock();
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

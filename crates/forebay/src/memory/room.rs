//! Allocates pinned memory within the limits of the process's control groups.
//!
//! Pinned pages are touched when they are allocated, and beyond a group's limit the kernel kills
//! the process instead of refusing. So the limits are read before every allocation; they may
//! change, and other processes use memory too.

use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_base::lock::{Lock, MutexGuard};
use forebay_base::per_process::PerProcess;
use forebay_base::units::MIB;
use forebay_topology::{MemoryLimit, System};
use rustix::io::Errno;

use super::account::{Account, Purpose};
use super::host::Node;
use super::host::{HostMemory, Lender};
use crate::error::{Error, Result, SystemError};
use crate::gpu::Device;

/// Upper bound of the overhead for `len` bytes: page tables need 1/512 with small pages, and every
/// processor reserves a little from the group in advance.
const fn page_tables_of(len: u64) -> u64 {
    4 * MIB + len / 256
}

/// The turn of an allocation.
struct RoomTurn;

/// The turns of all engines of the process, whose limit is the same.
static TURN: PerProcess<Lock<RoomTurn>> = PerProcess::new();

/// Polling interval for memory that running calls hold.
const NAP: Duration = Duration::from_millis(1);

/// Allocates memory, a piece at a time, and counts pinned memory. Calls lease pinned memory here
/// and return it by dropping it. It stays pinned for reuse until its bytes are needed.
#[derive(Debug)]
pub(crate) struct Room {
    system: System,
    account: Arc<Account>,
    /// Returned memory, the longest unused first.
    idle: Lock<VecDeque<HostMemory>>,
}

impl Lender for Room {
    fn take_back(&self, memory: HostMemory) {
        self.idle.lock().push_back(memory);
    }
}

impl Room {
    pub(crate) fn new(system: System, account: Arc<Account>) -> Arc<Self> {
        Arc::new(Self { system, account, idle: Lock::default() })
    }

    /// The account of pinned memory.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Allocates `len` bytes if the limits allow `spare` bytes more, on a NUMA node if it has free
    /// memory. Also returns the kernel's error if placement was refused.
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
        let bytes =
            bytes.map_err(|_| Error::HostMemory { len, source: SystemError::of(Errno::NOMEM) })?;
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
        let devices = slice::from_ref(device);
        self.pin_near(len, purpose, devices, (0, None)).map(|(memory, _)| memory)
    }

    /// Like [`pin`](Self::pin), for several GPUs, with the spare bytes and the node of `map`.
    pub(crate) fn pin_near(
        &self,
        len: u64,
        purpose: Purpose,
        devices: &[Arc<dyn Device>],
        (spare, node): (u64, Option<&Node>),
    ) -> Result<(HostMemory, Option<Errno>)> {
        loop {
            let pinned = self.account.lease(len, purpose).and_then(|lease| {
                let (memory, refusal) = self.map(len, spare, node)?;
                let mut memory = memory.counted(lease);
                devices.iter().try_for_each(|device| memory.register(device))?;
                Ok((memory, refusal))
            });
            let is_short = matches!(&pinned, Err(error) if error.is_want_of_memory());
            let idle = if is_short { self.idle.lock().pop_front() } else { None };
            if idle.is_none() {
                return pinned;
            }
        }
    }

    /// Borrows pinned memory of the first of `sizes` that the limit allows: memory that an earlier
    /// call returned, or new. While other calls hold some, it waits for them as long as `waits`
    /// returns true. A caller that waits must hold none.
    ///
    /// # Errors
    /// As for [`pin`](Self::pin), and those of `waits`.
    pub(crate) fn lend(
        self: &Arc<Self>,
        sizes: impl Iterator<Item = u64> + Clone,
        purpose: Purpose,
        devices: &[Arc<dyn Device>],
        waits: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<HostMemory> {
        loop {
            let mut refused = None;
            for len in sizes.clone() {
                let made = match self.returned(len, purpose, devices) {
                    Some(memory) => Ok(memory),
                    None => self.pin_near(len, purpose, devices, (0, None)).map(|(new, _)| new),
                };
                match made {
                    Err(error @ Error::PinnedLimit { .. }) => refused = Some(error),
                    made => return made.map(|memory| memory.lent_by(Arc::clone(self) as _)),
                }
            }
            match refused.expect("there is a size") {
                Error::PinnedLimit { lent: 1.., .. } if waits()? => thread::sleep(NAP),
                refused => return Err(refused),
            }
        }
    }

    /// Frees returned memory.
    pub(super) fn clear(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }

    /// Returned memory of this use, of `len` bytes or somewhat more.
    fn returned(
        &self,
        len: u64,
        purpose: Purpose,
        devices: &[Arc<dyn Device>],
    ) -> Option<HostMemory> {
        let fits = |memory: &HostMemory| {
            (len..=4 * len).contains(&(memory.len() as u64))
                && memory.purpose() == Some(purpose)
                && devices.iter().all(|device| memory.is_registered(&**device))
        };
        let mut idle = self.idle.lock();
        // What was used last may be in a cache.
        let found = idle.iter().rposition(fits)?;
        idle.remove(found)
    }

    /// Checks the limits for `len` bytes plus `spare` bytes for other users. Under a limit, threads
    /// check in turn: the caller drops the returned guard after touching the bytes.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if the limit does not allow it.
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

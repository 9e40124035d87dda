//! The scheduler's inputs and outputs: its limits, the work items that threads pop, and the side
//! effects that they run once they have released its lock.

use std::path::Path;
use std::sync::Arc;

use forebay_base::units::ByteRange;

use crate::error::Error;
use crate::file::Handle;
use crate::gpu::{DeviceError, DeviceId};
use crate::plan::{Alignment, Direction, Io, Layout, Reason};
use crate::queue::op::{Op, WindowKey};
use crate::queue::window::{Run, Slot};
use crate::transfer::{Batch, Gate, State};

/// A claimed window, which the claiming thread must plan.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) window: WindowKey,
    pub(crate) state: Arc<State>,
    pub(crate) file: Arc<Handle>,
    pub(crate) batch: Option<Arc<Batch>>,
    pub(crate) direction: Direction,
    pub(crate) range: ByteRange,
    pub(crate) base: u64,
    pub(crate) layout: Layout,
    pub(crate) alignment: Option<Alignment>,
    /// The data path of the part, for a write.
    pub(crate) how: (Io, Reason),
    /// True if it does not use host memory at all.
    pub(crate) is_direct: bool,
    /// True if it is the first or the last window of a transfer that is alone on its link.
    pub(crate) edge: bool,
    /// Block size of its drive, in bytes.
    pub(crate) block_size: u64,
    /// Number of threads that may fill it.
    pub(crate) readers: usize,
}

/// The next work item for the worker of a ring or of the pool.
#[derive(Debug)]
pub(crate) enum DriveWork {
    /// Run this op.
    Op(Op),
    /// Plan this window and call `Scheduler::opened`.
    Open(Claim),
}

/// The next work item for a reader.
#[derive(Debug)]
pub(crate) enum ReaderWork {
    /// Run this op.
    Op(Op),
    /// Plan this window and call `Scheduler::opened`.
    Open(Claim),
    /// Make more slots for this link and call `Scheduler::add_slots`.
    Grow(usize),
}

/// A copy between a slot and a GPU.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) window: WindowKey,
    pub(crate) direction: Direction,
    pub(crate) run: Run,
    /// Address in the slot.
    pub(crate) host: u64,
    /// Address on the GPU; a batch holds several addresses.
    pub(crate) device: u64,
    pub(crate) batch: Option<Arc<Batch>>,
}

/// Why a copy failed.
#[derive(Debug)]
pub(crate) struct CopyFailure {
    pub(crate) error: Error,
    /// The GPU and its error, if the GPU may still access the copy's memory.
    pub(crate) lost: Option<(DeviceId, DeviceError)>,
}

/// Side effects to run after the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// New work items for readers.
    pub(super) work: usize,
    /// Parked readers that were sent a wake-up.
    pub(crate) readers: usize,
    /// Rings that were sent a wake-up.
    pub(crate) rings: Vec<usize>,
    /// Parked pool workers that were sent a wake-up.
    pub(crate) pool: usize,
    /// Pool workers to be started.
    pub(crate) starts: usize,
    /// Links whose submitter was sent a wake-up.
    pub(crate) links: Vec<usize>,
    /// Slots that were leased or returned, if slots are traced.
    pub(crate) slots: Vec<SlotUse>,
    /// Gates at which a block is complete.
    pub(crate) gates: Vec<Arc<Gate>>,
    /// Files that refused a request with O_DIRECT, and why.
    pub(crate) refused: Vec<(Box<Path>, String)>,
    /// Transfers that ended.
    pub(crate) finished: Vec<(Arc<State>, Result<u64, Error>)>,
}

/// A slot that a window took for `range`, or gave back if there is no range.
#[derive(Debug)]
pub(crate) struct SlotUse {
    pub(crate) slot: Slot,
    pub(crate) range: Option<ByteRange>,
}

impl Drop for Effects {
    /// Ends the transfers that a panic kept from being ended.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (state, result) in self.finished.drain(..) {
                drop(state.finish(result));
            }
        }
    }
}

/// Limits that the scheduler enforces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) slot_size: u64,
    pub(crate) segment: u64,
    /// Maximum ops in flight on all drives together; a single op per drive is always allowed.
    pub(crate) in_flight: usize,
    /// Readers that may work for a link at a time.
    pub(crate) readers: usize,
    /// Readers that all links of the host may have together, those of other processes included.
    pub(crate) readers_of_host: usize,
    /// Bytes of the processor's last-level caches, which all links of the host share.
    pub(crate) cache: u64,
    /// Maximum number of pool threads.
    pub(crate) pool: usize,
    /// Maximum open windows of a transfer between the page cache and host memory.
    pub(crate) host_windows: u32,
}

//! The work items that threads take from the scheduler.

use std::sync::Arc;

use forebay_base::units::ByteRange;

use crate::error::Error;
use crate::file::Handle;
use crate::gpu::{DeviceError, DeviceId};
use crate::plan::{Alignment, Direction, Io, Layout, Reason};
use crate::queue::batch::Batch;
use crate::queue::op::{Op, WindowKey};
use crate::queue::window::Run;
use crate::transfer::State;

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
    pub(crate) is_peer: bool,
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
    /// Address on the GPU; a batch has several addresses.
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

//! Side effects of the scheduler, which threads run once they have released its lock.

use std::path::Path;
use std::sync::Arc;

use forebay_base::units::ByteRange;

use crate::error::Error;
use crate::queue::gate::Gate;
use crate::queue::window::Slot;
use crate::transfer::State;

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
    /// Slots that were taken or given back, if slots are traced.
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

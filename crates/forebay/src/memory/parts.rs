//! The memory of an arena: owned by the arena and by every ring, so that no part is unmapped
//! before the last ring is gone.

use super::HostMemory;
use crate::lock::Lock;

/// Parts of memory that stay mapped as long as the list.
#[derive(Debug, Default)]
pub(crate) struct Parts(Lock<Vec<HostMemory>>);

impl Parts {
    /// Adds a part, for good.
    pub(crate) fn add(&self, memory: HostMemory) {
        self.0.lock().push(memory);
    }

    /// Where each part begins, and its length.
    #[cfg(test)]
    pub(crate) fn places(&self) -> Vec<(u64, u64)> {
        self.0.lock().iter().map(|memory| (memory.address(), memory.len() as u64)).collect()
    }
}

//! An arena's memory blocks. The arena and every ring share ownership, so that no block is unmapped
//! before the last ring is dropped.

use forebay_base::lock::Lock;

use super::HostMemory;

/// Memory blocks that stay mapped as long as this list.
#[derive(Debug, Default)]
pub(crate) struct Parts(Lock<Vec<HostMemory>>);

impl Parts {
    /// Adds a block, which is never removed.
    pub(crate) fn add(&self, memory: HostMemory) {
        self.0.lock().push(memory);
    }

    /// Address and length of each block.
    #[cfg(test)]
    pub(crate) fn places(&self) -> Vec<(u64, u64)> {
        self.0.lock().iter().map(|memory| (memory.address(), memory.len() as u64)).collect()
    }
}

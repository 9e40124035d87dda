//! The blocks of an ordered transfer, their limits, and how it is carried out.

use std::sync::{Arc, OnceLock};

use forebay_base::units::{ByteRange, align_down};

use crate::error::Result;
use crate::events::Begin;
use crate::gpu::{Device, DeviceError};
use crate::options::RequestOptions;
use crate::plan::Direction;

/// Maximum number of blocks of a transfer. Each takes three entries of a stream's queue, which
/// holds 1,024 before a call blocks.
pub(super) const BLOCKS_MAX: u64 = 300;

/// Maximum number of queue entries of one transfer.
pub(super) const ENTRIES_MAX: u64 = 3 * BLOCKS_MAX;

/// Maximum pieces that one transfer copies in batches. The queue of a waiting stream took 406
/// batches of 64 and 52 of 512, some 26,000 copies, before a call blocked (H200, driver 580.159;
/// H200, 2026-11-21, `5d670fdb`).
pub(super) const PARTS_MAX: u64 = 22_000;

/// How an ordered transfer is carried out.
pub(super) struct Ordering<'a> {
    pub(super) device: &'a Arc<dyn Device>,
    pub(super) direction: Direction,
    pub(super) options: &'a RequestOptions,
    /// The blocks that its slots must hold.
    pub(super) blocks: Blocks,
    /// Its start event.
    pub(super) begin: Begin,
}

/// A range cut into blocks at multiples of a slot's length in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) range: ByteRange,
    /// Bytes of a block.
    pub(super) len: u64,
}

impl Blocks {
    /// Creates `count` blocks of `len` bytes each.
    pub(super) fn of(count: u64, len: u64) -> Self {
        Self { range: ByteRange { start: 0, end: count * len }, len }
    }

    pub(super) fn count(&self) -> u64 {
        let first = align_down(self.range.start, self.len);
        if self.range.is_empty() { 0 } else { (self.range.end - first).div_ceil(self.len) }
    }

    /// The part of the file in a block.
    pub(super) fn range_of(&self, index: u64) -> ByteRange {
        let start = align_down(self.range.start, self.len) + index * self.len;
        ByteRange::at(start, self.len).intersect(self.range)
    }
}

/// The result of queueing: set once all work is queued, or a call has failed.
pub(super) type Queued = OnceLock<Result<(), DeviceError>>;

/// A count of blocks in the GPU's format.
pub(super) fn number(count: u64) -> u32 {
    u32::try_from(count).expect("far fewer than that")
}

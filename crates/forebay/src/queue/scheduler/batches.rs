//! Handling of batches: an error affects only the item that it belongs to.

use std::sync::Arc;

use rustix::io::Errno;

use super::Scheduler;
use super::round_robin::QueueEnd;
use crate::error::Error;
use crate::plan::{Io, Reason, Segment};
use crate::queue::op::{Op, OpKind, Owner};

impl Scheduler {
    /// Fails an op's transfer or batch items with the kernel's error.
    pub(super) fn fail_op(&mut self, key: usize, op: &Op, source: Errno) {
        let (operation, place) = self.about(key, op);
        let error = match (op.kind, source) {
            (OpKind::DropStale, Errno::BUSY) => Error::StaleCache { place },
            _ => Error::Io { operation, place, source },
        };
        self.fail_one(key, op, error);
    }

    /// Fails the transfer of an op; for a batch, only the items that the op moves.
    pub(super) fn fail_one(&mut self, key: usize, op: &Op, error: Error) {
        match &self.transfers[key].request.batch {
            Some(batch) if matches!(op.kind, OpKind::Sync { .. }) => {
                batch.fail_sync(&op.file, error)
            }
            Some(batch) => batch.fail(op.segment.wanted, error),
            None => self.fail(key, error),
        }
    }

    /// Records that the file of an op ends at `position` of its transfer.
    pub(super) fn end_at(&mut self, key: usize, position: u64) {
        let active = &mut self.transfers[key];
        match &active.request.batch {
            Some(batch) => batch.ends_at(position),
            None => active.end = active.end.min(position),
        }
    }

    /// Splits an op of several stretches into one op each and queues them. These ops may block, and
    /// should do so concurrently.
    pub(super) fn requeue_each(&mut self, op: &Op) {
        let key = self.transfer_of(op);
        let (Some(batch), Owner::Piece(window, piece)) = (&op.batch, op.owner) else { return };
        if self.transfers[key].is_stopped() {
            return self.count_out(op);
        }
        self.count_bytes(key, op);
        for (part, address) in op.targets(batch) {
            let (file, shift) = batch.source_of(part.start);
            let segment = Segment::plain(part, Io::Buffered, Reason::HadToWait);
            self.windows[window].expect(piece);
            let one = Op::new(op.owner, Arc::clone(file), op.kind, segment, address);
            self.queue(key, Op { shift, ..one }, QueueEnd::Back);
        }
        self.count_out(op);
    }
}

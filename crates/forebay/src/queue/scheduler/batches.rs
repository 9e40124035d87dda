//! Handling of batches: an error affects only the item that it belongs to.

use std::sync::Arc;

use forebay_base::units::ByteRange;
use rustix::io::Errno;

use super::{Request, Scheduler};
use crate::error::{Error, Place};
use crate::file::Handle;
use crate::plan::{Alignment, Io, Reason, Segment};
use crate::queue::op::{Direction, Op, OpKind, Owner};

/// Maximum stretches of a window that is written. Each is a request, and all of them are queued in
/// one critical section.
const STRETCHES_MAX: usize = 512;

impl Request {
    /// The files that it writes, restricted to those on its drive.
    pub(super) fn files(&self) -> Vec<Arc<Handle>> {
        match &self.batch {
            Some(batch) => batch.files_on(self.drive),
            None => vec![Arc::clone(&self.file)],
        }
    }

    /// The file of the byte at `position`.
    pub(super) fn file_at(&self, position: u64) -> &Handle {
        self.batch.as_ref().map_or(&self.file, |batch| batch.source_of(position).0)
    }

    /// End of a window that begins at `cursor`. A read ends with its block. A write ends after a
    /// maximum number of stretches, since all of its requests are queued together.
    pub(super) fn end_of_window(&self, cursor: u64) -> u64 {
        let Some(batch) = &self.batch else { return u64::MAX };
        if self.direction == Direction::Read {
            return batch.gate().map_or(u64::MAX, |gate| gate.end_of_block(cursor));
        }
        let strip = batch.strip();
        let behind = strip.stretches().get(strip.stretch_at(cursor) + STRETCHES_MAX);
        behind.map_or(u64::MAX, |stretch| stretch.at.start)
    }

    /// The position up to which it may be read now.
    pub(super) fn limit(&self) -> u64 {
        let gate = self.batch.as_ref().and_then(|batch| batch.gate());
        gate.map_or(u64::MAX, |gate| gate.limit())
    }

    /// The place of its bytes, for an error message.
    pub(super) fn place(&self) -> Place {
        self.place_of(self.range)
    }

    /// The error of a read that met the end of the file after `got` bytes.
    pub(super) fn early_end(&self, got: u64) -> Error {
        if self.is_sized && self.end == self.range.end {
            return Error::FileChanged { place: self.place(), got };
        }
        Error::EndOfFile { place: self.place(), got }
    }

    /// The place of a part of its bytes, for an error message.
    pub(super) fn place_of(&self, range: ByteRange) -> Place {
        match &self.batch {
            Some(batch) => batch.place(range),
            None => self.file.place(range.start, range.len()),
        }
    }

    /// The alignment that O_DIRECT requires for an op's file.
    pub(super) fn alignment_of(&self, op: &Op) -> Option<Alignment> {
        match &self.batch {
            Some(batch) if op.is_direct() => batch.alignment_at(op.segment.wanted.start),
            Some(_) => None,
            None => self.alignment,
        }
    }

    /// Number of bytes in a range that the caller wants.
    pub(super) fn wanted_in(&self, range: ByteRange) -> u64 {
        self.batch.as_ref().map_or(range.len(), |batch| batch.strip().wanted_in(range))
    }
}

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
        if self.transfers[key].stopped {
            return self.count_out(op);
        }
        self.count_bytes(key, op);
        for (part, address) in batch.targets(op) {
            let (file, shift) = batch.source_of(part.start);
            let (io, reason, bounce) = (Io::Buffered, Reason::HadToWait, false);
            self.windows[window].expect(piece);
            let one = Op {
                file: Arc::clone(file),
                shift,
                batch: None,
                port: None,
                segment: Segment { wanted: part, covered: part, io, reason, bounce },
                address,
                moved: 0,
                empty: 0,
                again: 0,
                counted: None,
                touch: None,
                ..*op
            };
            self.queue(key, one);
        }
        self.count_out(op);
    }
}

//! A transfer as the scheduler gets it, and the parts of it on other drives.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::turns::Priority;
use crate::error::{Error, Place};
use crate::file::{Handle, Port};
use crate::plan::{Alignment, Direction, Io, Reason, Route, Strip};
use crate::queue::batch::Batch;
use crate::queue::op::Op;
use crate::transfer::{State, SyncMode};

/// Maximum stretches of a window that is written. Each is a request, and all of them are queued in
/// one critical section.
const STRETCHES_MAX: usize = 512;

/// Everything that the scheduler must know to move one transfer.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) state: Arc<State>,
    /// The file; for a batch, its first file.
    pub(crate) file: Arc<Handle>,
    /// Set if the transfer moves bytes of a strip, not of a single file.
    pub(crate) batch: Option<Arc<Batch>>,
    pub(crate) direction: Direction,
    pub(crate) range: ByteRange,
    /// Offset at which a read will meet the end of the file; otherwise the end of the range.
    pub(crate) end: u64,
    /// True if the file was known to extend to `end`.
    pub(crate) is_sized: bool,
    /// Host or GPU address of the byte at `range.start`.
    pub(crate) address: u64,
    /// The GPU's link. `None` if no slot is used: for host memory and for a peer.
    pub(crate) link: Option<usize>,
    /// The direct path between the drive and a GPU, if there is one. Other shares do not use it.
    pub(crate) peer: Option<Peer>,
    pub(crate) drive: usize,
    /// Parts to move, in order. A part of a write starts when all parts before it are done.
    pub(crate) parts: VecDeque<(ByteRange, Io, Reason)>,
    /// Shares of the transfer on other drives.
    pub(crate) shares: Vec<Share>,
    pub(crate) alignment: Option<Alignment>,
    /// True if the first byte is expected to come from the drive, as far as is known before
    /// planning.
    pub(crate) cold: bool,
    pub(crate) exact: bool,
    pub(crate) sync: SyncMode,
    pub(crate) priority: Priority,
}

/// A direct path between a drive and a GPU, and the staged path for what it does not take.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) port: Arc<dyn Port>,
    /// The link of the GPU, for staged bytes.
    pub(crate) link: usize,
    /// The alignment that O_DIRECT requires for staged bytes, if the file takes O_DIRECT.
    pub(crate) alignment: Option<Alignment>,
}

/// The part of a transfer that one drive moves.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) drive: usize,
    /// Parts to move, in file order.
    pub(crate) parts: VecDeque<(ByteRange, Io, Reason)>,
}

impl Share {
    /// Splits a strip into one share per drive. `how` returns the drive and data path of a source;
    /// adjacent stretches with the same result are merged. Sources of one drive must be adjacent in
    /// the strip.
    pub(crate) fn of_strip(strip: &Strip, how: impl Fn(usize) -> (usize, Io, Reason)) -> Vec<Self> {
        let mut shares: Vec<Self> = Vec::new();
        let mut last = None;
        for stretch in strip.stretches() {
            let this = how(stretch.source);
            let (drive, io, reason) = this;
            let part = (stretch.at, io, reason);
            match shares.last_mut() {
                Some(share) if last == Some(this) => {
                    share.parts.back_mut().expect("none is empty").0.end = stretch.at.end;
                }
                Some(share) if share.drive == drive => share.parts.push_back(part),
                _ => shares.push(Self { drive, parts: [part].into() }),
            }
            last = Some(this);
        }
        shares
    }
}

impl Share {
    /// An empty share for each of `drives` that has none.
    pub(crate) fn of_nothing(shares: &[Self], drives: impl Iterator<Item = usize>) -> Vec<Self> {
        let mut missing: Vec<usize> =
            drives.filter(|drive| shares.iter().all(|share| share.drive != *drive)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing.into_iter().map(|drive| Self { drive, parts: VecDeque::new() }).collect()
    }
}

impl Request {
    /// The route of bytes that move between a file, by `io`, and the memory.
    pub(super) fn route(&self, io: Io) -> Route {
        if self.peer.is_some() { Route::Direct } else { io.route(self.link.is_some()) }
    }

    /// A request for another share of the transfer: the same fields on another drive, never a peer.
    pub(super) fn share_on(&self, drive: usize, parts: VecDeque<(ByteRange, Io, Reason)>) -> Self {
        let mut share = Self { drive, parts, ..self.clone() };
        if let Some(Peer { link, alignment, .. }) = share.peer.take() {
            (share.link, share.alignment) = (Some(link), alignment);
        }
        share
    }

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
            Some(batch) if op.is_o_direct() => batch.alignment_at(op.segment.wanted.start),
            Some(_) => None,
            None => self.alignment,
        }
    }

    /// Number of bytes in a range that the caller wants.
    pub(super) fn wanted_in(&self, range: ByteRange) -> u64 {
        self.batch.as_ref().map_or(range.len(), |batch| batch.strip().wanted_in(range))
    }
}

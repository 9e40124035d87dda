//! A transfer as the scheduler gets it, and a share of it: its progress, its windows, and its
//! queued ops.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::round_robin::{Entry, Listed};
use crate::error::{Error, Place};
use crate::file::Handle;
use crate::gpu::Port;
use crate::options::Priority;
use crate::plan::{Alignment, Direction, Io, Reason, Route, Strip};
use crate::queue::op::{Executor, Op, WindowKey};
use crate::queue::window::Slot;
use crate::transfer::{Batch, State, SyncMode};

/// Maximum stretches of a window that is written. Every stretch is a request, and all are queued in
/// a single critical section.
const STRETCHES_MAX: usize = 512;

/// Everything that the scheduler must know to move a transfer.
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
    /// The GPU's link. `None` if no slot is used: for host memory and on the direct route.
    pub(crate) link: Option<usize>,
    /// The direct path between the drive and a GPU, if the share uses it.
    pub(crate) direct: Option<DirectPath>,
    pub(crate) drive: usize,
    /// Parts to move, in order. A part of a write starts when all parts before it are done.
    pub(crate) parts: VecDeque<(ByteRange, Io, Reason)>,
    /// Shares of the transfer on other drives.
    pub(crate) shares: Vec<Share>,
    pub(crate) alignment: Option<Alignment>,
    /// True if the first byte is expected to be read from the drive, as far as is known before
    /// planning.
    pub(crate) cold: bool,
    pub(crate) exact: bool,
    pub(crate) sync: SyncMode,
    pub(crate) priority: Priority,
}

/// A direct path between a drive and a GPU, and the staged path for the bytes that it refuses.
#[derive(Debug, Clone)]
pub(crate) struct DirectPath {
    pub(crate) port: Arc<dyn Port>,
    /// The link of the GPU, for staged bytes.
    pub(crate) link: usize,
    /// The alignment that O_DIRECT requires for staged bytes, if the file allows O_DIRECT.
    pub(crate) alignment: Option<Alignment>,
}

/// The part of a transfer that a single drive moves.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) drive: usize,
    /// Parts to move, in file order.
    pub(crate) parts: VecDeque<(ByteRange, Io, Reason)>,
}

impl Share {
    /// Splits a strip into shares, by drive. `how` returns the drive and data path of a source;
    /// adjacent stretches with the same result are merged. Sources of a drive must be adjacent in
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

    /// An empty share for every drive of `drives` without a share.
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
        if self.direct.is_some() { Route::Direct } else { io.route(self.link.is_some()) }
    }

    /// A request for another share of the transfer: the same fields on a different drive, never
    /// direct.
    pub(super) fn share_on(&self, drive: usize, parts: VecDeque<(ByteRange, Io, Reason)>) -> Self {
        let mut share = Self { drive, parts, ..self.clone() };
        if let Some(DirectPath { link, alignment, .. }) = share.direct.take() {
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
        self.batch.as_ref().and_then(|batch| batch.gate()).map_or(u64::MAX, |gate| gate.limit())
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

/// A share in progress.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) request: Request,
    /// Unlike its key, never reused.
    pub(super) serial: u64,
    /// The next share of the transfer in a circular list; its own key if it is the only share.
    pub(super) next: usize,
    pub(super) phase: Phase,
    /// Next byte of the first part that is not in a window yet.
    pub(super) cursor: u64,
    /// Count of open windows and of ops of the whole share, the open windows, and whether any
    /// window was opened so far.
    pub(super) open: u32,
    pub(super) windows: Vec<WindowKey>,
    pub(super) has_opened: bool,
    /// True if the caller opens windows itself although readers could.
    pub(super) insists: bool,
    /// The part of a write that bypasses the page cache.
    pub(super) o_direct: Option<ByteRange>,
    /// Offset at which a read found the end of the file, if before the end of the range.
    pub(super) end: u64,
    /// The list in which it waits to open its next window.
    pub(super) listed: Listed,
    /// The queue that the last window used. The threads that serve it limit the transfer's speed.
    pub(super) pace: Executor,
    /// Offset up to which an attempt found no resident pages.
    pub(super) tried: u64,
    /// Start of its last wait for a slot.
    pub(super) waits_since_ns: u64,
    /// The slot for its next window, if it waited for a slot.
    pub(super) slot: Option<Slot>,
    /// Ops that its next window promised to its drive.
    pub(super) promised: usize,
    /// Writes that wait for their turn at a file, by ticket.
    pub(super) writes_waiting: BTreeMap<u64, (u64, u64)>,
    /// Number of its last copy; zero before the first.
    pub(super) copied: u64,
    /// Bytes of a read that are not copied to its link yet.
    pub(super) left: u64,
    /// Ops for the drive's ring.
    pub(super) for_ring: Queue,
    /// Ops for the drive's pool: they use the page cache but may wait for the drive.
    pub(super) for_pool: Queue,
    /// Ops for the readers: they never wait for a drive.
    pub(super) for_readers: Queue,
}

/// What a share does now.
#[derive(Debug)]
pub(super) enum Phase {
    /// It opens windows, and moves their bytes.
    Moving,
    /// Stale pages of the part of a write that bypassed the page cache are dropped. Bytes that the
    /// direct path refused may still be added and moved.
    DroppingStale,
    /// Its files are synced.
    Syncing,
    /// It failed or was cancelled: nothing new starts, and ops in flight end.
    Stopped(Error),
}

/// Pending ops of a transfer.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) ops: VecDeque<Op>,
    /// True if the transfer is in the round robin; it is never there twice.
    pub(super) is_queued: bool,
}

impl Active {
    /// A share without siblings, to be kept under `key`.
    pub(super) fn new(request: Request, key: usize, serial: u64, pace: Executor) -> Self {
        let first = request.parts.front();
        let writes = request.direction == Direction::Write;
        let bytes = request.parts.iter().map(|part| part.0.len()).sum();
        let o_direct = request.parts.iter().find(|part| writes && part.1 == Io::ODirect);
        Self {
            serial,
            next: key,
            phase: Phase::Moving,
            cursor: first.map_or(request.range.start, |part| part.0.start),
            open: 0,
            windows: Vec::new(),
            has_opened: false,
            insists: false,
            o_direct: o_direct.map(|part| part.0),
            end: request.end,
            listed: Listed::Nowhere,
            pace,
            tried: 0,
            waits_since_ns: 0,
            slot: None,
            promised: 0,
            writes_waiting: BTreeMap::new(),
            copied: 0,
            left: if writes || request.link.is_none() { 0 } else { bytes },
            for_ring: Queue::default(),
            for_pool: Queue::default(),
            for_readers: Queue::default(),
            request,
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.phase, Phase::Stopped(_))
    }

    /// Stops it unless it stopped already, whose error then stays. True if it stops now.
    pub(super) fn stop(&mut self, error: Error) -> bool {
        let stops = !self.is_stopped();
        if stops {
            self.phase = Phase::Stopped(error);
        }
        stops
    }

    /// Stops it because memory is lost, which replaces any other error. True if it stops now.
    pub(super) fn stop_for_loss(&mut self, error: &Error) -> bool {
        let stops = !self.is_stopped();
        if !matches!(self.phase, Phase::Stopped(Error::CopyNotOver { .. })) {
            self.phase = Phase::Stopped(error.clone());
        }
        stops
    }

    /// True if it is in a list to open its next window.
    pub(super) fn is_listed(&self) -> bool {
        self.listed != Listed::Nowhere
    }

    /// True if its gate allows no more reads.
    pub(super) fn is_shut(&self) -> bool {
        self.cursor >= self.request.limit()
    }

    /// True if the drive's ring opens the next window. Writes are copied from the GPU before the
    /// ring gets their ops, so their windows are opened ahead.
    pub(super) fn is_ring_to_open(&self) -> bool {
        self.pace == Executor::Ring && self.request.direction == Direction::Read
    }

    pub(super) fn queue(&mut self, executor: Executor) -> &mut Queue {
        match executor {
            Executor::Ring => &mut self.for_ring,
            Executor::Pool => &mut self.for_pool,
            Executor::Readers => &mut self.for_readers,
        }
    }

    /// Returns a new entry for the round robin, unless the transfer is in it. A transfer without
    /// ops, and without a window for the ring to open, needs none.
    pub(super) fn entry(&mut self, key: usize, executor: Executor) -> Option<Entry> {
        let entry = Entry { key, serial: self.serial, priority: self.request.priority };
        let opens = self.listed == Listed::Ring && executor == Executor::Ring;
        let queue = self.queue(executor);
        let takes = !queue.is_queued && (opens || !queue.ops.is_empty());
        queue.is_queued |= takes;
        takes.then_some(entry)
    }

    /// Begins the next phase, once nothing is in flight and nothing remains to move. False if there
    /// is none.
    pub(super) fn begin_next_phase(&mut self) -> bool {
        let syncs = self.request.sync != SyncMode::None;
        self.phase = match (&self.phase, self.o_direct) {
            (Phase::Moving, Some(_)) => Phase::DroppingStale,
            (Phase::Moving | Phase::DroppingStale, _) if syncs => Phase::Syncing,
            _ => return false,
        };
        true
    }
}

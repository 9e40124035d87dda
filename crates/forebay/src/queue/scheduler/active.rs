//! One share of a transfer: how far it has come, its windows, and its queued ops.

use std::collections::{BTreeMap, VecDeque};

use forebay_base::units::ByteRange;

use super::request::Request;
use super::turns::{Listed, Turn};
use crate::error::Error;
use crate::plan::{Direction, Io};
use crate::queue::op::{Line, Op, WindowKey};
use crate::queue::window::Slot;
use crate::transfer::SyncMode;

/// A share that has not ended.
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
    pub(super) around: Option<ByteRange>,
    /// Offset at which a read found the end of the file, if before the end of the range.
    pub(super) end: u64,
    /// The list in which it waits to open its next window.
    pub(super) listed: Listed,
    /// The queue that the last window used. The threads that serve it limit the transfer's speed.
    pub(super) pace: Line,
    /// Offset up to which an attempt found no resident pages.
    pub(super) tried: u64,
    /// Time at which it began to wait for a slot, also after the wait has ended.
    pub(super) waits_since_ns: u64,
    /// The slot for its next window, if it has waited for one.
    pub(super) slot: Option<Slot>,
    /// Ops that its next window has promised to its drive.
    pub(super) promised: usize,
    /// Writes that wait for their turn at a file, by ticket.
    pub(super) writes_waiting: BTreeMap<u64, (u64, u64)>,
    /// Number of its last copy; zero before the first.
    pub(super) copied: u64,
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
    /// It has failed or was cancelled: nothing new starts, and ops in flight end.
    Stopped(Error),
}

/// Pending ops of one transfer.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) ops: VecDeque<Op>,
    /// True if the transfer has an entry in the turn order; it never has two.
    pub(super) in_turn: bool,
}

impl Active {
    /// A share without siblings, to be kept under `key`.
    pub(super) fn new(request: Request, key: usize, serial: u64, pace: Line) -> Self {
        let first = request.parts.front();
        let writes = request.direction == Direction::Write;
        let around = request.parts.iter().find(|part| writes && part.1 == Io::ODirect);
        Self {
            serial,
            next: key,
            phase: Phase::Moving,
            cursor: first.map_or(request.range.start, |part| part.0.start),
            open: 0,
            windows: Vec::new(),
            has_opened: false,
            insists: false,
            around: around.map(|part| part.0),
            end: request.end,
            listed: Listed::Nowhere,
            pace,
            tried: 0,
            waits_since_ns: 0,
            slot: None,
            promised: 0,
            writes_waiting: BTreeMap::new(),
            copied: 0,
            for_ring: Queue::default(),
            for_pool: Queue::default(),
            for_readers: Queue::default(),
            request,
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.phase, Phase::Stopped(_))
    }

    /// Stops it unless it has stopped already, whose error then stays. True if it stops now.
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
        self.pace == Line::Ring && self.request.direction == Direction::Read
    }

    pub(super) fn queue(&mut self, line: Line) -> &mut Queue {
        match line {
            Line::Ring => &mut self.for_ring,
            Line::Pool => &mut self.for_pool,
            Line::Readers => &mut self.for_readers,
        }
    }

    /// Returns a new entry in the turn order, unless the transfer has one. A transfer without ops,
    /// and without a window for the ring to open, needs none.
    pub(super) fn turn(&mut self, key: usize, line: Line) -> Option<Turn> {
        let turn = Turn { key, serial: self.serial, priority: self.request.priority };
        let opens = self.listed == Listed::Ring && line == Line::Ring;
        let queue = self.queue(line);
        let takes = !queue.in_turn && (opens || !queue.ops.is_empty());
        queue.in_turn |= takes;
        takes.then_some(turn)
    }

    /// Begins the next phase, once nothing is in flight and nothing is left to move. False if there
    /// is none.
    pub(super) fn begin_next_phase(&mut self) -> bool {
        let syncs = self.request.sync != SyncMode::None;
        self.phase = match (&self.phase, self.around) {
            (Phase::Moving, Some(_)) => Phase::DroppingStale,
            (Phase::Moving | Phase::DroppingStale, _) if syncs => Phase::Syncing,
            _ => return false,
        };
        true
    }
}

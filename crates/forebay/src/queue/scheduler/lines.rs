//! Queues of pending ops: each transfer has its own, and transfers take turns.

use super::Scheduler;
use super::turns::{Turn, Turns};
use super::work::DriveWork;
use crate::queue::op::{Line, Op, RunBy};

impl Scheduler {
    /// Appends an op to its transfer's queue.
    pub(super) fn push_op(&mut self, key: usize, line: Line, op: Op) {
        let active = &mut self.transfers[key];
        active.queue(line).ops.push_back(op);
        let turn = active.turn(key, line);
        let (turns, queued) = self.turns_of(key, line);
        *queued += 1;
        turn.into_iter().for_each(|turn| turns.push(turn));
        if let Some(drive) = self.needs_place(key, line) {
            self.pool.line.push_back(drive);
        }
    }

    /// The drive of a transfer with a pool op, if the drive is not queued for the pool yet.
    fn needs_place(&mut self, key: usize, line: Line) -> Option<usize> {
        let drive = self.transfers[key].request.drive;
        let needs = line == Line::Pool && !std::mem::replace(&mut self.drives[drive].in_line, true);
        needs.then_some(drive)
    }

    /// Puts an op first in its transfer's queue, and the transfer first in its turn order if it is
    /// not in it already.
    pub(super) fn push_op_first(&mut self, key: usize, line: Line, op: Op) {
        let active = &mut self.transfers[key];
        active.queue(line).ops.push_front(op);
        let turn = active.turn(key, line);
        let (turns, queued) = self.turns_of(key, line);
        *queued += 1;
        turn.into_iter().for_each(|turn| turns.push_first(turn));
        if let Some(drive) = self.needs_place(key, line) {
            self.pool.line.push_front(drive);
        }
    }

    /// Takes the next op for a drive's ring, or the next window for the ring to open. Does not
    /// check whether the drive may have one more op in flight.
    pub(super) fn pop_for_ring(&mut self, drive: usize) -> Option<DriveWork> {
        loop {
            let turn = self.drives[drive].ring_turns.pop()?;
            if let Some(op) = self.pop_op(turn, Line::Ring) {
                return Some(DriveWork::Op(op));
            }
            if let Some(claim) = self.claim_in_turn(turn) {
                return Some(DriveWork::Open(claim));
            }
        }
    }

    /// Takes the next pool op of a drive. Does not check whether it may have one more in flight.
    pub(super) fn pop_for_pool(&mut self, drive: usize) -> Option<Op> {
        loop {
            let turn = self.drives[drive].pool_turns.pop()?;
            if let Some(op) = self.pop_op(turn, Line::Pool) {
                return Some(op);
            }
        }
    }

    /// Takes the next op for a reader.
    pub(super) fn pop_for_reader(&mut self) -> Option<Op> {
        loop {
            let turn = self.readers.turns.pop()?;
            if let Some(op) = self.pop_op(turn, Line::Readers) {
                return Some(op);
            }
        }
    }

    /// Takes the next op of the transfer that is in turn. `None` if the transfer has ended, or if
    /// its ops were taken already.
    fn pop_op(&mut self, turn: Turn, line: Line) -> Option<Op> {
        let active = self.transfers.get_mut(turn.key).filter(|a| a.serial == turn.serial)?;
        let queue = active.queue(line);
        queue.in_turn = false;
        let op = queue.ops.pop_front()?;
        let next = active.turn(turn.key, line);
        let (turns, queued) = self.turns_of(turn.key, line);
        *queued -= 1;
        next.into_iter().for_each(|turn| turns.push(turn));
        Some(op)
    }

    /// Takes an op of one transfer that its caller can run itself, regardless of the turn order. An
    /// op that waits for a drive counts as in flight there, so the drive must have room for it.
    pub(super) fn pop_of(&mut self, key: usize) -> Option<Op> {
        let active = self.transfers.get_mut(key)?;
        if let Some(op) = active.for_readers.ops.pop_front() {
            self.readers.queued -= 1;
            return Some(op);
        }
        let drive = active.request.drive;
        let spared = active.request.state.is_caller_spared();
        if spared || active.for_pool.ops.is_empty() || !self.drives.has_room(drive, RunBy::Caller) {
            return None;
        }
        let op = self.transfers[key].for_pool.ops.pop_front()?;
        self.drives[drive].queued -= 1;
        self.open_for(drive);
        Some(op)
    }

    /// Removes all ops from a transfer's queues.
    pub(super) fn drain_ops(&mut self, key: usize) -> Vec<Op> {
        let mut all = Vec::new();
        for line in [Line::Ring, Line::Pool, Line::Readers] {
            let ops = std::mem::take(&mut self.transfers[key].queue(line).ops);
            *self.turns_of(key, line).1 -= ops.len();
            all.extend(ops);
        }
        all
    }

    fn turns_of(&mut self, key: usize, line: Line) -> (&mut Turns, &mut usize) {
        match line {
            Line::Readers => (&mut self.readers.turns, &mut self.readers.queued),
            _ => {
                let drive = &mut self.drives[self.transfers[key].request.drive];
                let direct = line == Line::Ring;
                let turns = if direct { &mut drive.ring_turns } else { &mut drive.pool_turns };
                (turns, &mut drive.queued)
            }
        }
    }
}

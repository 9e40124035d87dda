//! The lines of ops that wait: each transfer has its own, and they take turns.

use super::turns::{Turn, Turns};
use super::{Active, Queue, Scheduler};
use crate::queue::op::Op;

/// Which of a transfer's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// To its drive's ring.
    Direct,
    /// To the readers.
    Cached,
}

impl Active {
    fn queue(&mut self, line: Line) -> &mut Queue {
        match line {
            Line::Direct => &mut self.direct,
            Line::Cached => &mut self.cached,
        }
    }

    /// Takes its turn, unless it has it; a transfer without ops needs none.
    fn turn(&mut self, key: usize, line: Line) -> Option<Turn> {
        let turn = Turn { key, serial: self.serial, priority: self.request.priority };
        let queue = self.queue(line);
        let takes = !queue.in_turn && !queue.ops.is_empty();
        queue.in_turn |= takes;
        takes.then_some(turn)
    }
}

impl Scheduler {
    /// Puts an op last in its transfer's line.
    pub(super) fn push_op(&mut self, key: usize, line: Line, op: Op) {
        let active = &mut self.transfers[key];
        active.queue(line).ops.push_back(op);
        let turn = active.turn(key, line);
        let (turns, queued) = self.turns_of(key, line);
        *queued += 1;
        turn.into_iter().for_each(|turn| turns.push(turn));
    }

    /// Puts an op first in its transfer's line, and the transfer first among its like if it is not
    /// in line already.
    pub(super) fn push_op_first(&mut self, key: usize, line: Line, op: Op) {
        let active = &mut self.transfers[key];
        active.queue(line).ops.push_front(op);
        let turn = active.turn(key, line);
        let (turns, queued) = self.turns_of(key, line);
        *queued += 1;
        turn.into_iter().for_each(|turn| turns.push_first(turn));
    }

    /// The next op for a drive's ring.
    pub(super) fn pop_direct(&mut self, drive: usize) -> Option<Op> {
        loop {
            let turn = self.drives[drive].turns.pop()?;
            if let Some(op) = self.pop_op(turn, Line::Direct) {
                return Some(op);
            }
        }
    }

    /// The next op for a reader.
    pub(super) fn pop_cached(&mut self) -> Option<Op> {
        loop {
            let turn = self.turns.pop()?;
            if let Some(op) = self.pop_op(turn, Line::Cached) {
                return Some(op);
            }
        }
    }

    /// The next op of the transfer whose turn it is; none where that has ended, or where others
    /// have taken its ops.
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

    /// The next op of one transfer through the page cache, whosever turn it is.
    pub(super) fn pop_cached_of(&mut self, key: usize) -> Option<Op> {
        let op = self.transfers.get_mut(key)?.cached.ops.pop_front()?;
        self.queued -= 1;
        Some(op)
    }

    /// Takes all ops out of a transfer's lines.
    pub(super) fn drain_ops(&mut self, key: usize) -> Vec<Op> {
        let mut all = Vec::new();
        for line in [Line::Direct, Line::Cached] {
            let ops = std::mem::take(&mut self.transfers[key].queue(line).ops);
            *self.turns_of(key, line).1 -= ops.len();
            all.extend(ops);
        }
        all
    }

    fn turns_of(&mut self, key: usize, line: Line) -> (&mut Turns, &mut usize) {
        match line {
            Line::Direct => {
                let drive = &mut self.drives[self.transfers[key].request.drive];
                (&mut drive.turns, &mut drive.queued)
            }
            Line::Cached => (&mut self.turns, &mut self.queued),
        }
    }
}
